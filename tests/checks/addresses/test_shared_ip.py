"""Two running pods with one address."""

from agent.model.snapshot import Snapshot
from tests.builders import findings_and_gap, findings_of, gap_of, node, pod, reservation, sandbox, without, without_api

DETECTOR = "shared_ip"
CART = sandbox("4" * 64, "shop/cart")


def messages(snapshot: Snapshot) -> list[str]:
    return [finding.message for finding in findings_of(DETECTOR, snapshot)]


def test_running_pods_with_one_address_are_one_finding() -> None:
    assert messages(node()) == []
    (finding,) = findings_of(DETECTOR, node(CART, pod("shop/cart", "10.244.1.2")))
    assert finding.identity == ("uid of shop/cart", "uid of shop/web")
    for snapshot, count in (
        (node(CART, pod("shop/cart", "10.244.1.2"), sandbox("5" * 64, "shop/pay"), pod("shop/pay", "10.244.1.2")), 3),
        (node(CART, pod("shop/cart", "10.244.1.2", deleting=True)), 2),
        (node(CART, pod("shop/cart", "fd00::9", "10.244.1.2")), 2),
        (node(CART, pod("shop/cart", "10.244.1.2"), reservation("192.168.7.7", CART.id, ifname="net1")), 2),
    ):
        (message,) = messages(snapshot)
        assert message.startswith(f"{count} running pods have the address 10.244.1.2: ")
    pods = [pod("shop/web", "10.244.1.2", "fd00::2"), pod("shop/cart", "10.244.1.2", "fd00::2")]
    several = findings_of(DETECTOR, node(CART, pods=pods))
    assert [finding.subject for finding in several] == [f"{ip} of shop/cart and shop/web" for ip in pods[0].ips]


def test_addresses_that_only_seem_shared_are_no_finding() -> None:
    agent = pod("kube-system/agent", "192.168.0.7", host_network=True)
    for why, snapshot in {
        "host network": node(CART, pod("shop/cart", "10.244.1.2", host_network=True)),
        "the node's address": node(sandbox("4" * 64, "kube-system/agent"), agent),
        "succeeded": node(CART, pod("shop/cart", "10.244.1.2", phase="Succeeded")),
        "failed": node(CART, pod("shop/cart", "10.244.1.2", phase="Failed")),
        "no sandbox": node(pod("shop/cart", "10.244.1.2")),
        "sandbox stopped": node(sandbox("4" * 64, "shop/cart", "exited"), pod("shop/cart", "10.244.1.2")),
        "no address": node(CART, pod("shop/cart")),
        "named twice": node(CART, pod("shop/cart", "10.244.1.9", "10.244.1.9")),
        "stale status": node(CART, pod("shop/cart", "10.244.1.2"), reservation("10.244.1.9", CART.id)),
    }.items():
        assert messages(snapshot) == [], why


def test_without_its_sources_the_check_has_insufficient_data() -> None:
    shared = node(CART, pod("shop/cart", "10.244.1.2"))
    for source in ("containers", "pods", "reservations"):
        assert gap_of(DETECTOR, without(shared, source)).startswith(source)
    findings, gap = findings_and_gap(DETECTOR, without_api(shared))
    assert (findings, gap.why, gap.chosen) == ([], "pods: --api=off", True)
