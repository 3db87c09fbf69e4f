"""One sync: from snapshots to a report.

A finding is confirmed if the snapshot before had it too, and it lasted for `confirm_after` of the boot clock. Leaks are
confirmed before anything else is judged.
"""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.checks import engine
from agent.checks.addresses import leaked_reservation
from agent.checks.engine import ConfirmationState
from agent.cleanup import guards
from agent.model.assessment import State
from agent.model.finding import LeakCause, TrackedFinding
from agent.model.report import Report
from agent.model.snapshot import SOURCES, Node, Reservation, Unavailable
from agent.model.watches import Evidence
from tests import builders as b
from tests.builders import (
    CONTAINERS,
    GONE,
    GRACE,
    NOW,
    WEB_ID,
    node,
    reservation,
    scanned,
    shown,
    without,
    without_api,
)

LOST = reservation("10.244.1.9")
OTHERS = (reservation("10.244.1.10", "8" * 64), reservation("10.244.1.11", "7" * 64))
WATCH = "pods deleted_below"  # The subject of a finding that is no leak, at `shown()`
PERIOD = timedelta(seconds=30)
GAP = "containers"


class Syncs:
    """Syncs of one agent, seconds apart."""

    def __init__(self, confirm_after: timedelta = PERIOD) -> None:
        self.state: ConfirmationState | None = None
        self._confirm_after, self._later, self._clock_set_by = (
            confirm_after,
            timedelta(0),
            timedelta(0),
        )

    def sync(
        self, after: float, *leaks: Reservation, gap: str = "", clock_set_by: float = 0, **more: Any
    ) -> tuple[Report, set[str]]:
        """Return the report, and the addresses that leaked."""
        self._later += timedelta(seconds=after)
        self._clock_set_by += timedelta(seconds=clock_set_by)
        snapshot = node(*leaks, later=self._later, clock_set_by=self._clock_set_by, **more)
        snapshot = without(snapshot, gap) if gap else snapshot
        report, self.state = engine.run(
            snapshot, self.state, grace=GRACE, confirm_after=self._confirm_after
        )
        leaked = {entry.ip for entry in report.assessment.leaked}
        assert leaked == {entry.ip for entry in report.confirmed_leaks}
        assert sum(report.newly_confirmed.values()) <= len(leaked)
        return report, leaked

    def leaked(self, after: float, *leaks: Reservation, **more: Any) -> bool:
        return LOST.ip in self.sync(after, *leaks, **more)[1]

    def watched(self, after: float, **more: Any) -> TrackedFinding:
        """Sync with a watch that shows something, and return its finding."""
        report, _ = self.sync(after, watches=[shown()], **more)
        (tracked,) = (tracked for tracked in report.findings if tracked.finding.subject == WATCH)
        return tracked

    def confirms(self, after: float, **more: Any) -> bool:
        return self.watched(after, **more).confirmed


def test_another_file_with_the_same_address_is_another_leak() -> None:
    for other in (
        replace(LOST, inode=LOST.inode + 1),
        replace(LOST, mtime_ns=LOST.mtime_ns - 1),
        replace(LOST, size=65),
    ):
        syncs = Syncs()
        syncs.sync(0, LOST)
        assert not syncs.leaked(60, other)


def test_a_leak_is_named_where_no_record_is_left() -> None:
    pods = {LOST.container_id: "shop/cart-0", WEB_ID: "shop/other"}
    report = engine.replay(
        [node(LOST), node(LOST)], grace=GRACE, confirm_after=timedelta(0), pods=pods
    )
    assert {entry.name: entry.pod for entry in report.assessment.reservations} == {
        "10.244.1.2": "shop/web", "10.244.1.3": "shop/db", "10.244.1.9": "shop/cart-0"
    }  # fmt: skip
    (leak,) = report.findings
    assert leak.finding.pod == "shop/cart-0"
    assert "of pod shop/cart-0" in leak.finding.message
    assert scanned(node(LOST)).unnamed == {LOST.container_id}
    assert report.unnamed == frozenset()


