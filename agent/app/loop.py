"""Rounds until told to stop. The only module that asks the time; others wait at most for what they asked."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from threading import Event
from typing import Protocol

from agent.checks import engine
from agent.checks.confirm import ConfirmationState
from agent.cleanup.cleaner import Cleaner
from agent.cleanup.signals import deferred
from agent.model.report import Report
from agent.model.snapshot import Snapshot
from agent.sources.collector import Moment, Sources, take_snapshot

clock: Callable[[], float] = time.monotonic
"""Seconds that never jump, to measure spans with."""


def now() -> Moment:
    return Moment(datetime.now(UTC), timedelta(seconds=time.clock_gettime(time.CLOCK_BOOTTIME)))


def wall() -> datetime:
    return now().wall


def look(sources: Sources, node: str) -> Snapshot:
    return take_snapshot(sources, node, now(), clock)


def take_snapshots(sources: Sources, node: str, grace: timedelta, apart: timedelta) -> tuple[Snapshot, ...]:
    """Look once, and where a verdict needs it, once more a moment later."""
    first = look(sources, node)
    if not engine.needs_second_snapshot(first, grace):
        return (first,)
    time.sleep(apart.total_seconds())
    return first, look(sources, node)


class Exporter(Protocol):
    """Whoever tells people of a round."""

    def export(self, report: Report, seconds: float) -> None:
        """`seconds`: what the round took."""
        ...


class Heartbeat:
    """When the last round ended, so that a loop that hangs is seen."""

    def __init__(self, longest: timedelta) -> None:
        self._longest = longest.total_seconds()
        self._last = clock()

    def beat(self) -> None:
        self._last = clock()

    def silence(self) -> float:
        """Return the seconds since the last beat."""
        return clock() - self._last

    @property
    def alive(self) -> bool:
        return self.silence() <= self._longest


def run(
    sources: Sources,
    node: str,
    exporters: Sequence[Exporter],
    cleaner: Cleaner,
    *,
    grace: timedelta,
    confirm_after: timedelta,
    interval: timedelta,
    heartbeat: Heartbeat,
    stop: Event,
) -> None:
    """Look, judge, clean where that is wanted, and tell, every `interval`, until `stop` is set."""
    memory: ConfirmationState | None = None
    while not stop.is_set():
        started = clock()
        cleaner.before_snapshot(now().wall)
        snapshot = look(sources, node)
        report, memory = engine.run(snapshot, memory, grace=grace, confirm_after=confirm_after)
        with deferred():
            # What was released is told before we end.
            report = replace(report, cleaning=cleaner.after_snapshot((snapshot,), report))
            for exporter in exporters:
                exporter.export(report, clock() - started)
        heartbeat.beat()
        stop.wait(max(0.0, interval.total_seconds() - (clock() - started)))
