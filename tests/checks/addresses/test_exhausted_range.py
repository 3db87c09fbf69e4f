"""Networks with fewer free addresses than possible pods."""

from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

from agent.exporters.summary import headline
from agent.model.finding import Finding, Severity
from agent.model.runtime import RuntimeNetwork, WrittenRange
from agent.model.snapshot import (
    Checkpoint,
    Known,
    Node,
    Reservation,
    SandboxFailure,
    Snapshot,
)
from tests import builders as b
from tests.builders import (
    NOW,
    WORKER,
    cni_result,
    findings_of,
    node,
    pod,
    reservation,
    unrecognized,
    waiting_pod,
    without,
    without_api,
)
from tests.checks.addresses.pod_network_nodes import network, pod_node, pods_of

DETECTOR = "exhausted_range"
only = partial(b.the_finding, DETECTOR)
SMALL = "10.244.1.0/28"  # 13 addresses to give out, .2 to .14; the gateway is .1
SMALL_NODE = Node(
    "worker-1", (SMALL,), 3
)  # It takes three pods, which it has: there is no room for more


def leaks(first: int, last: int) -> tuple[Reservation, ...]:
    return tuple(reservation(f"10.244.1.{n}", f"{n:064x}") for n in range(first, last + 1))


def small(*records: Reservation, max_pods: int | None = 3) -> Snapshot:
    return node(*records, node=[replace(SMALL_NODE, max_pods=max_pods)])


def messages(snapshot: Snapshot) -> list[str]:
    return [finding.message for finding in findings_of(DETECTOR, snapshot)]


def test_a_full_range_is_reported_with_its_number_of_leaks() -> None:
    assert messages(node()) == []
    finding = only(small(*leaks(4, 14)))
    assert finding.subject == finding.network == "kubenet"
    assert (
        finding.message == "kubenet: no free addresses; 13 of 13 addresses are reserved (11 leaked)"
    )
    assert messages(small(*leaks(4, 13))) == [], (
        "the last free address is enough if no more pods fit"
    )
    # Leaks outside the range or of the other family are no leaks of it.
    ids = {n: f"{n:064x}" for n in range(4, 15)}
    six = (reservation(f"fd00::{n:x}", container_id) for n, container_id in ids.items())
    outside = (reservation(f"10.250.0.{n}", f"{n:064x}") for n in range(100, 120))
    snapshot = node(
        *leaks(4, 14), *six, *outside, node=[replace(SMALL_NODE, pod_cidrs=(SMALL, "fd00::/64"))]
    )
    assert only(snapshot).message.endswith("13 of 13 addresses are reserved (11 leaked)")
    assert headline(b.scanned(snapshot)) == "Critical: no free pod addresses (11 of 13 leaked)"


def test_fewer_free_addresses_than_possible_pods_are_reported() -> None:
    assert messages(small(*leaks(4, 13), max_pods=5)) == [
        "kubenet: 1 free addresses for 2 more pods; 12 of 13 addresses are reserved (10 leaked)"
    ]
    assert messages(small(*leaks(4, 12), max_pods=5)) == []
    ended = [*b.PODS, pod("shop/job", phase="Succeeded"), pod("shop/crash", phase="Failed")]
    for last, count in ((12, 0), (13, 1)):  # those do not count toward the limit
        snapshot = node(*leaks(4, last), pods=ended, node=[replace(SMALL_NODE, max_pods=5)])
        assert len(messages(snapshot)) == count
    assert messages(small(max_pods=0)) == []
    # A cordoned node gets no more pods.
    cordoned = replace(SMALL_NODE, max_pods=5, unschedulable=True)
    assert [len(messages(node(*leaks(4, last), node=[cordoned]))) for last in (13, 14)] == [0, 1]
    # Which files take an address.
    for other in (reservation("10.244.1.1"), reservation("10.250.0.9"), reservation("fd00::9")):
        assert messages(small(*leaks(4, 13), other)) == []
    assert messages(node(*leaks(4, 13), unrecognized("notes"), node=[SMALL_NODE])) == []
    strange = (b.empty_file("10.244.1.13"), unrecognized("10.244.1.14", blocks=True))
    assert only(node(*leaks(4, 12), *strange, node=[SMALL_NODE])).message.endswith(
        "are reserved (10 leaked)"
    )
    # A range smaller than the pod limit is for information, until few addresses are left for more pods.
    finding = only(small(max_pods=110))
    large = replace(SMALL_NODE, pod_cidrs=(b.CIDR,), max_pods=300)
    for snapshot, severity in (
        (small(*leaks(4, 11), max_pods=110), Severity.INFO),
        (small(*leaks(4, 12), max_pods=110), Severity.WARNING),
        (
            node(*leaks(4, 12), node=[replace(SMALL_NODE, max_pods=110, unschedulable=True)]),
            Severity.INFO,
        ),
        (node(*leaks(4, 228), node=[large]), Severity.INFO),
        (node(*leaks(4, 229), node=[large]), Severity.WARNING),
    ):
        assert (only(snapshot).severity, only(snapshot).key == finding.key) == (
            severity,
            severity is Severity.INFO,
        )
    full = only(small(*leaks(4, 14), max_pods=110))
    assert full.severity is Severity.CRITICAL
    assert full.key != finding.key, "a full range is news"