def test_a_finding_has_its_last_words_and_its_first_time() -> None:
    syncs = Syncs()
    syncs.sync(15, node=[Node("worker-1", ("10.244.1.0/29",), 110)])
    report, _ = syncs.sync(30, LOST, node=[Node("worker-1", ("10.244.1.0/29",), 109)])
    (tracked,) = (
        tracked for tracked in report.findings if tracked.finding.detector == "exhausted_range"
    )
    assert "for up to 108 pods" in tracked.finding.message
    assert tracked.first_seen == tracked.since == NOW + timedelta(seconds=15)
    # Two snapshots are enough for what is urgent, as a deleted Node is.
    deleted: dict[str, Any] = {
        "node": [],
        "registration": b.registration(b.last_seen()),
        "gap": "pods",
    }
    syncs = Syncs()
    reports = [syncs.sync(1, **deleted)[0] for _ in range(2)]
    assert [[tracked.confirmed for tracked in report.findings] for report in reports] == [
        [False],
        [True],
    ]


def test_where_its_detector_has_a_gap_a_candidate_starts_over_and_a_confirmed_finding_stays_known() -> (
    None
):
    candidate, confirmed, of_another = Syncs(), Syncs(), Syncs()
    candidate.confirms(0)
    candidate.sync(20, gap="watches")
    assert not candidate.confirms(20)
    for syncs in (confirmed, of_another):
        syncs.confirms(0)
        syncs.confirms(30)
    for _ in range(3):
        assert confirmed.sync(30, gap="watches")[0].findings == ()
    tracked = confirmed.watched(30)
    assert (tracked.confirmed, tracked.first_seen) == (True, NOW)
    of_another.sync(1, gap=GAP)
    assert not of_another.confirms(1)
    # One that is found despite a gap keeps its age.
    despite = Syncs()
    assert [despite.confirms(30, gap="node") for _ in range(2)] == [False, True]


def test_candidates_are_dropped_and_confirmed_leaks_stay_known_through_a_gap() -> None:
    for missing in (GAP, "reservations", "pods"):
        syncs = Syncs()
        assert [
            syncs.leaked(20, *leaks, gap=gap) for leaks, gap in (((LOST,), ""), ((), missing))
        ] == [False, False]
        assert not syncs.leaked(20, LOST)
        first_seen = NOW + timedelta(seconds=60)
        assert syncs.sync(30, LOST)[0].newly_confirmed == {("kubenet", LeakCause.UNKNOWN): 1}
        for _ in range(3):
            assert not syncs.leaked(30, LOST, gap=missing), (
                "nothing is a leak while data is missing"
            )
        report, leaked = syncs.sync(30, LOST)
        assert (leaked, report.newly_confirmed, report.findings[0].first_seen) == (
            {LOST.ip},
            {},
            first_seen,
        )


def test_a_leak_that_had_an_owner_or_no_file_during_a_gap_starts_over() -> None:
    owner: dict[str, Any] = {"containers": [*CONTAINERS, b.sandbox(GONE, "shop/x")]}
    for meanwhile, leaks, more in (
        ("pods", (LOST,), owner),
        ("pods", (), {}),
        (GAP, (OTHERS[0],), {}),
    ):
        syncs = Syncs()
        for _ in range(2):
            syncs.sync(30, LOST)
        syncs.sync(30, *leaks, gap=meanwhile, **more)
        syncs.sync(30, *leaks, gap=meanwhile)
        assert not syncs.leaked(30, LOST), "one snapshot is not enough"
    # Without a gap, nothing is remembered.
    syncs = Syncs()
    for _ in range(2):
        syncs.sync(30, LOST, *OTHERS, watches=[shown()])
    syncs.sync(30, LOST)
    assert syncs.state is not None
    observed = syncs.state.observations.values()
    assert [tracked.finding.subject for tracked in observed] == [str(LOST.key)]


