"""One sync: from snapshots to a report. Leaks are confirmed before anything else is judged."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.checks import engine
from agent.checks.addresses import leaked_reservation, shared_ip
from agent.checks.confirm import ConfirmationState
from agent.cleanup import guards
from agent.cleanup.guards import GuardContext, RuntimeHistory
from agent.model.assessment import Assessment, State
from agent.model.finding import Finding, LeakCause, Severity, SkippedCheck
from agent.model.report import Report
from agent.model.runtime import RuntimeNetwork, WrittenRange
from agent.model.snapshot import SOURCES, InsufficientData, Node, NotRequested, Reservation
from tests.builders import (
    CIDR,
    CONTAINERS,
    GONE,
    GRACE,
    NOW,
    WEB_ID,
    WORKER,
    assessment,
    cni_result,
    dark_node,
    empty_file,
    make_limits,
    node,
    processes,
    reservation,
    sandbox,
    scanned,
    unrecognized,
    without,
    without_api,
)

LOST = reservation("10.244.1.9")
OTHERS = (reservation("10.244.1.10", "8" * 64), reservation("10.244.1.11", "7" * 64))
PERIOD = timedelta(seconds=30)
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
        snapshot = node(*leaks, later=self._later, clock_set_by=self._clock_set_by, **more)
        snapshot = without(snapshot, gap) if gap else snapshot
        report, self.state = engine.run(snapshot, self.state, grace=GRACE, confirm_after=self._confirm_after)
        leaked = {entry.ip for entry in report.assessment.leaked}
        assert leaked == {entry.ip for entry in report.confirmed_leaks}
        assert sum(report.newly_confirmed.values()) <= len(leaked)
        return report, leaked

    def leaked(self, after: float, *leaks: Reservation, **more: Any) -> bool:
        return LOST.ip in self.sync(after, *leaks, **more)[1]


def states(report: Report, ip: str) -> State:
    (classified,) = (entry for entry in report.assessment.reservations if entry.name == ip)
    return classified.state


# Leaks


def test_a_leak_is_a_candidate_until_it_lasted() -> None:
    syncs = Syncs()
    report, leaked = syncs.sync(0, LOST)
    assert (leaked, states(report, LOST.ip), report.findings) == (set(), State.CANDIDATE, ())
    assert [syncs.leaked(15, LOST) for _ in range(4)] == [False, True, True, True]
    at_once = Syncs(timedelta(0))
    assert [at_once.leaked(0, LOST) for _ in range(2)] == [False, True], "one snapshot never confirms"


def test_another_file_with_the_same_address_is_another_leak() -> None:
    for other in (
        replace(LOST, inode=LOST.inode + 1),
        replace(LOST, mtime_ns=LOST.mtime_ns - 1),
        replace(LOST, size=65),
    ):
        syncs = Syncs()
        syncs.sync(0, LOST)
        assert not syncs.leaked(60, other)


def test_a_leak_that_disappears_starts_over_and_others_are_not_affected() -> None:
    syncs = Syncs()
    assert [syncs.leaked(30, *leaks) for leaks in ((LOST,), (), (LOST,), (LOST,), (), (LOST,))] == [
        False, False, False, True, False, False,
    ]  # fmt: skip
    together = Syncs()
    assert together.sync(0, LOST)[1] == set()
    assert together.sync(15, LOST, *OTHERS)[1] == set()
    assert together.sync(15, LOST, *OTHERS)[1] == {LOST.ip}
    assert together.sync(15, *OTHERS, LOST)[1] == {LOST.ip, *(reservation.ip for reservation in OTHERS)}


def test_both_addresses_of_a_sandbox_and_each_network_are_confirmed() -> None:
    report = scanned(node(LOST, reservation("fd00::9")))
    assert {states(report, LOST.ip), states(report, "fd00::9")} == {State.LEAKED}
    other = reservation(LOST.ip, "8" * 64, network="storage")
    report = scanned(node(LOST), node(LOST, other, later=timedelta(seconds=1)))
    assert {(entry.network, entry.state) for entry in report.assessment.reservations if entry.name == LOST.ip} == {
        ("kubenet", State.LEAKED),
        ("storage", State.CANDIDATE),
    }


def test_a_leak_is_newly_confirmed_once_with_its_cause() -> None:
    syncs = Syncs()
    counts = [syncs.sync(15, LOST)[0].newly_confirmed for _ in range(5)]
    assert counts == [{}, {}, {("kubenet", LeakCause.UNKNOWN): 1}, {}, {}]


def test_a_later_restart_is_not_the_cause_of_an_earlier_leak() -> None:
    syncs = Syncs()
    syncs.sync(0, LOST, processes=[processes(kubelet=timedelta(days=9))])
    report, _ = syncs.sync(60, LOST, processes=[processes(kubelet=timedelta(0))])
    (tracked,) = report.findings
    assert (tracked.finding.cause, tracked.first_seen, report.leak_causes) == (LeakCause.UNKNOWN, NOW, {})
    assert "cause unknown" in tracked.finding.message, "cause, time and message belong together"
    assert tracked.since < NOW


def test_a_restart_long_before_the_sandbox_was_last_seen_is_not_the_cause() -> None:
    for ago, cause in (
        (-30, LeakCause.KUBELET_RESTART),
        (600, LeakCause.KUBELET_RESTART),
        (1200, LeakCause.UNKNOWN),
    ):
        syncs, kubelet = Syncs(), [processes(kubelet=timedelta(seconds=ago))]
        syncs.sync(0, LOST, containers=[*CONTAINERS, sandbox(LOST.container_id, "shop/cart")], processes=kubelet)
        for _ in range(2):
            report, _ = syncs.sync(60, LOST, processes=kubelet)
        assert [tracked.finding.cause for tracked in report.findings] == [cause]


def test_a_leak_is_named_where_no_record_is_left() -> None:
    pods = {LOST.container_id: "shop/cart-0", WEB_ID: "shop/other"}
    report = engine.replay([node(LOST), node(LOST)], grace=GRACE, confirm_after=timedelta(0), pods=pods)
    assert {entry.name: entry.pod for entry in report.assessment.reservations} == {
        "10.244.1.2": "shop/web", "10.244.1.3": "shop/db", "10.244.1.9": "shop/cart-0"
    }  # fmt: skip
    (leak,) = report.findings
    assert leak.finding.pod == "shop/cart-0"
    assert "of pod shop/cart-0" in leak.finding.message
    assert scanned(node(LOST)).unnamed == {LOST.container_id}
    assert report.unnamed == frozenset()


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


def test_a_leak_that_had_an_owner_or_no_file_during_a_gap_starts_over() -> None:
    owner: dict[str, Any] = {"containers": [*CONTAINERS, sandbox(GONE, "shop/x")]}
    for meanwhile, leaks, more in (("pods", (LOST,), owner), ("pods", (), {}), (GAP, (OTHERS[0],), {})):
        syncs = Syncs()
        for _ in range(2):
            syncs.sync(30, LOST)
        syncs.sync(30, *leaks, gap=meanwhile, **more)
        syncs.sync(30, *leaks, gap=meanwhile)
        assert not syncs.leaked(30, LOST), "one snapshot is not enough"


def test_without_a_gap_nothing_is_remembered() -> None:
    syncs = Syncs()
    for _ in range(2):
        syncs.sync(30, LOST, *OTHERS)
    syncs.sync(30, LOST)
    assert syncs.state is not None
    assert list(syncs.state.observations) == [leaked_reservation.key(LOST)]


# Clocks


def test_a_clock_step_restarts_candidates_and_keeps_confirmed_leaks() -> None:
    old = replace(LOST, mtime_ns=0)
    for step in (-86400, -6, 6, 86400):
        syncs = Syncs()
        syncs.sync(0, old)
        report, leaked = syncs.sync(60, old, clock_set_by=step)
        assert (report.clock_stepped, leaked, report.findings) == (True, set(), ())
        assert syncs.leaked(30, old)
        report, leaked = syncs.sync(15, old, clock_set_by=step)
        assert (leaked, report.newly_confirmed) == ({LOST.ip}, {})


def test_a_clock_step_forward_does_not_confirm_a_new_file() -> None:
    new, syncs = reservation(LOST.ip, age=timedelta(0)), Syncs()
    syncs.sync(0, new)
    assert not syncs.leaked(15, new, clock_set_by=86400)


# Detectors that cannot


class Broken:
    """A detector with a bug in it."""

    NAME = "broken"
    SEVERITIES = (Severity.WARNING,)

    def find(self, assessment: Assessment) -> Iterator[Finding]:
        yield Finding(self.NAME, "something", f"found on {assessment.snapshot.node_name}")
        raise ZeroDivisionError("a bug")


def test_a_broken_detector_leaves_a_gap_and_the_others_still_run() -> None:
    findings, gaps = engine.detect(assessment(node(LOST)), (Broken(), leaked_reservation))
    assert [finding.detector for finding in findings] == ["broken", "leaked_reservation"]
    assert gaps == (SkippedCheck("broken", "ZeroDivisionError: a bug", broken=True),)
    assert not replace(scanned(node()), gaps=gaps).complete


def test_nothing_is_released_and_nothing_forgotten_while_the_detector_of_leaks_is_broken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("a bug")

    syncs = Syncs()
    for _ in range(2):
        syncs.sync(30, LOST)
    with monkeypatch.context() as patched:
        patched.setattr(leaked_reservation, "describe_cause", broken)
        report, leaked = syncs.sync(30, LOST)
    assert (leaked, report.findings, [gap.broken for gap in report.gaps]) == (set(), (), [True])
    context = GuardContext(report=report, runtime_history=RuntimeHistory(), limits=make_limits())
    assert not [requested for requested, refusals in guards.decide(context) if not refusals]
    report, leaked = syncs.sync(30, LOST)
    assert (leaked, report.newly_confirmed) == ({LOST.ip}, {})


def test_a_detector_without_data_leaves_a_gap_beside_what_it_found() -> None:
    findings, gaps = engine.detect(assessment(without(node(empty_file(LOST.ip)), "pods")), (shared_ip,))
    assert (findings, gaps) == ((), (SkippedCheck("shared_ip", "pods: it gave no word"),))
    blind = assessment(without(node(empty_file(LOST.ip)), "containers"))
    findings, gaps = engine.detect(blind, (leaked_reservation,))
    assert ([finding.subject for finding in findings], [gap.detector for gap in gaps]) == (
        ["kubenet/10.244.1.9"],
        ["leaked_reservation"],
    )


def test_an_unavailable_source_is_listed_and_the_report_is_incomplete_if_needed() -> None:
    not_needed = {"processes", "runtimes", "autoscaler", "mounts", "attachments", "state"}
    for source in SOURCES:
        report = scanned(without(node(), source))
        assert [reading.source for reading in report.unavailable] == [source]
        assert report.complete is (source in not_needed), (
            "these only name pods, or the node object is enough, or all volumes are attached"
        )


def test_the_cni_cache_is_needed_if_only_it_knows_the_range() -> None:
    every_owner_is_known = NotRequested("addresses", "no reservation is known to be without an owner")
    assert scanned(without(node(addresses=every_owner_is_known), "cni_results")).complete
    assert not scanned(without(node(node=[]), "cni_results")).complete


def test_disabled_sources_are_not_missed_and_hide_no_unavailable_one() -> None:
    report = scanned(without_api(node(LOST)))
    assert report.complete
    assert {gap.detector for gap in report.gaps if gap.chosen} == {
        "unreserved_pod_ip",
        "shared_ip",
        "rejected_pod",
        "started_without_device",
        "unregistered_node",
        "replayed_watch",
        "detached_volume",
    }
    assert states(report, LOST.ip) is State.LEAKED
    assert not scanned(without(without_api(node()), "containers")).complete


# Commands


def test_a_scan_confirms_what_both_snapshots_have() -> None:
    later = timedelta(seconds=1)
    (tracked,) = scanned(node(LOST)).findings
    assert tracked.confirmed
    assert scanned(node(LOST), node(later=later)).findings == ()
    new = scanned(node(), node(LOST, later=later))
    assert (new.findings, states(new, LOST.ip)) == ((), State.CANDIDATE)
    once = engine.replay([node(LOST)], grace=GRACE, confirm_after=timedelta(0))
    assert (once.findings, states(once, LOST.ip)) == ((), State.CANDIDATE)
    with pytest.raises(ValueError, match="no snapshot"):
        engine.replay([], grace=GRACE, confirm_after=timedelta(0))


def test_a_second_snapshot_is_needed_only_to_confirm_findings() -> None:
    assert not engine.needs_second_snapshot(node(), GRACE)
    assert not engine.needs_second_snapshot(dark_node(), GRACE)
    assert engine.needs_second_snapshot(node(LOST), GRACE)
    assert engine.needs_second_snapshot(node(reservations=[]), GRACE)


# Numbers


def test_a_healthy_node_has_no_findings_and_every_state_is_counted() -> None:
    report = scanned(node())
    assert (report.findings, report.gaps, report.unavailable, report.complete) == ((), (), (), True)
    (network,) = report.networks
    assert (network.name, network.usable, network.reserved, network.free) == ("kubenet", 253, 2, 251)
    assert network.states == dict.fromkeys(State, 0) | {State.IN_USE: 2}


def test_what_was_not_read_is_unknown_and_no_zero() -> None:
    (dark,) = scanned(dark_node()).networks
    assert (dark.ranges, dark.usable, dark.reserved, dark.free, dark.states) == (None,) * 5
    (no_range,) = scanned(node(node=[], cni_results=[])).networks
    assert (no_range.usable, no_range.reserved, no_range.free) == (None, 2, None)
    (no_files,) = scanned(without(node(), "reservations")).networks
    assert (no_files.usable, no_files.reserved, no_files.free, no_files.states) == (253, None, None, None)
    (invalid,) = scanned(node(node=[replace(WORKER, pod_cidrs=("10.244.1.0/31",))])).networks
    assert invalid.ranges is None


def written(*subnets: str, first: str = "") -> list[RuntimeNetwork]:
    sets = tuple((WrittenRange(subnet, first),) for subnet in subnets)
    return [RuntimeNetwork("kubenet", ("bridge",), "host-local", ranges=sets)]


def test_the_runtimes_configuration_has_the_range() -> None:
    dual = [replace(WORKER, pod_cidrs=("10.244.1.0/24", "fd00::/120"))]
    for networks, expected in (
        (written("10.9.0.0/24", first="10.9.0.9"), ["10.9.0.9-10.9.0.254"]),
        (written("usePodCidr"), ["10.244.1.1-10.244.1.254"]),
        (written("usePodCidr", "usePodCidrIPv6"), ["10.244.1.1-10.244.1.254", "fd00::1-fd00::ff"]),
    ):
        (network,) = scanned(node(networks=networks, node=dual)).networks
        assert [str(range_) for ranges in network.ranges or () for range_ in ranges] == expected
    for subnet in ("usePodCidrIPv6", "10.9.0.0/31", "elsewhere"):
        (network,) = scanned(node(networks=written(subnet))).networks
        assert network.ranges is None


def test_the_pod_cidr_in_place_of_a_range_needs_the_node() -> None:
    (network,) = scanned(without(node(networks=written("usePodCidr")), "node")).networks
    assert network.ranges is None
    cached = replace(cni_result(WEB_ID, "shop/web", network="storage"), uses_pod_cidr=True)
    of_calico = node(cached)
    assert [str(range_) for (range_,) in assessment(of_calico).ranges("storage")] == ["10.244.1.1-10.244.1.254"]
    with pytest.raises(InsufficientData, match="node: "):
        assessment(without(of_calico, "node")).ranges("storage")


def test_unrecognized_entries_that_block_an_address_count_as_reserved() -> None:
    (network,) = scanned(node(unrecognized("10.244.1.9", blocks=True), unrecognized("notes"))).networks
    assert (network.reserved, network.free) == (3, 250)
    assert network.states is not None
    assert network.states[State.UNRECOGNIZED] == 2


def test_a_dual_stack_range_has_the_size_of_its_smaller_family() -> None:
    dual = Node("worker-1", (CIDR, "fd00::/124"), 10)
    (network,) = scanned(node(reservation("fd00::2", "1" * 64), node=[dual])).networks
    assert (network.usable, network.free) == (14, 13)
    assert [str(range_) for ranges in network.ranges or () for range_ in ranges] == [
        "10.244.1.1-10.244.1.254",
        "fd00::1-fd00::f",
    ]


# Laws

FILES = [reservation(f"10.244.1.{n}", f"{n:064x}") for n in range(20, 24)]


@given(
    st.lists(
        st.tuples(st.sampled_from([15, 0, 30]), st.sets(st.sampled_from(FILES)), st.booleans()),
        max_size=10,
    ),
    st.sampled_from([0, 15, 30, 60]).map(lambda n: timedelta(seconds=n)),
)
def test_leaks_are_confirmed_by_the_rules(
    syncs: list[tuple[int, set[Reservation], bool]], confirm_after: timedelta
) -> None:
    """Compare with the rules, written down for one file."""
    since: dict[str, timedelta] = {}
    before: set[str] = set()
    agent, now = Syncs(confirm_after), timedelta(0)
    for seconds, leaks, stepped in syncs:
        now += timedelta(seconds=seconds)
        seen = {reservation.ip for reservation in leaks}
        if stepped and agent.state is not None:
            since = {ip: at for ip, at in since.items() if ip in before}
        confirmed = {ip for ip in seen if ip in since and (now - since[ip] >= confirm_after or ip in before)}
        since = {ip: since.get(ip, now) for ip in seen}
        report, leaked = agent.sync(seconds, *leaks, clock_set_by=3600 * stepped)
        assert leaked == confirmed
        assert sum(report.newly_confirmed.values()) == len(confirmed - before)
        before = confirmed