def test_a_full_range_is_no_problem_while_nothing_can_need_an_address() -> None:
    taken = tuple(reservation(f"10.244.1.{n}", b.WEB_ID) for n in range(4, 14))
    last = reservation("10.244.1.14", b.WEB_ID)
    four, cordoned = (
        replace(SMALL_NODE, max_pods=4),
        replace(SMALL_NODE, max_pods=9, unschedulable=True),
    )
    info, critical = Severity.INFO, Severity.CRITICAL
    for snapshot, severity in (
        (small(*taken, last), info),
        (node(*taken, last, node=[cordoned]), info),
        (node(*taken, last, pod("shop/old", deleting=True), node=[four]), info),
        (node(*taken, last, pod("shop/new", phase="Pending"), node=[four]), critical),
        (
            node(*taken, last, pod("shop/lost", "10.244.1.14"), node=[four]),
            critical,
        ),  # without a sandbox
        (node(*taken, last, node=[four]), critical),
        (small(*taken, *leaks(14, 14)), critical),
        *(
            (small(*taken, reservation(last.ip, age=age)), critical)
            for age in (timedelta(0), -b.OLD)
        ),
        (without(small(*taken, last), "pods"), critical),
        (small(*taken, last, max_pods=None), critical),
    ):
        assert only(snapshot).severity is severity


def test_the_fuller_of_two_families_decides_and_a_second_network_has_no_pods_to_come() -> None:
    dual = Node("worker-1", ("10.244.0.0/16", "fd00::/124"), 3)
    sixes = tuple(reservation(f"fd00::{n:x}", f"{n:064x}") for n in range(2, 16))
    assert "no free addresses" in only(node(*sixes, node=[dual])).message
    assert messages(node(*sixes[1:], node=[dual])) == []
    # A second network is reported only when it is full.
    entry = reservation("10.99.0.2", "5" * 64, network="storage")
    for subnet, networks in (("10.99.0.0/30", ["storage"]), ("10.99.0.0/29", [])):
        result = cni_result("5" * 64, "shop/other", subnet, network="storage")
        assert [
            finding.network for finding in findings_of(DETECTOR, node(result, entry))
        ] == networks


STORAGE_IDS = tuple(f"{n}" * 64 for n in range(3, 8))
STORAGE_RANGE = "192.168.50.2-192.168.50.6"


def storage(*records: b.Thing, ifname: str = "net1", held: int = 5, **others: Any) -> Snapshot:
    """A secondary network, as of Multus, with five addresses; as many running pods hold them."""
    for n, container_id in enumerate(STORAGE_IDS[:held]):
        name, own, second = f"shop/db-{n}", f"10.244.1.{20 + n}", f"192.168.50.{2 + n}"
        result = cni_result(container_id, name, "192.168.50.0/29", network="storage")
        records += (
            reservation(own, container_id),
            reservation(second, container_id, network="storage", ifname=ifname),
            b.sandbox(container_id, name),
            Checkpoint(container_id, name),
            pod(name, own),
            replace(result, ifname=ifname),
        )
    return node(*records, **others)


