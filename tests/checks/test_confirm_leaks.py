"""A leak is confirmed if the last snapshot found the same file without an owner, and it lasted for `confirm_after`."""

from collections.abc import Iterable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.checks import engine
from agent.checks.addresses import leaked_reservation
from agent.checks.addresses.leak_cause import LeakEvidence
from agent.checks.confirm import ConfirmationState
from agent.checks.confirm_leaks import LeakObserver
from agent.cleanup import guards
from agent.cleanup.guards import GuardContext, RuntimeHistory
from agent.model.assessment import State
from agent.model.finding import LeakCause
from agent.model.report import Report
from agent.model.snapshot import Reservation
from tests.builders import CONTAINERS, GONE, NOW, UPTIME, make_limits, node, processes, reservation, sandbox, without

PERIOD = timedelta(seconds=30)
LOST = reservation("10.244.1.9")
OTHERS = (reservation("10.244.1.10", "8" * 64), reservation("10.244.1.11", "7" * 64))
GAP = "containers"


class Syncs:
    """Syncs of one agent, seconds apart."""

    def __init__(self, confirm_after: timedelta = PERIOD) -> None:
        self.state: ConfirmationState | None = None
        self._confirm_after, self._later, self._clock_set_by = confirm_after, timedelta(0), timedelta(0)

    def sync(
        self, after: float, *leaks: Reservation, gap: str = "", clock_set_by: float = 0, **more: Any
    ) -> tuple[Report, set[str]]:
        """Return the report, and the addresses that leaked."""
        self._later += timedelta(seconds=after)
        self._clock_set_by += timedelta(seconds=clock_set_by)
        snapshot = node(*leaks, later=self._later, **more)
        snapshot = replace(snapshot, taken_at=snapshot.taken_at + self._clock_set_by)
        snapshot = without(snapshot, gap) if gap else snapshot
        report, self.state = engine.run(
            snapshot, self.state, grace=timedelta(minutes=5), confirm_after=self._confirm_after
        )
        leaked = {one.name for one in report.assessment.reservations if one.state is State.LEAKED}
        assert leaked == {one.ip for one in report.assessment.leaks}
        assert leaked == {one.ip for one in report.confirmed_leaks}
        assert sum(report.newly_confirmed.values()) <= len(leaked)
        return report, leaked

    def leaked(self, after: float, *leaks: Reservation, **more: Any) -> bool:
        return LOST.ip in self.sync(after, *leaks, **more)[1]


def test_a_leak_seen_once_is_a_candidate() -> None:
    report, leaked = Syncs().sync(0, LOST)
    states = {one.name: one.state for one in report.assessment.reservations}
    assert (leaked, states[LOST.ip], report.findings) == (set(), State.CANDIDATE, ())


def test_a_leak_that_lasts_is_confirmed() -> None:
    syncs = Syncs()
    assert [syncs.leaked(15, LOST) for _ in range(5)] == [False, False, True, True, True]


def test_one_snapshot_never_confirms() -> None:
    syncs = Syncs(timedelta(0))
    assert [syncs.leaked(0, LOST) for _ in range(2)] == [False, True]


@pytest.mark.parametrize(
    "other", [replace(LOST, inode=LOST.inode + 1), replace(LOST, mtime_ns=LOST.mtime_ns - 1), replace(LOST, size=65)]
)
def test_another_file_with_the_same_address_is_another_leak(other: Reservation) -> None:
    syncs = Syncs()
    syncs.sync(0, LOST)
    assert not syncs.leaked(60, other)


def test_a_leak_that_disappears_starts_over() -> None:
    syncs = Syncs()
    assert [syncs.leaked(30, *leaks) for leaks in ((LOST,), (), (LOST,), (LOST,), (), (LOST,))] == [
        False, False, False, True, False, False,
    ]  # fmt: skip


