"""Likely causes of leaks on a node with containerd: what libcni's cache and the runtime's records show."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

from agent.exporters.finding_lines import finding_lines
from agent.model.finding import LeakCause
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
from tests import builders as b
from tests.builders import CIDR, DB_ID, GONE, NOW, OLD, UPTIME, cni_result, findings_of, reservation, sandbox, scanned

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
    return replace(b.processes(**others), containerd=since, runtime=f"unix://{ENDPOINT}")


def cri_node(*records: Any, since: ProcessStartTimes | None = None, **changes: Any) -> Snapshot:
    return b.node(
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


def check(*cases: tuple[LeakCause, timedelta, Snapshot]) -> None:
    """Compare the cause of the first leak of each node, and how long ago its time is."""
    for number, (cause, ago, snapshot) in enumerate(cases):
        assert cause_of(snapshot) == (cause, ago), f"case {number}"


WIPED = started(OLD + HOUR / 2)
ELSEWHERE = [cni_result(sandbox_id, "", "10.9.0.0/24", network="cbr0") for sandbox_id in ("1" * 64, DB_ID)]
OLDER = Container("c" * 64, "exited", int((NOW - MADE).timestamp()), "", "", sandbox=False)
RESTART, SKIPPED, UNKNOWN = LeakCause.RUNTIME_RESTART, LeakCause.TEARDOWN_SKIPPED, LeakCause.UNKNOWN


def test_the_cause_without_a_result_in_the_cache_of_libcni() -> None:
    rebooted = started(booted=HOUR, containerd=HOUR)
    of_another_network = cni_result("1" * 64, "shop/web", CIDR, network="storage")
    of_containerd = replace(b.WORKER, runtime="containerd://1.7.24")
    check(
        # Others of the network have one, so the setup failed; containerd restarted much later.
        (LeakCause.SETUP_FAILED, MADE, cri_node(LOST)),
        (LeakCause.SETUP_FAILED, MADE, cri_node(LOST, since=started(HOUR))),
        # It died during the ADD: at once, and when the kubelet gave up.
        *(
            (RESTART, MADE - timedelta(seconds=n), cri_node(LOST, since=started(MADE - timedelta(seconds=n))))
            for n in (1, 300)
        ),
        # A cache without any result of the network is no evidence.
        (UNKNOWN, MADE, cri_node(LOST, cni_results=[])),
        (RESTART, HOUR, cri_node(LOST, since=started(HOUR), cni_results=[])),
        (UNKNOWN, MADE, cri_node(LOST, cni_results=[of_another_network])),
        (UNKNOWN, MADE, cri_node(LOST, replace(RESULT, network="storage"))),
        # A kubelet that restarts forgets no sandbox of containerd.
        (UNKNOWN, MADE, cri_node(LOST, since=started(kubelet=HOUR), cni_results=[])),
        # A reboot leaves no evidence of anything else.
        (LeakCause.NODE_REBOOT, HOUR, cri_node(LOST, since=rebooted)),
        (LeakCause.NODE_REBOOT, HOUR, cri_node(LOST, RESULT, since=rebooted)),
        # No start times are known.
        (UNKNOWN, MADE, b.without(cri_node(LOST, RESULT, node=[of_containerd]), "processes")),
    )
    (finding,) = findings_of(DETECTOR, cri_node(LOST, since=started(MADE - timedelta(minutes=5))))
    assert "likely cause: restart of containerd at 2026-03-26 17:05:00Z" in finding.message


def test_a_result_that_is_still_there_shows_that_no_del_was_completed() -> None:
    damaged = DamagedResult("kubenet", GONE, "eth0", Damage.EMPTY)
    younger = reservation("10.244.1.8", OTHER, age=OLD)
    check(
        (SKIPPED, MADE, cri_node(LOST, RESULT)),
        (SKIPPED, MADE, cri_node(LOST, RESULT, since=started(None))),
        (SKIPPED, MADE, replace(cri_node(LOST), damaged_results=(damaged,))),
        # Several sandboxes of which the runtime has no record after its restart were lost with its state.
        (LeakCause.RUNTIME_STATE_LOST, OLD + HOUR / 2, cri_node(LOST, LOST_TOO, RESULT, RESULT_TOO, since=WIPED)),
        # It was not: one sandbox, one result, an older record survived, no restart, one sandbox is younger.
        (SKIPPED, MADE, cri_node(LOST, RESULT, since=WIPED)),
        (SKIPPED, MADE, cri_node(LOST, LOST_TOO, RESULT, since=WIPED)),
        (SKIPPED, MADE, cri_node(LOST, LOST_TOO, RESULT, RESULT_TOO, OLDER, since=WIPED)),
        (SKIPPED, MADE, cri_node(LOST, LOST_TOO, RESULT, RESULT_TOO)),
        (SKIPPED, MADE, cri_node(LOST, younger, RESULT, RESULT_TOO, since=WIPED)),
    )
    lost = cri_node(LOST, LOST_TOO, RESULT, RESULT_TOO, since=WIPED)
    (line,) = (line for line in finding_lines(scanned(lost)) if line.detector == DETECTOR)
    assert line.text == (
        "2 addresses in kubenet leaked, likely cause: containerd started at 2026-03-26 17:30:00Z without a record of "
        "earlier sandboxes: 10.244.1.8, 10.244.1.9"
    )


def test_if_running_pods_have_their_addresses_from_another_network_the_configuration_was_replaced() -> None:
    def renamed(*records: Any, since: ProcessStartTimes | None = None) -> Snapshot:
        """Running pods have their addresses from `cbr0`, and the leaks are those of `kubenet`."""
        return cri_node(LOST, *records, since=since, cni_results=[*ELSEWHERE, RESULT, RESULT_TOO])

    both = (ContainerRuntime(CONTAINERD, "1.7.24", ENDPOINT), ContainerRuntime(DOCKER))
    secondary = [*ELSEWHERE, replace(RESULT, ifname="net1")]
    check(
        (LeakCause.NETWORK_RENAMED, MADE, renamed()),
        (LeakCause.NETWORK_RENAMED, MADE, renamed(OLDER, since=WIPED)),
        # The runtime may have been replaced too: neither is named.
        (SKIPPED, MADE, renamed(LOST_TOO, since=WIPED)),
        (SKIPPED, MADE, renamed(since=started(None))),
        # Records of another runtime, and a secondary interface, are no evidence.
        (SKIPPED, MADE, replace(renamed(), runtimes=Known(both))),
        (SKIPPED, MADE, cri_node(replace(LOST, ifname="net1"), cni_results=secondary)),
    )


# Host ports


HTTP, DNS = PortMapping(8080, "tcp"), PortMapping(53, "udp")
FORWARDED = replace(RESULT, port_mappings=(HTTP, DNS))


def test_a_leak_names_the_host_ports_that_are_still_forwarded_to_it() -> None:
    others = [replace(RESULT_TOO, port_mappings=(HTTP,)), replace(RESULT, network="cbr0", port_mappings=(DNS,))]
    for ports, snapshot in (
        ((HTTP, DNS), cri_node(LOST, FORWARDED)),
        # A reboot has removed the rules, and only those of the leaked sandbox in this network count.
        ((), cri_node(LOST, FORWARDED, since=started(booted=HOUR))),
        ((), cri_node(LOST, RESULT, *others)),
    ):
        (finding,) = findings_of(DETECTOR, snapshot)
        assert finding.port_mappings == ports
        assert finding.message.endswith(
            "; iptables or nftables rules may still forward host port 8080/tcp to 10.244.1.9, 53/udp to 10.244.1.9"
        ) is bool(ports)
    several = cri_node(LOST, LOST_TOO, replace(RESULT, port_mappings=(HTTP,)), RESULT_TOO)
    (line,) = (line for line in finding_lines(scanned(several)) if line.detector == DETECTOR)
    assert line.text.startswith("2 addresses in kubenet leaked, ")
    assert line.text.endswith(
        ": 10.244.1.8, 10.244.1.9; iptables or nftables rules may still forward host port 8080/tcp to 10.244.1.9"
    )
