"""What a detector says, and what a look back makes of it."""

from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum

from agent.model import rejections
from agent.model.volumes import Strength


class LeakCause(StrEnum):
    """Why a leak most likely happened."""

    KUBELET_RESTART = "kubelet_restart"
    RUNTIME_RESTART = "runtime_restart"
    NODE_REBOOT = "node_reboot"
    EMPTY_FILE = "empty_file"
    UNKNOWN = "unknown"


class Severity(StrEnum):
    """How much a finding hurts now, or is about to."""

    INFO = "info"
    """Good to know; nobody has to do anything."""
    WARNING = "warning"
    """Somebody should look, in working hours."""
    CRITICAL = "critical"
    """Pods are broken, or will be within minutes."""


def format_time(at: datetime) -> str:
    """Write a time as messages do: UTC, to the second."""
    return f"{at:%Y-%m-%d %H:%M:%S}Z"


@dataclass(frozen=True, slots=True)
class Finding:
    """Trouble seen now."""

    detector: str
    subject: str
    """What the trouble is with, in words that stay the same as long as it is the same trouble."""
    message: str
    severity: Severity = Severity.WARNING
    network: str = ""
    pod: str = ""
    cause: LeakCause | rejections.RejectionCause | None = None
    since: datetime | None = None
    """When the trouble began, where the node's records say so."""
    identity: tuple[str | int, ...] = ()
    """What must not change between two looks for this to be the same trouble, beyond the subject."""
    resource: str = ""
    """The device resource that it is about; empty: none, or not known."""
    pod_outcome: rejections.PodOutcome | None = None
    """What becomes of a refused pod; of a storm, of most of its pods."""
    strength: Strength | None = None
    """How sure it is that a volume was lost; None: it is not about a volume."""
    urgent: bool = False
    """The second look confirms it, however soon: it is over before it has lasted."""
    affected: tuple[str, ...] = ()
    """Uids of the pods that it is the trouble of, where they are not part of its identity."""
    rejected_pods: tuple[rejections.RejectedPod, ...] = ()
    """The refused pods that it stands for: one, or all of a storm."""

    @property
    def pods(self) -> tuple[str, ...]:
        """The names of the refused pods that it stands for."""
        return tuple(one.pod for one in self.rejected_pods)

    @property
    def key(self) -> tuple[str | int, ...]:
        return (self.detector, self.subject, *self.identity)


@dataclass(frozen=True, slots=True)
class TrackedFinding:
    """A finding and its history: a candidate until it has lasted."""

    finding: Finding
    first_seen: datetime
    confirmed: bool

    @property
    def since(self) -> datetime:
        return self.finding.since or self.first_seen

    def because(self, first: Finding) -> "TrackedFinding":
        """Keep what the first sighting said of a leak's cause: a later restart did not make an earlier leak.

        A refusal has its own time, so its cause cannot move; but it becomes known only when the plugin comes.
        """
        if not isinstance(first.cause, LeakCause):
            return self
        return replace(self, finding=replace(self.finding, cause=first.cause, since=first.since, message=first.message))


@dataclass(frozen=True, slots=True)
class Gap:
    """A detector that could not judge this time, and why."""

    detector: str
    why: str
    broken: bool = False
    """The detector itself failed: a bug of ours, not a silent source."""
    chosen: bool = False
    """A source it needs was left alone by somebody's choice."""
