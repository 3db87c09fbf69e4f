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


def test_on_a_healthy_node_every_address_is_managed() -> None:
    assert findings_of(unmanaged_address, node()) == []


def test_an_orphaned_process_is_reported_with_its_pid_and_command() -> None:
    (finding,) = findings_of(unmanaged_address, node(LOST, JAVA, cni_result(GONE, "shop/cart", CIDR)))
    assert finding.subject == "kubenet/10.244.1.9"
    assert finding.pod == "shop/cart"
    assert finding.message == (
        "process 4711 (java) uses 10.244.1.9, which is reserved for container 999999999999 "
        "of pod shop/cart, which the runtime does not know"
    )


PINNED = cni_result(GONE, "shop/cart", CIDR, namespace="/var/run/netns/cni-9")
MOUNTED = ["/run/netns/cni-8", "/run/netns/cni-9"]


def test_a_mounted_namespace_without_a_process_is_reported_with_its_path() -> None:
    (finding,) = findings_of(unmanaged_address, node(LOST, PINNED, mounted_namespaces=MOUNTED))
    assert finding.message == (
        "network namespace /run/netns/cni-9 (without a process) uses 10.244.1.9, which is reserved for container "
        "999999999999 of pod shop/cart, which the runtime does not know"
    )


def test_a_process_is_named_before_its_namespace() -> None:
    (finding,) = findings_of(unmanaged_address, node(LOST, JAVA, PINNED, mounted_namespaces=MOUNTED))
    assert finding.message.startswith("process 4711 (java) uses 10.244.1.9")


def test_every_address_of_a_mounted_namespace_is_reported() -> None:
    both = node(LOST, reservation("fd00::9"), PINNED, mounted_namespaces=MOUNTED)
    assert [one.subject for one in findings_of(unmanaged_address, both)] == ["kubenet/10.244.1.9", "kubenet/fd00::9"]


def test_without_the_mount_table_the_detector_has_a_gap() -> None:
    blind = without(node(LOST, JAVA, reservation("10.244.1.8", "8" * 64), PINNED), "mounted_namespaces")
    found = unmanaged_address.find(assessment(blind))
    assert next(found).subject == "kubenet/10.244.1.9"
    with pytest.raises(InsufficientData, match="mounted_namespaces: it gave no word"):
        next(found)


def test_another_process_is_the_same_finding() -> None:
    (one,) = findings_of(unmanaged_address, node(LOST, JAVA))
    (two,) = findings_of(unmanaged_address, node(LOST, Address(JAVA.ip, 4712, "java")))
    assert one.key == two.key


def test_a_new_reservation_can_be_unmanaged_too() -> None:
    assert len(findings_of(unmanaged_address, node(reservation("10.244.1.9", age=timedelta(0)), JAVA))) == 1


def test_an_empty_file_has_no_owner_to_be_unmanaged() -> None:
    (finding,) = findings_of(unmanaged_address, node(empty_file("10.244.1.9"), JAVA))
    assert "reserved for no container" in finding.message


@pytest.mark.parametrize(
    "harmless",
    [
        node(LOST, JAVA, sandbox(GONE, "shop/cart")),
        node(LOST, JAVA, sandbox(GONE, "shop/cart", "exited")),
        node(LOST, JAVA, Checkpoint(GONE, "shop/cart")),
        node(LOST),
        node(LOST, PINNED, mounted_namespaces=["/run/netns/cni-8"]),
        node(LOST, PINNED, sandbox(GONE, "shop/cart"), mounted_namespaces=MOUNTED),
        node(LOST, pod("shop/cart", "10.244.1.9")),
        node(JAVA),
    ],
    ids=[
        "container runs",
        "container stopped",
        "checkpoint",
        "leaked",
        "unmounted",
        "mounted, and its container runs",
        "alive by its pod only",
        "not reserved",
    ],
)
def test_managed_or_unconfigured_addresses_are_no_finding(harmless: Snapshot) -> None:
    assert findings_of(unmanaged_address, harmless) == []


def test_only_the_configured_address_of_a_dual_stack_sandbox_is_unmanaged() -> None:
    (finding,) = findings_of(unmanaged_address, node(LOST, JAVA, reservation("fd00::9")))
    assert finding.subject == "kubenet/10.244.1.9"


def test_each_network_has_its_own_findings() -> None:
    second = reservation("10.99.0.9", network="storage", ifname="net1")
    findings = findings_of(unmanaged_address, node(LOST, JAVA, second, Address("10.99.0.9", 4711, "java")))
    assert [finding.subject for finding in findings] == ["kubenet/10.244.1.9", "storage/10.99.0.9"]


def test_with_an_owner_for_every_reservation_namespaces_are_not_needed() -> None:
    assert findings_of(unmanaged_address, node(addresses=NotRequested("addresses", "nobody needed them"))) == []


@pytest.mark.parametrize("source", ["reservations", "containers", "addresses", "checkpoints"])
def test_without_its_sources_it_has_insufficient_data(source: str) -> None:
    with pytest.raises(InsufficientData, match=source):
        findings_of(unmanaged_address, without(node(), source))


def test_the_pod_list_is_not_needed() -> None:
    assert len(findings_of(unmanaged_address, without(node(LOST, JAVA), "pods"))) == 1


def test_findings_raised_before_the_gap_are_kept() -> None:
    findings = unmanaged_address.find(assessment(without(node(empty_file("10.244.1.9"), JAVA), "checkpoints")))
    assert next(findings).subject == "kubenet/10.244.1.9"
    with pytest.raises(InsufficientData):
        next(findings)