def about_storage(snapshot: Snapshot) -> list[Finding]:
    """Return what is said of the secondary network; of the other, something may be unknown."""
    found = (tracked.finding for tracked in b.scanned(snapshot).findings)
    return [each for each in found if (each.detector, each.network) == (DETECTOR, "storage")]


def severities(snapshot: Snapshot) -> list[str]:
    return [finding.severity for finding in about_storage(snapshot)]


def test_a_full_secondary_network_is_no_problem_while_no_pod_waits_for_an_address() -> None:
    """Pods use it because they name it: how many more will is not known, and need not be any."""
    (finding,) = findings_of(DETECTOR, storage())
    assert (finding.severity, finding.network) == (Severity.INFO, "storage")
    assert finding.message == (
        "storage: full, and no pod waits for an address; 5 of 5 addresses are reserved (0 leaked)"
    )
    assert headline(b.scanned(storage())) == "OK: 1 informational finding"
    assert severities(storage(held=4)) == []


def test_a_full_secondary_network_is_critical_with_any_sign_that_a_pod_needs_an_address() -> None:
    minute = timedelta(minutes=1)
    for sign, snapshot in {
        "a pod waits": storage(waiting_pod(ago=minute, claims=())),
        "a pod has lost its sandbox": storage(pod("shop/cart", "10.244.1.77")),
        "an Event names its range": storage(sandbox_failures=exhausted(STORAGE_RANGE)),
        "a leak": storage(reservation("192.168.50.6", network="storage", ifname="net1"), held=4),
        "a doubt": without(storage(), "containers"),
    }.items():
        assert severities(snapshot) == [Severity.CRITICAL], sign
    late = replace(storage(waiting_pod(ago=timedelta(0), claims=())), api_skew=minute)
    assert severities(late) == [Severity.CRITICAL], "by the clock of the API server"
    for other, snapshot in {
        "a pod has just been scheduled": storage(waiting_pod(ago=minute * 0.9, claims=())),
        "a pod that is being deleted": storage(pod("shop/old", deleting=True)),
        "a pod on the network of the node": storage(pod("shop/proxy", host_network=True)),
        "an Event names another range": storage(sandbox_failures=exhausted("10.0.0.2-10.0.0.6")),
        "an old Event": storage(sandbox_failures=exhausted(STORAGE_RANGE, ago=7 * minute)),
        "an Event without a range": storage(sandbox_failures=exhausted("nowhere")),
        "a failure of another kind": storage(sandbox_failures=exhausted("")),
    }.items():
        assert severities(snapshot) == [Severity.INFO], other


def exhausted(range_set: str, *, ago: timedelta = timedelta(minutes=2)) -> list[SandboxFailure]:
    return [SandboxFailure("shop/web", NOW - ago, "no IP addresses available", exhausted=range_set)]


def test_without_the_pods_a_full_secondary_network_is_neither_critical_nor_no_problem() -> None:
    """Whether a pod waits is unknown then: nothing says act now, and nothing that all is well.

    A full network of the pods' own addresses stays critical: there every new pod needs one.
    """
    for snapshot in (without(storage(), "pods"), without_api(storage())):
        assert severities(snapshot) == [Severity.WARNING]
        (finding,) = about_storage(snapshot)
        assert "it is unknown whether a pod waits" in finding.message
    event = replace(without_api(storage()), sandbox_failures=Known(tuple(exhausted(STORAGE_RANGE))))
    assert severities(event) == [Severity.CRITICAL]
    taken = (reservation(f"10.244.1.{n}", b.WEB_ID) for n in range(4, 15))
    primary = node(
        *taken, cni_result(b.WEB_ID, "shop/web", SMALL, age=timedelta(0)), node=[SMALL_NODE]
    )
    for snapshot in (without(primary, "pods"), without_api(primary)):
        found = (tracked.finding for tracked in b.scanned(snapshot).findings)
        assert [each.severity for each in found if each.network == "kubenet"] == [Severity.CRITICAL]