def test_a_clock_step_restarts_candidates_and_keeps_what_is_confirmed() -> None:
    old, watches = replace(LOST, mtime_ns=0), [shown()]
    for step in (-86400, -6, 6, 86400):
        syncs = Syncs()
        syncs.sync(0, old, watches=watches)
        report, leaked = syncs.sync(60, old, clock_set_by=step, watches=watches)
        assert (report.clock_stepped, leaked) == (True, set())
        assert [tracked.confirmed for tracked in report.findings] == [False]
        report, leaked = syncs.sync(30, old, watches=watches)
        assert (leaked, [tracked.confirmed for tracked in report.findings]) == (
            {LOST.ip},
            [True, True],
        )
        report, leaked = syncs.sync(15, old, clock_set_by=step, watches=watches)
        assert (leaked, report.newly_confirmed) == ({LOST.ip}, {})
        assert [tracked.confirmed for tracked in report.findings] == [True, True]
    # A slewed clock is no step, and the boot clock measures.
    for step in (-4, 4):
        syncs = Syncs()
        assert [syncs.confirms(0), syncs.confirms(29, clock_set_by=step), syncs.confirms(1)] == [
            False,
            False,
            True,
        ]
    suspended = Syncs()  # the boot clock counts sleep, as the wall clock does
    assert [suspended.sync(after)[0].clock_stepped for after in (0, 8 * 3600)] == [False, False]


def broken(*_: object) -> None:
    raise ZeroDivisionError("a bug")


def test_a_broken_detector_leaves_a_gap_and_the_others_still_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("agent.checks.addresses.shared_ip.find", broken)
    report = scanned(node(LOST))
    assert [tracked.finding.detector for tracked in report.findings] == ["leaked_reservation"]
    found = [(gap.detector, gap.why, gap.broken) for gap in report.gaps]
    assert (found, report.complete) == ([("shared_ip", "ZeroDivisionError: a bug", True)], False)


def test_a_bug_in_the_history_of_device_plugins_makes_them_unavailable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("agent.checks.devices.history.advance", broken)
    report = scanned(node(LOST, device_plugins=b.device_plugins()))
    why = "bug in nodeleak: ZeroDivisionError: a bug"
    assert [tracked.finding.detector for tracked in report.findings] == ["leaked_reservation"]
    assert report.unavailable == (Unavailable("device_plugins", why),)
    assert [(bug.part, bug.name, bug.reason) for bug in report.bugs] == [
        ("source", "device_plugins", why)
    ]


def test_nothing_is_released_or_forgotten_while_the_detector_of_leaks_is_broken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    syncs = Syncs()
    for _ in range(2):
        syncs.sync(30, LOST)
    with monkeypatch.context() as patched:
        patched.setattr(leaked_reservation, "find", broken)
        report, leaked = syncs.sync(30, LOST)
    assert (leaked, report.findings, [gap.broken for gap in report.gaps]) == (set(), (), [True])
    context = replace(b.guard_context(node()), report=report)
    assert not [requested for requested, refusals in guards.decide(context) if not refusals]
    report, leaked = syncs.sync(30, LOST)
    assert (leaked, report.newly_confirmed) == ({LOST.ip}, {})


def test_an_unavailable_source_is_listed_and_the_report_is_incomplete_if_needed() -> None:
    not_needed = {
        *("cni_results", "autoscaler", "mounts", "attachments", "state", "brake"),
        "sandbox_failures",
        *("links", "disks"),
    }
    for source in SOURCES:
        report = scanned(without(node(), source))
        assert [reading.source for reading in report.unavailable] == [source]
        assert report.complete is (source in not_needed)
    # The cache of libcni is needed if only it knows the range.
    assert not scanned(without(node(LOST), "cni_results")).complete
    assert not scanned(without(node(node=[]), "cni_results")).complete
    # Disabled sources are not missed, and hide no unavailable one.
    report = scanned(without_api(node(LOST)))
    assert report.complete
    assert {gap.detector for gap in report.gaps if gap.chosen} == {
        "unreserved_pod_ip", "shared_ip", "rejected_pod", "started_without_device", "device_conflict",
        "unregistered_node", "replayed_watch", "detached_volume", "waiting_pods",
    }  # fmt: skip
    assert [entry.ip for entry in report.assessment.leaked] == [LOST.ip]
    assert not scanned(without(without_api(node()), "containers")).complete


