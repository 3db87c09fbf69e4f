"""What one round saw and judged: the value that every exporter draws."""

from dataclasses import dataclass

from agent.model.assessment import Assessment, State
from agent.model.finding import Gap, Severity, TrackedFinding
from agent.model.ranges import RangeSets
from agent.model.release import Cleaning
from agent.model.snapshot import Reservation, ReservationKey, Unavailable


@dataclass(frozen=True, slots=True)
class NetworkSummary:
    """One network in numbers. None: not known."""

    name: str
    ranges: RangeSets | None
    usable: int | None
    """How many sandboxes there are addresses for; the gateway is not one."""
    reserved: int | None
    """Entries whose name is an address, whatever else is wrong with them: host-local skips these."""
    free: int | None
    states: dict[State, int] | None


@dataclass(frozen=True, slots=True)
class Report:
    assessment: Assessment
    networks: tuple[NetworkSummary, ...]
    findings: tuple[TrackedFinding, ...]
    gaps: tuple[Gap, ...]
    newly_confirmed: tuple[TrackedFinding, ...] = ()
    clock_stepped: bool = False
    cleaning: Cleaning | None = None
    """What was released, or refused, after this look; None where cleanup is off."""

    @property
    def troubles(self) -> tuple[TrackedFinding, ...]:
        """What somebody should look at."""
        return tuple(one for one in self.findings if one.finding.severity is not Severity.INFO)

    @property
    def confirmed_leaks(self) -> frozenset[ReservationKey]:
        """The reservations that two snapshots found without an owner: those in state `leaked`."""
        return frozenset(
            one.entry.key
            for one in self.assessment.classified_reservations
            if one.state is State.LEAKED and isinstance(one.entry, Reservation)
        )

    @property
    def unavailable(self) -> tuple[Unavailable, ...]:
        return self.assessment.snapshot.unavailable()

    @property
    def complete(self) -> bool:
        """Whether everything that a verdict needs was read, but for what was left alone by choice."""
        return all(gap.chosen for gap in self.gaps)
