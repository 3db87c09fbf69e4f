"""Other nodes' provider IDs and the cluster-autoscaler's status.

They are requested rarely: if this node's registration is incomplete, or while it is young.
"""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

from agent.checks.cluster.provider_ids import scheme
from agent.checks.cluster.registration import Deadlines, evidence_of_cloud, evidence_of_node
from agent.model.registration import DELETION_CANDIDATE, TO_BE_DELETED, Autoscaler
from agent.model.settings import Expected
from agent.model.snapshot import Known, NotRequested, Snapshot
from agent.model.text import truncate
from agent.sources.json_tree import subobject, text_field
from agent.sources.kube.cached_request import CachedRequest, Get, OpenSession
from agent.sources.kube.errors import FORBIDDEN, NOT_FOUND, UNAUTHORIZED, ApiError
from agent.sources.kube.fields import Object, objects
from agent.sources.kube.node_object import NODES_PATH
from agent.sources.source import Source
from agent.sources.source_error import MALFORMED, SourceError

_STATUS: Final = "/api/v1/namespaces/kube-system/configmaps/cluster-autoscaler-status"
_CONFIGMAP: Final = "configmap kube-system/cluster-autoscaler-status"

# Seconds. The autoscaler acts in minutes.
_NODES_CACHED_FOR: Final = 600.0
_STATUS_CACHED_FOR: Final = 120.0

_ANNOTATIONS: Final = "cluster-autoscaler.kubernetes.io/"
"""What the names of the autoscaler's annotations begin with."""
_DENIED: Final = frozenset({UNAUTHORIZED, FORBIDDEN})


class AutoscalerClient(Source):
    name = "autoscaler"

    def __init__(
        self, node_name: str, open_session: OpenSession, clock: Callable[[], float]
    ) -> None:
        self._name = node_name
        self._other_nodes = CachedRequest[Autoscaler](open_session, clock, _NODES_CACHED_FOR)
        self._status = CachedRequest[Autoscaler](open_session, clock, _STATUS_CACHED_FOR)

    def read(self, snapshot: Snapshot) -> Autoscaler | NotRequested:
        """Request what is needed; raises SourceError. What may not be read is reported as such."""
        uses_cloud = _uses_cloud(self._name, snapshot)
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
            own = snapshot.node.known()
            if not nodes.others_with_id and not (own and own.provider_id):
                return nodes

        return replace(
            self._read_status(),
            others=nodes.others,
            others_with_id=nodes.others_with_id,
            schemes=nodes.schemes,
            marked=nodes.marked,
        )

    def _read_status(self) -> Autoscaler:
        """Return the status; without counts, and with the reason, if it cannot be read."""
        try:
            return self._status.get(_read_status)
        except SourceError as error:
            is_absent = isinstance(error, ApiError) and error.status == NOT_FOUND
            return Autoscaler(why=_why_no_status(error), exists=False if is_absent else None)

    def _read_other_nodes(self, get: Get) -> Autoscaler:
        """Return what the first page of nodes tells of this cluster."""
        items = json.loads(get(NODES_PATH, (("limit", "50"),)))["items"] or []
        others = [item for item in items if item["metadata"]["name"] != self._name]
        provider_ids = (text_field(item["spec"], "providerID") for item in others)
        ids = [*filter(None, provider_ids)]
        schemes = set(map(scheme, ids))
        return Autoscaler(
            others=len(others),
            others_with_id=len(ids),
            schemes=tuple(sorted(filter(None, schemes))),
            marked=sum(map(_is_marked, others)),
        )


def _is_marked(item: Object) -> bool:
    """Whether a node has a taint or an annotation of the cluster-autoscaler."""
    taints = {taint.get("key") for taint in objects(item["spec"].get("taints"))}
    annotations = subobject(item["metadata"], "annotations")
    is_annotated = any(name.startswith(_ANNOTATIONS) for name in annotations)
    return is_annotated or not taints.isdisjoint({TO_BE_DELETED, DELETION_CANDIDATE})


def _uses_cloud(name: str, snapshot: Snapshot) -> NotRequested | bool:
    """Whether the cluster is already known to use a cloud; or why nothing is requested."""
    for reading in (snapshot.node, snapshot.registration):
        if not isinstance(reading, Known):
            reason = f"whether the node is registered is not known: {reading.why}"
            return NotRequested("autoscaler", reason)
    own = snapshot.node.known()
    registered = snapshot.registration.known()

    if own is None:
        if evidence_of_node(registered, name):
            return True
        reason = f"there is no Node named {name}, and no evidence that there was one"
        return NotRequested("autoscaler", reason)
    if registered.expected is Expected.IGNORED:
        return NotRequested("autoscaler", "--provider-id=ignored")
    if own.provider_id:
        deadlines = Deadlines(registered.provision_time)
        is_young = own.created and deadlines.concern(snapshot.api_time - own.created)
        return False if is_young else NotRequested("autoscaler", "the node is registered")

    is_required = registered.expected is Expected.REQUIRED
    return is_required or bool(evidence_of_cloud(registered, own.taints))


def _why_no_status(error: SourceError) -> str:
    code = error.status if isinstance(error, ApiError) else None
    if code in _DENIED:
        return f"no permission to get {_CONFIGMAP}"
    if code == NOT_FOUND:
        return f"there is no {_CONFIGMAP}"
    return f"{_CONFIGMAP}: {error}"


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
    except MALFORMED:
        return Autoscaler(why=f"{_CONFIGMAP} has no status", exists=True)

    counts = {name: int(count) for name, count in _COUNT.findall(cluster_wide)}
    no_counts = f"{_CONFIGMAP} has no counts of nodes ({truncate(text)[:60]})"
    return Autoscaler(
        unregistered=counts.get("unregistered"),
        long_unregistered=counts.get("longUnregistered"),
        told=_time(text),
        exists=True,
        why=None if counts else no_counts,
    )


def _time(text: str) -> datetime | None:
    """Return when the status was written; None: it does not say, or what it says is no time."""
    found = _TIME.search(text)
    if found is None:
        return None
    written = "".join(found.groups())
    try:
        return datetime.strptime(written, "%Y-%m-%d %H:%M:%S %z").astimezone(UTC)
    except (ValueError, OverflowError):
        return None
