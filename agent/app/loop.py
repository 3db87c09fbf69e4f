"""The daemon's loop, and the clocks.

No other module reads a clock or sleeps; others wait at most for a response.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from threading import Event
from typing import TYPE_CHECKING, Protocol

from agent.checks import engine
from agent.checks.devices.history import with_history
from agent.checks.engine import ConfirmationState
from agent.cleanup.signals import held_signals
from agent.config import Config
from agent.model.bug import EXPORTER, Bug, bug_of
from agent.model.clocks import Moment
from agent.model.release import CLEANER, Cleaning
from agent.model.report import Report
from agent.model.snapshot import Snapshot
from agent.sources.collector import take_snapshot
from agent.sources.source import Sources

if TYPE_CHECKING:  # a scan cleans nothing
    from agent.cleanup.run import Cleaner

clock: Callable[[], float] = time.monotonic
"""Returns seconds that never jump, to measure durations."""


def now() -> Moment:
    """Return the present time by both clocks of the node."""
    return Moment(datetime.now(UTC), timedelta(seconds=time.clock_gettime(time.CLOCK_BOOTTIME)))


def wall() -> datetime:
    """Return the present time by the node's wall clock, in UTC."""
    return now().wall


def uptime() -> timedelta:
    """Return the time since the boot, by a clock that nobody sets."""
    return now().uptime


def snapshot_node(sources: Sources, node: str) -> Snapshot:
    """Take a snapshot, with what the history of its device plugins adds."""
    return with_history(take_snapshot(sources, node, now(), clock))


def take_snapshots(
    sources: Sources, node: str, grace: timedelta, apart: timedelta
) -> tuple[Snapshot, ...]:
    """Take a snapshot, and a second one `apart` later if there is something to confirm."""
    first = snapshot_node(sources, node)
    if not engine.needs_second_snapshot(first, grace):
        return (first,)
    time.sleep(apart.total_seconds())
    return first, snapshot_node(sources, node)


class Exporter(Protocol):
    """Reports each sync to people or programs. What it raises is a bug, and ends no other."""

    def export(self, report: Report, seconds: float) -> None:
        """`seconds`: how long the sync took."""


class Heartbeat:
    """When the last sync ended, so that a loop that hangs is noticed."""

    def __init__(self, limit: timedelta) -> None:
        """`limit`: the time from the end of one sync to the end of the next."""
        self._limit = limit.total_seconds()
        self._last = clock()

    def beat(self) -> None:
        """Remember that a sync ended, or that a release goes on."""
        self._last = clock()

    @property
    def alive(self) -> bool:
        """Whether the last one was within the limit."""
        return clock() - self._last <= self._limit


def _before_snapshot(cleaner: "Cleaner") -> Bug | None:
    """Return the bug of the cleaner, if it failed."""
    try:
        cleaner.before_snapshot()
    except Exception as error:  # noqa: BLE001 (a cleaner that fails must not end the monitoring)
        return bug_of(CLEANER, "before_snapshot", error)
    return None


def _after_snapshot(cleaner: "Cleaner", report: Report, bug: Bug | None) -> Cleaning:
    """Clean up, unless `bug` has kept the cleaner from reading its journal before the snapshot."""
    snapshot = report.assessment.snapshot
    if bug is None:
        try:
            return cleaner.after_snapshot((snapshot,), report)
        except Exception as error:  # noqa: BLE001 (the report stands: it is exported)
            bug = bug_of(CLEANER, "after_snapshot", error)
    return cleaner.failed(snapshot, bug)


def _export(
    exporter: Exporter, report: Report, seconds: float, report_bug: Callable[[Bug], None]
) -> None:
    try:
        exporter.export(report, seconds)
    except Exception as error:  # noqa: BLE001 (the other exporters go on)
        with suppress(Exception):  # perhaps the log is what fails
            report_bug(bug_of(EXPORTER, type(exporter).__name__, error))


def run_loop(
    config: Config,
    *,
    sources: Sources,
    node: str,
    exporters: Sequence[Exporter],
    cleaner: "Cleaner | None",
    heartbeat: Heartbeat,
    stop: Event,
    report_bug: Callable[[Bug], None],
) -> None:
    """Sync until `stop`. `report_bug`: called with the bugs of exporters, which no report has."""
    state: ConfirmationState | None = None
    while not stop.is_set():
        started = clock()
        bug = _before_snapshot(cleaner) if cleaner else None
        snapshot = snapshot_node(sources, node)
        report, state = engine.run(
            snapshot, state, grace=config.grace, confirm_after=config.confirm_after
        )

        with held_signals(deliver=True):  # releases are exported before the process ends
            if cleaner:
                report = replace(report, cleaning=_after_snapshot(cleaner, report, bug))
            for exporter in exporters:
                _export(exporter, report, clock() - started, report_bug)

        heartbeat.beat()
        stop.wait(max(0.0, config.interval.total_seconds() - (clock() - started)))
