"""The loop of the daemon, with a real clock and fake sources."""

import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

import pytest

from agent.app import loop
from agent.app.loop import Exporter, Heartbeat
from agent.cleanup.run import DryRun
from agent.config import load
from agent.model.release import Cleaning
from agent.model.report import Report
from agent.model.snapshot import Snapshot
from tests.builders import GRACE, node, reservation
from tests.sources.recorded import RecordedSources
from tests.wire import until

NOTHING = timedelta(0)
SOON = timedelta(milliseconds=10)


class RecordingExporter:
    """Keeps the reports, and stops the loop after some of them."""

    def __init__(self, stop: threading.Event, syncs: int) -> None:
        self.reports: list[tuple[Report, float]] = []
        self._stop, self._syncs = stop, syncs

    def export(self, report: Report, seconds: float) -> None:
        self.reports.append((report, seconds))
        if len(self.reports) >= self._syncs:
            self._stop.set()


def run(
    sources: RecordedSources,
    exporters: Sequence[Exporter],
    stop: threading.Event,
    *,
    cleaner: DryRun | None = None,
    interval: timedelta = SOON,
    heartbeat: Heartbeat | None = None,
) -> None:
    config = replace(load("run", {"api": "off"}, {}), grace=GRACE, confirm_after=NOTHING, interval=interval)
    heartbeat = heartbeat or Heartbeat(timedelta(hours=1))
    loop.run_loop(config, sources.sources, "worker-1", exporters, cleaner, heartbeat, stop)


def test_every_report_reaches_every_exporter_with_its_duration() -> None:
    stop = threading.Event()
    first, second = RecordingExporter(stop, 3), RecordingExporter(stop, 3)
    run(RecordedSources(node()), (first, second), stop)
    assert [report for report, _ in first.reports] == [report for report, _ in second.reports]
    assert len(first.reports) == 3
    assert all(0 <= seconds < 5 for _, seconds in first.reports)


def test_a_finding_that_lasts_is_confirmed_by_the_second_sync() -> None:
    stop = threading.Event()
    exporter = RecordingExporter(stop, 2)
    run(RecordedSources(node(reservation("10.244.1.9"))), (exporter,), stop)
    (first, _), (second, _) = exporter.reports
    assert not any(tracked.confirmed for tracked in first.findings)
    assert any(tracked.confirmed for tracked in second.findings)


def test_the_interval_is_measured_from_start_to_start() -> None:
    stop = threading.Event()
    exporter = RecordingExporter(stop, 4)
    start = time.perf_counter()
    run(RecordedSources(node()), (exporter,), stop, interval=timedelta(milliseconds=50))
    assert 0.15 <= time.perf_counter() - start < 30


def test_stop_ends_the_wait_at_once() -> None:
    stop = threading.Event()
    exporter = RecordingExporter(stop, 10**9)
    thread = threading.Thread(
        target=run, args=(RecordedSources(node()), (exporter,), stop), kwargs={"interval": timedelta(hours=1)}
    )
    thread.start()
    until(lambda: exporter.reports, "the first sync")
    stop.set()
    thread.join(1)
    assert not thread.is_alive()
    assert len(exporter.reports) == 1


def test_a_loop_stopped_before_it_starts_reads_nothing() -> None:
    stop = threading.Event()
    stop.set()
    sources = RecordedSources(node())
    run(sources, (), stop)
    assert sources.requested == []


def test_a_source_that_fails_is_read_again() -> None:
    stop = threading.Event()
    exporter = RecordingExporter(stop, 2)
    sources = RecordedSources(node(), broken="containers")

    class Mends:
        def export(self, report: Report, seconds: float) -> None:
            assert seconds >= 0
            assert [one.source for one in report.unavailable] in (["containers"], [])
            sources.broken = ""

    run(sources, (Mends(), exporter), stop)
    assert [len(report.unavailable) for report, _ in exporter.reports] == [1, 0]


