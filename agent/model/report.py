"""What one round saw and judged: the value that every exporter draws."""

from dataclasses import dataclass

from agent.model.assessment import Scene, State
from agent.model.finding import Gap, Judged, Severity
from agent.model.ranges import RangeSets
from agent.model.release import Cleaning
from agent.model.snapshot import Unread


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
    scene: Scene
    networks: tuple[NetworkSummary, ...]
    findings: tuple[Judged, ...]
    gaps: tuple[Gap, ...]
    newly_confirmed: tuple[Judged, ...] = ()
    clock_stepped: bool = False
    cleaning: Cleaning | None = None
    """What was released, or refused, after this look; None where cleanup is off."""

    @property
    def troubles(self) -> tuple[Judged, ...]:
        """What somebody should look at."""
        return tuple(one for one in self.findings if one.finding.severity is not Severity.INFO)

    @property
    def unread(self) -> tuple[Unread, ...]:
        return self.scene.snapshot.unread()

    @property
    def complete(self) -> bool:
        """Whether everything that a verdict needs was read, but for what was left alone by choice."""
        return all(gap.chosen for gap in self.gaps)
