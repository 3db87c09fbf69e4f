"""Processes that hold an address whose container the runtime has forgotten."""

from dataclasses import replace
from datetime import timedelta
from functools import partial

from agent.exporters.advice import advice
from agent.model.assessment import State
from agent.model.finding import Severity
from agent.model.snapshot import Address, Checkpoint, NotRequested, Snapshot
from tests import builders as b
from tests.builders import (
    CIDR,
    GONE,
    cni_result,
    empty_file,
    findings_of,
    gap_of,
    node,
    reservation,
    sandbox,
    without,
)

DETECTOR = "unmanaged_address"
subjects = partial(b.subjects_of, DETECTOR)
LOST = reservation("10.244.1.9")
JAVA = Address("10.244.1.9", 4711, "java")
PINNED = cni_result(GONE, "shop/cart", CIDR, namespace="/var/run/netns/cni-9")
MOUNTED = ["/run/netns/cni-8", "/run/netns/cni-9"]


def messages(snapshot: Snapshot) -> list[str]:
    return [finding.message for finding in findings_of(DETECTOR, snapshot)]


def test_an_orphaned_process_or_namespace_is_reported_with_what_it_is() -> None:
    (finding,) = findings_of(DETECTOR, node(LOST, JAVA, cni_result(GONE, "shop/cart", CIDR)))
    assert (finding.subject, finding.pod) == ("kubenet/10.244.1.9", "shop/cart")
    (another,) = findings_of(DETECTOR, node(LOST, Address(JAVA.ip, 4712, "java")))
    assert another.key == finding.key
    assert messages(node(reservation("10.244.1.9", age=timedelta(0)), JAVA)), (
        "a new reservation too"
    )
    assert "reserved for no container" in messages(node(empty_file("10.244.1.9"), JAVA))[0]
    # Each configured address of each network is reported.
    assert subjects(node(LOST, JAVA, reservation("fd00::9"))) == ["kubenet/10.244.1.9"]
    second = reservation("10.99.0.9", network="storage", ifname="net1")
    both = node(LOST, JAVA, second, Address("10.99.0.9", 4711, "java"))
    assert subjects(both) == ["kubenet/10.244.1.9", "storage/10.99.0.9"]
    # A mounted namespace without a process has its path.
    (message,) = messages(node(LOST, PINNED, mounted_namespaces=MOUNTED))
    assert message.startswith(
        "network namespace /run/netns/cni-9 (without a process) uses 10.244.1.9, which"
    )
    both = node(LOST, reservation("fd00::9"), PINNED, mounted_namespaces=MOUNTED)
    assert subjects(both) == ["kubenet/10.244.1.9", "kubenet/fd00::9"]
    (message,) = messages(node(LOST, JAVA, PINNED, mounted_namespaces=MOUNTED))
    assert message.startswith("process 4711 (java) uses 10.244.1.9")


def test_of_an_address_that_two_networks_reserve_each_namespace_needs_an_owner() -> None:
    """Two VLANs may have one range: a healthy pod of one hides no process of the other."""
    lost = reservation("192.168.1.5", network="vlan10")
    records = (
        lost,
        reservation(lost.ip, "7" * 64, network="vlan20"),
        sandbox("7" * 64, "shop/till"),
    )
    pause, orphan = (
        Address(lost.ip, 99, "pause", namespace=1),
        Address(lost.ip, 4711, "java", namespace=2),
    )
    for given, severity, message in (
        (
            (pause,),
            Severity.INFO,
            "it is not released while process 99 (pause) has it: vlan20 reserves it for a",
        ),
        (
            (pause, orphan),
            Severity.WARNING,
            "process 99 (pause) and process 4711 (java) use 192.168.1.5, which is",
        ),
        (
            (pause, orphan),
            Severity.WARNING,
            "; vlan20 reserves it for a container that the runtime has",
        ),
    ):
        snapshot = node(*records, *given)
        (finding,) = findings_of(DETECTOR, snapshot)
        assert (finding.subject, finding.severity) == ("vlan10/192.168.1.5", severity)
        assert message in finding.message
        assert b.state(snapshot, lost.ip, "vlan10") is State.UNMANAGED, "nobody releases it"
    third = (reservation(lost.ip, "8" * 64, network="vlan30"), sandbox("8" * 64, "shop/cart"))
    assert findings_of(DETECTOR, node(*records, pause, orphan, *third))[0].severity is Severity.INFO
    # Without the owner it is nobody's.
    (first, second) = findings_of(DETECTOR, node(*records[:2], pause))
    assert [first.network, second.network] == ["vlan10", "vlan20"]
    assert first.severity is second.severity is Severity.WARNING


