"""Pods whose address has no reservation, and two running pods with one address."""

from dataclasses import replace
from datetime import timedelta
from functools import partial

from agent.model.finding import Severity
from agent.model.snapshot import Container, Node
from tests import builders as b
from tests.builders import (
    CIDR,
    NOW,
    cni_result,
    findings_of,
    node,
    pod,
    reservation,
    scanned,
    without,
    without_api,
)

DETECTOR, SHARED = "unreserved_pod_ip", "shared_ip"
subjects = partial(b.subjects_of, DETECTOR)
CART = b.sandbox("4" * 64, "shop/cart")
LONGEST_ADD = timedelta(minutes=4)
DB = reservation("10.244.1.3", b.DB_ID)


HERE = pod("shop/cart", "10.244.1.9")
ENDED = Container("d" * 64, "exited", 0, "shop/cart", "uid of shop/cart", sandbox=False)
RUNS = replace(ENDED, id="f" * 64, state="running")


def test_a_pod_whose_reservation_was_removed_is_reported() -> None:
    assert subjects(node()) == []
    (finding,) = findings_of(DETECTOR, node(reservations=[DB]))
    assert finding.subject == "kubenet/10.244.1.2 of pod shop/web"
    assert (finding.pod, finding.network) == ("shop/web", "kubenet")
    assert subjects(without(node(reservations=[DB]), "node")), "libcni's cache has the range"
    # Without that cache, the pod may have the address of another network.
    unread = without(node(reservations=[DB]), "cni_results")
    assert b.gap_of(DETECTOR, unread) == "cni_results: it gave no word"
    keys = {
        findings_of(DETECTOR, node(CART, replace(HERE, uid=uid)))[0].key
        for uid in ("first", "second")
    }
    assert len(keys) == 2, "a recreated pod with the same name is another finding"


def test_addresses_that_cannot_be_allocated_twice_are_not_reported() -> None:
    for why, snapshot in {
        "host network": node(CART, replace(HERE, host_network=True)),
        "succeeded": node(CART, replace(HERE, phase="Succeeded")),
        "failed": node(CART, replace(HERE, phase="Failed")),
        "being deleted": node(CART, replace(HERE, deleting=True)),
        "ending": node(CART, HERE, ENDED, replace(ENDED, id="e" * 64)),
        "no address yet": node(CART, pod("shop/cart")),
        "no sandbox": node(HERE),
        "sandbox stopped": node(b.sandbox("4" * 64, "shop/cart", "exited"), HERE),
        "another network's address": node(CART, pod("shop/cart", "172.16.0.9")),
        "a family that the network has not": node(CART, pod("shop/cart", "fd00::9")),
        "empty file": node(CART, b.empty_file("10.244.1.9"), HERE),
        "an unrecognized entry blocks it": node(
            CART, b.unrecognized("10.244.1.9", blocks=True), HERE
        ),
        "reserved for somebody else": node(CART, reservation("10.244.1.9", "5" * 64), HERE),
        "a status that has not followed a new sandbox": node(
            CART, reservation("10.244.1.8", CART.id), HERE
        ),
        "a network that is not checked": node(
            CART, cni_result(CART.id, "shop/cart", CIDR, network="cbr0"), HERE
        ),
        "no range, and reserved": node(node=[], cni_results=[]),
        "only the app is listed": node(
            reservations=[DB],
            containers=[container for container in b.CONTAINERS if container.id != b.WEB_ID],
        ),
    }.items():
        assert subjects(snapshot) == [], why
    assert len(subjects(node(CART, b.unrecognized("notes"), HERE))) == 1
    assert len(subjects(node(CART, ENDED, replace(HERE, waiting=True)))) == 1, "it crashes"
    assert len(subjects(node(CART, ENDED, RUNS, HERE))) == 1
    both = (
        cni_result(CART.id, "shop/cart", CIDR, network="cbr0"),
        cni_result(CART.id, "shop/cart", CIDR),
    )
    assert len(subjects(node(CART, *both, HERE))) == 1


