"""What tells whether the cluster still knows this node as its instance, beside the Node object itself. Pure.

The cluster-autoscaler knows instances by `spec.providerID` of the Node objects, and by nothing else.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from agent.model.finding import format_time

UNINITIALIZED: Final = "node.cloudprovider.kubernetes.io/uninitialized"
"""The taint of a node whose cloud has not said yet which instance it is."""
TO_BE_DELETED: Final = "ToBeDeletedByClusterAutoscaler"
DELETION_CANDIDATE: Final = "DeletionCandidateOfClusterAutoscaler"
REMOVED_AFTER: Final = timedelta(minutes=15)
"""The autoscaler's `--max-node-provision-time`, by default: how long it bears an instance that has no Node."""
NO_CLOUD: Final = frozenset({"", "external"})
"""Kubelets with any other `--cloud-provider` ask that cloud for the name of their node."""


@dataclass(frozen=True, slots=True)
class Taint:
    """A taint of the Node that says something of its registration."""

    key: str
    at: datetime | None = None
    """When the autoscaler set it, by the value of its own taints."""


class Expected(StrEnum):
    """Whether a Node must have a provider ID (`--provider-id`)."""

    AUTO = "auto"
    """Where the cluster is seen to use a cloud."""
    REQUIRED = "required"
    IGNORED = "ignored"


@dataclass(frozen=True, slots=True)
class LastSeen:
    """The Node object as it was when the API server last had one."""

    name: str
    uid: str
    provider_id: str
    at: datetime
    """When, by the node's clock."""
    earlier_id: str = ""
    """The provider ID that a Node of this name had before; empty: it had no other."""
    changed: datetime | None = None
    """When the present one was first seen in place of the earlier."""


@dataclass(frozen=True, slots=True)
class Registration:
    """What this node itself knows of it."""

    expected: Expected = Expected.AUTO
    last: LastSeen | None = None
    """None: nobody here remembers a Node of its name."""
    kubelet_name: str = ""
    """The name by which the kubelet registers; empty: not known, or not asked for, because the Node is in order."""
    cloud_provider: str = ""
    """The kubelet's `--cloud-provider`; empty likewise."""
    listed_pods: int = 0
    """How many pods the API server still had of a Node that it did not have."""
    why: str = ""
    """Why what was remembered cannot be read; empty where nothing is wrong."""


@dataclass(frozen=True, slots=True)
class Autoscaler:
    """What the cluster says: the other nodes, and the cluster-autoscaler's own status."""

    others: int = 0
    """Other nodes that were looked at; 0 also where it was known without them that the cluster uses a cloud."""
    others_with_id: int = 0
    unregistered: int | None = None
    """Instances without a Node, in the whole cluster; None: not told (the status has it since 1.30)."""
    long_unregistered: int | None = None
    """Those of them that are to be deleted."""
    told: datetime | None = None
    """When the autoscaler wrote its status."""
    why: str = ""
    """Why nothing is known of its status; empty where something is."""


def remember(last: LastSeen | None, name: str, uid: str, provider_id: str, at: datetime) -> LastSeen:
    """Return what is remembered of a Node that was seen; `last`: what was until now, of whatever node."""
    seen = LastSeen(name, uid, provider_id, at)
    if last is None or last.name != name:
        return seen
    if provider_id == last.provider_id:
        return replace(seen, earlier_id=last.earlier_id, changed=last.changed)
    before = last.provider_id or last.earlier_id
    return seen if before in {"", provider_id} else replace(seen, earlier_id=before, changed=at)


def who_says_ours(registration: Registration, name: str) -> str:
    """Return who says that this machine is the node of that name, in words; empty where nobody does."""
    if registration.kubelet_name not in {"", name}:
        return ""
    if registration.last is not None and registration.last.name == name:
        return f"it was last seen at {format_time(registration.last.at)}"
    if registration.kubelet_name:
        return "the kubelet here calls itself so"
    if registration.listed_pods:
        return f"the API server still lists {registration.listed_pods} pods of it"
    return ""


def why_cloud(registration: Registration, taints: Iterable[Taint]) -> str:
    """Return what shows, on this node alone, that its cluster uses a cloud; empty where nothing does."""
    if any(one.key == UNINITIALIZED for one in taints):
        return f"it has the taint {UNINITIALIZED}"
    if registration.cloud_provider:
        return f"the kubelet runs with --cloud-provider={registration.cloud_provider}"
    if registration.last is not None and registration.last.earlier_id:
        return "it had one before"
    return ""
