"""Pods whose address has no reservation."""

from dataclasses import replace

import pytest

from agent.checks.addresses import unreserved_pod_ip
from agent.model.assessment import LONGEST_ADD
from agent.model.snapshot import Container, InsufficientData, Node, Snapshot
from tests.builders import (
    CIDR,
    CONTAINERS,
    DB_ID,
    NOW,
    WEB_ID,
    cni_result,
    empty_file,
    findings_of,
    node,
    pod,
    reservation,
    sandbox,
    unrecognized,
    without,
    without_api,
)

CART = sandbox("4" * 64, "shop/cart")
DB = reservation("10.244.1.3", DB_ID)


def test_on_a_healthy_node_every_pod_address_is_reserved() -> None:
    assert findings_of(unreserved_pod_ip, node()) == []


def test_a_pod_whose_reservation_was_removed_is_reported() -> None:
    (finding,) = findings_of(unreserved_pod_ip, node(reservations=[DB]))
    assert finding.subject == "kubenet/10.244.1.2 of pod shop/web"
    assert (finding.pod, finding.network) == ("shop/web", "kubenet")
    assert "the next pod can get the same address" in finding.message


def test_a_recreated_pod_with_the_same_name_is_another_finding() -> None:
    def key(uid: str) -> object:
        (finding,) = findings_of(unreserved_pod_ip, node(CART, pod("shop/cart", "10.244.1.9", uid=uid)))
        return finding.key

    assert key("first") != key("second")


@pytest.mark.parametrize(
    "harmless",
    [
        node(CART, pod("shop/cart", "10.244.1.9", host_network=True)),
        node(CART, pod("shop/cart", "10.244.1.9", phase="Succeeded")),
        node(CART, pod("shop/cart", "10.244.1.9", phase="Failed")),
        node(CART, pod("shop/cart", "10.244.1.9", deleting=True)),
        node(CART, pod("shop/cart")),
        node(pod("shop/cart", "10.244.1.9")),
        node(sandbox("4" * 64, "shop/cart", "exited"), pod("shop/cart", "10.244.1.9")),
        node(CART, pod("shop/cart", "172.16.0.9")),
        node(CART, pod("shop/cart", "fd00::9")),
        node(CART, empty_file("10.244.1.9"), pod("shop/cart", "10.244.1.9")),
        node(CART, unrecognized("10.244.1.9", blocks=True), pod("shop/cart", "10.244.1.9")),
        node(CART, reservation("10.244.1.9", "5" * 64), pod("shop/cart", "10.244.1.9")),
        node(CART, reservation("10.244.1.8", CART.id), pod("shop/cart", "10.244.1.9")),
    ],
    ids=[
        "host network",
        "succeeded",
        "failed",
        "being deleted",
        "no address yet",
        "no sandbox",
        "sandbox stopped",
        "another network's address",
        "a family that the network has not",
        "empty file",
        "unrecognized entry that blocks the address",
        "reserved for somebody else",
        "a status that has not followed a new sandbox",
    ],
)
def test_addresses_that_cannot_be_allocated_twice_are_not_reported(harmless: Snapshot) -> None:
    assert findings_of(unreserved_pod_ip, harmless) == []


def test_an_unrecognized_entry_that_is_no_address_reserves_nothing() -> None:
    assert len(findings_of(unreserved_pod_ip, node(CART, unrecognized("notes"), pod("shop/cart", "10.244.1.9")))) == 1


def test_each_family_of_a_dual_stack_pod_needs_its_own_reservation() -> None:
    dual = Node("worker-1", (CIDR, "fd00::/64"), 110)
    snapshot = node(
        CART, reservation("10.244.1.9", CART.id), pod("shop/cart", "10.244.1.9", "fd00::9"), node=[dual]
    )  # fmt: skip
    (finding,) = findings_of(unreserved_pod_ip, snapshot)
    assert finding.subject == "kubenet/fd00::9 of pod shop/cart"
    assert findings_of(unreserved_pod_ip, node(reservation("fd00::9", CART.id), node=[dual])) == []


