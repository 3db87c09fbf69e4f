"""How the kubelet rejected a pod for a device, and what happens to the pod."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum


class RejectionKind(StrEnum):
    """What was missing according to the kubelet's message, across its versions."""

    UNREGISTERED = "unregistered"
    """`can't allocate unregistered device R`: it did not know the resource."""
    NO_HEALTHY = "no_healthy"
    """`no healthy devices present`, `previously allocated devices are no longer healthy`."""
    INSUFFICIENT = "insufficient"
    """`requested number of devices unavailable`: in <= 1.24 also if it is not registered yet."""
    PLUGIN_GONE = "plugin_gone"  # the endpoint was stopped, is unknown, or could not be dialled
    NO_CAPACITY = "no_capacity"
    """`OutOf<resource>`, capacity 0: the checkpoint was gone, and the Node says 0."""
    OTHER = "other"  # rejected for a device with another message


@dataclass(frozen=True, slots=True)
class Rejection:
    """One rejection, read from a pod's status."""

    refused: RejectionKind
    resource: str  # empty: neither the message nor the pod's spec names a resource
    requested: int | None
    available: int | None
    at: datetime | None
    """To the second, by the API server (managedFields) or kubelet (startTime); None: unknown."""
    message: str
    socket: str = ""
    """The plugin's socket if the message names one: then `resource` may be a guess, or empty."""
    by_api: bool = False
    """`at` is by the API server's clock, not the node's: they differ by `Snapshot.api_skew`."""


class RejectionCause(StrEnum):
    """Why a pod was rejected."""

    NODE_REBOOT = "node_reboot"
    KUBELET_RESTART = "kubelet_restart"
    PLUGIN_RESTART = "plugin_restart"
    INIT_CONTAINER = "init_container"
    EXHAUSTED = "exhausted"
    UNHEALTHY = "unhealthy"
    READMITTED_AFTER_COMPLETION = "readmitted_after_completion"
    UNVERIFIED = "unverified"


class PodOutcome(StrEnum):
    """What happens to a rejected pod if nobody acts."""

    REPLACED_BY_CONTROLLER = "replaced_by_controller"
    STUCK = "stuck"
    TERMINATING_STUCK = "terminating_stuck"


@dataclass(frozen=True, slots=True)
class RejectedPod:
    """A rejected pod, the cause and the advice."""

    pod: str  # `namespace/name`
    uid: str
    controller: str
    resource: str  # empty: not known
    at: datetime | None
    cause: RejectionCause
    pod_outcome: PodOutcome
    why: str  # the evidence for the cause, in words
    do: str  # what happens to it, and what to do, in words
