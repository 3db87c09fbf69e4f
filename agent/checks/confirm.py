"""A finding is believed when it lasts. Pure: the old memory and this look in, the new memory out."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import TypeAlias

from agent.model.finding import Finding, Gap, TrackedFinding

CLOCK_STEP = timedelta(seconds=5)
"""More than this between the wall clock's progress and the boot clock's is a clock that was set."""


@dataclass(frozen=True, slots=True)
class Observation:
    """What is remembered of one finding between two looks."""

    first: Finding
    first_seen: datetime
    first_uptime: timedelta
    confirmed: bool = False


Key: TypeAlias = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class ConfirmationState:
    """What one look leaves to the next."""

    taken_at: datetime
    uptime: timedelta
    observations: Mapping[Key, Observation]
    pods: Mapping[str, str] = field(default_factory=dict)
    """The pod of each container id that has a reservation: a leak's owner has vanished from every other record."""


def clock_stepped(memory: ConfirmationState | None, taken_at: datetime, uptime: timedelta) -> bool:
    """Tell whether the wall clock was set since the last look."""
    if memory is None:
        return False
    return abs((taken_at - memory.taken_at) - (uptime - memory.uptime)) > CLOCK_STEP


def confirm(
    findings: Iterable[Finding],
    gaps: Iterable[Gap],
    memory: ConfirmationState | None,
    taken_at: datetime,
    uptime: timedelta,
    confirm_after: timedelta,
) -> tuple[tuple[TrackedFinding, ...], ConfirmationState]:
    """Confirm what was there in the look before too, and has been for `confirm_after` of the boot clock, or is urgent.

    What a blind detector had confirmed stays known, so that it is not found anew when the detector sees again; its
    candidates are forgotten, and so are all when the wall clock was set, because ages by it mean nothing then.
    """
    known = {} if memory is None or clock_stepped(memory, taken_at, uptime) else memory.observations
    confirmed_before = {} if memory is None else {key: one for key, one in memory.observations.items() if one.confirmed}
    blind = {gap.detector for gap in gaps}
    kept = {key: one for key, one in confirmed_before.items() if one.first.detector in blind}

    judged: list[TrackedFinding] = []
    observations: dict[Key, Observation] = dict(kept)
    for finding in findings:
        before = known.get(finding.key) or confirmed_before.get(finding.key)
        observation = before or Observation(finding, taken_at, uptime)
        lasted = before is not None and (finding.urgent or uptime - observation.first_uptime >= confirm_after)
        observation = replace(observation, confirmed=observation.confirmed or lasted)
        observations[finding.key] = observation
        judged.append(TrackedFinding(finding, observation.first_seen, observation.confirmed).because(observation.first))
    return tuple(judged), ConfirmationState(taken_at, uptime, observations)