def test_leaks_that_are_seen_at_different_times_are_confirmed_at_different_times() -> None:
    syncs = Syncs()
    assert syncs.sync(0, LOST)[1] == set()
    assert syncs.sync(15, LOST, *OTHERS)[1] == set()
    assert syncs.sync(15, LOST, *OTHERS)[1] == {LOST.ip}
    assert syncs.sync(15, *OTHERS, LOST)[1] == {LOST.ip, *(one.ip for one in OTHERS)}
    assert syncs.sync(15, OTHERS[0])[1] == {OTHERS[0].ip}


# Causes


def test_a_later_restart_is_not_the_cause_of_an_earlier_leak() -> None:
    syncs = Syncs()
    syncs.sync(0, LOST, processes=[processes(kubelet=timedelta(days=9))])
    report, _ = syncs.sync(60, LOST, processes=[processes(kubelet=timedelta(0))])
    (tracked,) = report.findings
    assert (tracked.finding.cause, tracked.first_seen) == (LeakCause.UNKNOWN, NOW)
    assert "cause unknown" in tracked.finding.message, "cause, time and message belong together"
    assert tracked.since < NOW


# Gaps


def test_candidates_are_dropped_if_there_is_a_gap() -> None:
    syncs = Syncs()
    assert [syncs.leaked(20, LOST), syncs.leaked(20, gap=GAP), syncs.leaked(20, LOST)] == [False, False, False]


@pytest.mark.parametrize("missing", [GAP, "reservations", "pods"])
def test_confirmed_leaks_stay_known_through_a_gap(missing: str) -> None:
    syncs = Syncs()
    syncs.sync(0, LOST)
    assert syncs.sync(30, LOST)[0].newly_confirmed == {("kubenet", LeakCause.UNKNOWN): 1}
    for _ in range(3):
        assert not syncs.leaked(30, LOST, gap=missing), "nothing is a leak while data is missing"
    report, leaked = syncs.sync(30, LOST)
    assert (leaked, report.newly_confirmed, report.findings[0].first_seen) == ({LOST.ip}, {}, NOW)


def test_a_file_that_is_another_after_a_gap_starts_over() -> None:
    syncs = Syncs()
    for _ in range(2):
        syncs.sync(30, LOST)
    syncs.sync(30, gap=GAP)
    assert not syncs.leaked(30, replace(LOST, inode=LOST.inode + 1))


def test_a_leak_that_is_in_use_during_a_gap_starts_over() -> None:
    syncs = Syncs()
    for _ in range(2):
        syncs.sync(30, LOST)
    syncs.sync(30, LOST, gap="pods", containers=[*CONTAINERS, sandbox(GONE, "shop/x")])
    syncs.sync(30, LOST, gap="pods")
    assert not syncs.leaked(30, LOST), "an owner was seen since: one snapshot is not enough"


def test_a_leak_whose_file_is_gone_during_a_gap_starts_over() -> None:
    syncs = Syncs()
    for _ in range(2):
        syncs.sync(30, LOST)
    syncs.sync(30, gap="pods")
    assert not syncs.leaked(30, LOST)


def test_without_a_gap_nothing_is_remembered() -> None:
    syncs = Syncs()
    for _ in range(2):
        syncs.sync(30, LOST, *OTHERS)
    syncs.sync(30, LOST)
    assert syncs.state is not None
    assert list(syncs.state.leaks) == [LOST]


# Clocks


@pytest.mark.parametrize("step", [-86400, -6, 6, 86400])
def test_a_clock_step_restarts_candidates(step: int) -> None:
    syncs = Syncs()
    syncs.sync(0, replace(LOST, mtime_ns=0))
    assert not syncs.sync(60, replace(LOST, mtime_ns=0), clock_set_by=step)[1]
    assert syncs.sync(30, replace(LOST, mtime_ns=0))[1]


@pytest.mark.parametrize("step", [-86400, 86400])
def test_a_clock_step_keeps_confirmed_leaks(step: int) -> None:
    syncs, old = Syncs(), replace(LOST, mtime_ns=0)
    for _ in range(2):
        syncs.sync(30, old)
    report, leaked = syncs.sync(15, old, clock_set_by=step)
    assert (report.clock_stepped, leaked, report.newly_confirmed) == (True, {LOST.ip}, {})


