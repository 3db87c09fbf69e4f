"""How the kubelet rejected a pod, for a device or otherwise, and what happens to the pod."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final

OUT_OF: Final = "OutOf"
"""A reason that begins like this ends with the resource of which the node has too little."""
UNEXPECTED_ERROR: Final = "UnexpectedAdmissionError"
TOPOLOGY: Final = "TopologyAffinityError"
NODE_PORTS: Final = "NodePorts"
ADMISSION_REASONS: Final = frozenset({
    UNEXPECTED_ERROR, TOPOLOGY, "SMTAlignmentError", "EmptyPodSharedPoolError",
    "NodeAffinity", "NodeName", NODE_PORTS, "TaintToleration", "AppArmor", "SysctlForbidden",
    "PodOSNotSupported", "PodOSSelectorNodeLabelDoesNotMatch",
    "InitContainerRestartPolicyForbidden", "SupplementalGroupsPolicyNotSupported",
    "InvalidNodeInfo", "UnknownReason", "UnexpectedPredicateFailureType",
    "VolumeAttachmentLimitExceeded",
})  # fmt: skip
"""The reasons of pods that the kubelet rejected (1.18 to 1.37), beside those of `OUT_OF`."""
POD_REASONS: Final = frozenset({
    "SysctlForbidden", "EmptyPodSharedPoolError", "SMTAlignmentError",
})  # fmt: skip
"""Of these, those of a pod that no kubelet with these settings runs, whatever is free.

A message that says how much was available is about that, and not about the pod.
"""
INTENDED_REASONS: Final = frozenset({
    "Evicted", "Preempting", "Shutdown", "NodeShutdown", "Terminated",
})  # fmt: skip
"""The reasons of evictions, preemptions and shutdowns: they are as intended, also at admission."""


class RejectionKind(StrEnum):
    """What was missing according to the kubelet's message, across its versions."""

    UNREGISTERED = "unregistered"
    """`can't allocate unregistered device R`: it did not know the resource."""
    NO_HEALTHY = "no_healthy"
    """`no healthy devices present`. In recordings of earlier versions also the next one."""
    POD_DEVICES_UNHEALTHY = "pod_devices_unhealthy"
    """`previously allocated devices are no longer healthy`: other devices are healthy."""
    INSUFFICIENT = "insufficient"
    """`requested number of devices unavailable`: in <= 1.24 also if it is not registered yet."""
    PLUGIN_GONE = "plugin_gone"
    """The endpoint was stopped or is unknown. In recordings of earlier versions also the next."""
    PLUGIN_CRASHED = "plugin_crashed"
    """The plugin did not survive the request. It is only asked while it has healthy devices."""
    PLUGIN_ERROR = "plugin_error"
    """The plugin answered with an error, not in time, or with something else than requested."""
    REQUEST_REFUSED = "request_refused"
    """The plugin refuses such a request, whatever is free. In earlier recordings `plugin_error`."""
    REQUEST_CHANGED = "request_changed"
    """`changed request for resource`: the kubelet has a record of an earlier pod of this uid."""
    CHECKPOINT_FAILED = "checkpoint_failed"
    """The kubelet could not write its own files: it is about its disk, and not about a device."""
    NO_CAPACITY = "no_capacity"
    """`OutOf<resource>`, capacity 0: the checkpoint was gone, and the Node says 0."""
    OTHER = "other"  # rejected for a device with another message
    NOT_FOR_A_DEVICE = "not_for_a_device"
    """Neither its reason nor its message is about a device: both say what else it was."""


_NOT_FOR_DEVICES: Final = {RejectionKind.NOT_FOR_A_DEVICE, RejectionKind.CHECKPOINT_FAILED}


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
    start_time: datetime | None = None
    """`status.startTime`, by the kubelet's clock: when a kubelet first admitted the pod, or
    rejected it. It outlives the rejection, and reboots; None: unknown, or an old recording."""
    reason: str = ""
    """`status.reason`, such as `UnexpectedAdmissionError`; empty: an old recording."""

    @property
    def for_device(self) -> bool:
        return self.refused not in _NOT_FOR_DEVICES


class RejectionCause(StrEnum):
    """Why a pod was rejected."""

    NODE_REBOOT = "node_reboot"
    KUBELET_RESTART = "kubelet_restart"
    PLUGIN_RESTART = "plugin_restart"
    INIT_CONTAINER = "init_container"
    EXHAUSTED = "exhausted"
    DEVICES_LEAKED = "devices_leaked"
    UNLISTED_POD = "unlisted_pod"
    UNHEALTHY = "unhealthy"
    PLUGIN_ERROR = "plugin_error"
    REQUEST_CHANGED = "request_changed"
    CHECKPOINT_FAILED = "checkpoint_failed"
    READMITTED_AFTER_COMPLETION = "readmitted_after_completion"
    NOT_FOR_A_DEVICE = "not_for_a_device"
    """The kubelet's reason and message say why."""
    UNVERIFIED = "unverified"


class PodOutcome(StrEnum):
    """What happens to a rejected pod if nobody acts."""

    REPLACED_BY_CONTROLLER = "replaced_by_controller"
    REJECTED_AGAIN = "rejected_again"
    """Its controller creates another pod, which may be rejected as well: it is not over."""
    STUCK = "stuck"
    TERMINATING_STUCK = "terminating_stuck"


@dataclass(frozen=True, slots=True)
class RejectedPod:
    """A rejected pod, the cause, and what becomes of it."""

    pod: str  # `namespace/name`
    uid: str
    controller: str
    resource: str  # empty: not known
    at: datetime | None
    cause: RejectionCause
    pod_outcome: PodOutcome
    why: str  # the evidence for the cause, in words
    consequence: str  # what happens to it, in words
