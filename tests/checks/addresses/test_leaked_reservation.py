"""Leaks: which reservations are reported, their likely cause, and which missing data prevents the check."""

from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

from agent.exporters.advice import advice
from agent.exporters.summary import FindingLine, finding_lines
from agent.model.finding import LeakCause, TrackedFinding
from agent.model.runtime import CONTAINERD, CRI_O, DOCKER, ContainerRuntime, RuntimeNetwork
from agent.model.snapshot import (
    Checkpoint,
    Container,
    Damage,
    DamagedResult,
    Known,
    NotRequested,
    PortMapping,
    ProcessStartTimes,
    SandboxFailure,
    Snapshot,
)
from tests import builders as b
from tests.builders import (
    CIDR,
    GONE,
    NOW,
    OLD,
    UPTIME,
    cni_result,
    node,
    processes,
    reservation,
    scanned,
    without,
)

DETECTOR = "leaked_reservation"
leaks = partial(b.findings_of, DETECTOR)
LOST = reservation("10.244.1.9")
AN_HOUR_AGO = timedelta(hours=1)
KUBELET_RESTART = LeakCause.KUBELET_RESTART


def test_a_leak_has_its_address_its_container_and_its_pod() -> None:
    (finding,) = leaks(node(LOST))
    assert (finding.subject, finding.network) == ("kubenet/10.244.1.9", "kubenet")
    (finding,) = leaks(node(LOST, cni_result(GONE, "shop/cart", CIDR)))
    assert finding.pod == "shop/cart"
    assert "of pod shop/cart" in finding.message
    subjects = b.subjects_of(DETECTOR, node(LOST, reservation("fd00::9")))
    assert subjects == ["kubenet/10.244.1.9", "kubenet/fd00::9"]
    both = leaks(node(LOST, reservation("10.244.1.9", "8" * 64, network="storage")))
    assert (
        "leaked_reservation",
        "kubenet/10.244.1.9",
        GONE,
        LOST.inode,
        LOST.size,
        LOST.mtime_ns,
    ) == both[0].key
    assert {finding.network for finding in both} == {"kubenet", "storage"}
    (before,), (after,) = leaks(node(LOST)), leaks(node(reservation(LOST.ip, age=OLD / 2)))
    assert before.subject == after.subject
    assert before.key != after.key


def test_the_likely_cause_is_the_process_that_restarted_since() -> None:
    hour, unknown = AN_HOUR_AGO, LeakCause.UNKNOWN
    for since_then, cause, began in (
        (processes(), unknown, OLD),
        (processes(kubelet=hour), LeakCause.KUBELET_RESTART, hour),
        (processes(docker=hour), LeakCause.RUNTIME_RESTART, hour),
        (processes(kubelet=hour, docker=hour * 1.5), LeakCause.KUBELET_RESTART, hour),
        (processes(booted=hour, kubelet=hour / 2, docker=hour / 2), LeakCause.NODE_REBOOT, hour),
        (processes(kubelet=None, docker=hour), LeakCause.RUNTIME_RESTART, hour),
        (processes(kubelet=None, docker=None), unknown, OLD),
    ):
        (finding,) = leaks(node(LOST, processes=[since_then]))
        assert (finding.cause, finding.cause_at) == (cause, NOW - began)
        # Without an earlier snapshot, nobody knows whether it had leaked before that start.
        assert finding.since == (NOW - OLD if cause is unknown else None)
        time = f"{NOW - began:%Y-%m-%d %H:%M:%S}Z"
        # A first scan cannot know whether an earlier restart did it.
        assert finding.message.endswith(
            f"reserved at {time}" if cause is unknown else f"(the last one: {time})"
        )
    # A start soon after the reservation dates the leak.
    for later, since in (
        (1, NOW - OLD + timedelta(seconds=1)),
        (300, NOW - OLD + timedelta(minutes=5)),
        (301, None),
    ):
        (finding,) = leaks(
            node(LOST, processes=[processes(kubelet=OLD - timedelta(seconds=later))])
        )
        assert (finding.cause, finding.since) == (KUBELET_RESTART, since)
    (finding,) = leaks(node(b.empty_file("10.244.1.9"), processes=[processes(kubelet=AN_HOUR_AGO)]))
    assert (finding.cause, finding.since) == (LeakCause.EMPTY_FILE, NOW - OLD)
    assert "no container (the file is empty)" in finding.message
    (finding,) = leaks(without(node(LOST), "processes"))
    assert (finding.cause, finding.since) == (LeakCause.UNKNOWN, NOW - OLD)


