"""Likely causes of leaks on a node with containerd: what libcni's cache and the runtime's records show."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

from agent.exporters.finding_lines import finding_lines
from agent.model.finding import Finding, LeakCause
from agent.model.runtime import CONTAINERD, DOCKER, ContainerRuntime
from agent.model.snapshot import (
    Container,
    Damage,
    DamagedResult,
    Known,
    NotRequested,
    PortMapping,
    ProcessStartTimes,
    Snapshot,
)
from tests.builders import (
    CIDR,
    DB_ID,
    GONE,
    NOW,
    OLD,
    UPTIME,
    WORKER,
    cni_result,
    findings_of,
    node,
    processes,
    reservation,
    sandbox,
    scanned,
    without,
)

DETECTOR = "leaked_reservation"
HOUR = timedelta(hours=1)
MADE = 3 * HOUR
"""Ago. The running sandboxes are younger (`OLD`)."""
OTHER = "8" * 64
ENDPOINT = "/run/containerd/containerd.sock"
LOST, LOST_TOO = reservation("10.244.1.9", age=MADE), reservation("10.244.1.8", OTHER, age=MADE)
RESULT, RESULT_TOO = cni_result(GONE, "shop/cart", CIDR, age=MADE), cni_result(OTHER, "shop/till", CIDR, age=MADE)


def started(containerd: timedelta | None = UPTIME, **others: Any) -> ProcessStartTimes:
    """Say how long ago containerd started, and others."""
    since = None if containerd is None else NOW - containerd
    return replace(processes(**others), containerd=since, runtime=f"unix://{ENDPOINT}")


def cri_node(*records: Any, since: ProcessStartTimes | None = None, **changes: Any) -> Snapshot:
    return node(
        *records,
        checkpoints=NotRequested("checkpoints", "the kubelet of this node has none"),
        runtimes=[ContainerRuntime(CONTAINERD, "1.7.24", ENDPOINT)],
        processes=[since or started()],
        **{"containers": [sandbox("1" * 64, "shop/web"), sandbox(DB_ID, "shop/db")]} | changes,
    )


def cause_of(snapshot: Snapshot) -> tuple[LeakCause, timedelta]:
    """Return the cause of the first leak, and how long ago its time is."""
    finding = findings_of(DETECTOR, snapshot)[0]
    assert isinstance(finding.cause, LeakCause)
    assert finding.cause_at is not None
    return finding.cause, NOW - finding.cause_at


def test_a_kubelet_that_restarts_forgets_no_sandbox_of_containerd() -> None:
    assert cause_of(cri_node(LOST, since=started(kubelet=HOUR), cni_results=[])) == (LeakCause.UNKNOWN, MADE)


def test_a_reboot_leaves_no_evidence_of_anything_else() -> None:
    since = started(booted=HOUR, containerd=HOUR)
    for results in ((), (RESULT,)):
        assert cause_of(cri_node(LOST, *results, since=since)) == (LeakCause.NODE_REBOOT, HOUR)


# Without a result in libcni's cache


def test_without_a_result_although_others_of_the_network_have_one_the_setup_failed() -> None:
    assert cause_of(cri_node(LOST)) == (LeakCause.SETUP_FAILED, MADE)
    # containerd restarted much later: it did not die during ADD.
    assert cause_of(cri_node(LOST, since=started(HOUR))) == (LeakCause.SETUP_FAILED, MADE)


def test_a_runtime_that_restarted_within_the_time_of_an_add_died_during_it() -> None:
    for later in (timedelta(seconds=1), timedelta(minutes=5)):  # at once, and when the kubelet gave up
        (finding,) = findings_of(DETECTOR, cri_node(LOST, since=started(MADE - later)))
        assert (finding.cause, finding.since) == (LeakCause.RUNTIME_RESTART, NOW - MADE + later)
        assert "likely cause: restart of containerd at 2026-03-26 17:0" in finding.message


def test_a_cache_without_any_result_of_the_network_is_no_evidence() -> None:
    assert cause_of(cri_node(LOST, cni_results=[])) == (LeakCause.UNKNOWN, MADE)
    assert cause_of(cri_node(LOST, since=started(HOUR), cni_results=[])) == (LeakCause.RUNTIME_RESTART, HOUR)
    of_another_network = cni_result("1" * 64, "shop/web", CIDR, network="storage")
    assert cause_of(cri_node(LOST, cni_results=[of_another_network])) == (LeakCause.UNKNOWN, MADE)


def test_a_result_of_another_network_of_the_sandbox_shows_nothing_of_this_one() -> None:
    assert cause_of(cri_node(LOST, replace(RESULT, network="storage"))) == (LeakCause.UNKNOWN, MADE)


def test_without_start_times_no_cause_is_named_on_containerd() -> None:
    of_containerd = replace(WORKER, runtime="containerd://1.7.24")
    silent = without(cri_node(LOST, RESULT, node=[of_containerd]), "processes")
    assert cause_of(silent) == (LeakCause.UNKNOWN, MADE)


# With a result


def test_a_result_that_is_still_there_shows_that_no_del_was_completed() -> None:
    assert cause_of(cri_node(LOST, RESULT)) == (LeakCause.TEARDOWN_SKIPPED, MADE)
    assert cause_of(cri_node(LOST, RESULT, since=started(None))) == (LeakCause.TEARDOWN_SKIPPED, MADE)


def test_a_damaged_result_shows_the_same() -> None:
    damaged = DamagedResult("kubenet", GONE, "eth0", Damage.EMPTY)
    assert cause_of(replace(cri_node(LOST), damaged_results=(damaged,))) == (LeakCause.TEARDOWN_SKIPPED, MADE)


WIPED = started(OLD + HOUR / 2)


def test_several_sandboxes_of_which_the_runtime_has_no_record_after_its_restart_were_lost_with_its_state() -> None:
    lost = cri_node(LOST, LOST_TOO, RESULT, RESULT_TOO, since=WIPED)
    assert cause_of(lost) == (LeakCause.RUNTIME_STATE_LOST, OLD + HOUR / 2)
    (line,) = (line for line in finding_lines(scanned(lost)) if line.detector == DETECTOR)
    assert line.text == (
        "2 addresses in kubenet leaked, likely cause: containerd started at 2026-03-26 17:30:00Z without a record of "
        "earlier sandboxes: 10.244.1.8, 10.244.1.9"
    )


OLDER = Container("c" * 64, "exited", int((NOW - MADE).timestamp()), "", "", sandbox=False)


def test_otherwise_the_state_was_not_lost() -> None:
    younger = reservation("10.244.1.8", OTHER, age=OLD)
    for why, snapshot in {
        "one sandbox": cri_node(LOST, RESULT, since=WIPED),
        "one with a result": cri_node(LOST, LOST_TOO, RESULT, since=WIPED),
        "an older record survived": cri_node(LOST, LOST_TOO, RESULT, RESULT_TOO, OLDER, since=WIPED),
        "no restart": cri_node(LOST, LOST_TOO, RESULT, RESULT_TOO),
        "one is younger": cri_node(LOST, younger, RESULT, RESULT_TOO, since=WIPED),
    }.items():
        assert cause_of(snapshot) == (LeakCause.TEARDOWN_SKIPPED, MADE), why


ELSEWHERE = [cni_result(sandbox_id, "", "10.9.0.0/24", network="cbr0") for sandbox_id in ("1" * 64, DB_ID)]


def renamed(*records: Any, since: ProcessStartTimes | None = None) -> Snapshot:
    """Running pods have their addresses from `cbr0`, and the leaks are those of `kubenet`."""
    return cri_node(LOST, *records, since=since, cni_results=[*ELSEWHERE, RESULT, RESULT_TOO])


def test_if_running_pods_have_their_addresses_from_another_network_the_configuration_was_replaced() -> None:
    assert cause_of(renamed()) == (LeakCause.NETWORK_RENAMED, MADE)
    assert cause_of(renamed(OLDER, since=WIPED)) == (LeakCause.NETWORK_RENAMED, MADE)


def test_where_the_runtime_may_have_been_replaced_too_neither_is_named() -> None:
    assert cause_of(renamed(LOST_TOO, since=WIPED)) == (LeakCause.TEARDOWN_SKIPPED, MADE)
    assert cause_of(renamed(since=started(None))) == (LeakCause.TEARDOWN_SKIPPED, MADE)


def test_records_of_another_runtime_are_no_evidence() -> None:
    both = [ContainerRuntime(CONTAINERD, "1.7.24", ENDPOINT), ContainerRuntime(DOCKER)]
    snapshot = replace(renamed(), runtimes=Known(tuple(both)))
    assert cause_of(snapshot) == (LeakCause.TEARDOWN_SKIPPED, MADE)


def test_a_secondary_interface_says_nothing_of_a_new_configuration() -> None:
    secondary = replace(LOST, ifname="net1")
    snapshot = cri_node(secondary, cni_results=[*ELSEWHERE, replace(RESULT, ifname="net1")])
    assert cause_of(snapshot) == (LeakCause.TEARDOWN_SKIPPED, MADE)


# Host ports


def forwarded(*ports: PortMapping, **changes: Any) -> Finding:
    (finding,) = findings_of(DETECTOR, cri_node(LOST, replace(RESULT, port_mappings=ports), **changes))
    return finding


HTTP, DNS = PortMapping(8080, "tcp"), PortMapping(53, "udp")


def test_a_leak_names_the_host_ports_that_are_still_forwarded_to_it() -> None:
    finding = forwarded(HTTP, DNS)
    assert finding.port_mappings == (HTTP, DNS)
    assert finding.message.endswith(
        "reserved at 2026-03-26 17:00:00Z; iptables or nftables rules may still forward host port 8080/tcp to "
        "10.244.1.9, 53/udp to 10.244.1.9"
    )
    assert "host port" not in forwarded().message


def test_a_reboot_has_removed_the_rules() -> None:
    assert forwarded(HTTP, since=started(booted=HOUR)).port_mappings == ()


def test_only_the_ports_of_the_leaked_sandbox_in_this_network_count() -> None:
    others = [replace(RESULT_TOO, port_mappings=(HTTP,)), replace(RESULT, network="cbr0", port_mappings=(DNS,))]
    (finding,) = findings_of(DETECTOR, cri_node(LOST, RESULT, *others))
    assert finding.port_mappings == ()


def test_a_line_of_several_leaks_names_the_address_of_each_host_port() -> None:
    snapshot = cri_node(LOST, LOST_TOO, replace(RESULT, port_mappings=(HTTP,)), RESULT_TOO)
    (line,) = (line for line in finding_lines(scanned(snapshot)) if line.detector == DETECTOR)
    assert line.text.startswith("2 addresses in kubenet leaked, ")
    assert line.text.endswith(
        ": 10.244.1.8, 10.244.1.9; iptables or nftables rules may still forward host port 8080/tcp to 10.244.1.9"
    )
