"""Whether the cluster still knows this machine as its node, beside the Node object itself. Pure.

The cluster-autoscaler identifies instances by `spec.providerID` of the Node objects, and by nothing else.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from agent.model.text import format_time

UNINITIALIZED: Final = (
    "node.cloudprovider.kubernetes.io/uninitialized"  # of a node that its cloud has not identified
)
TO_BE_DELETED: Final = "ToBeDeletedByClusterAutoscaler"
DELETION_CANDIDATE: Final = "DeletionCandidateOfClusterAutoscaler"
REMOVED_AFTER: Final = timedelta(minutes=15)
"""The default of the autoscaler's `--max-node-provision-time`: how long an instance may have no Node."""
DRAINED_WITHIN: Final = timedelta(days=1)
"""A node that was not in use for longer is a spare, or a control plane that is always cordoned."""
NO_CLOUD: Final = frozenset({"", "external"})
"""With any other `--cloud-provider` the kubelet asks that cloud for the name of its node."""


class Expected(StrEnum):
    """Whether a Node must have a provider ID (`--provider-id`)."""

    AUTO = "auto"  # if there is evidence that the cluster uses a cloud
    REQUIRED = "required"
    IGNORED = "ignored"


@dataclass(frozen=True, slots=True)
class Taint:
    key: str
    at: datetime | None = None  # when the autoscaler set it: the value of its own taints


class Removal(StrEnum):
    """How far the removal of a node had come while its Node object existed."""

    NONE = "none"
    CORDONED = "cordoned"
    DRAINED = (
        "drained"  # cordoned, without a pod that a drain evicts, and in use less than a day before
    )
    SCALE_DOWN = "scale_down"  # the autoscaler's taint `TO_BE_DELETED`


@dataclass(frozen=True, slots=True)
class LastSeen:
    """The Node object as it was when the API server last had it."""

    name: str
    uid: str
    provider_id: str
    at: datetime  # when, by the node's clock
    earlier_id: str = ""  # an earlier provider ID of a Node of this name; empty: it had no other
    changed: datetime | None = None  # when the present ID was first seen in place of the earlier
    removal: Removal = Removal.NONE
    gone: datetime | None = (
        None  # when the API server first had no such Node, by the node's clock; None: it has it
    )
    in_use: datetime | None = None
    """When a cordoned Node was last seen in use, before a drain: schedulable, or with pods to evict; None: never."""


@dataclass(frozen=True, slots=True)
class Registration:
    """What this node itself knows about its registration."""

    expected: Expected = Expected.AUTO
    last: LastSeen | None = None  # None: no Node of this name was ever seen
    kubelet_name: str = (
        ""  # the name by which the kubelet registers; empty: not known, or the Node is complete
    )
    cloud_provider: str = ""  # the kubelet's `--cloud-provider`; empty likewise
    listed_pods: int = 0  # how many pods the API server still lists for a Node that does not exist
    why: str = ""  # why the remembered Node cannot be read; empty: it can


@dataclass(frozen=True, slots=True)
class Autoscaler:
    """The other nodes of the cluster, and the cluster-autoscaler's status."""

    others: int = 0  # other nodes that were read; also 0 if they were not needed to know that the cluster uses a cloud
    others_with_id: int = 0
    unregistered: int | None = None
    """Instances without a Node, in the whole cluster; None: not reported (the status has it since 1.30)."""
    long_unregistered: int | None = None  # those that are about to be deleted
    told: datetime | None = None  # when the autoscaler wrote its status
    why: str = ""  # why its status is not known; empty: it is


def remember(last: LastSeen | None, seen: LastSeen, removal: Removal, *, in_use: bool) -> LastSeen:
    """Return what to remember of a Node as it is now; `last`: what was remembered until now, of any node."""
    same = last if last is not None and (last.name, last.uid) == (seen.name, seen.uid) else None
    seen = with_removal(seen, same, removal, in_use=in_use)
    if last is None or last.name != seen.name:
        return seen
    if seen.provider_id == last.provider_id:
        return replace(seen, earlier_id=last.earlier_id, changed=last.changed)
    before = last.provider_id or last.earlier_id
    return (
        seen
        if before in {"", seen.provider_id}
        else replace(seen, earlier_id=before, changed=seen.at)
    )


def with_removal(
    seen: LastSeen, before: LastSeen | None, removal: Removal, *, in_use: bool
) -> LastSeen:
    """Add how far the removal had come; `before`: the same Node in the snapshot before, `in_use`: it is, now."""
    used = (
        None if before is None else before.at if before.removal is Removal.NONE else before.in_use
    )
    if before is not None and before.removal is Removal.DRAINED and removal is Removal.CORDONED:
        removal = Removal.DRAINED  # the pods that tolerate a cordon may return
    elif in_use:
        used = seen.at
    if removal is Removal.DRAINED and not _drain_was_seen(used, seen.at):
        removal = Removal.CORDONED
    return replace(seen, removal=removal, in_use=None if removal is Removal.NONE else used)


def _drain_was_seen(used: datetime | None, at: datetime) -> bool:
    return used is not None and timedelta(0) <= at - used <= DRAINED_WITHIN


def evidence_of_node(registration: Registration, name: str) -> str:
    """Return the evidence, in words, that this machine is the node of that name; empty: there is none."""
    if registration.kubelet_name not in {"", name}:
        return ""
    if registration.last is not None and registration.last.name == name:
        return f"the Node was last seen at {format_time(registration.last.at)}"
    if registration.kubelet_name:
        return "the kubelet here uses that name"
    if registration.listed_pods:
        return f"the API server still lists {registration.listed_pods} of its pods"
    return ""


def evidence_of_cloud(registration: Registration, taints: Iterable[Taint]) -> str:
    """Return the evidence of this node, in words, that its cluster uses a cloud; empty: there is none."""
    if any(taint.key == UNINITIALIZED for taint in taints):
        return f"it has the taint {UNINITIALIZED}"
    if registration.cloud_provider:
        return f"the kubelet runs with --cloud-provider={registration.cloud_provider}"
    if registration.last is not None and registration.last.earlier_id:
        return "it had one before"
    return ""