class RecordingCleaner(DryRun):
    """A cleaner that keeps its calls, and how often the sources had been read before."""

    def __init__(self, sources: RecordedSources) -> None:
        self.calls: list[tuple[str, int]] = []
        self.snapshots: list[Snapshot] = []
        self._sources = sources

    def before_snapshot(self) -> None:
        self.calls.append(("before", self._sources.requested.count("reservations")))

    def after_snapshot(self, snapshots: Sequence[Snapshot], report: Report) -> Cleaning:
        self.calls.append(("after", self._sources.requested.count("reservations")))
        self.snapshots += snapshots
        assert [report.assessment.snapshot] == [*snapshots]
        return Cleaning(node=report.assessment.snapshot.node_name, taken_at=snapshots[0].taken_at, applied=True)


def test_the_cleaner_is_called_before_and_after_each_snapshot() -> None:
    stop = threading.Event()
    exporter, sources = RecordingExporter(stop, 2), RecordedSources(node(reservation("10.244.1.9")))
    cleaner = RecordingCleaner(sources)
    run(sources, (exporter,), stop, cleaner=cleaner)
    assert cleaner.calls == [("before", 0), ("after", 1), ("before", 1), ("after", 2)]
    for snapshot, (report, _) in zip(cleaner.snapshots, exporter.reports, strict=True):
        assert report.cleaning == Cleaning(node="worker-1", taken_at=snapshot.taken_at, applied=True)


def test_without_cleanup_a_report_has_no_cleaning() -> None:
    stop = threading.Event()
    exporter = RecordingExporter(stop, 2)
    run(RecordedSources(node(reservation("10.244.1.9"))), (exporter,), stop)
    assert [report.cleaning for report, _ in exporter.reports] == [None, None]


def test_an_exception_ends_the_loop() -> None:
    class Broken:
        def export(self, report: Report, seconds: float) -> None:
            raise ZeroDivisionError(report, seconds)

    with pytest.raises(ZeroDivisionError):
        run(RecordedSources(node()), (Broken(),), threading.Event())


def test_the_heartbeat_stops_while_a_sync_hangs() -> None:
    heartbeat = Heartbeat(timedelta(milliseconds=80))
    stop, hanging = threading.Event(), threading.Event()

    class Hangs:
        syncs = 0

        def export(self, report: Report, seconds: float) -> None:
            assert report.networks
            assert seconds >= 0
            self.syncs += 1
            if self.syncs > 3:
                hanging.wait(5)

    exporter = Hangs()
    thread = threading.Thread(
        target=run, args=(RecordedSources(node()), (exporter,), stop), kwargs={"heartbeat": heartbeat}
    )
    thread.start()
    until(lambda: not heartbeat.alive, "the heartbeat stops")
    assert exporter.syncs == 4
    hanging.set()
    until(lambda: heartbeat.alive, "the heartbeat continues")
    stop.set()
    thread.join(2)
    assert not thread.is_alive()


def test_a_healthy_node_needs_one_snapshot() -> None:
    sources = RecordedSources(node())
    assert len(loop.take_snapshots(sources.sources, "worker-1", GRACE, timedelta(hours=1))) == 1
    assert sources.requested.count("reservations") == 1


def test_a_finding_to_confirm_needs_a_second_snapshot_after_the_delay() -> None:
    start = time.perf_counter()
    snapshots: tuple[Snapshot, ...] = loop.take_snapshots(
        RecordedSources(node(reservation("10.244.1.9"))).sources, "worker-1", GRACE, timedelta(milliseconds=100)
    )
    assert time.perf_counter() - start >= 0.1
    assert [snapshot.node_name for snapshot in snapshots] == ["worker-1", "worker-1"]
    assert snapshots[1].uptime - snapshots[0].uptime >= timedelta(milliseconds=100)
    assert snapshots[1].taken_at > snapshots[0].taken_at
