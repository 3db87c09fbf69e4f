"""A finding is confirmed when it lasts. Pure: earlier observations and a snapshot in, new observations out."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import NamedTuple

from agent.model.finding import Finding, Key, SkippedCheck, TrackedFinding
from agent.model.snapshot import PortMapping, Reservation, Snapshot, UnrecognizedEntry

CLOCK_STEP = timedelta(seconds=5)
"""A larger difference between the progress of the wall clock and of the boot clock means that the clock was set."""


@dataclass(frozen=True, slots=True)
class Observation:
    """A finding, kept from snapshot to snapshot."""

    first: Finding
    first_seen: datetime
    first_uptime: timedelta
    confirmed: bool = False


@dataclass(frozen=True, slots=True)
class ConfirmationState:
    """What a sync leaves to the next."""

    taken_at: datetime
    uptime: timedelta
    observations: Mapping[Key, Observation]
    pods: Mapping[str, str] = field(default_factory=dict)
    """The pod of each container ID that has a reservation: every other record of a leak's owner is gone."""
    pending: Mapping[Reservation, tuple[datetime, timedelta]] = field(default_factory=dict)
    """When each pending teardown was first seen, by both clocks: no record on the node says since when it is."""
    owned: frozenset[Reservation | UnrecognizedEntry] = frozenset()
    """The reservations that had an owner."""
    host_ports: Mapping[str, tuple[PortMapping, ...]] = field(default_factory=dict)
    """Those of the pod of each container ID that has a reservation (`Assessment.host_ports`)."""


class Detected(NamedTuple):
    """What detectors found in a snapshot."""

    findings: tuple[Finding, ...]
    gaps: tuple[SkippedCheck, ...]


class Confirmed(NamedTuple):
    findings: tuple[TrackedFinding, ...]
    observations: Mapping[Key, Observation]


def clock_stepped(before: ConfirmationState, snapshot: Snapshot) -> bool:
    """Return whether the wall clock was set since the last snapshot."""
    return abs((snapshot.taken_at - before.taken_at) - (snapshot.uptime - before.uptime)) > CLOCK_STEP


def confirm(
    detected: Detected,
    before: ConfirmationState,
    snapshot: Snapshot,
    confirm_after: timedelta,
    ended: Collection[Key] = (),
) -> Confirmed:
    """Confirm each finding that the last snapshot had too and that has lasted for `confirm_after`, or is urgent.

    Durations are measured by the boot clock. Where a detector had a gap, its confirmed findings stay known, so that
    they do not count as new afterwards, except those that are certain to have `ended`; its candidates start over. All
    candidates start over when the clock was set.
    """
    confirmed_before = {key: observation for key, observation in before.observations.items() if observation.confirmed}
    known = confirmed_before if clock_stepped(before, snapshot) else before.observations
    with_gap = {gap.detector for gap in detected.gaps}
    observations = {
        key: observation
        for key, observation in confirmed_before.items()
        if observation.first.detector in with_gap and key not in ended
    }
    tracked: list[TrackedFinding] = []
    for finding in detected.findings:
        observation = _observe(finding, known.get(finding.key), snapshot, confirm_after)
        observations[finding.key] = observation
        tracked.append(TrackedFinding(finding, observation.first_seen, observation.confirmed))
    return Confirmed(tuple(tracked), observations)


def _observe(
    finding: Finding, earlier: Observation | None, snapshot: Snapshot, confirm_after: timedelta
) -> Observation:
    if earlier is None:
        return Observation(finding, snapshot.taken_at, snapshot.uptime)
    lasted = finding.urgent or snapshot.uptime - earlier.first_uptime >= confirm_after
    return replace(earlier, confirmed=earlier.confirmed or lasted)
