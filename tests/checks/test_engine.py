"""One sync: from snapshots to a report."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta

import pytest

from agent.checks import engine
from agent.checks.addresses import leaked_reservation, shared_ip
from agent.checks.confirm import ConfirmationState
from agent.model.assessment import Assessment, State
from agent.model.finding import Finding, Gap, LeakCause, Severity
from agent.model.report import Report
from agent.model.runtime import RuntimeNetwork, WrittenRange
from agent.model.snapshot import SOURCES, Address, InsufficientData, Node, NotRequested, Snapshot
from tests.builders import (
    CIDR,
    GRACE,
    WEB_ID,
    WORKER,
    assessment,
    cni_result,
    dark_node,
    empty_file,
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
PERIOD = timedelta(seconds=30)


class Syncs:
    """The syncs of a daemon."""

    def __init__(self) -> None:
        self._memory: ConfirmationState | None = None

    def __call__(self, snapshot: Snapshot) -> Report:
        report, self._memory = engine.run(snapshot, self._memory, grace=GRACE, confirm_after=PERIOD)
        return report


def seconds(count: float) -> timedelta:
    return timedelta(seconds=count)


def states(report: Report, ip: str) -> State:
    (classified,) = (one for one in report.assessment.reservations if one.name == ip)
    return classified.state


def test_a_leak_is_named_where_no_record_is_left() -> None:
    pods = {LOST.container_id: "shop/cart-0", WEB_ID: "shop/other"}
    report = engine.replay([node(LOST), node(LOST)], grace=GRACE, confirm_after=seconds(0), pods=pods)
    assert {one.name: one.pod for one in report.assessment.reservations} == {
        "10.244.1.2": "shop/web", "10.244.1.3": "shop/db", "10.244.1.9": "shop/cart-0"
    }  # fmt: skip
    (leak,) = report.findings
    assert leak.finding.pod == "shop/cart-0"
    assert "of pod shop/cart-0" in leak.finding.message
    assert scanned(node(LOST)).unnamed == {LOST.container_id}
    assert report.unnamed == frozenset()


class Broken:
    """A detector with a bug in it."""

    NAME = "broken"
    SEVERITIES = (Severity.WARNING,)

    def find(self, assessment: Assessment) -> Iterator[Finding]:
        yield Finding(self.NAME, "something", f"found on {assessment.snapshot.node_name}")
        raise ZeroDivisionError("a bug")


def test_a_healthy_node_has_no_findings() -> None:
    report = scanned(node())
    assert (report.findings, report.gaps, report.unavailable, report.complete) == ((), (), (), True)
    (network,) = report.networks
    assert (network.name, network.usable, network.reserved, network.free) == ("kubenet", 253, 2, 251)
    assert network.states is not None
    assert {state: n for state, n in network.states.items() if n} == {State.IN_USE: 2}


def test_every_state_is_counted_including_those_with_zero_entries() -> None:
    (network,) = scanned(node()).networks
    assert network.states is not None
    assert set(network.states) == set(State)


def test_a_scan_confirms_findings_of_both_snapshots() -> None:
    report = scanned(node(LOST))
    (tracked,) = report.findings
    assert tracked.confirmed
    assert states(report, LOST.ip) is State.LEAKED


def test_a_leak_only_in_the_second_snapshot_is_a_candidate() -> None:
    report = scanned(node(), node(LOST, later=seconds(1)))
    assert report.findings == ()
    assert states(report, LOST.ip) is State.CANDIDATE


def test_a_leak_only_in_the_first_snapshot_is_gone() -> None:
    report = scanned(node(LOST), node(later=seconds(1)))
    assert report.findings == ()


def test_one_snapshot_confirms_nothing() -> None:
    report = engine.replay([node(LOST)], grace=GRACE, confirm_after=seconds(0))
    assert report.findings == ()
    assert states(report, LOST.ip) is State.CANDIDATE


def test_a_scan_needs_a_snapshot() -> None:
    with pytest.raises(ValueError, match="no snapshot"):
        engine.replay([], grace=GRACE, confirm_after=seconds(0))


def test_a_second_snapshot_is_needed_only_to_confirm_findings() -> None:
    assert not engine.needs_second_snapshot(node(), GRACE)
    assert not engine.needs_second_snapshot(dark_node(), GRACE)
    assert engine.needs_second_snapshot(node(LOST), GRACE)
    assert engine.needs_second_snapshot(node(reservations=[]), GRACE)


def test_a_leak_is_a_candidate_until_it_is_confirmed() -> None:
    syncs = Syncs()
    states_seen = [states(syncs(node(LOST, later=seconds(15 * n))), LOST.ip) for n in range(4)]
    assert states_seen == [State.CANDIDATE, State.CANDIDATE, State.LEAKED, State.LEAKED]


def test_both_addresses_of_a_sandbox_become_leaked_together() -> None:
    report = scanned(node(LOST, reservation("fd00::9")))
    assert {states(report, LOST.ip), states(report, "fd00::9")} == {State.LEAKED}


def test_the_same_address_in_two_networks_is_confirmed_separately() -> None:
    other = reservation(LOST.ip, "8" * 64, network="storage")
    report = scanned(node(LOST), node(LOST, other, later=seconds(1)))
    states_by_network = {(one.network, one.state) for one in report.assessment.reservations if one.name == LOST.ip}
    assert states_by_network == {("kubenet", State.LEAKED), ("storage", State.CANDIDATE)}


# Newly confirmed


def test_a_leak_is_newly_confirmed_once() -> None:
    syncs = Syncs()
    counts = [syncs(node(LOST, later=seconds(15 * n))).newly_confirmed for n in range(6)]
    assert counts == [{}, {}, {("kubenet", LeakCause.UNKNOWN): 1}, {}, {}, {}]


def test_a_leak_is_not_newly_confirmed_again_after_a_gap() -> None:
    syncs = Syncs()
    for n in range(3):
        syncs(node(LOST, later=seconds(15 * n)))
    for n in range(3, 6):
        assert syncs(without(node(LOST, later=seconds(15 * n)), "containers")).findings == ()
    report = syncs(node(LOST, later=seconds(90)))
    assert ([one.confirmed for one in report.findings], report.newly_confirmed) == ([True], {})


def test_a_later_kubelet_restart_is_not_the_cause() -> None:
    syncs = Syncs()
    syncs(node(LOST))
    report = syncs(node(LOST, later=seconds(60), processes=[processes(kubelet=seconds(-30))]))
    (tracked,) = report.findings
    assert tracked.finding.cause is LeakCause.UNKNOWN
    assert "kubelet" not in tracked.finding.message


@pytest.mark.parametrize(
    ("ago", "cause"),
    [(-30, LeakCause.KUBELET_RESTART), (600, LeakCause.KUBELET_RESTART), (1200, LeakCause.UNKNOWN)],
    ids=["since the last snapshot", "shortly before it", "long before it"],
)
def test_a_restart_long_before_the_sandbox_was_last_seen_is_not_the_cause(ago: float, cause: LeakCause) -> None:
    syncs, kubelet = Syncs(), [processes(kubelet=seconds(ago))]
    syncs(node(LOST, sandbox(LOST.container_id, "shop/cart"), processes=kubelet))
    for n in (1, 2):
        report = syncs(node(LOST, later=seconds(60 * n), processes=kubelet))
    assert [one.finding.cause for one in report.findings] == [cause]


# Clocks


def test_a_clock_step_is_reported_and_confirms_nothing() -> None:
    syncs = Syncs()
    assert not syncs(node(LOST)).clock_stepped
    report = syncs(node(LOST, later=seconds(60), clock_set_by=seconds(7200)))
    assert report.clock_stepped
    assert report.findings == ()
    assert states(report, LOST.ip) is State.CANDIDATE


def test_a_clock_step_forward_does_not_confirm_a_new_file() -> None:
    new_reservation = reservation("10.244.1.9", age=seconds(0))
    syncs = Syncs()
    syncs(node(new_reservation))
    report = syncs(node(new_reservation, later=seconds(15), clock_set_by=seconds(86400)))
    assert states(report, new_reservation.ip) is State.CANDIDATE


# Detectors that cannot


def test_a_broken_detector_leaves_a_gap_and_the_others_still_run() -> None:
    findings, gaps = engine.detect(assessment(node(LOST)), (Broken(), leaked_reservation))
    assert [finding.detector for finding in findings] == ["broken", "leaked_reservation"]
    assert gaps == (Gap("broken", "ZeroDivisionError: a bug", broken=True),)


def test_a_report_with_a_broken_detector_is_incomplete() -> None:
    report = scanned(node())
    assert not replace(report, gaps=(Gap("broken", "a bug", broken=True),)).complete


def test_a_detector_without_data_leaves_a_gap_and_the_others_still_run() -> None:
    findings, gaps = engine.detect(assessment(without(node(empty_file("10.244.1.9")), "pods")), (shared_ip,))
    assert (findings, gaps) == ((), (Gap("shared_ip", "pods: it gave no word"),))


def test_findings_raised_before_a_gap_are_kept() -> None:
    findings, gaps = engine.detect(
        assessment(without(node(empty_file("10.244.1.9")), "containers")), (leaked_reservation,)
    )
    assert [finding.subject for finding in findings] == ["kubenet/10.244.1.9"]
    assert [gap.detector for gap in gaps] == ["leaked_reservation"]


@pytest.mark.parametrize("source", SOURCES)
def test_an_unavailable_source_is_listed_and_the_report_is_incomplete_if_needed(source: str) -> None:
    report = scanned(without(node(), source))
    assert [one.source for one in report.unavailable] == [source]
    not_needed = {"processes", "runtimes", "autoscaler", "mounts", "attachments", "state"}
    assert report.complete is (source in not_needed), (
        "these only name pods, or the node object is enough, or all volumes are attached"
    )


def test_the_cni_cache_is_needed_if_only_it_knows_the_range() -> None:
    every_owner_is_known = NotRequested("addresses", "no reservation is known to be without an owner")
    assert scanned(without(node(addresses=every_owner_is_known), "cni_results")).complete
    assert not scanned(without(node(node=[]), "cni_results")).complete


def test_disabled_sources_are_not_missed() -> None:
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


def test_a_disabled_source_does_not_hide_an_unavailable_one() -> None:
    assert not scanned(without(without_api(node()), "containers")).complete


# Numbers


def test_without_data_every_number_is_unknown() -> None:
    (network,) = scanned(dark_node()).networks
    assert (network.ranges, network.usable, network.reserved, network.free, network.states) == (None,) * 5


def test_with_an_unknown_range_reservations_are_counted() -> None:
    (network,) = scanned(node(node=[], cni_results=[])).networks
    assert (network.usable, network.reserved, network.free) == (None, 2, None)


def test_with_unavailable_reservations_the_range_is_known() -> None:
    (network,) = scanned(without(node(), "reservations")).networks
    assert (network.usable, network.reserved, network.free, network.states) == (253, None, None, None)


def test_an_invalid_pod_cidr_is_an_unknown_range() -> None:
    (network,) = scanned(node(node=[replace(WORKER, pod_cidrs=("10.244.1.0/31",))])).networks
    assert network.ranges is None


def written(*subnets: str, first: str = "") -> list[RuntimeNetwork]:
    sets = tuple((WrittenRange(subnet, first),) for subnet in subnets)
    return [RuntimeNetwork("kubenet", ("bridge",), "host-local", ranges=sets)]


@pytest.mark.parametrize(
    ("networks", "expected"),
    [
        (written("10.9.0.0/24", first="10.9.0.9"), ["10.9.0.9-10.9.0.254"]),
        (written("usePodCidr"), ["10.244.1.1-10.244.1.254"]),
        (written("usePodCidr", "usePodCidrIPv6"), ["10.244.1.1-10.244.1.254", "fd00::1-fd00::ff"]),
    ],
)
def test_the_runtimes_configuration_has_the_range(networks: list[RuntimeNetwork], expected: list[str]) -> None:
    dual = [replace(WORKER, pod_cidrs=("10.244.1.0/24", "fd00::/120"))]
    (network,) = scanned(node(networks=networks, node=dual)).networks
    assert [str(one) for ranges in network.ranges or () for one in ranges] == expected


@pytest.mark.parametrize("subnet", ["usePodCidrIPv6", "10.9.0.0/31", "elsewhere"])
def test_a_range_that_nobody_can_resolve_is_unknown(subnet: str) -> None:
    (network,) = scanned(node(networks=written(subnet))).networks
    assert network.ranges is None


def test_the_pod_cidr_in_place_of_a_range_needs_the_node() -> None:
    (network,) = scanned(without(node(networks=written("usePodCidr")), "node")).networks
    assert network.ranges is None
    cached = replace(cni_result(WEB_ID, "shop/web", network="storage"), uses_pod_cidr=True)
    of_calico = node(cached)
    assert [str(one) for (one,) in assessment(of_calico).ranges("storage")] == ["10.244.1.1-10.244.1.254"]
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
    assert network.ranges is not None
    assert [str(one) for ranges in network.ranges for one in ranges] == [
        "10.244.1.1-10.244.1.254",
        "fd00::1-fd00::f",
    ]


def test_an_address_configured_in_a_namespace_is_another_finding_and_no_leak() -> None:
    report = scanned(node(LOST, Address(LOST.ip, 4711, "java")))
    assert [one.finding.detector for one in report.findings] == ["unmanaged_address"]