def test_managed_or_unconfigured_addresses_are_no_finding() -> None:
    for why, snapshot in {
        "healthy": node(),
        "container runs": node(LOST, JAVA, sandbox(GONE, "shop/cart")),
        "container stopped": node(LOST, JAVA, sandbox(GONE, "shop/cart", "exited")),
        "checkpoint": node(
            LOST, JAVA, Checkpoint(GONE, ""), replace(LOST, network="x", container_id=b.WEB_ID)
        ),
        "leaked": node(LOST),
        "unmounted": node(LOST, PINNED, mounted_namespaces=["/run/netns/cni-8"]),
        "mounted, and its container runs": node(
            LOST, PINNED, sandbox(GONE, ""), mounted_namespaces=MOUNTED
        ),
        "alive by its pod only": node(LOST, b.pod("shop/cart", "10.244.1.9")),
        "every reservation has an owner": node(
            addresses=NotRequested("addresses", "nobody needed them")
        ),
    }.items():
        assert messages(snapshot) == [], why


def test_an_address_of_the_range_that_no_file_reserves_is_told_if_it_lasts() -> None:
    """As of a process that a runtime left behind, whose file a cleanup script has removed."""
    (finding,) = findings_of(DETECTOR, node(JAVA))
    assert finding.subject == "kubenet/10.244.1.9"
    assert finding.message == (
        "process 4711 (java) uses 10.244.1.9, which is not reserved in kubenet: the next pod can "
        "get the same address"
    )
    report = b.scanned(node(JAVA))
    assert "cordon the node" in " ".join(step.text for step in advice(DETECTOR, report))
    minute = timedelta(minutes=1)
    for why, snapshot in {
        "the pod is known": node(replace(JAVA, contained=True)),
        "the node's own": node(replace(JAVA, pid=1)),
        "a thread of dockerd, or a new container": node(replace(JAVA, passing=True)),
        "the gateway": node(Address("10.244.1.1", 4711, "java")),
        "another range": node(Address("10.99.0.9", 4711, "java")),
        "another network reserves it": node(
            JAVA, reservation(JAVA.ip, b.WEB_ID, network="storage")
        ),
        "a pod has it": node(JAVA, b.pod("shop/cart", JAVA.ip)),
        # dockerd has died, and its processes will.
        "the runtime has just started": node(JAVA, processes=[b.processes(docker=minute)]),
        "so has the kubelet": node(JAVA, processes=[b.processes(kubelet=minute)]),
    }.items():
        assert messages(snapshot) == [], why
    for source in ("processes", "pods", "runtimes"):
        gap = gap_of(DETECTOR, without(node(JAVA), source))
        assert gap == f"{source}: it gave no word", "who has it, and for how long, is not known"
    stopped = replace(b.the_node(node()), ready=False, not_ready="Kubelet stopped posting.")
    without_kubelet = node(JAVA, node=[stopped], processes=[b.processes(kubelet=None)])
    assert messages(without_kubelet), "the runtime has run for long, and has no such container"
    assert b.scanned(node(JAVA), node()).findings == ()
    assert b.scanned(node(JAVA), node(replace(JAVA, pid=4712))).findings == ()


def test_without_its_sources_it_has_insufficient_data_after_what_is_certain() -> None:
    for source in ("reservations", "containers", "addresses", "checkpoints"):
        assert gap_of(DETECTOR, without(node(), source)).startswith(source)
    other = reservation("10.244.1.8", "8" * 64)
    for source, snapshot in {
        "mounted_namespaces": node(LOST, JAVA, other, PINNED),
        "pods": node(LOST, JAVA),
        "checkpoints": node(empty_file("10.244.1.9"), JAVA),
    }.items():
        findings, gap = b.findings_and_gap(DETECTOR, without(snapshot, source))
        assert [finding.subject for finding in findings] == ["kubenet/10.244.1.9"]
        assert gap.why == f"{source}: it gave no word"
