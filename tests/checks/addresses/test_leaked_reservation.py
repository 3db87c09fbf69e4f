"""Leaks: which reservations are reported, their likely cause, and which missing data prevents the check."""

from datetime import timedelta

import pytest

from agent.checks.addresses import leaked_reservation
from agent.model.assessment import Assessment
from agent.model.finding import LeakCause
from agent.model.snapshot import Checkpoint, InsufficientData, ProcessStartTimes, Snapshot
from tests.builders import (
    CIDR,
    DB_ID,
    GONE,
    NOW,
    OLD,
    WEB_ID,
    assessment,
    cni_result,
    empty_file,
    findings_of,
    node,
    processes,
    reservation,
    sandbox,
    scanned,
    unrecognized,
    without,
    without_api,
)

LOST = reservation("10.244.1.9")
AN_HOUR_AGO = timedelta(hours=1)


def test_a_healthy_node_has_no_leak() -> None:
    assert findings_of(leaked_reservation, node()) == []


def test_a_leak_has_its_address_and_container() -> None:
    (finding,) = findings_of(leaked_reservation, node(LOST))
    assert finding.subject == "kubenet/10.244.1.9"
    assert finding.message.startswith("10.244.1.9 is reserved for container 999999999999, which no longer exists; ")
    assert (finding.detector, finding.network) == ("leaked_reservation", "kubenet")


def test_a_leak_names_its_pod_if_a_source_knows_it() -> None:
    (finding,) = findings_of(leaked_reservation, node(LOST, cni_result(GONE, "shop/cart", CIDR)))
    assert finding.pod == "shop/cart"
    assert "of pod shop/cart" in finding.message


@pytest.mark.parametrize(
    "harmless",
    [
        node(LOST, sandbox(GONE, "shop/cart", "exited")),
        node(LOST, Checkpoint(GONE, "shop/cart")),
        node(reservation("10.244.1.9", age=timedelta(seconds=1))),
        node(unrecognized("10.244.1.9", blocks=True)),
    ],
    ids=["not_ready", "teardown_pending", "candidate", "unrecognized"],
)
def test_other_states_are_no_finding(harmless: Snapshot) -> None:
    assert findings_of(leaked_reservation, harmless) == []


def test_both_addresses_of_a_dual_stack_sandbox_are_reported() -> None:
    findings = findings_of(leaked_reservation, node(LOST, reservation("fd00::9")))
    assert [finding.subject for finding in findings] == ["kubenet/10.244.1.9", "kubenet/fd00::9"]


def test_one_address_in_two_networks_is_two_findings() -> None:
    other = reservation("10.244.1.9", "8" * 64, network="storage")
    assert {finding.key for finding in findings_of(leaked_reservation, node(LOST, other))} >= {
        ("leaked_reservation", "kubenet/10.244.1.9", GONE, LOST.inode, LOST.size, LOST.mtime_ns)
    }
    assert {finding.network for finding in findings_of(leaked_reservation, node(LOST, other))} == {"kubenet", "storage"}


def test_a_recreated_file_is_another_finding() -> None:
    (before,) = findings_of(leaked_reservation, node(LOST))
    (after,) = findings_of(leaked_reservation, node(reservation(LOST.ip, age=OLD / 2)))
    assert before.subject == after.subject
    assert before.key != after.key


# Causes


@pytest.mark.parametrize(
    ("since_then", "cause", "began"),
    [
        (processes(), LeakCause.UNKNOWN, OLD),
        (processes(kubelet=AN_HOUR_AGO), LeakCause.KUBELET_RESTART, AN_HOUR_AGO),
        (processes(docker=AN_HOUR_AGO), LeakCause.RUNTIME_RESTART, AN_HOUR_AGO),
        (processes(kubelet=AN_HOUR_AGO, docker=AN_HOUR_AGO * 1.5), LeakCause.KUBELET_RESTART, AN_HOUR_AGO),
        (
            processes(booted=AN_HOUR_AGO, kubelet=AN_HOUR_AGO / 2, docker=AN_HOUR_AGO / 2),
            LeakCause.NODE_REBOOT,
            AN_HOUR_AGO,
        ),
        (processes(kubelet=None, docker=AN_HOUR_AGO), LeakCause.RUNTIME_RESTART, AN_HOUR_AGO),
        (processes(kubelet=None, docker=None), LeakCause.UNKNOWN, OLD),
    ],
    ids=["nothing", "kubelet", "docker", "docker, then kubelet", "reboot", "docker, kubelet stopped", "all stopped"],
)
def test_the_likely_cause_is_the_process_that_restarted_since(
    since_then: ProcessStartTimes, cause: LeakCause, began: timedelta
) -> None:
    (finding,) = findings_of(leaked_reservation, node(LOST, processes=[since_then]))
    assert (finding.cause, finding.since) == (cause, NOW - began)
    time = f"{NOW - began:%Y-%m-%d %H:%M:%S}Z"
    # A first scan cannot know whether an earlier restart did it.
    assert finding.message.endswith(f"reserved at {time}" if cause is LeakCause.UNKNOWN else f" at {time} or earlier")


def test_an_empty_file_is_its_own_cause() -> None:
    (finding,) = findings_of(
        leaked_reservation, node(empty_file("10.244.1.9"), processes=[processes(kubelet=AN_HOUR_AGO)])
    )
    assert (finding.cause, finding.since) == (LeakCause.EMPTY_FILE, NOW - OLD)
    assert "no container (the file is empty)" in finding.message


def test_without_start_times_no_cause_is_named() -> None:
    (finding,) = findings_of(leaked_reservation, without(node(LOST), "processes"))
    assert (finding.cause, finding.since) == (LeakCause.UNKNOWN, NOW - OLD)
    assert "cause unknown" in finding.message


# Blind


@pytest.mark.parametrize("source", ["containers", "checkpoints", "addresses", "pods"])
def test_without_an_owner_source_the_check_has_insufficient_data(source: str) -> None:
    with pytest.raises(InsufficientData, match=source):
        findings_of(leaked_reservation, without(node(LOST), source))


def test_an_unavailable_directory_is_insufficient_data() -> None:
    with pytest.raises(InsufficientData, match="reservations"):
        findings_of(leaked_reservation, without(node(), "reservations"))


def test_a_file_that_is_newer_than_the_clock_leaves_a_gap() -> None:
    (gap,) = scanned(node(reservation("10.244.1.9", age=timedelta(hours=-1)))).gaps
    assert (gap.detector, gap.broken) == (leaked_reservation.NAME, False)
    assert gap.why == "reservations: file kubenet/10.244.1.9 is newer than the node's clock, which was set"
    assert scanned(node(reservation("10.244.1.2", WEB_ID, age=timedelta(hours=-1)))).gaps == ()


def test_with_the_api_disabled_the_check_runs() -> None:
    assert len(findings_of(leaked_reservation, without_api(node(LOST)))) == 1


def test_findings_raised_before_the_gap_are_kept() -> None:
    findings = leaked_reservation.find(_half_seen())
    assert next(findings).subject == "kubenet/10.244.1.9"
    with pytest.raises(InsufficientData):
        next(findings)


def _half_seen() -> Assessment:
    return assessment(
        without(node(empty_file("10.244.1.9"), sandbox(DB_ID, "shop/db")), "containers"),
    )
