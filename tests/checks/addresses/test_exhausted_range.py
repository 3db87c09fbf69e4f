"""Networks with fewer free addresses than possible pods."""

from dataclasses import replace
from datetime import timedelta

import pytest

from agent.checks.addresses import exhausted_range
from agent.checks.addresses.classify import classify
from agent.exporters.headline import headline
from agent.model.finding import Finding, Severity
from agent.model.snapshot import InsufficientData, Node, Reservation, Snapshot
from tests.builders import (
    GRACE,
    PODS,
    WORKER,
    cni_result,
    empty_file,
    findings_of,
    node,
    pod,
    reservation,
    scanned,
    unrecognized,
    without,
    without_api,
)

SMALL = "10.244.1.0/28"
"""13 addresses to give out, .2 to .14; the gateway is .1."""
SMALL_NODE = Node("worker-1", (SMALL,), 3)
"""It takes three pods, which it has: there is no room for more."""


def leaks(first: int, last: int) -> tuple[Reservation, ...]:
    return tuple(reservation(f"10.244.1.{n}", f"{n:064x}") for n in range(first, last + 1))


def small(*records: Reservation, max_pods: int | None = 3) -> Snapshot:
    return node(*records, node=[replace(SMALL_NODE, max_pods=max_pods)])


def only(snapshot: Snapshot) -> Finding:
    (finding,) = findings_of(exhausted_range, snapshot)
    return finding


def test_a_healthy_node_has_an_address_for_every_possible_pod() -> None:
    assert findings_of(exhausted_range, node()) == []


def test_a_full_range_is_reported_with_its_number_of_leaks() -> None:
    finding = only(small(*leaks(4, 14)))
    assert finding.subject == finding.network == "kubenet"
    assert finding.message == "kubenet: no free addresses; 13 of 13 addresses are reserved (11 leaked)"


def test_leaks_outside_the_range_or_of_the_other_family_are_no_leaks_of_it() -> None:
    ids = {n: f"{n:064x}" for n in range(4, 15)}
    six = (reservation(f"fd00::{n:x}", container_id) for n, container_id in ids.items())
    outside = (reservation(f"10.250.0.{n}", f"{n:064x}") for n in range(100, 120))
    snapshot = node(*leaks(4, 14), *six, *outside, node=[replace(SMALL_NODE, pod_cidrs=(SMALL, "fd00::/64"))])
    assert only(snapshot).message.endswith("13 of 13 addresses are reserved (11 leaked)")
    assert headline(scanned(snapshot)) == "Critical: no free pod addresses (11 of 13 leaked)"


def test_the_last_free_address_is_enough_if_no_more_pods_fit() -> None:
    assert findings_of(exhausted_range, small(*leaks(4, 13))) == []


def test_fewer_free_addresses_than_possible_pods_are_reported() -> None:
    finding = only(small(*leaks(4, 13), max_pods=5))
    assert finding.message == ("kubenet: 1 free addresses for 2 more pods; 12 of 13 addresses are reserved (10 leaked)")


def test_as_many_free_addresses_as_possible_pods_are_enough() -> None:
    assert findings_of(exhausted_range, small(*leaks(4, 12), max_pods=5)) == []


def test_a_file_named_after_the_gateway_takes_no_usable_address() -> None:
    assert findings_of(exhausted_range, small(*leaks(4, 13), reservation("10.244.1.1"))) == []


def test_files_outside_the_range_take_no_address() -> None:
    assert findings_of(exhausted_range, small(*leaks(4, 13), reservation("10.250.0.9"), reservation("fd00::9"))) == []


def test_empty_and_unrecognized_files_take_their_address() -> None:
    finding = only(
        node(*leaks(4, 12), empty_file("10.244.1.13"), unrecognized("10.244.1.14", blocks=True), node=[SMALL_NODE])
    )
    assert finding.message.endswith("13 of 13 addresses are reserved (10 leaked)")


def test_files_that_take_no_address_leave_it_free() -> None:
    assert findings_of(exhausted_range, node(*leaks(4, 13), unrecognized("notes"), node=[SMALL_NODE])) == []


def test_terminated_pods_do_not_count_toward_the_limit() -> None:
    ended = [*PODS, pod("shop/job", phase="Succeeded"), pod("shop/crash", phase="Failed")]
    assert findings_of(exhausted_range, node(*leaks(4, 12), pods=ended, node=[replace(SMALL_NODE, max_pods=5)])) == []
    assert (
        len(findings_of(exhausted_range, node(*leaks(4, 13), pods=ended, node=[replace(SMALL_NODE, max_pods=5)]))) == 1
    )


def test_a_node_over_its_pod_limit_has_room_for_none() -> None:
    assert findings_of(exhausted_range, small(max_pods=0)) == []


def test_a_range_smaller_than_the_pod_limit_is_for_information() -> None:
    finding = only(small(max_pods=110))
    assert finding.severity is Severity.INFO
    assert finding.message == "kubenet: 13 addresses for up to 109 pods: the range is smaller than --max-pods"
    full = only(small(*leaks(4, 14), max_pods=110))
    assert full.severity is Severity.CRITICAL
    assert full.key != finding.key, "a full range is news"


