"""Pods that wait: who does, what stops them, and how bad it is."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

from agent.checks.waiting import causes, evidence
from agent.exporters.advice import advice
from agent.exporters.json.status import NodeState
from agent.exporters.summary import headline, state_of
from agent.exporters.text.scan import scan_table
from agent.model.catalog import entries
from agent.model.finding import Finding, Severity, WaitCause
from agent.model.node_network import CniFile, CniFiles, Disk, Link, RuntimeStatus, SubnetEnv
from agent.model.runtime import CONTAINERD, CRI_O, ContainerRuntime, RuntimeNetwork
from agent.model.snapshot import (
    SANDBOX_NOT_READY,
    Known,
    NotRequested,
    PluginProcess,
    Snapshot,
    Unavailable,
)
from tests.builders import (
    GONE,
    NOW,
    WORKER,
    findings_and_gap,
    findings_of,
    node,
    pod,
    processes,
    reservation,
    sandbox,
    scanned,
    the_finding,
    without,
    without_api,
)
from tests.checks.waiting.events import CONTAINERD as BY_CONTAINERD
from tests.checks.waiting.events import CREATING, CRIO, MINUTE, Event, some, waits, with_events

WAITING = "waiting_pods"
SECOND = timedelta(seconds=1)
SUBNET_ENV = (
    f'{CRIO}plugin type="flannel" failed (add): loadFlannelSubnetEnv failed: open '
    "/run/flannel/subnet.env: no such file or directory"
)
FULL = (
    f'{BY_CONTAINERD}plugin type="bridge" failed (add): failed to allocate for range 0: no IP '
    "addresses available in range set: {}"
)
NOT_READY = (
    "network is not ready: container runtime network not ready: NetworkReady=false "
    "reason:NetworkPluginNotReady message:Network plugin returns error: cni plugin not initialized"
)
DOWN = RuntimeStatus(False, "NetworkPluginNotReady", "cni plugin not initialized")


def found(snapshot: Snapshot) -> Finding:
    return the_finding(WAITING, snapshot)


def text(snapshot: Snapshot) -> str:
    return " ".join(scan_table(scanned(snapshot)).split())


def test_the_words_of_the_last_event_are_repeated_with_what_they_mean() -> None:
    snapshot = with_events(node(*some(3)), Event(SUBNET_ENV))
    finding = found(snapshot)
    assert finding.message == (
        "3 pods have waited for up to 30m: CNI plugin flannel fails in network cbr0: "
        "loadFlannelSubnetEnv failed: open /run/flannel/subnet.env: no such file or directory "
        "(12 times, last 20s ago); this message is not about host-local's addresses; "
        "pods: apps/late-0, apps/late-1, apps/late-2"
    )
    assert (finding.cause, finding.network) == (WaitCause.PLUGIN_FAILED, "cbr0")
    assert finding.since == NOW - 30 * MINUTE
    assert finding.pods == ("apps/late-0", "apps/late-1", "apps/late-2")
    told = text(snapshot)
    assert "flannel has not written `/run/flannel/subnet.env` since the node booted" in told
    assert "kubectl describe pod -n apps late-0" in told


def test_an_unknown_message_is_quoted_and_said_to_be_unknown() -> None:
    message = f'{BY_CONTAINERD}plugin type="acme" failed (add): teapot 7 is short and stout'
    snapshot = with_events(node(*some(2)), Event(message))
    assert "CNI plugin acme fails: teapot 7 is short and stout" in found(snapshot).message
    assert "nodeleak does not know this message, nor whether" in found(snapshot).message
    assert "journalctl -u containerd" in text(snapshot)


def test_severity_is_that_of_the_effect() -> None:
    one_new = with_events(node(waits("a/a", 4 * MINUTE)), Event(SUBNET_ENV))
    one_old = with_events(node(waits("a/a", 5 * MINUTE)), Event(SUBNET_ENV))
    several_new = with_events(node(*some(2, 2 * MINUTE)), Event(SUBNET_ENV))
    several_old = with_events(node(*some(2, 6 * MINUTE)), Event(SUBNET_ENV))
    started = replace(sandbox("5" * 64, "shop/new"), created=int((NOW - 4 * MINUTE).timestamp()))
    others_start = with_events(node(*some(2), started), Event(SUBNET_ENV))
    on_host = pod("shop/new", "192.168.0.7", host_network=True)
    on_host_only = with_events(node(*some(2), started, on_host), Event(SUBNET_ENV))
    for snapshot, severity in (
        (one_new, Severity.INFO),
        (one_old, Severity.WARNING),
        (several_new, Severity.WARNING),
        (several_old, Severity.CRITICAL),
        (others_start, Severity.WARNING),
        (on_host_only, Severity.CRITICAL),
    ):
        assert found(snapshot).severity is severity


def test_a_node_that_has_just_started_is_not_ill() -> None:
    pods = some(12, 4 * MINUTE)
    booted = replace(node(*pods), uptime=4 * MINUTE)
    joined = node(*pods, node=[replace(WORKER, created=NOW - 4 * MINUTE)])
    for snapshot in (booted, joined):
        finding = found(with_events(snapshot, Event(NOT_READY, "NetworkNotReady")))
        assert finding.severity is Severity.INFO
        assert "the node has just started" in finding.message
    # What was scheduled before the boot has not waited for longer than the node is up.
    just_booted = node(*some(2), processes=[processes(booted=59 * SECOND)])
    assert findings_of(WAITING, just_booted) == []


def test_a_pod_that_has_its_sandbox_pulls_its_image_and_waits_for_nothing() -> None:
    pulls = waits("shop/large")
    running = sandbox("5" * 64, "shop/large")
    assert findings_of(WAITING, node(pulls, running)) == []
    assert findings_of(WAITING, node(pulls, replace(running, state="not ready")))
    # docker runs a sandbox before its network is set up.
    new = replace(running, created=int((NOW - 10 * SECOND).timestamp()))
    assert findings_of(WAITING, node(pulls, new))
    assert findings_of(WAITING, node(pulls, new, runtimes=[ContainerRuntime(CRI_O)])) == []
    # In the node's network, no setup follows.
    on_host = replace(pulls, host_network=True, ips=("192.168.7.11",))
    assert findings_of(WAITING, node(on_host, new)) == []


def test_a_job_that_ends_and_a_pod_that_is_deleted_wait_for_nothing() -> None:
    ends = waits("shop/job", phase="Running", unready=NOW - 2 * MINUTE)
    exited = replace(sandbox("5" * 64, "shop/job", "exited"), sandbox=False)
    assert findings_of(WAITING, node(ends, exited)) == []
    assert findings_of(WAITING, node(replace(ends, unready=NOW - 4 * MINUTE), exited))
    assert findings_of(WAITING, node(replace(ends, deleting=True), exited)) == []
    # A pod that lost its sandbox has not waited since it was scheduled.
    lost = waits("shop/web-2", phase="Running", unready=NOW - 90 * SECOND)
    assert "shop/web-2 has waited for 1m30s" in found(node(lost)).message


def test_without_an_event_it_says_how_to_see_why() -> None:
    no_right = replace(
        node(*some(2)),
        sandbox_failures=NotRequested("sandbox_failures", "the account may not list events"),
    )
    finding = found(no_right)
    assert "why is not known: the account may not list events" in finding.message
    assert finding.cause is WaitCause.UNEXPLAINED
    told = text(no_right)
    assert "kubectl describe pod -n apps late-0" in told
    assert "no Event says why" in found(with_events(node(*some(2)))).message
    assert "no kubelet was found" in found(
        with_events(node(*some(2), processes=[processes(kubelet=None)]))
    ).message  # fmt: skip
    down = [replace(WORKER, ready=False, not_ready="Kubelet stopped posting node status.")]
    stopped = with_events(node(*some(2), processes=[processes(kubelet=None)], node=down))
    assert headline(scanned(stopped)) == (
        "Critical: 2 pods have waited for up to 30m: no kubelet runs on this node"
    )
    # Many that come at once start one after the other.
    started = replace(sandbox("5" * 64, "shop/new"), created=int((NOW - 9 * SECOND).timestamp()))
    assert found(with_events(node(*some(30, 90 * SECOND), started))).severity is Severity.INFO


def test_pods_that_wait_for_volumes_are_another_matter() -> None:
    words = 'MountVolume.SetUp failed for volume "conf" : secret "key" not found'
    snapshot = with_events(node(*some(3)), Event(words, "FailedMount"))
    finding = found(snapshot)
    assert (finding.severity, finding.cause) == (Severity.INFO, WaitCause.VOLUME_PENDING)
    assert f"for a volume, not for an address; the kubelet says (FailedMount): {words}" in (
        finding.message
    )
    words = 'MapVolume.SetUpDevice failed for volume "disk" : rpc error: code = Internal desc = no'
    block = found(with_events(node(*some(3)), Event(words, "FailedMapVolume")))
    assert (block.severity, block.cause) == (Severity.INFO, WaitCause.VOLUME_PENDING)
    assert "for a volume, not for an address; the kubelet says (FailedMapVolume)" in block.message
    # Without an Event, the Node says that a volume is late; if it does not, the pods may be.
    needs = tuple(replace(pod, claims=("data",)) for pod in some(2))
    lacks = replace(WORKER, volumes_in_use=("a^1", "a^2"), volumes_attached=("a^1",))
    late = found(with_events(node(*needs, node=[lacks])))
    assert (late.severity, late.cause) == (Severity.INFO, WaitCause.VOLUME_PENDING)
    assert "1 volume is in use and not attached" in late.message
    perhaps = found(with_events(node(*needs)))
    assert (perhaps.severity, perhaps.cause) == (Severity.WARNING, WaitCause.UNEXPLAINED)
    assert "kubelets from 1.28 send no Event about those that are late" in perhaps.message
    # The kubelet makes a sandbox after the volumes are there.
    words = 'MountVolume.SetUp failed for volume "conf" : secret "key" not found'
    both = with_events(node(*some(3)), Event(words, "FailedMount", 10 * SECOND), Event(SUBNET_ENV))
    assert found(both).cause is WaitCause.PLUGIN_FAILED
    later = with_events(
        node(*some(3)), Event(words, "FailedMount"), Event(SUBNET_ENV, ago=20 * MINUTE)
    )
    assert found(later).cause is WaitCause.VOLUME_PENDING


def test_each_cause_is_one_finding_and_the_others_are_assumed_to_have_the_only_one() -> None:
    first, second, *others = some(9)
    snapshot = node(first, second, *others)
    boom = Event(f'{BY_CONTAINERD}plugin type="acme" failed (add): no')
    two = with_events(with_events(snapshot, boom, of=[first]), Event(SUBNET_ENV), of=[second])
    findings = findings_of(WAITING, two)
    assert [finding.pods for finding in findings[:2]] == [("apps/late-0",), ("apps/late-1",)]
    assert len({finding.key for finding in findings}) == len(findings) == 3
    assert len(findings[2].pods) == 7
    one = found(with_events(snapshot, Event(SUBNET_ENV)))
    assert len(one.pods) == 9
    assert "the Events of 5 others were not listed" in one.message
    many = found(with_events(node(*some(20)), Event(SUBNET_ENV)))
    assert "apps/late-14 and 5 more" in many.message
    # Retries may fail in turn for what follows from each other: that is no new finding.
    assert found(with_events(node(*some(2)), boom)).key == one.key


def test_a_runtime_that_does_not_answer_is_told_only_while_nothing_later_fails() -> None:
    words = "error determining status: rpc error: code = DeadlineExceeded desc = context deadline"
    sync = Event(f"{words} exceeded", "FailedSync")
    finding = found(with_events(node(*some(2)), sync))
    assert "the kubelet says (FailedSync): context deadline exceeded" in finding.message
    assert "The container runtime did not answer in time" in text(with_events(node(*some(2)), sync))
    mount = Event("no volume", "FailedMount")
    assert found(with_events(node(*some(2)), sync, mount)).cause is WaitCause.VOLUME_PENDING


def test_a_pod_in_the_nodes_network_waits_too_and_not_for_that_network() -> None:
    proxy, late = (
        waits(f"kube-system/{name}", host_network=True, ips=("192.168.7.11",))
        for name in ("kube-proxy", "late")
    )
    pull = Event(f'{CREATING}failed to get sandbox image "pause": failed to pull image "pause": no')
    told = found(with_events(node(proxy, late), pull))
    assert (told.severity, told.pods) == (Severity.CRITICAL, (proxy.name, late.name))
    assert "the runtime cannot make the sandbox: failed to get sandbox image" in told.message
    # Neither a network that is not ready nor a full range stops it.
    full = [reservation(f"10.244.1.{n}", f"{n:064x}") for n in range(2, 255)]
    down = replace(with_events(node(proxy, *full)), runtime_status=Known(DOWN))
    silent, network = sorted(findings_of(WAITING, down), key=lambda finding: finding.subject)[::-1]
    assert silent.cause is WaitCause.UNEXPLAINED
    assert silent.message.endswith("no Event says why"), silent.message
    # That the network is not ready is told apart, as without a pod that waits.
    assert (network.cause, network.pods) == (WaitCause.NETWORK_NOT_READY, ())
    assert findings_of(WAITING, node(runtime_status=DOWN)) == [network]
    # It may wait for a volume meanwhile.
    lacks = replace(WORKER, volumes_in_use=("a^1", "a^2"), volumes_attached=("a^1",))
    needs = with_events(node(replace(proxy, claims=("data",)), node=[lacks]))
    causes_of = {
        one.cause for one in findings_of(WAITING, replace(needs, runtime_status=Known(DOWN)))
    }
    assert causes_of == {WaitCause.VOLUME_PENDING, WaitCause.NETWORK_NOT_READY}
    apart = findings_of(
        WAITING, replace(with_events(node(proxy, *some(2))), runtime_status=Known(DOWN))
    )
    assert {(one.pods, one.cause) for one in apart} == {
        ((proxy.name,), WaitCause.UNEXPLAINED),
        (("apps/late-0", "apps/late-1"), WaitCause.NETWORK_NOT_READY),
    }
    # Its images may be pulled after that.
    started = replace(sandbox("5" * 64, proxy.name), pod_uid=proxy.uid)
    assert not findings_of(WAITING, node(proxy, started))
    assert not findings_of(WAITING, node(replace(proxy, phase="Running"), started))


def test_a_pod_in_the_nodes_network_is_not_assumed_to_wait_for_that_of_others() -> None:
    late = waits("kube-system/cni", 5 * MINUTE, host_network=True, ips=("192.168.7.11",))
    others = some(6)
    down = Event(NOT_READY, "NetworkNotReady")
    assumed, apart = findings_of(WAITING, with_events(node(*others, late), down))
    assert (assumed.cause, len(assumed.pods)) == (WaitCause.NETWORK_NOT_READY, 6)
    assert "the Events of 2 others were not listed" in assumed.message
    assert (apart.cause, apart.pods) == (WaitCause.UNEXPLAINED, (late.name,))
    assert apart.message.endswith("why is not known: its Events were not listed"), apart.message
    unread = replace(node(*others, late), sandbox_failures=NotRequested("sandbox_failures", "no"))
    assert all("not listed" not in one.message for one in findings_of(WAITING, unread))
    # What stops another pod in the node's network may stop this one too.
    pull = Event(f'{CREATING}failed to get sandbox image "pause": failed to pull image "pause": no')
    proxy = waits("kube-system/kube-proxy", host_network=True, ips=("192.168.7.11",))
    every = found(with_events(node(proxy, *others, late), pull))
    assert late.name in every.pods


def test_an_earlier_sandbox_that_cannot_be_torn_down_stops_its_pod() -> None:
    first, second = some(2)
    before = replace(sandbox("7" * 64, first.name, SANDBOX_NOT_READY), pod_uid=first.uid)
    reserved = (before, reservation("10.244.1.9", before.id))
    # The kubelet sends no Event while it cannot remove the sandbox of a pod that it keeps.
    silent = found(with_events(node(first, second, *reserved)))
    assert silent.cause is WaitCause.UNEXPLAINED
    assert "it fits that 1 earlier sandbox still has an address" in silent.message
    assert "777777777777 of pod apps/late-0" in silent.message
    assert any("grep 777777777777" in (step.command or "") for step in silent.steps)
    assert "earlier sandbox" not in found(with_events(node(first, second, before))).message
    # Without a kubelet, nothing tears it down.
    gone = replace(WORKER, ready=False)
    stopped = node(first, second, *reserved, node=[gone], processes=[processes(kubelet=None)])
    assert "earlier sandbox" not in found(with_events(stopped)).message
    assert "earlier sandbox" not in found(
        with_events(node(first, second, *reserved), Event(SUBNET_ENV))
    ).message  # fmt: skip
    killing = (
        'error killing pod: failed to "KillPodSandbox" for "uid" with KillPodSandboxError: "rpc '
        'error: code = Unknown desc = failed to destroy network for sandbox \\"7\\": plugin '
        'type=\\"cilium-cni\\" failed (delete): opening netns pinned at : no such file"'
    )
    kill = Event(killing, "FailedKillPod")
    other = replace(sandbox("8" * 64, second.name, SANDBOX_NOT_READY), pod_uid=second.uid)
    torn = node(first, second, before, other)
    told = found(with_events(torn, kill))
    assert told.cause is WaitCause.PLUGIN_FAILED
    assert "CNI plugin cilium-cni fails in DEL: opening netns pinned at" in told.message
    # Volumes come before that, and the new sandbox after it.
    mount = Event("no volume", "FailedMount")
    assert found(with_events(torn, mount, kill)).cause is WaitCause.PLUGIN_FAILED
    # That is over once the runtime has no sandbox of them. Without its list, it may not be.
    over = with_events(node(first, second), mount, kill)
    assert found(over).cause is WaitCause.VOLUME_PENDING
    findings, _ = findings_and_gap(WAITING, without(over, "containers"))
    assert [one.cause for one in findings] == [WaitCause.PLUGIN_FAILED]


def test_an_unknown_message_is_looked_up_in_the_log_of_who_speaks() -> None:
    words = "words of a later release"
    for reason, log in (
        ("FailedCreatePodSandBox", "journalctl -u containerd -u crio"),
        ("FailedPrepareDynamicResources", "journalctl -u kubelet"),
    ):
        assert log in text(with_events(node(*some(2)), Event(words, reason)))


def test_a_full_range_is_told_once() -> None:
    taken = [reservation(f"10.244.1.{n}", f"{n:064x}") for n in range(4, 15)]
    small = [replace(WORKER, pod_cidrs=("10.244.1.0/28",))]
    full = with_events(
        node(*taken, *some(3), node=small), Event(FULL.format("10.244.1.1-10.244.1.14"))
    )
    finding = found(full)
    assert (finding.severity, finding.cause) == (Severity.INFO, WaitCause.NO_ADDRESS)
    assert "proof on this node: network kubenet has no free address" in finding.message
    assert headline(scanned(full)).startswith("Critical: no free pod addresses")
    unread = NotRequested("sandbox_failures", "the account may not list events")
    without_events = replace(full, sandbox_failures=unread)
    assert "it fits that network kubenet has no free address" in found(without_events).message
    assert headline(scanned(without_events)).startswith("Critical: no free pod addresses")


def test_pods_that_find_a_range_full_contradict_an_ok() -> None:
    elsewhere = FULL.format("10.9.0.1-10.9.0.254")
    unread = found(with_events(node(*some(3)), Event(elsewhere)))
    assert "but no network that was checked has this range: its network was not read" in (
        unread.message
    )
    assert unread.severity is Severity.CRITICAL
    here = FULL.format("10.244.1.1-10.244.1.254")
    assert "but network kubenet has 251 free addresses now" in found(
        with_events(node(*some(3)), Event(here))
    ).message  # fmt: skip
    assert "251" not in found(with_events(node(*some(3)), Event(here, ago=9 * MINUTE))).message


def test_who_has_the_address_that_a_pod_asks_for() -> None:
    words = FULL.format("10.244.1.1-10.244.1.254").replace(
        "no IP addresses available", "requested IP address {} is not available"
    )
    leaked = with_events(
        node(waits("a/a"), reservation("10.244.1.9")), Event(words.format("10.244.1.9"))
    )
    finding = found(leaked)
    assert finding.cause is WaitCause.NO_ADDRESS
    assert (
        f"proof on this node: 10.244.1.9 is reserved in network kubenet for container {GONE[:12]}"
        in (finding.message)
    )
    assert "nodeleak clean --ip 10.244.1.9" in text(leaked)
    in_use = found(with_events(node(waits("a/a")), Event(words.format("10.244.1.2"))))
    assert "state in use" in in_use.message
    assert "not known to be leaked" in in_use.message
    nobody = found(with_events(node(waits("a/a")), Event(words.format("10.244.1.77"))))
    assert "but no directory that was read has a reservation of 10.244.1.77" in nobody.message
    outside = f'{BY_CONTAINERD}plugin type="x" failed (add): failed to allocate all requested IPs: '
    assert "reservation" not in found(
        with_events(node(waits("a/a")), Event(f"{outside}192.168.27.56"))
    ).message  # fmt: skip


def flannel(problem: str | None = None, **more: Any) -> CniFiles:
    env = SubnetEnv("/run/flannel/subnet.env", problem)
    files = (CniFile("10-flannel.conflist", network="cbr0"),)
    return replace(CniFiles("/etc/cni/net.d", files, subnet_env=env), **more)


BRIDGE = (
    f'{CRIO}plugin type="flannel" failed (add): failed to delegate add: failed to set bridge '
    'addr: "cni0" already has an IP address different from 10.244.1.1/24'
)
NO_BINARY = (
    f'{CRIO}plugin type="bandwidth" failed (add): failed to find plugin "bandwidth" in path '
    "[/opt/cni/bin]"
)
DISK_FULL = (
    f'{BY_CONTAINERD}failed to set network "cni-loopback" cached result: write '
    "/var/lib/cni/results/cni-loopback-269c-lo: no space left on device"
)
SLOW = "Failed to create pod sandbox: rpc error: code = Unknown desc = it takes too long"
NAME_RESERVED = (
    "Failed to create pod sandbox: rpc error: code = Unknown desc = failed to reserve sandbox name "
    '"late-0_apps_1c_0": name "late-0_apps_1c_0" is reserved for "5f0a"'
)
LATE = "Failed to create pod sandbox: rpc error: code = DeadlineExceeded desc = context deadline exceeded"
DISK = Disk("/var/lib/cni", 10**9, 10**10, 9, 10**6)


def beside(words: str, **facts: Any) -> str:
    """Return what is said of this message on a node with these readings."""
    known: dict[str, Any] = {source: Known(value) for source, value in facts.items()}
    return found(with_events(replace(node(*some(2)), **known), Event(words))).message


def test_a_file_of_flannel_that_is_missing() -> None:
    file = "/run/flannel/subnet.env"
    missing = beside(SUBNET_ENV, cni_files=flannel("does not exist"))
    assert f"proof on this node: {file} does not exist" in missing
    assert f"but {file} is complete now" in beside(SUBNET_ENV, cni_files=flannel())
    incomplete = beside(SLOW, cni_files=flannel("has no FLANNEL_SUBNET"))
    assert f"it fits that {file} has no FLANNEL_SUBNET" in incomplete


def test_a_bridge_with_another_address() -> None:
    other = (Link("eth0", ("192.168.0.7/24",)), Link("cni0", ("10.88.0.1/16",)))
    assert "proof on this node: bridge cni0 has 10.88.0.1/16" in beside(BRIDGE, links=other)
    right = (Link("cni0", ("10.244.1.1/24",)),)
    assert "but cni0 has 10.244.1.1/24 now" in beside(BRIDGE, links=right)
    assert "on this node" not in beside(BRIDGE, links=(Link("br0"),))


def test_a_program_that_is_missing() -> None:
    missing = "the program of CNI plugin bandwidth is missing"
    lacks = flannel(missing_plugins=("bandwidth",))
    assert f"proof on this node: {missing}" in beside(NO_BINARY, cni_files=lacks)
    assert f"it fits that {missing}" in beside(SLOW, cni_files=lacks)
    uses_it = (RuntimeNetwork("cbr0", ("flannel", "bandwidth")),)
    complete = flannel(missing_plugins=())
    there = beside(NO_BINARY, cni_files=complete, networks=uses_it)
    assert "but the program of bandwidth is there now" in there
    assert "bandwidth is there" not in beside(NO_BINARY, cni_files=flannel(), networks=uses_it)
    # No file names the one that every sandbox needs for its `lo`, so nobody looks for it.
    loopback = NO_BINARY.replace("bandwidth", "loopback")
    assert "there now" not in beside(loopback, cni_files=complete, networks=uses_it)


def test_a_disk_that_cannot_be_written() -> None:
    full = (replace(DISK, free_bytes=0),)
    of = "the file system of /var/lib/cni"
    assert f"proof on this node: {of} is full" in beside(DISK_FULL, disks=full)
    assert f"it fits that {of} is full" in beside(SLOW, disks=full)
    no_inodes = (replace(DISK, free_inodes=0),)
    assert f"it fits that {of} has no free inodes" in beside(SLOW, disks=no_inodes)
    uncounted = (replace(DISK, free_inodes=0, total_inodes=0),)
    assert "inodes" not in beside(SLOW, disks=uncounted)
    read_only = (replace(DISK, read_only=True),)
    assert f"it fits that {of} is read-only" in beside(SLOW, disks=read_only)


def test_other_things_that_stop_pods() -> None:
    hangs = PluginProcess(70, "host-local", NOW - 10 * MINUTE)
    younger = PluginProcess(71, "bridge", NOW - 9 * MINUTE)
    busy = replace(processes(), plugins=(younger, hangs))
    assert ("it fits that CNI plugin host-local (process 70) has been running for 10m") in beside(
        SLOW, processes=busy
    )
    ill = replace(WORKER, ready=False, not_ready="PLEG is not healthy")
    assert "it fits that the Node is not Ready: PLEG is not healthy" in beside(SLOW, node=ill)
    quiet = beside(SLOW, disks=(DISK,), links=(), cni_files=flannel())
    assert "proof" not in quiet
    assert "fits" not in quiet


def unreadable(runtime: str, *files: CniFile, exists: bool = True) -> Snapshot:
    return replace(
        node(*some(3), runtimes=[ContainerRuntime(runtime)]),
        runtime_status=Known(DOWN),
        cni_files=Known(CniFiles("/etc/cni/net.d", files, exists=exists)),
    )


def test_the_files_explain_a_network_that_is_not_ready() -> None:
    empty = CniFile("05-mesh.conflist", "is empty")
    good = CniFile("10-flannel.conflist", network="cbr0")
    event = Event(NOT_READY, "NetworkNotReady")
    by_containerd = found(with_events(unreadable(CONTAINERD, empty, good), event))
    assert (by_containerd.cause, by_containerd.severity) == (
        WaitCause.NETWORK_NOT_READY, Severity.CRITICAL
    )  # fmt: skip
    assert (
        "proof on this node: /etc/cni/net.d/05-mesh.conflist is empty, so containerd does not load "
        "10-flannel.conflist either"
    ) in by_containerd.message
    by_crio = found(with_events(unreadable(CRI_O, empty, good), event))
    assert "either" not in by_crio.message
    assert "the network's pod has not written it" in (
        found(with_events(unreadable(CONTAINERD), event)).message
    )
    away = unreadable(CONTAINERD, exists=False)
    assert "/etc/cni/net.d does not exist" in found(with_events(away, event)).message
    # Without Events, the runtime's own word is enough; with one pod too.
    assert found(unreadable(CONTAINERD, empty, good)).cause is WaitCause.NETWORK_NOT_READY
    ready = replace(away, runtime_status=Known(RuntimeStatus(True)))
    assert "but the runtime says that its network is ready now" in (
        found(with_events(ready, event)).message
    )


def test_a_fault_that_another_check_tells_is_referred_to() -> None:
    hangs = replace(processes(), plugins=(PluginProcess(70, "host-local", NOW - 10 * MINUTE),))
    lacks = flannel(missing_plugins=("bandwidth",))
    for event, other, given in (
        (NO_BINARY, "broken_cni_config", {"cni_files": lacks}),
        (LATE, "hanging_plugin", {"processes": hangs}),
        (LATE, "hanging_plugin", {"processes": hangs, "cni_files": lacks}),
        (LATE, "", {"cni_files": lacks}),  # without its program, an attempt ends at once
        (NAME_RESERVED, "hanging_plugin", {"processes": hangs}),
        (BRIDGE, "", {"processes": hangs}),
    ):
        values: dict[str, Any] = {source: Known(value) for source, value in given.items()}
        snapshot = replace(with_events(node(*some(3)), Event(event)), **values)
        assert found(snapshot).told_by == other
        steps = [step.text for step in advice(WAITING, scanned(snapshot))]
        if other:
            assert steps == [f"Do what {other} says. The kubelet then tries again by itself."]
        else:
            assert steps[0].startswith("What it means: "), "nothing else tells what to do"
    unknown = replace(
        node(*some(3)),
        sandbox_failures=Known(()),
        processes=Known(hangs),
        cni_files=Known(lacks),
    )
    assert found(unknown).told_by == "", "either may be the reason"
    assert found(replace(unknown, processes=node().processes)).told_by == "broken_cni_config"
    # The runtime says itself what stops them. No plugin that hangs makes its network unready.
    for pods in ((), some(3)):
        down = replace(node(*pods), runtime_status=Known(DOWN), processes=Known(hangs))
        assert (found(down).cause, found(down).told_by) == (WaitCause.NETWORK_NOT_READY, "")
        empty = Known(CniFiles("/etc/cni/net.d", (CniFile("05-mesh.conflist", "is empty"),)))
        assert found(replace(down, cni_files=empty)).told_by == "broken_cni_config"


def test_the_last_event_of_a_kubelet_that_has_stopped_is_not_what_stops_pods_now() -> None:
    gone = node(*some(2), node=[replace(WORKER, ready=False, not_ready="it is silent")])
    gone = replace(gone, processes=Known(replace(processes(), kubelet=None)))
    old, new = (with_events(gone, Event(BRIDGE, ago=ago)) for ago in (50 * MINUTE, MINUTE))
    assert "for up to 30m: no kubelet runs on this node; its last Event: " in found(old).message
    assert (found(old).told_by, found(new).told_by) == ("stopped_kubelet", "")
    assert "no kubelet runs" not in found(new).message, "it has just ended, and may come back"
    running = with_events(node(*some(2)), Event(BRIDGE, ago=50 * MINUTE))
    assert "no kubelet runs" not in found(running).message


def test_each_thought_about_waiting_pods_is_a_line_of_its_own() -> None:
    lines = scan_table(scanned(with_events(node(*some(3)), Event(SUBNET_ENV)))).splitlines()
    start = next(n for n, line in enumerate(lines) if line.startswith("  waiting_pods: "))
    details = next(n for n, line in enumerate(lines) if n > start and line.startswith("    - "))
    head = " ".join(" ".join(lines[start:details]).split())
    assert head.endswith("no such file or directory (12 times, last 20s ago)")
    assert lines[details : details + 3] == [
        "    - this message is not about host-local's addresses",
        "    - pods: apps/late-0, apps/late-1, apps/late-2",
        "  Do:",
    ]


def test_no_node_is_ok_while_its_network_or_itself_is_not_ready() -> None:
    down = replace(without_api(node()), runtime_status=Known(DOWN))
    report = scanned(down)
    assert report.complete
    assert headline(report).startswith("Warning: the runtime's network is not ready")
    words = "Kubelet stopped posting node status."
    not_ready = node(node=[replace(WORKER, ready=False, not_ready=words)])
    assert headline(scanned(not_ready)) == f"Warning: the Node is not Ready: {words}"
    starting = replace(not_ready, uptime=MINUTE)
    assert headline(scanned(starting)) == f"Info: the Node is not Ready: {words}"
    assert found(starting).cause is WaitCause.NODE_NOT_READY


def test_no_node_is_ok_while_a_pod_waits() -> None:
    report = scanned(with_events(node(waits("a/a", 2 * MINUTE)), Event(SUBNET_ENV)))
    assert state_of(report) is NodeState.WAITING
    assert headline(report).startswith("Info: pod a/a has waited for 2m: CNI plugin flannel fails")
    assert report.problems == ()
    volumes = with_events(node(*some(3)), Event("Multi-Attach error", "FailedAttachVolume"))
    assert headline(scanned(volumes)).startswith("Info: 3 pods have waited for up to 30m")
    assert state_of(scanned(node())) is NodeState.OK
    # It has waited for a minute in the second snapshot only, and that is enough.
    young = waits("a/a", 59 * SECOND)
    later = scanned(node(young), node(young, later=SECOND))
    assert headline(later).startswith("Info: pod a/a has waited for 1m")


def test_the_catalog_has_the_entries_that_decide() -> None:
    decisive = {
        *causes.NO_ADDRESS, *causes.NO_CONFIGURATION, *evidence.DISK, *evidence.SUBNET_ENV,
        *evidence.ATTEMPT_LASTS, *evidence.REFUSED, evidence.BRIDGE_ADDRESS, evidence.NO_BINARY,
    }  # fmt: skip
    assert decisive <= {entry.key for entry in entries()}


def test_what_is_unavailable_hides_nothing() -> None:
    snapshot = replace(
        node(*some(2)), sandbox_failures=Unavailable("sandbox_failures", "it timed out")
    )
    assert "why is not known: it timed out" in found(snapshot).message
    for source in ("pods", "containers"):
        findings, gap = findings_and_gap(WAITING, without(node(*some(2)), source))
        assert gap.why == f"{source}: it gave no word"
        assert findings == []
    # Without the runtime's list, a pod may pull its image; an Event says that it does not.
    (finding,), _ = findings_and_gap(
        WAITING, without(with_events(node(*some(2)), Event(SUBNET_ENV)), "containers")
    )
    assert "CNI plugin flannel fails" in finding.message
