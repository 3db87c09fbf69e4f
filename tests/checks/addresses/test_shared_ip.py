"""Two running pods with one address."""

import pytest

from agent.checks.addresses import shared_ip
from agent.model.snapshot import InsufficientData, Snapshot
from tests.builders import (
    findings_of,
    node,
    pod,
    reservation,
    sandbox,
    without,
    without_api,
)

CART = sandbox("4" * 64, "shop/cart")


def test_on_a_healthy_node_no_address_is_shared() -> None:
    assert findings_of(shared_ip, node()) == []


def test_two_running_pods_with_one_address_are_reported_once() -> None:
    (finding,) = findings_of(shared_ip, node(CART, pod("shop/cart", "10.244.1.2")))
    assert finding.message == "2 running pods have the address 10.244.1.2: shop/cart and shop/web"
    assert finding.identity == ("uid of shop/cart", "uid of shop/web")


def test_three_pods_with_one_address_are_one_finding() -> None:
    third = (sandbox("5" * 64, "shop/pay"), pod("shop/pay", "10.244.1.2"))
    (finding,) = findings_of(shared_ip, node(CART, pod("shop/cart", "10.244.1.2"), *third))
    assert finding.message.startswith("3 running pods")


def test_a_terminating_pod_still_shares_the_address() -> None:
    assert len(findings_of(shared_ip, node(CART, pod("shop/cart", "10.244.1.2", deleting=True)))) == 1


def test_each_shared_address_of_a_dual_stack_pair_is_reported() -> None:
    pods = [pod("shop/web", "10.244.1.2", "fd00::2"), pod("shop/cart", "10.244.1.2", "fd00::2")]
    assert [one.subject for one in findings_of(shared_ip, node(CART, pods=pods))] == [
        "10.244.1.2 of shop/cart and shop/web",
        "fd00::2 of shop/cart and shop/web",
    ]


def test_the_order_of_a_pods_addresses_does_not_matter() -> None:
    snapshot = node(CART, pod("shop/cart", "fd00::9", "10.244.1.2"))
    assert len(findings_of(shared_ip, snapshot)) == 1


@pytest.mark.parametrize(
    "harmless",
    [
        node(CART, pod("shop/cart", "10.244.1.2", host_network=True)),
        node(CART, pod("shop/cart", "10.244.1.2", phase="Succeeded")),
        node(CART, pod("shop/cart", "10.244.1.2", phase="Failed")),
        node(pod("shop/cart", "10.244.1.2")),
        node(sandbox("4" * 64, "shop/cart", "exited"), pod("shop/cart", "10.244.1.2")),
        node(CART, pod("shop/cart")),
        node(CART, pod("shop/cart", "10.244.1.9", "10.244.1.9")),
    ],
    ids=["host network", "succeeded", "failed", "no sandbox", "sandbox stopped", "no address", "named twice"],
)
def test_addresses_that_only_seem_shared_are_no_finding(harmless: Snapshot) -> None:
    assert findings_of(shared_ip, harmless) == []


def test_host_network_pods_may_share_the_node_address() -> None:
    second = pod("kube-system/agent", "192.168.0.7", host_network=True)
    assert findings_of(shared_ip, node(sandbox("4" * 64, "kube-system/agent"), second)) == []


@pytest.mark.parametrize("source", ["containers", "pods"])
def test_without_docker_or_pods_the_check_has_insufficient_data(source: str) -> None:
    with pytest.raises(InsufficientData, match=source):
        findings_of(shared_ip, without(node(), source))


def test_without_the_api_server_the_check_is_disabled() -> None:
    with pytest.raises(InsufficientData, match="--api=off"):
        findings_of(shared_ip, without_api(node()))


def test_without_reservations_the_check_has_insufficient_data() -> None:
    with pytest.raises(InsufficientData, match="reservations"):
        findings_of(shared_ip, without(node(CART, pod("shop/cart", "10.244.1.2")), "reservations"))


def test_a_stale_pod_status_is_no_second_owner() -> None:
    made_anew = reservation("10.244.1.9", CART.id)
    assert findings_of(shared_ip, node(CART, pod("shop/cart", "10.244.1.2"), made_anew)) == []


def test_a_second_interface_does_not_hide_a_shared_first_address() -> None:
    elsewhere = reservation("192.168.7.7", CART.id, ifname="net1")
    assert len(findings_of(shared_ip, node(CART, pod("shop/cart", "10.244.1.2"), elsewhere))) == 1