def test_each_family_and_each_network_needs_its_own_reservation_and_data() -> None:
    dual = [Node("worker-1", (CIDR, "fd00::/64"), 110)]
    snapshot = node(
        CART,
        reservation("10.244.1.9", CART.id),
        pod("shop/cart", "10.244.1.9", "fd00::9"),
        node=dual,
    )
    assert subjects(snapshot) == ["kubenet/fd00::9 of pod shop/cart"]
    assert subjects(node(reservation("fd00::9", CART.id), node=dual)) == []
    storage = cni_result("5" * 64, "shop/other", "10.99.0.0/24", network="storage")
    other = reservation("10.99.0.7", "5" * 64, network="storage")
    assert subjects(node(CART, storage, other, pod("shop/cart", "10.99.0.9"))) == [
        "storage/10.99.0.9 of pod shop/cart"
    ]
    assert subjects(node(CART, storage, other, pod("shop/cart", "10.99.0.7"))) == []
    # Without its sources it has insufficient data.
    for snapshot, why in (
        *((without(node(), source), source) for source in ("reservations", "containers", "pods")),
        (without_api(node()), "--api=off"),
        (node(node=[], cni_results=[], reservations=[DB]), "range of network kubenet"),
        (node(reservations=[DB], unread_networks=["storage"]), "reservations"),
    ):
        assert why in b.gap_of(DETECTOR, snapshot)


CART_RESULT = cni_result(CART.id, "shop/cart", CIDR)


def test_without_the_api_server_a_running_sandbox_with_a_result_and_no_reservation_is_reported() -> (
    None
):
    (tracked,) = scanned(without_api(node(CART, CART_RESULT))).findings
    finding = tracked.finding
    assert finding.subject == "kubenet of sandbox 444444444444"
    assert (finding.pod, finding.severity) == ("shop/cart", Severity.CRITICAL)
    assert scanned(without(node(CART, CART_RESULT), "pods")).findings, "unavailable"
    for why, things in {
        "healthy": (),
        "on the host's network": (CART,),
        "reserved": (CART, CART_RESULT, reservation("10.244.1.9", CART.id)),
        "being set up": (
            replace(CART, created=int((NOW - LONGEST_ADD).timestamp()) + 1),
            CART_RESULT,
        ),
        "being torn down": (replace(CART, state="exited"), CART_RESULT),
        "from a network that is not checked": (CART, replace(CART_RESULT, network="cbr0")),
        "from two": (CART, CART_RESULT, replace(CART_RESULT, network="cbr0")),
        "a further interface": (CART, replace(CART_RESULT, ifname="net1")),
        "in a network of another name": (
            CART,
            CART_RESULT,
            reservation("10.244.1.9", CART.id, network="renamed"),
        ),
    }.items():
        report = scanned(without_api(node(*things)))
        assert [
            tracked for tracked in report.findings if tracked.finding.detector == DETECTOR
        ] == [], why
        assert all(gap.chosen for gap in report.gaps if gap.detector == DETECTOR), why
    # Is it being torn down, or does it crash?
    assert "of pod shop/cart has no reservation" in b.gap_of(
        DETECTOR, without_api(node(CART, ENDED, CART_RESULT))
    )
    assert scanned(without_api(node(CART, ENDED, RUNS, CART_RESULT))).findings
    for source in ("reservations", "containers", "cni_results"):
        assert source in b.gap_of(DETECTOR, without(without_api(node(CART, CART_RESULT)), source))


# A sandbox that is made again: its pod's status still has the old address.


