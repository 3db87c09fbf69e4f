"""Whether the cluster still knows this machine as its node, beside the Node object itself.

The cluster-autoscaler identifies instances by `spec.providerID` of the Node objects, and by nothing
else.
"""

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from agent.model.fields import NONE_IS_EMPTY
from agent.model.settings import PROVISION_TIME, Expected

UNINITIALIZED: Final = "node.cloudprovider.kubernetes.io/uninitialized"
"""The taint of a node that its cloud has not identified."""
TO_BE_DELETED: Final = "ToBeDeletedByClusterAutoscaler"
DELETION_CANDIDATE: Final = "DeletionCandidateOfClusterAutoscaler"
EMBEDDED_CONTROLLERS: Final = {"k3s": "k3s", "rke2": "RKE2"}
"""Distributions whose own cloud controller sets IDs that no autoscaler of a cloud knows, by the
scheme of these IDs."""
BESIDE_A_CLOUD: Final = frozenset({"eks-hybrid", "hrobot"})
"""Schemes of machines outside of a cloud that are nodes of its clusters."""
OPENSTACK: Final = "openstack"
"""Its IDs may have a region, which its autoscalers do not expect."""


@dataclass(frozen=True, slots=True)
class Taint:
    key: str
    at: datetime | None = None  # when the autoscaler set it: the value of its own taints


class Removal(StrEnum):
    """How far the removal of a node had come while its Node object existed."""

    NONE = "none"
    CORDONED = "cordoned"
    DRAINED = "drained"
    """Cordoned, without a pod that a drain evicts, and in use less than a day before."""
    SCALE_DOWN = "scale_down"  # the autoscaler's taint `TO_BE_DELETED`


@dataclass(frozen=True, slots=True)
class LastSeen:
    """The Node object as it was when the API server last had it. Times are by the node's clock."""

    name: str
    uid: str
    provider_id: str
    at: datetime
    earlier_id: str | None = field(default=None, metadata=NONE_IS_EMPTY)
    """An earlier provider ID of a Node of this name; None: it had no other."""
    changed: datetime | None = None  # when the present ID was first seen in place of the earlier
    removal: Removal = Removal.NONE
    gone: datetime | None = None
    """When the API server first had no such Node; None: it has it."""
    in_use: datetime | None = None
    """When a cordoned Node was last in use: schedulable, or with pods to evict; None: never."""


@dataclass(frozen=True, slots=True)
class Registration:
    """What this node itself knows about its registration."""

    expected: Expected = Expected.AUTO
    last: LastSeen | None = None  # None: no Node of this name was ever seen
    kubelet_name: str | None = field(default=None, metadata=NONE_IS_EMPTY)
    """The name by which the kubelet registers; None: unknown, or not needed."""
    cloud_provider: str | None = field(default=None, metadata=NONE_IS_EMPTY)
    """The kubelet's `--cloud-provider`; None likewise."""
    listed_pods: int = 0  # how many pods the API server still lists for a Node that does not exist
    why: str | None = field(default=None, metadata=NONE_IS_EMPTY)
    """Why the remembered Node cannot be read; None: it can."""
    provision_time: timedelta = PROVISION_TIME
    """`--max-node-provision-time`: how long the autoscaler leaves an instance without a Node."""


@dataclass(frozen=True, slots=True)
class Autoscaler:
    """The other nodes of the cluster, and the cluster-autoscaler's status."""

    others: int = 0  # other nodes that were read; 0 also if nobody had to ask
    others_with_id: int = 0
    unregistered: int | None = None
    """Instances without a Node, in the whole cluster; None: not reported (since 1.30 it is)."""
    long_unregistered: int | None = None  # those that are about to be deleted
    told: datetime | None = None  # when the autoscaler wrote its status
    why: str | None = field(default=None, metadata=NONE_IS_EMPTY)
    """Why its status is not known; None: it is."""
    exists: bool | None = None  # whether there is a status; None: not known
    schemes: tuple[str, ...] = ()
    """The schemes of the other nodes' provider IDs, such as `aws`, each once."""
    marked: int = 0  # how many of the other nodes have a taint or annotation of the autoscaler