def test_a_leak_is_dated_by_the_snapshot_that_last_found_its_owner() -> None:
    """A start of the kubelet only bounds the age of a leak that is seen for the first time."""
    minute, owner = (
        timedelta(minutes=1),
        (b.sandbox(GONE, "shop/cart"), Checkpoint(GONE, "shop/cart")),
    )
    old = reservation("10.244.1.9", age=timedelta(days=9))

    def restarted(ago: timedelta, *things: Container | Checkpoint, later: timedelta) -> Snapshot:
        return node(old, *things, processes=[processes(kubelet=ago)], later=later)

    def leak(*snapshots: Snapshot) -> TrackedFinding:
        (found,) = scanned(*snapshots).findings
        return found

    ten_minutes = timedelta(minutes=10)
    tracked = leak(restarted(ten_minutes, later=minute), restarted(ten_minutes, later=2 * minute))
    assert (tracked.finding.cause, tracked.began, tracked.since) == (
        KUBELET_RESTART,
        None,
        NOW + minute,
    )
    assert tracked.finding.message.endswith(
        "a kubelet restart (the last one: 2026-03-26 19:50:00Z)"
    )
    # It had an owner, and the kubelet has started since.
    owned = node(old, *owner)
    tracked = leak(owned, *(restarted(-minute / 2, later=later * minute) for later in (1, 2)))
    assert (tracked.finding.cause, tracked.began) == (KUBELET_RESTART, NOW + minute / 2)
    # It had an owner after the kubelet's start: long after, and shortly after.
    for ago, cause in ((ten_minutes * 2, LeakCause.UNKNOWN), (ten_minutes, KUBELET_RESTART)):
        tracked = leak(
            *(
                restarted(ago, *owner[: 2 - 2 * later], later=min(later, 2) * minute)
                for later in (0, 1, 2)
            )
        )
        assert (tracked.finding.cause, tracked.began) == (cause, NOW)
    # A snapshot from before the clock was set dates nothing.
    tracked = leak(
        owned, *(node(old, later=n * minute, clock_set_by=timedelta(days=1)) for n in (1, 2, 3))
    )
    assert tracked.began == NOW - timedelta(days=9)
    # A later restart did not cause it.
    tracked = leak(node(old), node(old, later=minute), restarted(-minute, later=2 * minute))
    assert (tracked.finding.cause, tracked.began) == (LeakCause.UNKNOWN, NOW - timedelta(days=9))


def test_without_its_sources_the_check_has_insufficient_data_after_what_is_certain() -> None:
    for source in ("containers", "checkpoints", "addresses", "pods", "reservations"):
        assert b.gap_of(DETECTOR, without(node(LOST), source)).startswith(source)
    assert len(leaks(b.without_api(node(LOST)))) == 1
    findings, gap = b.findings_and_gap(
        DETECTOR, without(node(b.empty_file("10.244.1.9")), "containers")
    )
    assert [finding.subject for finding in findings] == ["kubenet/10.244.1.9"]
    assert gap.why.startswith("containers")
    (gap,) = scanned(node(reservation("10.244.1.9", age=timedelta(hours=-1)))).gaps
    assert (gap.detector, gap.broken) == (DETECTOR, False)
    assert (
        gap.why
        == "reservations: file kubenet/10.244.1.9 is newer than the node's clock, which was set: "
        "check it with `timedatectl`"
    )
    assert scanned(node(reservation("10.244.1.2", b.WEB_ID, age=timedelta(hours=-1)))).gaps == ()


