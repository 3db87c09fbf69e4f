"""What a detector reports, and its history."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY, dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final, TypeAlias

from agent.model import rejections
from agent.model.remedy import Remedy
from agent.model.snapshot import PortMapping, Unavailable
from agent.model.volumes import Confidence
from agent.model.word import Word

WAITING_PODS: Final = "waiting_pods"
"""The detector of pods that wait. While it finds something, whatever it is, no node is OK."""
Key: TypeAlias = tuple[str | int, ...]  # what a finding is known by from snapshot to snapshot


class LeakCause(StrEnum):
    """Why a leak most likely happened."""

    KUBELET_RESTART = "kubelet_restart"
    RUNTIME_RESTART = "runtime_restart"
    RUNTIME_STATE_LOST = "runtime_state_lost"
    NODE_REBOOT = "node_reboot"
    SANDBOX_REPLACED = "sandbox_replaced"
    NETWORK_RENAMED = "network_renamed"
    TEARDOWN_SKIPPED = "teardown_skipped"
    SETUP_FAILED = "setup_failed"
    EMPTY_FILE = "empty_file"
    UNKNOWN = "unknown"


RESTARTS: Final = {
    LeakCause.KUBELET_RESTART,
    LeakCause.RUNTIME_RESTART,
    LeakCause.RUNTIME_STATE_LOST,
    LeakCause.NODE_REBOOT,
}
"""The causes with the time of a start.

`SANDBOX_REPLACED` has that of the pod's next sandbox; any other has the time of the file.
"""


class WaitCause(Word):
    """Why pods wait for their sandbox. The text of each is shown by `nodeleak explain`."""

    NO_ADDRESS = (
        "no_address",
        """host-local has no address for them: its range is full, or the one address that they ask
        for is reserved.""",
    )
    PLUGIN_FAILED = "plugin_failed", "A CNI plugin fails, or the daemon that it asks."
    NETWORK_NOT_READY = (
        "network_not_ready",
        """The runtime has no usable CNI configuration, or the network says that it is not ready.
        The kubelet then makes no sandbox that needs a network.""",
    )
    SANDBOX_FAILED = (
        "sandbox_failed",
        "The sandbox cannot be made, for another reason than its network.",
    )
    VOLUME_PENDING = "volume_pending", "They wait for a volume. No address is missing."
    UNEXPLAINED = "unexplained", "No Event says why, or the account may not list Events."
    NODE_NOT_READY = "node_not_ready", "The Node is not Ready, for another reason than its network."


class Severity(Word):
    """How urgent a finding is."""

    INFO = (
        "info",
        "For information: nothing is broken. If it has a runbook, that says whether to look at it.",
    )
    WARNING = "warning", "Act soon; the runbook of the alert says how soon."
    CRITICAL = "critical", "Pods are broken, or will be within minutes."

    @property
    def rank(self) -> int:
        """The higher, the more urgent."""
        return list(Severity).index(self)


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem in the current snapshot."""

    detector: str
    subject: str
    """What the problem is with; stays the same as long as it is the same problem."""
    message: str
    _: KW_ONLY
    severity: Severity = Severity.WARNING
    network: str = ""
    pod: str = ""
    cause: LeakCause | rejections.RejectionCause | WaitCause | None = None
    since: datetime | None = None
    """When the problem began, if the node's records say so."""
    cause_at: datetime | None = None
    """Of a leak: the last start that can have been its cause, or when the address was reserved.

    Without `since` it began then or earlier.
    """
    identity: tuple[str | int, ...] = ()
    """What must not change for this to be the same problem, beyond the subject."""
    group: tuple[object, ...] | None = None
    """Findings of a detector with an equal group are shown in one line. None: has its own line."""
    resource: str = ""
    """The device resource; empty: none, or unknown."""
    pod_outcome: rejections.PodOutcome | None = None
    """What becomes of the rejected pod; of several, of most of them."""
    confidence: Confidence | None = None
    """How certain it is that a volume was lost; None: it is not about a volume."""
    urgent: bool = False
    """Confirmed by the second snapshot, however soon: waiting longer would come too late."""
    affected: tuple[str, ...] = ()
    """UIDs of the affected pods, if they are not part of the identity."""
    rejected_pods: tuple[rejections.RejectedPod, ...] = ()
    port_mappings: tuple[PortMapping, ...] = ()
    """The ports of the node that are still forwarded to a leaked address."""
    count: int = 1
    """For how many problems it stands: more than 1 if there are too many to list each."""
    headline: str = ""
    """What the headline of a report says of it; empty: the number, and the detector's noun."""
    lead: str = ""
    """What a list of findings says before the details; empty: the headline, or the message."""
    details: tuple[str, ...] = ()
    """What the message says after its beginning, thought by thought. None: it is one sentence.

    What to do is not among them: that is in the steps.
    """
    told_by: str = ""
    """The detector that reports the same fault more precisely, with what to do; empty: none."""
    steps: tuple[Remedy, ...] = ()
    """What to do about this problem, in order, before what its detector advises."""
    pods: tuple[str, ...] = ()
    """The pods that it is about (`namespace/name`), if they are several or may be."""
    kinds: tuple[str, ...] = ()
    """Which of its detector's steps apply (`Step.kind`), beside those that always do."""

    @property
    def key(self) -> Key:
        return (self.detector, self.subject, *self.identity)


@dataclass(frozen=True, slots=True)
class TrackedFinding:
    """A finding and its history: a candidate until it has lasted."""

    finding: Finding
    first_seen: datetime
    confirmed: bool
    first_uptime: timedelta = timedelta(0)  # the boot clock at `first_seen`

    @property
    def since(self) -> datetime:
        """When it began, as far as is known, or else was first seen."""
        return self.finding.since or self.first_seen

    @property
    def began(self) -> datetime | None:
        """The same; None: it began before it could be seen, and no record says when."""
        return None if self.finding.cause_at and not self.finding.since else self.since


Observations: TypeAlias = Mapping[Key, TrackedFinding]
"""Each finding as it was first seen."""


def total(findings: Iterable[TrackedFinding]) -> int:
    """Return for how many problems these findings stand."""
    return sum(tracked.finding.count for tracked in findings)


def urgency(tracked: TrackedFinding) -> tuple[object, ...]:
    """Sort key: critical findings first, then the oldest; numbers in subjects count as numbers."""
    finding = tracked.finding
    subject = [
        (int(part) if part.isdecimal() else -1, part)
        for part in re.split(r"(\d{1,18})", finding.subject)
    ]
    return -finding.severity.rank, tracked.since, finding.detector, subject


@dataclass(frozen=True, slots=True)
class SkippedCheck:
    detector: str
    why: str
    broken: bool = False  # the detector itself failed: a bug of the agent
    chosen: bool = False  # a source that it needs is disabled by configuration
    missing: Unavailable | None = None
    """The reading that it needs; None: the check failed for another reason."""
