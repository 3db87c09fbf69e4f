"""A finding is confirmed when it lasts. Pure: earlier observations and a snapshot in, new observations out."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import TypeAlias

from agent.model.assessment import ClassifiedReservation
from agent.model.finding import Finding, Gap, TrackedFinding
from agent.model.leak import Leaks
from agent.model.snapshot import Reservation, Snapshot

CLOCK_STEP = timedelta(seconds=5)
"""A larger difference between the progress of the wall clock and of the boot clock means that the clock was set."""

Key: TypeAlias = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Observation:
    """One finding, kept from snapshot to snapshot."""

    detector: str
    first_seen: datetime
    first_uptime: timedelta
    confirmed: bool = False


@dataclass(frozen=True, slots=True)
class ConfirmationState:
    """What one sync leaves to the next."""

    taken_at: datetime
    uptime: timedelta
    observations: Mapping[Key, Observation]
    pods: Mapping[str, str] = field(default_factory=dict)
    """The pod of each container id that has a reservation: every other record of a leak's owner is gone."""
    pending: Mapping[Reservation, tuple[datetime, timedelta]] = field(default_factory=dict)
    """When each pending teardown was first seen, by both clocks: no record on the node says since when it is."""
    leaks: Leaks = field(default_factory=dict)
    """The reservations without an owner, and those that were confirmed leaks before their detector had a gap."""
    reservations: Sequence[ClassifiedReservation] = ()
    """Those of the report: the next one has to know which had an owner."""


def clock_stepped(before: ConfirmationState | None, taken_at: datetime, uptime: timedelta) -> bool:
    """Return whether the wall clock was set since the last snapshot."""
    if before is None:
        return False
    return abs((taken_at - before.taken_at) - (uptime - before.uptime)) > CLOCK_STEP


def confirm(
    findings: Iterable[Finding],
    gaps: Iterable[Gap],
    before: ConfirmationState | None,
    snapshot: Snapshot,
    confirm_after: timedelta,
) -> tuple[tuple[TrackedFinding, ...], Mapping[Key, Observation]]:
    """Confirm each finding that the last snapshot had too and that has lasted for `confirm_after`, or is urgent.

    Durations are measured by the boot clock. Where a detector had a gap, its confirmed findings stay known, so that
    they do not count as new afterwards; its candidates start over. All candidates start over when the clock was set.
    """
    known = before.observations if before else {}
    confirmed_before = {key: one for key, one in known.items() if one.confirmed}
    if clock_stepped(before, snapshot.taken_at, snapshot.uptime):
        known = confirmed_before
    with_gap = {gap.detector for gap in gaps}
    observations = {key: one for key, one in confirmed_before.items() if one.detector in with_gap}
    tracked: list[TrackedFinding] = []
    for finding in findings:
        observation = _observe(finding, known.get(finding.key), snapshot, confirm_after)
        observations[finding.key] = observation
        tracked.append(TrackedFinding(finding, observation.first_seen, observation.confirmed))
    return tuple(tracked), observations


def _observe(
    finding: Finding, earlier: Observation | None, snapshot: Snapshot, confirm_after: timedelta
) -> Observation:
    if earlier is None:
        return Observation(finding.detector, snapshot.taken_at, snapshot.uptime)
    lasted = finding.urgent or snapshot.uptime - earlier.first_uptime >= confirm_after
    return replace(earlier, confirmed=earlier.confirmed or lasted)
