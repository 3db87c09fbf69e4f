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
    found,
    node,
    pod,
    reservation,
    sandbox,
    without,
)

LOST = reservation("10.244.1.9")
JAVA = Address("10.244.1.9", 4711, "java")


def test_on_a_healthy_node_every_address_is_managed() -> None:
    assert found(unmanaged_address, node()) == []


def test_an_orphaned_process_is_found_with_its_number_and_its_command() -> None:
    (finding,) = found(unmanaged_address, node(LOST, JAVA, cni_result(GONE, "shop/cart", CIDR)))
    assert finding.subject == "kubenet/10.244.1.9"
    assert finding.pod == "shop/cart"
    assert finding.message == (
        "process 4711 (java) uses 10.244.1.9, which is reserved for container 999999999999 "
        "of pod shop/cart, which the runtime does not know"
    )


def test_the_process_may_change_while_it_is_the_same_trouble() -> None:
    (one,) = found(unmanaged_address, node(LOST, JAVA))
    (two,) = found(unmanaged_address, node(LOST, Address(JAVA.ip, 4712, "java")))
    assert one.key == two.key


def test_a_young_reservation_can_be_an_orphans_too() -> None:
    assert len(found(unmanaged_address, node(reservation("10.244.1.9", age=timedelta(0)), JAVA))) == 1


def test_an_empty_file_is_reserved_for_nobody() -> None:
    (finding,) = found(unmanaged_address, node(empty_file("10.244.1.9"), JAVA))
    assert "reserved for no container" in finding.message


@pytest.mark.parametrize(
    "innocent",
    [
        node(LOST, JAVA, sandbox(GONE, "shop/cart")),
        node(LOST, JAVA, sandbox(GONE, "shop/cart", "exited")),
        node(LOST, JAVA, Checkpoint(GONE, "shop/cart")),
        node(LOST),
        node(LOST, pod("shop/cart", "10.244.1.9")),
        node(JAVA),
    ],
    ids=["container runs", "container stopped", "checkpoint", "leaked", "alive by its pod only", "not reserved"],
)
def test_what_is_managed_or_not_configured_is_not_found(innocent: Snapshot) -> None:
    assert found(unmanaged_address, innocent) == []


def test_of_a_dual_stack_sandbox_only_the_configured_address_is_held() -> None:
    (finding,) = found(unmanaged_address, node(LOST, JAVA, reservation("fd00::9")))
    assert finding.subject == "kubenet/10.244.1.9"


def test_in_several_networks_each_address_is_found_in_its_own() -> None:
    second = reservation("10.99.0.9", network="storage", ifname="net1")
    findings = found(unmanaged_address, node(LOST, JAVA, second, Address("10.99.0.9", 4711, "java")))
    assert [finding.subject for finding in findings] == ["kubenet/10.244.1.9", "storage/10.99.0.9"]


def test_where_every_reservation_has_an_owner_namespaces_need_not_be_asked() -> None:
    assert found(unmanaged_address, node(addresses=NotRequested("addresses", "nobody needed them"))) == []


@pytest.mark.parametrize("source", ["reservations", "containers", "addresses", "checkpoints"])
def test_without_what_it_compares_it_is_blind(source: str) -> None:
    with pytest.raises(InsufficientData, match=source):
        found(unmanaged_address, without(node(), source))


def test_a_pod_list_that_is_unread_does_not_blind_it() -> None:
    assert len(found(unmanaged_address, without(node(LOST, JAVA), "pods"))) == 1


def test_an_orphan_seen_before_the_gap_stays_found() -> None:
    findings = unmanaged_address.find(assessment(without(node(empty_file("10.244.1.9"), JAVA), "checkpoints")))
    assert next(findings).subject == "kubenet/10.244.1.9"
    with pytest.raises(InsufficientData):
        next(findings)