def test_a_scan_confirms_what_both_snapshots_have() -> None:
    later = timedelta(seconds=1)
    (tracked,) = scanned(node(LOST)).findings
    assert tracked.confirmed
    assert scanned(node(LOST), node(later=later)).findings == ()
    once = engine.replay([node(LOST)], grace=GRACE, confirm_after=timedelta(0))
    for report in (scanned(node(), node(LOST, later=later)), once):
        assert (report.findings, report.assessment.reservations[-1].state) == ((), State.CANDIDATE)
    with pytest.raises(ValueError, match="no snapshot"):
        engine.replay([], grace=GRACE, confirm_after=timedelta(0))
    # A second snapshot is needed only to confirm findings.
    assert not engine.needs_second_snapshot(node(), GRACE)
    assert not engine.needs_second_snapshot(b.dark_node(), GRACE)
    assert engine.needs_second_snapshot(node(LOST), GRACE)
    assert engine.needs_second_snapshot(node(reservations=[]), GRACE)


def test_a_healthy_node_has_no_findings_and_every_state_is_counted() -> None:
    report = scanned(node())
    assert (report.findings, report.gaps, report.unavailable, report.complete) == ((), (), (), True)
    (network,) = report.networks
    assert (network.name, network.usable, network.reserved, network.free) == (
        "kubenet",
        253,
        2,
        251,
    )
    assert network.states == dict.fromkeys(State, 0) | {State.IN_USE: 2}
    # What was not read is unknown, and no zero.
    (no_range,) = scanned(node(node=[], cni_results=[])).networks
    assert (no_range.ranges, no_range.usable, no_range.reserved, no_range.free) == (
        None,
        None,
        2,
        None,
    )
    (no_files,) = scanned(without(node(), "reservations")).networks
    assert (no_files.usable, no_files.reserved, no_files.free, no_files.states) == (
        253,
        None,
        None,
        None,
    )


FILES = [reservation(f"10.244.1.{n}", f"{n:064x}") for n in range(20, 24)]
WATCHES = [shown(), shown(Evidence.REPLAYED), shown(Evidence.REPLAYED, "node")]


class Rules:
    """When what is seen is confirmed, written down once more."""

    def __init__(self, confirm_after: timedelta) -> None:
        self.since: dict[str, timedelta] = {}
        self.confirmed: set[str] = set()
        self._confirm_after = confirm_after

    def sync(self, now: timedelta, seen: set[str], *, stepped: bool) -> int:
        """Return how many are newly confirmed."""
        before = self.confirmed
        if stepped:
            self.since = {name: at for name, at in self.since.items() if name in before}
        lasted = {
            name
            for name in seen & self.since.keys()
            if now - self.since[name] >= self._confirm_after
        }
        self.confirmed = lasted | (seen & before)
        self.since = {name: self.since.get(name, now) for name in seen}
        return len(self.confirmed - before)


@given(
    st.lists(
        st.tuples(
            st.sampled_from([15, 0, 30]),
            st.sets(st.sampled_from(FILES)),
            st.sets(st.sampled_from(WATCHES)),
            st.booleans(),
        ),
        max_size=10,
    ),
    st.sampled_from([0, 15, 30, 60]).map(lambda n: timedelta(seconds=n)),
)
def test_findings_are_confirmed_by_the_rules(
    syncs: list[tuple[int, Any, Any, bool]], confirm_after: timedelta
) -> None:
    leaks, others = Rules(confirm_after), Rules(confirm_after)
    agent, now = Syncs(confirm_after), timedelta(0)
    for seconds, files, watches, stepped in syncs:
        now += timedelta(seconds=seconds)
        is_step = stepped and agent.state is not None
        newly_confirmed = leaks.sync(now, {file.ip for file in files}, stepped=is_step)
        others.sync(
            now, {f"{watch.resource} {watch.evidence.value}" for watch in watches}, stepped=is_step
        )
        report, leaked = agent.sync(seconds, *files, watches=watches, clock_set_by=3600 * stepped)
        assert leaked == leaks.confirmed
        assert sum(report.newly_confirmed.values()) == newly_confirmed
        found = {tracked.finding.subject: tracked for tracked in report.findings}
        assert {subject for subject in others.since if found[subject].confirmed} == others.confirmed
