"""Other nodes' provider IDs and the autoscaler's status: asked rarely, if this node's registration is incomplete."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

from agent.checks.cluster.registration import evidence_of_cloud, evidence_of_node
from agent.model.registration import Autoscaler, Expected, Registration
from agent.model.snapshot import Known, Node, NotRequested, Reading, Snapshot
from agent.model.text import truncate
from agent.sources.kube.client import CachedRequest, Get, Inquire
from agent.sources.kube.errors import FORBIDDEN, NOT_FOUND, UNAUTHORIZED, ApiError
from agent.sources.kube.objects import NODES_PATH
from agent.sources.source import Source
from agent.sources.source_error import SourceError

_STATUS: Final = "/api/v1/namespaces/kube-system/configmaps/cluster-autoscaler-status"
_CONFIGMAP: Final = "configmap kube-system/cluster-autoscaler-status"
_NODES_KEPT, _STATUS_KEPT = (
    600.0,
    120.0,
)  # Seconds for which an answer is kept. The autoscaler acts in minutes.
_DENIED: Final = frozenset({UNAUTHORIZED, FORBIDDEN})


class AutoscalerClient(Source):
    def __init__(self, node_name: str, inquire: Inquire, clock: Callable[[], float]) -> None:
        self._name = node_name
        self._others = CachedRequest[Autoscaler](inquire, clock, _NODES_KEPT)
        self._status = CachedRequest[Autoscaler](inquire, clock, _STATUS_KEPT)

    name = "autoscaler"

    def read(self, snapshot: Snapshot) -> Autoscaler | NotRequested:
        """Ask what there is a reason to ask; raises SourceError. What may not be read is reported as such."""
        known = _cloud_known(self._name, snapshot.node, snapshot.registration)
        if isinstance(known, NotRequested):
            return known
        try:
            others = Autoscaler() if known else self._others.get(self._read_others)
        except ApiError as error:
            if error.status not in _DENIED:
                raise
            return NotRequested(
                "autoscaler", f"no permission to list nodes, to read their provider IDs ({error})"
            )
        if not known and not others.others_with_id:
            return others
        try:
            found = self._status.get(_read_status)
        except SourceError as error:
            found = Autoscaler(why=_why_no_status(error))
        return replace(found, others=others.others, others_with_id=others.others_with_id)

    def _read_others(self, get: Get) -> Autoscaler:
        items = json.loads(get(NODES_PATH, (("limit", "50"),)))["items"] or []
        ids = [
            bool(item["spec"].get("providerID"))
            for item in items
            if item["metadata"]["name"] != self._name
        ]
        return Autoscaler(others=len(ids), others_with_id=sum(ids))


def _cloud_known(
    name: str, node: Reading[Node | None], registration: Reading[Registration]
) -> NotRequested | bool:
    """Whether the cluster is already known to use a cloud; or the reason why nothing is requested."""
    if not isinstance(registration, Known) or not isinstance(node, Known):
        why = next(
            reading.why for reading in (node, registration) if not isinstance(reading, Known)
        )
        return NotRequested("autoscaler", f"whether the node is registered is not known: {why}")
    known = registration.value
    if node.value is None:
        if evidence_of_node(known, name):
            return True
        return NotRequested(
            "autoscaler", f"there is no Node named {name}, and no evidence that there was one"
        )
    if node.value.provider_id:
        return NotRequested("autoscaler", "the node is registered")
    if known.expected is Expected.IGNORED:
        return NotRequested("autoscaler", "--provider-id=ignored")
    return known.expected is Expected.REQUIRED or bool(evidence_of_cloud(known, node.value.taints))


def _why_no_status(error: SourceError) -> str:
    code = error.status if isinstance(error, ApiError) else 0
    if code in _DENIED:
        return f"no permission to get {_CONFIGMAP}"
    return f"there is no {_CONFIGMAP}" if code == NOT_FOUND else f"{_CONFIGMAP}: {error}"


# The status: YAML since cluster-autoscaler 1.30, before that text.

_GROUPS: Final = re.compile(r"^node ?groups:", re.IGNORECASE | re.MULTILINE)
_TIME: Final = re.compile(
    r"^(?:Cluster-autoscaler status at |time:).*?(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)(?:\.\d{1,9})?( [+-]\d{4})\b",
    re.MULTILINE,
)
"""When it was written: in its first line, or in a line of its own, as Go prints times."""
_COUNT: Final = re.compile(
    r"\b(unregistered|longUnregistered)(?:=|: )(\d{1,9})(?![\w.])"
)  # in both formats


def _read_status(get: Get) -> Autoscaler:
    """Read the cluster-wide part of the status. A missing count is None."""
    body = get(_STATUS, ())
    try:
        text = json.loads(body)["data"]["status"]
        # The entries of the node groups follow: they are long and not needed.
        whole = _GROUPS.split(text, maxsplit=1)[0]
    except (ValueError, KeyError, TypeError, RecursionError):
        return Autoscaler(why=f"{_CONFIGMAP} has no status")
    counts = {name: int(count) for name, count in _COUNT.findall(whole)}
    return Autoscaler(
        unregistered=counts.get("unregistered"),
        long_unregistered=counts.get("longUnregistered"),
        told=_time(text),
        why="" if counts else f"{_CONFIGMAP} has no counts of nodes ({truncate(text)[:60]})",
    )


def _time(text: str) -> datetime | None:
    if (found := _TIME.search(text)) is None:
        return None
    try:
        return datetime.strptime("".join(found.groups()), "%Y-%m-%d %H:%M:%S %z").astimezone(UTC)
    except (ValueError, OverflowError):
        return None