def test_confirm_after_is_measured_by_the_boot_clock() -> None:
    syncs, old = Syncs(), replace(LOST, mtime_ns=0)
    syncs.sync(0, old)
    assert not syncs.sync(29, old, clock_set_by=4)[1]


# Bugs


def test_a_broken_check_confirms_nothing_more_and_forgets_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    syncs = Syncs()
    for _ in range(2):
        syncs.sync(30, LOST)

    def broken(*_: object) -> None:
        raise ZeroDivisionError("a bug")

    with monkeypatch.context() as patched:
        patched.setattr("agent.checks.confirm_leaks.first_observation", broken)
        report, leaked = syncs.sync(30, OTHERS[0], LOST)
    assert [(gap.detector, gap.broken) for gap in report.gaps] == [(leaked_reservation.NAME, True)]
    assert OTHERS[0].ip not in leaked
    report, leaked = syncs.sync(30, LOST)
    assert (leaked, report.newly_confirmed) == ({LOST.ip}, {})


def test_nothing_is_released_while_the_findings_of_leaks_are_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(leaked_reservation, "describe_cause", broken)
    syncs = Syncs()
    for _ in range(2):
        report, leaked = syncs.sync(30, LOST)
    assert (leaked, report.findings) == ({LOST.ip}, ())
    context = GuardContext(report=report, runtime_history=RuntimeHistory(), limits=make_limits())
    ((_, refusals),) = guards.decide(context)
    assert ("not_confirmed", True) in {(one.reason, "ZeroDivisionError: a bug" in one.why) for one in refusals}


# Laws

FILES = [reservation(f"10.244.1.{n}", f"{n:064x}") for n in range(20, 24)]


@given(
    st.lists(
        st.tuples(st.sampled_from([15, 0, 30]), st.sets(st.sampled_from(FILES)), st.booleans(), st.booleans()),
        max_size=10,
    ),
    st.sampled_from([0, 15, 30, 60]).map(lambda n: timedelta(seconds=n)),
)
def test_leaks_are_confirmed_by_the_rules(
    syncs: list[tuple[int, set[Reservation], bool, bool]], confirm_after: timedelta
) -> None:
    """Compare with the rules, written down for one file."""
    since: dict[Reservation, timedelta] = {}
    confirmed: set[Reservation] = set()
    state: ConfirmationState | None = None
    now = step = timedelta(0)
    for seconds, seen, gap, stepped in syncs:
        now, step = now + timedelta(seconds=seconds), step + timedelta(hours=stepped)
        snapshot = replace(node(later=now), taken_at=NOW + now + step)
        before, was_confirmed = state, set(confirmed)
        observer = LeakObserver(state, snapshot, confirm_after)
        found = _observed(observer, seen, LeakEvidence.of(snapshot, seen))
        state = ConfirmationState(
            NOW + now + step, UPTIME + now, {}, leaks=observer.remembered(_always if gap else _never)
        )
        if stepped and before is not None:
            since = {one: first for one, first in since.items() if one in confirmed}
        lasted = {one for one in seen if one in since and now - since[one] >= confirm_after}
        confirmed = {one for one in confirmed if gap or one in seen} | lasted
        since = {one: since.get(one, now) for one in seen} | {one: since[one] for one in confirmed}
        assert found == confirmed & seen
        assert observer.newly_confirmed.total() == len(confirmed - was_confirmed)


def _always(_: Reservation) -> bool:
    return True


def _never(_: Reservation) -> bool:
    return False


def _observed(observer: LeakObserver, seen: Iterable[Reservation], evidence: LeakEvidence) -> set[Reservation]:
    return {one for one in seen if observer.observe(one, evidence)}


def test_the_leak_of_these_tests_is_one() -> None:
    assert (LOST.container_id, LOST.network) == (GONE, "kubenet")