# With containerd: what libcni's cache and the runtime's records show

HOUR = timedelta(hours=1)
MADE = 3 * HOUR  # Ago. The running sandboxes are younger (`OLD`).
OTHER = "8" * 64
ENDPOINT = "/run/containerd/containerd.sock"
LEAK, LEAK_TOO = reservation("10.244.1.9", age=MADE), reservation("10.244.1.8", OTHER, age=MADE)
RESULT, RESULT_TOO = (
    cni_result(GONE, "shop/cart", CIDR, age=MADE),
    cni_result(OTHER, "shop/till", CIDR, age=MADE),
)


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
        **{"containers": [b.sandbox("1" * 64, "shop/web"), b.sandbox(b.DB_ID, "shop/db")]}
        | changes,
    )


def cause_of(snapshot: Snapshot) -> tuple[LeakCause, timedelta]:
    """Return the cause of the first leak, and how long ago its time is."""
    finding = leaks(snapshot)[0]
    assert isinstance(finding.cause, LeakCause)
    assert finding.cause_at is not None
    return finding.cause, NOW - finding.cause_at


def said(line: FindingLine) -> str:
    return "; ".join([line.text, *line.details])


def check(*cases: tuple[LeakCause, timedelta, Snapshot]) -> None:
    """Compare the cause of the first leak of each node, and how long ago its time is."""
    for number, (cause, ago, snapshot) in enumerate(cases):
        assert cause_of(snapshot) == (cause, ago), f"case {number}"


WIPED = started(OLD + HOUR / 2)
ELSEWHERE = [
    cni_result(sandbox_id, "", "10.9.0.0/24", network="cbr0") for sandbox_id in ("1" * 64, b.DB_ID)
]
OLDER = Container("c" * 64, "exited", int((NOW - MADE).timestamp()), "", "", sandbox=False)
RESTART, SKIPPED, UNKNOWN = LeakCause.RUNTIME_RESTART, LeakCause.TEARDOWN_SKIPPED, LeakCause.UNKNOWN


def test_the_cause_without_a_result_in_the_cache_of_libcni() -> None:
    rebooted = started(booted=HOUR, containerd=HOUR)
    of_another_network = cni_result("1" * 64, "shop/web", CIDR, network="storage")
    of_containerd = replace(b.WORKER, runtime="containerd://1.7.24")
    check(
        # Others of the network have one, so the setup failed; containerd restarted much later.
        (LeakCause.SETUP_FAILED, MADE, cri_node(LEAK)),
        (LeakCause.SETUP_FAILED, MADE, cri_node(LEAK, since=started(HOUR))),
        # It died during the ADD: at once, and when the kubelet gave up.
        *(
            (
                RESTART,
                MADE - timedelta(seconds=n),
                cri_node(LEAK, since=started(MADE - timedelta(seconds=n))),
            )
            for n in (1, 300)
        ),
        # A cache without any result of the network is no evidence.
        (UNKNOWN, MADE, cri_node(LEAK, cni_results=[])),
        (RESTART, HOUR, cri_node(LEAK, since=started(HOUR), cni_results=[])),
        (UNKNOWN, MADE, cri_node(LEAK, cni_results=[of_another_network])),
        (UNKNOWN, MADE, cri_node(LEAK, replace(RESULT, network="storage"))),
        # A kubelet that restarts forgets no sandbox of containerd.
        (UNKNOWN, MADE, cri_node(LEAK, since=started(kubelet=HOUR), cni_results=[])),
        # A reboot leaves no evidence of anything else.
        (LeakCause.NODE_REBOOT, HOUR, cri_node(LEAK, since=rebooted)),
        (LeakCause.NODE_REBOOT, HOUR, cri_node(LEAK, RESULT, since=rebooted)),
        # No start times are known.
        (UNKNOWN, MADE, without(cri_node(LEAK, RESULT, node=[of_containerd]), "processes")),
    )
    # CRI-O drops the result after a DEL that failed, however late: only an owner that was seen dates the leak.
    soon = replace(started(), crio=NOW - MADE + timedelta(minutes=5))
    crio = Known((ContainerRuntime(CRI_O, "1.35.6", ENDPOINT),))
    lost = replace(cri_node(LEAK, since=soon), runtimes=crio)
    check(
        (LeakCause.SETUP_FAILED, MADE, lost), (UNKNOWN, MADE, replace(lost, cni_results=Known(())))
    )
    owned = node(LEAK, b.sandbox(GONE, "shop/cart"), later=timedelta(minutes=1) - MADE)
    (tracked,) = scanned(
        owned, lost, replace(lost, taken_at=NOW + HOUR, uptime=UPTIME + HOUR)
    ).findings
    assert tracked.finding.cause is RESTART
    (finding,) = leaks(cri_node(LEAK, since=started(MADE - timedelta(minutes=5))))
    assert (
        "likely cause: a restart of containerd (the last one: 2026-03-26 17:05:00Z)"
        in finding.message
    )