def test_a_cordoned_node_gets_no_more_pods() -> None:
    cordoned = replace(SMALL_NODE, max_pods=5, unschedulable=True)
    assert findings_of(exhausted_range, node(*leaks(4, 13), node=[cordoned])) == []
    assert len(findings_of(exhausted_range, node(*leaks(4, 14), node=[cordoned]))) == 1


def test_a_network_without_reservations_needs_no_range() -> None:
    assert findings_of(exhausted_range, node(node=[], cni_results=[], reservations=[])) == []


def test_the_fuller_of_two_families_decides() -> None:
    dual = Node("worker-1", ("10.244.0.0/16", "fd00::/124"), 3)
    sixes = tuple(reservation(f"fd00::{n:x}", f"{n:064x}") for n in range(2, 16))
    finding = only(node(*sixes, node=[dual]))
    assert "no free addresses" in finding.message
    assert findings_of(exhausted_range, node(*sixes[1:], node=[dual])) == []


def test_a_second_network_is_reported_only_when_it_is_full() -> None:
    result = cni_result("5" * 64, "shop/other", "10.99.0.0/30", network="storage")
    one = reservation("10.99.0.2", "5" * 64, network="storage")
    assert only(node(result, one)).network == "storage"
    wide = cni_result("5" * 64, "shop/other", "10.99.0.0/29", network="storage")
    assert findings_of(exhausted_range, node(wide, one)) == []


def test_without_the_api_only_a_full_range_is_reported() -> None:
    result = cni_result("5" * 64, "shop/other", SMALL, age=timedelta(0))
    assert findings_of(exhausted_range, without_api(node(result, *leaks(4, 13)))) == []
    assert len(findings_of(exhausted_range, without_api(node(result, *leaks(4, 14))))) == 1


def test_without_owner_data_the_number_of_leaks_is_unknown() -> None:
    finding = only(without(node(*leaks(4, 14), node=[SMALL_NODE]), "containers"))
    assert finding.message.endswith("(0 leaked, 13 unknown)")


def test_a_full_range_is_reported_without_pods_and_docker() -> None:
    assert len(findings_of(exhausted_range, without(node(*leaks(4, 14), node=[SMALL_NODE]), "pods"))) == 1


@pytest.mark.parametrize("source", ["reservations", "pods", "node"])
def test_without_its_sources_the_check_has_insufficient_data(source: str) -> None:
    with pytest.raises(InsufficientData, match=source):
        findings_of(exhausted_range, without(node(), source))


def test_a_node_without_a_pod_limit_is_insufficient_data() -> None:
    with pytest.raises(InsufficientData, match=r"allocatable\.pods"):
        findings_of(exhausted_range, small(max_pods=None))


@pytest.mark.parametrize("cidr", ["10.244.1.0/32", "10.244.1.0/31", "not a subnet", ""])
def test_a_pod_cidr_without_usable_addresses_is_insufficient_data(cidr: str) -> None:
    with pytest.raises(InsufficientData, match="pod CIDR"):
        findings_of(exhausted_range, node(node=[replace(WORKER, pod_cidrs=(cidr,))]))


def test_without_a_range_the_check_has_insufficient_data() -> None:
    with pytest.raises(InsufficientData, match="range of network kubenet"):
        findings_of(exhausted_range, node(node=[], cni_results=[]))


def test_the_newest_cached_cni_result_has_the_range() -> None:
    older = cni_result("5" * 64, "shop/other", SMALL, age=timedelta(days=3))
    assert findings_of(exhausted_range, without_api(node(older, *leaks(4, 14)))) == []


def test_a_network_without_data_does_not_hide_the_others() -> None:
    snapshot = node(*leaks(4, 14), node=[SMALL_NODE])
    stores = node(unread_networks=["storage"], reservations=[]).reservations
    (missing,) = (store for store in stores if store.network == "storage")
    findings = exhausted_range.find(
        classify(replace(snapshot, reservations=(missing, *snapshot.reservations)), GRACE)
    )  # fmt: skip
    assert next(findings).network == "kubenet"
    with pytest.raises(InsufficientData, match="reservations"):
        next(findings)


@pytest.mark.parametrize("cidrs", [("10.244.1.0/33",), (SMALL, "banana"), ("",)], ids=str)
def test_an_invalid_pod_cidr_is_a_gap_that_names_it(cidrs: tuple[str, ...]) -> None:
    """The range is in libcni's cache, and only the Node says whether its pods use it."""
    used = reservation("10.99.0.2", network="storage")
    result = cni_result(used.container_id, "shop/other", "10.99.0.0/29", network="storage")
    snapshot = node(used, node=[replace(WORKER, pod_cidrs=cidrs)], cni_results=[result])
    message = f"node: its pod CIDR: {cidrs[-1]!r} does not appear to be an IPv4 or IPv6 network"
    with pytest.raises(InsufficientData, match=message):
        findings_of(exhausted_range, snapshot)
