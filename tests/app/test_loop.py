"""The loop of the daemon, with a real clock and fake sources."""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from agent.app import loop
from agent.app.loop import Heartbeat
from agent.cleanup.run import Cleaner
from agent.config import load
from agent.model.bug import Bug
from agent.model.release import Cleaning
from agent.model.report import Report
from agent.model.snapshot import Snapshot
from tests.builders import GRACE, node, reservation
from tests.sources.recorded import RecordedSources
from tests.wire import until

LEAKING = node(reservation("10.244.1.9"))


class Recording:
    """An exporter that keeps the reports, and stops the loop after some of them."""

    def __init__(self, stop: threading.Event, syncs: int) -> None:
        self.reports: list[Report] = []
        self._stop, self._syncs = stop, syncs

    def export(self, report: Report, seconds: float) -> None:
        assert 0 <= seconds < 60
        self.reports.append(report)
        if len(self.reports) >= self._syncs:
            self._stop.set()


def run(
    sources: RecordedSources,
    stop: threading.Event,
    *exporters: Any,
    cleaner: Any = None,
    milliseconds: float = 10,
    report_bug: Callable[[Bug], None] = lambda _: None,
) -> None:
    given = load("run", {"api": "off"}, {})
    config = replace(
        given,
        grace=GRACE,
        confirm_after=timedelta(0),
        interval=timedelta(milliseconds=milliseconds),
    )
    loop.run_loop(
        config,
        sources=sources.sources,
        node="worker-1",
        exporters=exporters,
        cleaner=cleaner,
        heartbeat=Heartbeat(timedelta(hours=1)),
        stop=stop,
        report_bug=report_bug,
    )


def test_every_report_reaches_every_exporter_in_its_interval() -> None:
    stop, start = threading.Event(), time.perf_counter()
    first, second = Recording(stop, 4), Recording(stop, 4)
    run(RecordedSources(LEAKING), stop, first, second, milliseconds=50)
    assert time.perf_counter() - start >= 0.15, "from start to start"
    assert first.reports == second.reports
    assert [any(one.confirmed for one in report.findings) for report in first.reports] == [
        False,
        True,
        True,
        True,
    ]
    assert [report.cleaning for report in first.reports] == [None] * 4


def test_stop_ends_the_wait_at_once() -> None:
    stop = threading.Event()
    exporter, sources = Recording(stop, 10**9), RecordedSources(node())
    thread = threading.Thread(
        target=run, args=(sources, stop, exporter), kwargs={"milliseconds": 3_600_000}
    )
    thread.start()
    until(lambda: exporter.reports, "the first sync")
    stop.set()
    thread.join(20)
    assert not thread.is_alive()
    read = list(sources.requested)
    run(sources, stop)
    assert (len(exporter.reports), sources.requested) == (1, read), (
        "a loop that was stopped before reads nothing"
    )


class Raising:
    """An exporter that raises."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def export(self, *_: object) -> None:
        raise self._error


def test_an_exporter_that_raises_is_reported_in_each_sync_and_ends_no_other() -> None:
    stop = threading.Event()
    first, last = Recording(stop, 3), Recording(stop, 3)
    bugs: list[Bug] = []

    def report_bug(bug: Bug) -> None:
        bugs.append(bug)
        raise OSError("the log cannot be written either")

    broken = Raising(ZeroDivisionError("a bug"))
    run(RecordedSources(node()), stop, first, broken, last, report_bug=report_bug)
    assert len(last.reports) == 3
    assert first.reports == last.reports
    reported = [(bug.part, bug.name, bug.error) for bug in bugs]
    assert reported == [("exporter", "Raising", "ZeroDivisionError: a bug")] * 3


def test_an_interrupt_ends_the_loop() -> None:
    with pytest.raises(KeyboardInterrupt):
        run(RecordedSources(node()), threading.Event(), Raising(KeyboardInterrupt()))


class RecordingCleaner(Cleaner):
    """A cleaner that keeps its calls, and how often the sources had been read before."""

    def __init__(self, sources: RecordedSources) -> None:
        self.calls: list[tuple[str, int]] = []
        self._sources = sources

    def before_snapshot(self) -> None:
        self.calls.append(("before", self._sources.requested.count("reservations")))

    def after_snapshot(self, snapshots: Sequence[Snapshot], report: Report) -> Cleaning:
        self.calls.append(("after", self._sources.requested.count("reservations")))
        assert [report.assessment.snapshot] == [*snapshots]
        return Cleaning(
            node=report.assessment.snapshot.node_name, taken_at=snapshots[0].taken_at, dry_run=False
        )


def test_the_cleaner_is_called_before_and_after_each_snapshot() -> None:
    stop, sources = threading.Event(), RecordedSources(LEAKING)
    exporter, cleaner = Recording(stop, 2), RecordingCleaner(sources)
    run(sources, stop, exporter, cleaner=cleaner)
    assert cleaner.calls == [("before", 0), ("after", 1), ("before", 1), ("after", 2)]
    for report in exporter.reports:
        assert report.cleaning == Cleaning(
            node="worker-1", taken_at=report.assessment.snapshot.taken_at, dry_run=False
        )


class FailingCleaner(RecordingCleaner):
    """A cleaner that fails before or after each snapshot but the last."""

    def __init__(self, sources: RecordedSources, when: str) -> None:
        super().__init__(sources)
        self._when = when
        self.dry_run = False

    def before_snapshot(self) -> None:
        super().before_snapshot()
        self._fail("before")

    def after_snapshot(self, snapshots: Sequence[Snapshot], report: Report) -> Cleaning:
        cleaning = super().after_snapshot(snapshots, report)
        self._fail("after")
        return cleaning

    def _fail(self, when: str) -> None:
        if when == self._when and len(self.calls) < 4:
            raise ZeroDivisionError(when)

    @property
    def halted(self) -> str:
        return "a container reappeared"


def test_a_cleaner_that_fails_leaves_the_report_standing_and_the_next_sync_cleans() -> None:
    for when in ("before", "after"):
        stop, sources = threading.Event(), RecordedSources(LEAKING)
        exporter, cleaner = Recording(stop, 4), FailingCleaner(sources, when)
        run(sources, stop, exporter, cleaner=cleaner)
        assert all(report.findings for report in exporter.reports[1:])
        cleanings = [report.cleaning for report in exporter.reports]
        failed, done = cleanings[0], cleanings[-1]
        assert failed is not None
        assert done is not None
        assert (failed.outcomes, failed.halted) == ((), "a container reappeared")
        (bug,) = failed.bugs
        assert (bug.part, bug.error) == ("cleaner", f"ZeroDivisionError: {when}")
        assert done.bugs == ()
        assert exporter.reports[0].bugs == (), "a bug is reported in one place"
        after = [number for number, (call, _) in enumerate(cleaner.calls) if call == "after"]
        assert (after[0] == 1) is (when == "after"), "nothing is released without the journal"


def test_only_a_finding_to_confirm_needs_a_second_snapshot_after_the_delay() -> None:
    healthy = RecordedSources(node()).sources
    assert len(loop.take_snapshots(healthy, "worker-1", GRACE, timedelta(hours=1))) == 1
    delay = timedelta(milliseconds=100)
    first, second = loop.take_snapshots(RecordedSources(LEAKING).sources, "worker-1", GRACE, delay)
    assert second.uptime - first.uptime >= delay
    assert second.taken_at > first.taken_at