def test_a_result_that_is_still_there_shows_that_no_del_was_completed() -> None:
    damaged = DamagedResult("kubenet", GONE, "eth0", Damage.EMPTY)
    younger = reservation("10.244.1.8", OTHER, age=OLD)
    check(
        (SKIPPED, MADE, cri_node(LEAK, RESULT)),
        (SKIPPED, MADE, cri_node(LEAK, RESULT, since=started(None))),
        (SKIPPED, MADE, replace(cri_node(LEAK), damaged_results=(damaged,))),
        # Several sandboxes of which the runtime has no record after its restart were lost with its state.
        (
            LeakCause.RUNTIME_STATE_LOST,
            OLD + HOUR / 2,
            cri_node(LEAK, LEAK_TOO, RESULT, RESULT_TOO, since=WIPED),
        ),
        # It was not: one sandbox, one result, an older record survived, no restart, one sandbox is younger.
        (SKIPPED, MADE, cri_node(LEAK, RESULT, since=WIPED)),
        (SKIPPED, MADE, cri_node(LEAK, LEAK_TOO, RESULT, since=WIPED)),
        (SKIPPED, MADE, cri_node(LEAK, LEAK_TOO, RESULT, RESULT_TOO, OLDER, since=WIPED)),
        (SKIPPED, MADE, cri_node(LEAK, LEAK_TOO, RESULT, RESULT_TOO)),
        (SKIPPED, MADE, cri_node(LEAK, younger, RESULT, RESULT_TOO, since=WIPED)),
    )
    lost = cri_node(LEAK, LEAK_TOO, RESULT, RESULT_TOO, since=WIPED)
    (line,) = finding_lines(scanned(lost))[DETECTOR]
    assert said(line) == (
        "2 addresses in kubenet leaked: 10.244.1.8 (shop/till), 10.244.1.9 (shop/cart); likely cause: containerd "
        "started at 2026-03-26 17:30:00Z without a record of earlier sandboxes"
    )


def test_if_running_pods_have_their_addresses_from_another_network_the_configuration_was_replaced() -> (
    None
):
    def renamed(*records: Any, since: ProcessStartTimes | None = None) -> Snapshot:
        """Running pods have their addresses from `cbr0`, and the leaks are those of `kubenet`."""
        return cri_node(LEAK, *records, since=since, cni_results=[*ELSEWHERE, RESULT, RESULT_TOO])

    both = (ContainerRuntime(CONTAINERD, "1.7.24", ENDPOINT), ContainerRuntime(DOCKER))
    secondary = [*ELSEWHERE, replace(RESULT, ifname="net1")]
    check(
        (LeakCause.NETWORK_RENAMED, MADE, renamed()),
        (LeakCause.NETWORK_RENAMED, MADE, renamed(OLDER, since=WIPED)),
        # The runtime may have been replaced too: neither is named.
        (SKIPPED, MADE, renamed(LEAK_TOO, since=WIPED)),
        (SKIPPED, MADE, renamed(since=started(None))),
        # Records of another runtime, and a secondary interface, are no evidence.
        (SKIPPED, MADE, replace(renamed(), runtimes=Known(both))),
        (SKIPPED, MADE, cri_node(replace(LEAK, ifname="net1"), cni_results=secondary)),
    )


