"""Processes that hold an address whose container the runtime has forgotten."""

from datetime import timedelta

import pytest

from agent.checks.addresses import unmanaged_address
from agent.model.snapshot import Address, Checkpoint, InsufficientData, NotRequested, Snapshot
from tests.builders import (
    CIDR,
    GONE,
    assessment,
    cni_result,
    empty_file,
    findings_of,
    node,
    pod,
    reservation,
    sandbox,
    without,
)

LOST = reservation("10.244.1.9")
JAVA = Address("10.244.1.9", 4711, "java")


PINNED = cni_result(GONE, "shop/cart", CIDR, namespace="/var/run/netns/cni-9")
MOUNTED = ["/run/netns/cni-8", "/run/netns/cni-9"]


def messages(snapshot: Snapshot) -> list[str]:
    return [one.message for one in findings_of(unmanaged_address, snapshot)]


def subjects(snapshot: Snapshot) -> list[str]:
    return [one.subject for one in findings_of(unmanaged_address, snapshot)]


def test_an_orphaned_process_is_reported_with_its_pid_and_command() -> None:
    (finding,) = findings_of(unmanaged_address, node(LOST, JAVA, cni_result(GONE, "shop/cart", CIDR)))
    assert (finding.subject, finding.pod) == ("kubenet/10.244.1.9", "shop/cart")
    assert finding.message == (
        "process 4711 (java) uses 10.244.1.9, which is reserved for container 999999999999 "
        "of pod shop/cart, which the runtime does not know"
    )
    (another,) = findings_of(unmanaged_address, node(LOST, Address(JAVA.ip, 4712, "java")))
    assert another.key == finding.key
    assert messages(node(reservation("10.244.1.9", age=timedelta(0)), JAVA)), "a new reservation too"
    assert "reserved for no container" in messages(node(empty_file("10.244.1.9"), JAVA))[0]


def test_a_mounted_namespace_without_a_process_is_reported_with_its_path() -> None:
    (message,) = messages(node(LOST, PINNED, mounted_namespaces=MOUNTED))
    assert message == (
        "network namespace /run/netns/cni-9 (without a process) uses 10.244.1.9, which is reserved for container "
        "999999999999 of pod shop/cart, which the runtime does not know"
    )
    both = node(LOST, reservation("fd00::9"), PINNED, mounted_namespaces=MOUNTED)
    assert subjects(both) == ["kubenet/10.244.1.9", "kubenet/fd00::9"]
    (message,) = messages(node(LOST, JAVA, PINNED, mounted_namespaces=MOUNTED))
    assert message.startswith("process 4711 (java) uses 10.244.1.9")


def test_each_configured_address_of_each_network_is_reported() -> None:
    assert subjects(node(LOST, JAVA, reservation("fd00::9"))) == ["kubenet/10.244.1.9"]
    second = reservation("10.99.0.9", network="storage", ifname="net1")
    both = node(LOST, JAVA, second, Address("10.99.0.9", 4711, "java"))
    assert subjects(both) == ["kubenet/10.244.1.9", "storage/10.99.0.9"]


def test_managed_or_unconfigured_addresses_are_no_finding() -> None:
    for why, snapshot in {
        "healthy": node(),
        "container runs": node(LOST, JAVA, sandbox(GONE, "shop/cart")),
        "container stopped": node(LOST, JAVA, sandbox(GONE, "shop/cart", "exited")),
        "checkpoint": node(LOST, JAVA, Checkpoint(GONE, "shop/cart")),
        "leaked": node(LOST),
        "unmounted": node(LOST, PINNED, mounted_namespaces=["/run/netns/cni-8"]),
        "mounted, and its container runs": node(LOST, PINNED, sandbox(GONE, ""), mounted_namespaces=MOUNTED),
        "alive by its pod only": node(LOST, pod("shop/cart", "10.244.1.9")),
        "not reserved": node(JAVA),
        "every reservation has an owner": node(addresses=NotRequested("addresses", "nobody needed them")),
    }.items():
        assert messages(snapshot) == [], why


def test_without_its_sources_it_has_insufficient_data_after_what_is_certain() -> None:
    for source in ("reservations", "containers", "addresses", "checkpoints"):
        with pytest.raises(InsufficientData, match=source):
            messages(without(node(), source))
    assert len(messages(without(node(LOST, JAVA), "pods"))) == 1
    other = reservation("10.244.1.8", "8" * 64)
    for source, snapshot in {
        "mounted_namespaces": node(LOST, JAVA, other, PINNED),
        "checkpoints": node(empty_file("10.244.1.9"), JAVA),
    }.items():
        found = unmanaged_address.find(assessment(without(snapshot, source)))
        assert next(found).subject == "kubenet/10.244.1.9"
        with pytest.raises(InsufficientData, match=f"{source}: it gave no word"):
            next(found)