def test_a_young_sandbox_has_an_address_if_it_has_a_container() -> None:
    just_now = int(NOW.timestamp()) - 2
    young = replace(CART, created=just_now)

    def app(created: int) -> Container:
        return Container(
            "d" * 64, "running", created, "shop/cart", "uid of shop/cart", sandbox=False
        )

    assert subjects(node(young, HERE)) == []
    for created, count in (
        (just_now - 1, 0),  # one of the sandbox before
        (just_now + 2, 0),  # made after the reservations were read
        (just_now, 1),
        (just_now + 1, 1),
    ):
        assert len(subjects(node(young, app(created), HERE))) == count
    # Without a container, it has an address once no ADD can take longer.
    old = replace(CART, created=int((NOW - LONGEST_ADD).timestamp()))
    assert len(subjects(node(old, HERE))) == 1
    assert subjects(node(replace(CART, created=old.created + 1), HERE)) == []


def test_running_pods_with_one_address_are_one_finding() -> None:
    assert findings_of(SHARED, node()) == []
    (finding,) = findings_of(SHARED, node(CART, pod("shop/cart", "10.244.1.2")))
    assert finding.identity == ("uid of shop/cart", "uid of shop/web")
    for snapshot, count in (
        (
            node(
                CART,
                pod("shop/cart", "10.244.1.2"),
                b.sandbox("5" * 64, "shop/pay"),
                pod("shop/pay", "10.244.1.2"),
            ),
            3,
        ),
        (node(CART, RUNS, pod("shop/cart", "10.244.1.2", deleting=True)), 2),
        (node(CART, ENDED, replace(pod("shop/cart", "10.244.1.2"), waiting=True)), 2),
        (node(CART, pod("shop/cart", "fd00::9", "10.244.1.2")), 2),
        (
            node(
                CART,
                pod("shop/cart", "10.244.1.2"),
                reservation("192.168.7.7", CART.id, ifname="net1"),
            ),
            2,
        ),
    ):
        assert b.the_finding(SHARED, snapshot).message.startswith(
            f"{count} running pods have the address 10.244.1.2: "
        )
    pods = [pod("shop/web", "10.244.1.2", "fd00::2"), pod("shop/cart", "10.244.1.2", "fd00::2")]
    several = findings_of(SHARED, node(CART, pods=pods))
    assert [finding.subject for finding in several] == [
        f"{ip} of shop/cart and shop/web" for ip in pods[0].ips
    ]


def test_addresses_that_only_seem_shared_are_no_finding() -> None:
    agent = pod("kube-system/agent", "192.168.0.7", host_network=True)
    for why, snapshot in {
        "host network": node(CART, pod("shop/cart", "10.244.1.2", host_network=True)),
        "the node's address": node(b.sandbox("4" * 64, "kube-system/agent"), agent),
        "succeeded": node(CART, pod("shop/cart", "10.244.1.2", phase="Succeeded")),
        "failed": node(CART, pod("shop/cart", "10.244.1.2", phase="Failed")),
        "ended": node(CART, ENDED, pod("shop/cart", "10.244.1.2")),
        "ended and deleted": node(
            CART, ENDED, replace(HERE, ips=("10.244.1.2",), deleting=True, waiting=True)
        ),
        "deleted before its first container": node(
            CART, pod("shop/cart", "10.244.1.2", deleting=True)
        ),
        "no sandbox": node(pod("shop/cart", "10.244.1.2")),
        "sandbox stopped": node(
            b.sandbox("4" * 64, "shop/cart", "exited"), pod("shop/cart", "10.244.1.2")
        ),
        "no address": node(CART, pod("shop/cart")),
        "named twice": node(CART, pod("shop/cart", "10.244.1.9", "10.244.1.9")),
        "stale status": node(
            CART, pod("shop/cart", "10.244.1.2"), reservation("10.244.1.9", CART.id)
        ),
    }.items():
        assert findings_of(SHARED, snapshot) == [], why


def test_without_its_sources_it_is_unknown_whether_pods_share_an_address() -> None:
    shared = node(CART, pod("shop/cart", "10.244.1.2"))
    for source in ("containers", "pods", "reservations"):
        assert b.gap_of(SHARED, without(shared, source)).startswith(source)
    findings, gap = b.findings_and_gap(SHARED, without_api(shared))
    assert (findings, gap.why, gap.chosen) == ([], "pods: --api=off", True)