def test_a_network_is_replaced_though_old_pods_still_use_it_and_they_are_named() -> None:
    old_pod = replace(b.sandbox("1" * 64, "shop/web"), created=int((NOW - MADE).timestamp()))
    ours = cni_result("1" * 64, "shop/web", CIDR, age=MADE)
    configured = [RuntimeNetwork("cbr0", ("flannel",))]

    def mixed(**changes: Any) -> Snapshot:
        """`shop/web` still has an address of `kubenet`, and `shop/db` has one of `cbr0`."""
        usual: dict[str, Any] = {
            "containers": [old_pod, b.sandbox(b.DB_ID, "shop/db")],
            "cni_results": [ours, ELSEWHERE[1], RESULT],
            "networks": configured,
        }
        return cri_node(LEAK, **usual | changes)

    check(
        (LeakCause.NETWORK_RENAMED, MADE, mixed()),
        # Both are in use: one is configured, or the newest pod has it.
        (SKIPPED, MADE, mixed(networks=[*configured, RuntimeNetwork("kubenet", ("bridge",))])),
        (
            SKIPPED,
            MADE,
            mixed(containers=[b.sandbox("1" * 64, "shop/web"), b.sandbox(b.DB_ID, "")]),
        ),
        (SKIPPED, MADE, mixed(networks=NotRequested("networks", "--network"))),
    )
    (line,) = finding_lines(scanned(mixed()))[DETECTOR]
    assert said(line).endswith(
        "; delete the pods that still have an address of kubenet, too: shop/web"
    )


def generation(ago: timedelta, number: int, *names: str) -> list[Any]:
    """Return leaks of these pods with their results, which were made so long ago."""
    records: list[Any] = []
    for n, name in enumerate(names):
        sandbox_id = f"{number}{n}".rjust(64, "0")
        age = ago - n * timedelta(seconds=20)
        records.append(reservation(f"10.244.1.{20 * number + n}", sandbox_id, age=age))
        records.append(cni_result(sandbox_id, name, CIDR, age=age))
    return records


def test_one_start_explains_only_what_it_can() -> None:
    """Each stop of the node lost its sandboxes, and the pods got new ones."""
    day = timedelta(days=1)
    pods = ("shop/a", "shop/b", "shop/c")
    ages = (30 * day, 21 * day, 2 * day)
    leaks_of_all = [
        record for number, ago in enumerate(ages, 1) for record in generation(ago, number, *pods)
    ]
    report = scanned(cri_node(*leaks_of_all, since=started(3 * HOUR)))
    causes = [said(line) for line in finding_lines(report)[DETECTOR]]
    assert len(causes) == 3
    assert all(cause.startswith("3 addresses in kubenet leaked: ") for cause in causes)
    lost = "; likely cause: the sandbox was lost before a newer one of its pod was created at"
    assert f"{lost} 2026-03-05 20:00:00Z" in causes[0]
    assert f"{lost} 2026-03-24 20:00:00Z" in causes[1]
    assert "containerd started at 2026-03-26 17:00:00Z without a record" in causes[2]
    assert "10.244.1.60 (shop/a)" in causes[2]
    # The same with reboots: the last one lost only the last sandboxes.
    rebooted = started(HOUR, booted=HOUR)
    report = scanned(cri_node(*leaks_of_all, since=rebooted))
    kinds = [finding.finding.cause for finding in report.findings]
    assert kinds.count(LeakCause.NODE_REBOOT) == 3
    assert kinds.count(LeakCause.SANDBOX_REPLACED) == 6
    # A sandbox has an address of each family, which is no newer sandbox.
    both = [LEAK, replace(reservation("fd00::9", age=MADE), mtime_ns=LEAK.mtime_ns + 10**9), RESULT]
    kinds = [finding.finding.cause for finding in scanned(cri_node(*both, since=rebooted)).findings]
    assert kinds == [LeakCause.NODE_REBOOT] * 2
    # Sandboxes that were lost one by one share a line.
    one_by_one = [
        record
        for number in range(12)
        for record in generation((40 - number) * day, number, "shop/a", "shop/b")
    ]
    long_ago = started(3 * HOUR, booted=90 * day)
    report = scanned(cri_node(*one_by_one, since=long_ago))
    assert len(finding_lines(report)[DETECTOR]) == 2


