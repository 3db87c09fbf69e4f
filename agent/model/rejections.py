"""How the kubelet refused a pod for a device, and what will become of it."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum


class RejectionKind(StrEnum):
    """What the kubelet said was missing, across its versions."""

    UNREGISTERED = "unregistered"
    """`can't allocate unregistered device R`: it did not know the resource."""
    NO_HEALTHY = "no_healthy"
    """`no healthy devices present`, `previously allocated devices are no longer healthy`."""
    INSUFFICIENT = "insufficient"
    """`requested number of devices unavailable`: also what <= 1.24 says when the plugin is not registered again yet."""
    PLUGIN_GONE = "plugin_gone"
    """The endpoint was stopped, is unknown, or could not be dialled."""
    NO_CAPACITY = "no_capacity"
    """`OutOf<resource>`, capacity 0: the checkpoint was gone, and the node object says 0."""
    OTHER = "other"
    """Refused for a device, in words of another kind."""


@dataclass(frozen=True, slots=True)
class Rejection:
    """One refusal of the kubelet's, read from a pod's status."""

    refused: RejectionKind
    resource: str
    """Empty where neither the message nor the pod's spec names one."""
    requested: int | None
    available: int | None
    at: datetime | None
    """When, by the API server's clock to the second (managedFields), or the kubelet's (startTime); None: not known."""
    message: str
    socket: str = ""
    """The plugin's socket, where the message names one; the resource may then be empty, or a guess from the spec."""
    by_api: bool = False
    """Whether `at` is by the API server's clock, which the node's may differ from (`Snapshot.api_skew`)."""


class RejectionCause(StrEnum):
    """Why a pod was refused."""

    NODE_REBOOT = "node_reboot"
    KUBELET_RESTART = "kubelet_restart"
    PLUGIN_RESTART = "plugin_restart"
    INIT_CONTAINER = "init_container"
    EXHAUSTED = "exhausted"
    UNHEALTHY = "unhealthy"
    READMITTED_AFTER_COMPLETION = "readmitted_after_completion"
    UNVERIFIED = "unverified"


class PodOutcome(StrEnum):
    """What becomes of a refused pod if nobody does anything."""

    REPLACED_BY_CONTROLLER = "replaced_by_controller"
    STUCK = "stuck"
    TERMINATING_STUCK = "terminating_stuck"


@dataclass(frozen=True, slots=True)
class RejectedPod:
    """A refused pod, and what is thought of it."""

    pod: str
    """`namespace/name`."""
    uid: str
    controller: str
    resource: str
    """Empty where nothing names it."""
    at: datetime | None
    cause: RejectionCause
    pod_outcome: PodOutcome
    why: str
    """What speaks for the cause, in words."""
    do: str
    """What becomes of it, and what somebody should do, in words."""
