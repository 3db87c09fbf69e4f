"""The result of a sync, which every exporter shows."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from agent.model.assessment import Assessment, State
from agent.model.bug import Bug
from agent.model.finding import LeakCause, Severity, SkippedCheck, TrackedFinding, urgency
from agent.model.ranges import RangeSets
from agent.model.release import Cleaning
from agent.model.snapshot import ReservationKey, Snapshot, Unavailable


@dataclass(frozen=True, slots=True)
class NetworkSummary:
    """One network in numbers. None: not known."""

    name: str
    ranges: RangeSets | None = None
    usable: int | None = None
    """How many sandboxes can get an address; the gateway is not given out."""
    reserved: int | None = None
    """Entries whose name is an address, valid or not: host-local does not give out these addresses.
    """
    free: int | None = None
    states: dict[State, int] | None = None
    not_in_use: str = ""
    """Why no pod here has its address from this network, so that nothing of it is judged; empty: it
    may be in use."""


@dataclass(frozen=True, slots=True)
class Report:
    assessment: Assessment
    networks: tuple[NetworkSummary, ...]
    findings: tuple[TrackedFinding, ...]
    gaps: tuple[SkippedCheck, ...]
    leak_causes: Mapping[ReservationKey, LeakCause] = field(default_factory=dict)
    """The likely causes of leaks, where the node has evidence of a cause."""
    newly_confirmed: Mapping[tuple[str, LeakCause], int] = field(default_factory=dict)
    """How many leaks this snapshot confirmed, by network and cause."""
    clock_stepped: bool = False
    bugs: tuple[Bug, ...] = ()
    """What failed in this sync because of a bug of the agent: sources and detectors."""
    cleaning: Cleaning | None = None
    """What was released, or refused, after this snapshot; None where cleanup is off."""

    @property
    def snapshot(self) -> Snapshot:
        return self.assessment.snapshot

    @property
    def halted(self) -> str | None:
        """Why cleanup has halted; None: it has not, or is off."""
        return self.cleaning.halted if self.cleaning else None

    @property
    def problems(self) -> tuple[TrackedFinding, ...]:
        """Findings that call for action."""
        return tuple(
            finding for finding in self.findings if finding.finding.severity is not Severity.INFO
        )

    @property
    def sorted_findings(self) -> tuple[TrackedFinding, ...]:
        """The findings in the order of every output: by severity, then by age."""
        return tuple(sorted(self.findings, key=urgency))

    @property
    def confirmed_leaks(self) -> frozenset[ReservationKey]:
        """The reservations that two snapshots found without an owner: those in state `leaked`."""
        return frozenset(leak.key for leak in self.assessment.leaked)

    @property
    def unnamed(self) -> frozenset[str]:
        """The container IDs of reservations whose pod is not known."""
        return frozenset(
            entry.container_id for entry in self.assessment.reservations if not entry.pod
        ) - {""}

    @property
    def unavailable(self) -> tuple[Unavailable, ...]:
        return self.snapshot.unavailable()

    @property
    def complete(self) -> bool:
        """Whether every check could run, except those disabled by configuration."""
        return all(gap.chosen for gap in self.gaps)