def test_a_teardown_that_was_not_completed_names_its_plugins_and_what_an_event_says() -> None:
    ovs = replace(RESULT, plugin="ovs")
    (finding,) = leaks(cri_node(LEAK, ovs, networks=[RuntimeNetwork("cbr0", ("calico",))]))
    assert "without a completed CNI DEL (which calls ovs); reserved" in finding.message
    chain = [RuntimeNetwork("kubenet", ("calico", "portmap"))]
    snapshot = cri_node(LEAK, ovs, networks=chain)
    assert "(which calls calico, portmap)" in leaks(snapshot)[0].message
    failure = SandboxFailure("shop/old", NOW, "no kubeconfig", "calico", "kubenet", "delete")
    for event, is_named in (
        (failure, True),
        (replace(failure, network=""), True),
        (replace(failure, network="", plugin="sbr"), False),
        (replace(failure, network="storage"), False),
        (replace(failure, operation="add"), False),
    ):
        (finding,) = leaks(replace(snapshot, sandbox_failures=Known((event,))))
        assert ("; plugin calico fails in it: no kubeconfig" in finding.message) is is_named, event
    commands = [
        command for step in advice(DETECTOR, scanned(snapshot)) for command in step.commands
    ]
    assert "kubectl get events -A --field-selector reason=FailedKillPod" in commands
    assert "/var/lib/rancher" not in str(commands)


def test_k3s_and_rke2_write_logs_that_the_journal_does_not_have() -> None:
    rancher = ContainerRuntime(CONTAINERD, "1.7.7-k3s1", "/run/k3s/containerd/containerd.sock")
    snapshot = replace(cri_node(LEAK, RESULT), runtimes=Known((rancher,)))
    assert leaks(snapshot)[0].cause is SKIPPED
    steps = advice(DETECTOR, scanned(snapshot))
    commands = "\n".join(command for step in steps for command in step.commands)
    assert "-h /var/lib/rancher/*/agent/*/*.log" in commands
    assert 'journalctl -u "k3s*" -u "rke2*"' in commands


HTTP, DNS = PortMapping(8080, "tcp"), PortMapping(53, "udp")
FORWARDED = replace(RESULT, port_mappings=(HTTP, DNS))


def test_a_leak_names_the_host_ports_that_are_still_forwarded_to_it() -> None:
    others = [
        replace(RESULT_TOO, port_mappings=(HTTP,)),
        replace(RESULT, network="cbr0", port_mappings=(DNS,)),
    ]
    for ports, snapshot in (
        ((HTTP, DNS), cri_node(LEAK, FORWARDED)),
        # A reboot has removed the rules, and only those of the leaked sandbox in this network count.
        ((), cri_node(LEAK, FORWARDED, since=started(booted=HOUR))),
        ((), cri_node(LEAK, RESULT, *others)),
    ):
        (finding,) = leaks(snapshot)
        assert finding.port_mappings == ports
        assert finding.message.endswith(
            "; iptables or nftables rules may still forward host port 8080/tcp to 10.244.1.9, 53/udp to 10.244.1.9"
        ) is bool(ports)
    several = cri_node(LEAK, LEAK_TOO, replace(RESULT, port_mappings=(HTTP,)), RESULT_TOO)
    (line,) = finding_lines(scanned(several))[DETECTOR]
    assert said(line).startswith(
        "2 addresses in kubenet leaked: 10.244.1.8 (shop/till), 10.244.1.9 (shop/cart); "
    )
    assert said(line).endswith(
        "; iptables or nftables rules may still forward host port 8080/tcp to 10.244.1.9"
    )
