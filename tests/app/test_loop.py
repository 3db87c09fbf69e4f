"""Rounds until told to stop: with a clock that is real, and sources that are not."""

import threading
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pytest

from agent.app import loop
from agent.app.loop import Exporter, Heartbeat
from agent.cleanup.cleaner import Cleaner, DisabledCleaner
from agent.model.release import Cleaning
from agent.model.report import Report
from agent.model.snapshot import Snapshot
from tests.builders import GRACE, node, reservation
from tests.sources.told import Told
from tests.wire import until

NOTHING = timedelta(0)
SOON = timedelta(milliseconds=10)


class Listener:
    """Keeps what it is told, and says stop after so many rounds."""

    def __init__(self, stop: threading.Event, rounds: int) -> None:
        self.heard: list[tuple[Report, float]] = []
        self._stop, self._rounds = stop, rounds

    def export(self, report: Report, seconds: float) -> None:
        self.heard.append((report, seconds))
        if len(self.heard) >= self._rounds:
            self._stop.set()


def run(
    sources: Told,
    exporters: Sequence[Exporter],
    stop: threading.Event,
    *,
    cleaner: Cleaner | None = None,
    interval: timedelta = SOON,
    heartbeat: Heartbeat | None = None,
) -> None:
    loop.run(
        sources.sources, "worker-1", exporters, cleaner or DisabledCleaner(), grace=GRACE, confirm_after=NOTHING,
        interval=interval,
        heartbeat=heartbeat or Heartbeat(timedelta(hours=1)), stop=stop,
    )  # fmt: skip


def test_every_round_is_told_to_everyone_with_its_time() -> None:
    stop = threading.Event()
    first, second = Listener(stop, 3), Listener(stop, 3)
    run(Told(node()), (first, second), stop)
    assert [report for report, _ in first.heard] == [report for report, _ in second.heard]
    assert len(first.heard) == 3
    assert all(0 <= seconds < 5 for _, seconds in first.heard)


def test_what_lasts_is_confirmed_in_the_second_round() -> None:
    stop = threading.Event()
    listener = Listener(stop, 2)
    run(Told(node(reservation("10.244.1.9"))), (listener,), stop)
    (first, _), (second, _) = listener.heard
    assert not any(judged.confirmed for judged in first.findings)
    assert any(judged.confirmed for judged in second.findings)


def test_an_interval_lies_between_the_starts_of_two_rounds() -> None:
    stop = threading.Event()
    listener = Listener(stop, 4)
    start = time.perf_counter()
    run(Told(node()), (listener,), stop, interval=timedelta(milliseconds=50))
    assert 0.15 <= time.perf_counter() - start < 2


def test_stop_ends_the_wait_at_once() -> None:
    stop = threading.Event()
    listener = Listener(stop, 10**9)
    thread = threading.Thread(
        target=run, args=(Told(node()), (listener,), stop), kwargs={"interval": timedelta(hours=1)}
    )
    thread.start()
    until(lambda: listener.heard, "the first round")
    stop.set()
    thread.join(1)
    assert not thread.is_alive()
    assert len(listener.heard) == 1


def test_told_to_stop_before_it_starts_it_does_not_look() -> None:
    stop = threading.Event()
    stop.set()
    sources = Told(node())
    run(sources, (), stop)
    assert sources.asked == []


def test_a_source_that_fails_fails_no_round_and_is_read_again() -> None:
    stop = threading.Event()
    listener = Listener(stop, 2)
    sources = Told(node(), broken="containers")

    class Mends:
        def export(self, report: Report, seconds: float) -> None:
            assert seconds >= 0
            assert [one.source for one in report.unavailable] in (["containers"], [])
            sources.broken = ""

    run(sources, (Mends(), listener), stop)
    assert [len(report.unavailable) for report, _ in listener.heard] == [1, 0]


class Remembers:
    """A cleaner that keeps what it is told, and what had been read when it was."""

    def __init__(self, sources: Told) -> None:
        self.told: list[tuple[str, int]] = []
        self.moments: list[datetime] = []
        self.snapshots: list[Snapshot] = []
        self._sources = sources

    def before_snapshot(self, now: datetime) -> None:
        self.moments.append(now)
        self.told.append(("before", self._sources.asked.count("reservations")))

    def after_snapshot(self, snapshots: Sequence[Snapshot], report: Report) -> Cleaning:
        self.told.append(("after", self._sources.asked.count("reservations")))
        self.snapshots += snapshots
        assert [report.assessment.snapshot] == [*snapshots]
        return Cleaning(node=report.assessment.snapshot.node_name, taken_at=snapshots[0].taken_at, applied=True)


def test_a_cleaner_learns_before_a_look_and_cleans_after_it_and_all_is_told() -> None:
    stop = threading.Event()
    listener, sources = Listener(stop, 2), Told(node(reservation("10.244.1.9")))
    cleaner = Remembers(sources)
    run(sources, (listener,), stop, cleaner=cleaner)
    assert cleaner.told == [("before", 0), ("after", 1), ("before", 1), ("after", 2)]
    for moment, look, (report, _) in zip(cleaner.moments, cleaner.snapshots, listener.heard, strict=True):
        assert moment.tzinfo is UTC
        assert moment <= look.taken_at
        assert report.cleaning == Cleaning(node="worker-1", taken_at=look.taken_at, applied=True)


def test_where_cleanup_is_off_nothing_is_told_of_it() -> None:
    stop = threading.Event()
    listener = Listener(stop, 2)
    run(Told(node(reservation("10.244.1.9"))), (listener,), stop)
    assert [report.cleaning for report, _ in listener.heard] == [None, None]


def test_a_bug_ends_the_daemon() -> None:
    class Broken:
        def export(self, report: Report, seconds: float) -> None:
            raise ZeroDivisionError(report, seconds)

    with pytest.raises(ZeroDivisionError):
        run(Told(node()), (Broken(),), threading.Event())


def test_a_round_is_a_beat_and_a_round_that_hangs_is_none() -> None:
    heartbeat = Heartbeat(timedelta(milliseconds=80))
    stop, hanging = threading.Event(), threading.Event()

    class Hangs:
        rounds = 0

        def export(self, report: Report, seconds: float) -> None:
            assert report.networks
            assert seconds >= 0
            self.rounds += 1
            if self.rounds > 3:
                hanging.wait(5)

    exporter = Hangs()
    thread = threading.Thread(target=run, args=(Told(node()), (exporter,), stop), kwargs={"heartbeat": heartbeat})
    thread.start()
    until(lambda: not heartbeat.alive, "the heart is seen to have stopped")
    assert exporter.rounds == 4
    hanging.set()
    until(lambda: heartbeat.alive, "it beats again")
    stop.set()
    thread.join(2)
    assert not thread.is_alive()


def test_a_healthy_node_is_looked_at_once() -> None:
    sources = Told(node())
    assert len(loop.take_snapshots(sources.sources, "worker-1", GRACE, timedelta(hours=1))) == 1
    assert sources.asked.count("reservations") == 1


def test_what_must_be_confirmed_is_looked_at_twice_and_apart() -> None:
    start = time.perf_counter()
    snapshots: tuple[Snapshot, ...] = loop.take_snapshots(
        Told(node(reservation("10.244.1.9"))).sources, "worker-1", GRACE, timedelta(milliseconds=100)
    )
    assert time.perf_counter() - start >= 0.1
    assert [look.node_name for look in snapshots] == ["worker-1", "worker-1"]
    assert snapshots[1].uptime - snapshots[0].uptime >= timedelta(milliseconds=100)
    assert snapshots[1].taken_at > snapshots[0].taken_at
