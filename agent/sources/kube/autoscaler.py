"""Other nodes' provider IDs and the cluster-autoscaler's status.

They are requested rarely, if this node's registration is incomplete.
"""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

from agent.checks.cluster.registration import evidence_of_cloud, evidence_of_node
from agent.model.registration import Autoscaler, Registration
from agent.model.settings import Expected
from agent.model.snapshot import Known, Node, NotRequested, Reading, Snapshot
from agent.model.text import truncate
from agent.sources.kube.cached_request import CachedRequest, Get, OpenSession
from agent.sources.kube.errors import FORBIDDEN, NOT_FOUND, UNAUTHORIZED, ApiError
from agent.sources.kube.node_object import NODES_PATH
from agent.sources.source import Source
from agent.sources.source_error import SourceError

_STATUS: Final = "/api/v1/namespaces/kube-system/configmaps/cluster-autoscaler-status"
_CONFIGMAP: Final = "configmap kube-system/cluster-autoscaler-status"
# Seconds. The autoscaler acts in minutes.
_NODES_CACHED_FOR: Final = 600.0
_STATUS_CACHED_FOR: Final = 120.0
_DENIED: Final = frozenset({UNAUTHORIZED, FORBIDDEN})


class AutoscalerClient(Source):
    def __init__(
        self, node_name: str, open_session: OpenSession, clock: Callable[[], float]
    ) -> None:
        self._name = node_name
        self._other_nodes = CachedRequest[Autoscaler](open_session, clock, _NODES_CACHED_FOR)
        self._status = CachedRequest[Autoscaler](open_session, clock, _STATUS_CACHED_FOR)

    name = "autoscaler"

    def read(self, snapshot: Snapshot) -> Autoscaler | NotRequested:
        """Request what is needed; raises SourceError. What may not be read is reported as such."""
        uses_cloud = _uses_cloud(self._name, snapshot.node, snapshot.registration)
        if isinstance(uses_cloud, NotRequested):
            return uses_cloud
        nodes = Autoscaler()
        if not uses_cloud:
            try:
                nodes = self._other_nodes.get(self._read_other_nodes)
            except ApiError as error:
                if error.status not in _DENIED:
                    raise
                reason = f"no permission to list nodes, to read their provider IDs ({error})"
                return NotRequested("autoscaler", reason)
            if not nodes.others_with_id:
                return nodes
        try:
            status = self._status.get(_read_status)
        except SourceError as error:
            status = Autoscaler(why=_why_no_status(error))
        return replace(status, others=nodes.others, others_with_id=nodes.others_with_id)

    def _read_other_nodes(self, get: Get) -> Autoscaler:
        items = json.loads(get(NODES_PATH, (("limit", "50"),)))["items"] or []
        has_id = [
            bool(item["spec"].get("providerID"))
            for item in items
            if item["metadata"]["name"] != self._name
        ]
        return Autoscaler(others=len(has_id), others_with_id=sum(has_id))


def _uses_cloud(
    name: str, node: Reading[Node | None], registration: Reading[Registration]
) -> NotRequested | bool:
    """Whether the cluster is already known to use a cloud; or why nothing is requested."""
    for reading in (node, registration):
        if not isinstance(reading, Known):
            reason = f"whether the node is registered is not known: {reading.why}"
            return NotRequested("autoscaler", reason)
    own, registered = node.known(), registration.known()
    if own is None:
        if evidence_of_node(registered, name):
            return True
        reason = f"there is no Node named {name}, and no evidence that there was one"
        return NotRequested("autoscaler", reason)
    if own.provider_id:
        return NotRequested("autoscaler", "the node is registered")
    if registered.expected is Expected.IGNORED:
        return NotRequested("autoscaler", "--provider-id=ignored")
    is_required = registered.expected is Expected.REQUIRED
    return is_required or bool(evidence_of_cloud(registered, own.taints))


def _why_no_status(error: SourceError) -> str:
    code = error.status if isinstance(error, ApiError) else None
    if code in _DENIED:
        return f"no permission to get {_CONFIGMAP}"
    return f"there is no {_CONFIGMAP}" if code == NOT_FOUND else f"{_CONFIGMAP}: {error}"


# The status: YAML since cluster-autoscaler 1.30, before that text.

_GROUPS: Final = re.compile(r"^node ?groups:", re.IGNORECASE | re.MULTILINE)
_TIME: Final = re.compile(
    r"^(?:Cluster-autoscaler status at |time:).*?"
    r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)(?:\.\d{1,9})?( [+-]\d{4})\b",
    re.MULTILINE,
)
"""When it was written: in its first line, or in a line of its own, as Go prints times."""
_COUNT: Final = re.compile(r"\b(unregistered|longUnregistered)(?:=|: )(\d{1,9})(?![\w.])")
"""In both formats."""


def _read_status(get: Get) -> Autoscaler:
    """Read the cluster-wide part of the status. A missing count is None."""
    body = get(_STATUS, ())
    try:
        text = json.loads(body)["data"]["status"]
        # The entries of the node groups follow: they are long and not needed.
        cluster_wide = _GROUPS.split(text, maxsplit=1)[0]
    except (ValueError, KeyError, TypeError, RecursionError):
        return Autoscaler(why=f"{_CONFIGMAP} has no status")
    counts = {name: int(count) for name, count in _COUNT.findall(cluster_wide)}
    return Autoscaler(
        unregistered=counts.get("unregistered"),
        long_unregistered=counts.get("longUnregistered"),
        told=_time(text),
        why=None if counts else f"{_CONFIGMAP} has no counts of nodes ({truncate(text)[:60]})",
    )


def _time(text: str) -> datetime | None:
    found = _TIME.search(text)
    if found is None:
        return None
    try:
        return datetime.strptime("".join(found.groups()), "%Y-%m-%d %H:%M:%S %z").astimezone(UTC)
    except (ValueError, OverflowError):
        return None