def test_only_a_network_that_is_certainly_secondary_may_be_full_unnoticed() -> None:
    names = [RuntimeNetwork("kubenet", ("bridge",), "host-local")]
    every_pods = [*names, RuntimeNetwork("storage", ("bridge",), "host-local")]
    for doubt, snapshot in {
        "its addresses are the pods' own": storage(ifname="eth0"),
        "host-local < 0.8 writes no interface": storage(ifname=""),
        "the runtime attaches every pod to it": storage(networks=every_pods),
        "the runtime's networks are unknown": without(storage(), "networks"),
        "it is the only network of some pods": storage(
            b.sandbox("8" * 64, "shop/x"),
            Checkpoint("8" * 64, "shop/x"),
            reservation("192.168.50.6", "8" * 64, network="storage"),
            held=4,
        ),
    }.items():
        assert severities(snapshot) == [Severity.CRITICAL], doubt
    assert severities(storage(networks=names)) == [Severity.INFO]


def test_the_network_that_the_runtime_attaches_running_sandboxes_to_has_pods_to_come() -> None:
    written = RuntimeNetwork("kubenet", ("bridge",), "host-local", ranges=((WrittenRange(SMALL),),))
    elsewhere = replace(SMALL_NODE, pod_cidrs=("10.9.0.0/24",), max_pods=5)
    for cidrs, stores, count in (
        ((), None, 1),
        (("10.9.0.0/24",), None, 1),
        (("10.9.0.0/24",), (), 0),
    ):
        worker = replace(elsewhere, pod_cidrs=cidrs)
        snapshot = node(*leaks(2, 13), reservations=stores, node=[worker], networks=[written])
        assert len(messages(snapshot)) == count


def test_without_the_api_only_a_full_range_is_reported() -> None:
    result = cni_result("5" * 64, "shop/other", SMALL, age=timedelta(0))
    assert [len(messages(without_api(node(result, *leaks(4, last))))) for last in (13, 14)] == [
        0,
        1,
    ]
    older = replace(result, mtime_ns=0)
    assert messages(without_api(node(older, *leaks(4, 14)))) == [], (
        "the newest result has the range"
    )
    # And without its owners.
    full = node(*leaks(4, 14), node=[SMALL_NODE])
    assert only(without(full, "containers")).message.endswith("(0 leaked, 13 unknown)")


def test_a_configured_network_without_a_pod_cidr_is_that_of_pods_if_sandboxes_have_it() -> None:
    bridge = network("net", "bridge", "10.7.0.0/28")
    snapshot = pod_node([bridge], pods_of("net", "10.7.0.2"), cidrs=())
    assert "13 addresses for up to 110 pods" in only(snapshot).message
    assert b.gap_of(DETECTOR, without(snapshot, "containers")) == "containers: it gave no word"
    assert findings_of(DETECTOR, without(pod_node([bridge], cidrs=()), "containers")) == []


def test_without_its_sources_the_check_has_insufficient_data() -> None:
    used = reservation("10.99.0.2", network="storage")
    result = cni_result(used.container_id, "shop/other", "10.99.0.0/29", network="storage")
    for snapshot, why in (
        *((without(node(), source), source) for source in ("reservations", "pods", "node")),
        (small(max_pods=None), "allocatable.pods"),
        *(
            (node(node=[replace(WORKER, pod_cidrs=(cidr,))]), "pod CIDR")
            for cidr in ("10.244.1.0/32", "10.244.1.0/31", "not a subnet", "")
        ),
        (node(node=[], cni_results=[]), "range of network kubenet"),
        # The range is in libcni's cache, and only the Node says whether its pods use it.
        *(
            (
                node(used, node=[replace(WORKER, pod_cidrs=cidrs)], cni_results=[result]),
                f"node: its pod CIDR: {cidrs[-1]!r} does not appear to be an IPv4 or IPv6 network",
            )
            for cidrs in (("10.244.1.0/33",), (SMALL, "banana"), ("",))
        ),
    ):
        assert why in b.gap_of(DETECTOR, snapshot)
    assert messages(node(node=[], cni_results=[], reservations=[])) == [], (
        "an empty network needs no range"
    )
    # A network without data does not hide the others.
    snapshot = node(*leaks(4, 14), node=[SMALL_NODE])
    stores = node(unread_networks=["storage"], reservations=[]).reservations
    (missing,) = (store for store in stores if store.network == "storage")
    both = replace(snapshot, reservations=(missing, *snapshot.reservations))
    findings, gap = b.findings_and_gap(DETECTOR, both)
    assert [finding.network for finding in findings] == ["kubenet"]
    assert gap.why.startswith("reservations")