def test_each_of_several_networks_is_checked() -> None:
    storage = cni_result("5" * 64, "shop/other", "10.99.0.0/24", network="storage")
    other = reservation("10.99.0.7", "5" * 64, network="storage")
    (finding,) = findings_of(unreserved_pod_ip, node(CART, storage, other, pod("shop/cart", "10.99.0.9")))
    assert finding.network == "storage"
    assert findings_of(unreserved_pod_ip, node(CART, storage, other, pod("shop/cart", "10.99.0.7"))) == []


@pytest.mark.parametrize("source", ["reservations", "containers", "pods"])
def test_without_its_sources_it_has_insufficient_data(source: str) -> None:
    with pytest.raises(InsufficientData, match=source):
        findings_of(unreserved_pod_ip, without(node(), source))


def test_without_the_api_server_the_check_is_disabled() -> None:
    with pytest.raises(InsufficientData, match="--api=off"):
        findings_of(unreserved_pod_ip, without_api(node()))


def test_without_a_known_range_the_check_has_insufficient_data() -> None:
    with pytest.raises(InsufficientData, match="range of network kubenet"):
        findings_of(unreserved_pod_ip, node(node=[], cni_results=[], reservations=[DB]))


def test_reserved_addresses_need_no_range() -> None:
    assert findings_of(unreserved_pod_ip, node(node=[], cni_results=[])) == []


def test_a_pod_with_an_address_from_a_network_that_is_not_checked_is_not_reported() -> None:
    result = cni_result(CART.id, "shop/cart", CIDR, network="cbr0")
    assert findings_of(unreserved_pod_ip, node(CART, result, pod("shop/cart", "10.244.1.9"))) == []
    both = cni_result(CART.id, "shop/cart", CIDR)
    assert len(findings_of(unreserved_pod_ip, node(CART, result, both, pod("shop/cart", "10.244.1.9")))) == 1


def test_the_cni_cache_has_the_range_if_the_node_object_has_none() -> None:
    (finding,) = findings_of(unreserved_pod_ip, without(node(reservations=[DB]), "node"))
    assert finding.pod == "shop/web"


def test_an_unavailable_second_network_may_have_the_reservation() -> None:
    with pytest.raises(InsufficientData, match="reservations"):
        findings_of(unreserved_pod_ip, node(reservations=[DB], unread_networks=["storage"]))


def test_only_the_sandbox_of_a_pod_counts() -> None:
    only_the_app = [one for one in CONTAINERS if one.id != WEB_ID]
    assert findings_of(unreserved_pod_ip, node(reservations=[DB], containers=only_the_app)) == []


# A sandbox that is made again: its pod's status still has the old address.

JUST_NOW = int(NOW.timestamp()) - 2
MADE_AGAIN = replace(CART, created=JUST_NOW)


def app(created: int) -> Container:
    return Container("d" * 64, "running", created, "shop/cart", "uid of shop/cart", sandbox=False)


@pytest.mark.parametrize(
    ("things", "count"),
    [
        ((), 0),
        ((app(JUST_NOW - 1),), 0),
        ((app(JUST_NOW + 2),), 0),
        ((app(JUST_NOW),), 1),
        ((app(JUST_NOW + 1),), 1),
    ],
    ids=[
        "no container", "one of the sandbox before", "one that was made after the reservations were read",
        "one in the same second", "one a second later",
    ],
)  # fmt: skip
def test_a_young_sandbox_has_an_address_if_it_has_a_container(things: tuple[Container, ...], count: int) -> None:
    snapshot = node(MADE_AGAIN, *things, pod("shop/cart", "10.244.1.9"))
    assert len(findings_of(unreserved_pod_ip, snapshot)) == count


def test_a_sandbox_without_container_has_an_address_once_no_add_can_take_longer() -> None:
    old = replace(CART, created=int((NOW - LONGEST_ADD).timestamp()))
    assert len(findings_of(unreserved_pod_ip, node(old, pod("shop/cart", "10.244.1.9")))) == 1
    young = replace(CART, created=old.created + 1)
    assert findings_of(unreserved_pod_ip, node(young, pod("shop/cart", "10.244.1.9"))) == []
