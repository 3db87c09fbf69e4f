"""A finding is believed when it lasts. Pure: the old memory and this look in, the new memory out."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import TypeAlias

from agent.model.finding import Finding, Gap, Judged

CLOCK_STEP = timedelta(seconds=5)
"""More than this between the wall clock's progress and the boot clock's is a clock that was set."""


@dataclass(frozen=True, slots=True)
class Sighting:
    """What is remembered of one finding between two looks."""

    first: Finding
    first_seen: datetime
    first_uptime: timedelta
    confirmed: bool = False


Key: TypeAlias = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Memory:
    """What one look leaves to the next."""

    taken_at: datetime
    uptime: timedelta
    sightings: Mapping[Key, Sighting]
    pods: Mapping[str, str] = field(default_factory=dict)
    """The pod of each container id that has a reservation: a leak's owner has vanished from every other record."""


def clock_stepped(memory: Memory | None, taken_at: datetime, uptime: timedelta) -> bool:
    """Tell whether the wall clock was set since the last look."""
    if memory is None:
        return False
    return abs((taken_at - memory.taken_at) - (uptime - memory.uptime)) > CLOCK_STEP


def weigh(
    findings: Iterable[Finding],
    gaps: Iterable[Gap],
    memory: Memory | None,
    taken_at: datetime,
    uptime: timedelta,
    period: timedelta,
) -> tuple[tuple[Judged, ...], Memory]:
    """Confirm what was there in the look before too, and has been for `period` of the boot clock, or is urgent.

    What a blind detector had confirmed stays known, so that it is not found anew when the detector sees again; its
    candidates are forgotten, and so are all when the wall clock was set, because ages by it mean nothing then.
    """
    known = {} if memory is None or clock_stepped(memory, taken_at, uptime) else memory.sightings
    confirmed_before = {} if memory is None else {key: one for key, one in memory.sightings.items() if one.confirmed}
    blind = {gap.detector for gap in gaps}
    kept = {key: one for key, one in confirmed_before.items() if one.first.detector in blind}

    judged: list[Judged] = []
    sightings: dict[Key, Sighting] = dict(kept)
    for finding in findings:
        before = known.get(finding.key) or confirmed_before.get(finding.key)
        sighting = before or Sighting(finding, taken_at, uptime)
        lasted = before is not None and (finding.urgent or uptime - sighting.first_uptime >= period)
        sighting = replace(sighting, confirmed=sighting.confirmed or lasted)
        sightings[finding.key] = sighting
        judged.append(Judged(finding, sighting.first_seen, sighting.confirmed).because(sighting.first))
    return tuple(judged), Memory(taken_at, uptime, sightings)
