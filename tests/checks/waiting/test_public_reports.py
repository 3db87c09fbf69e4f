"""Broken nodes from public reports, as their owners met them: what is said of each, and what is not."""

from dataclasses import replace
from datetime import timedelta
from typing import Any, NamedTuple

from agent.exporters.summary import headline
from agent.exporters.text.scan import scan_table
from agent.model.finding import Severity, WaitCause
from agent.model.node_network import CniFile, CniFiles, Disk, Link, RuntimeStatus
from agent.model.runtime import CONTAINERD, ContainerRuntime, RuntimeNetwork, WrittenRange
from agent.model.snapshot import Known, PluginProcess
from tests.builders import NOW, findings_of, node, processes, reservation, sandbox, scanned
from tests.checks.waiting.events import CONTAINERD as BY_CONTAINERD
from tests.checks.waiting.events import CREATING, CRIO, MINUTE, Event, some, with_events
from tests.cleanup.leaks import leaks

SANDBOX = "FailedCreatePodSandBox"
NET_D = "/etc/cni/net.d"


class Node(NamedTuple):
    words: str
    cause: WaitCause
    says: tuple[str, ...]
    reason: str = SANDBOX
    facts: dict[str, Any] = {}  # noqa: RUF012 (nobody writes into it)
    severity: Severity = Severity.CRITICAL
    never: tuple[str, ...] = ()


REPORTED = {
    "the token of Calico's kubeconfig has expired": Node(
        f'{BY_CONTAINERD}plugin type="calico" failed (add): error getting ClusterInformation: '
        "connection is unauthorized: Unauthorized",
        WaitCause.PLUGIN_FAILED,
        ("CNI plugin calico fails: error getting ClusterInformation",),
    ),
    "the subnet of an EKS node has no address": Node(
        f'{BY_CONTAINERD}plugin type="aws-cni" name="aws-cni" failed (add): add cmd: failed to '
        "assign an IP address to container",
        WaitCause.PLUGIN_FAILED,
        ("CNI plugin aws-cni fails: add cmd: failed to assign an IP address",),
        never=("in network aws-cni", "free address"),
    ),
    "Cilium's agent is away": Node(
        f'{BY_CONTAINERD}plugin type="cilium-cni" name="cilium" failed (add): unable to connect to '
        "Cilium agent: failed to create cilium agent client after 30.000000 seconds timeout: Get "
        '"http://localhost/v1/config": dial unix /var/run/cilium/cilium.sock: connect: no such '
        "file or directory",
        WaitCause.PLUGIN_FAILED,
        ("CNI plugin cilium-cni fails: unable to connect to Cilium agent",),
    ),
    "whereabouts has given out its pool": Node(
        f'{CRIO}plugin type="multus" name="multus-cni-network" failed (add): [shop/web/1c:wb]: error '
        'adding container to network "wb": error at storage engine: Could not allocate IP in '
        "range: ip: 10.244.1.1 / - 10.244.1.254 / range: net.IPNet{} / excludeRanges: []",
        WaitCause.PLUGIN_FAILED,
        ("in network wb", "Could not allocate IP in range"),
        never=("no free address", "was not read"),
    ),
    "a cluster was made without a network": Node(
        "network is not ready: container runtime network not ready: NetworkReady=false "
        "reason:NetworkPluginNotReady message:Network plugin returns error: cni plugin not "
        "initialized",
        WaitCause.NETWORK_NOT_READY,
        ("no CNI configuration is in /etc/cni/net.d",),
        "NetworkNotReady",
        {
            "runtime_status": RuntimeStatus(network_ready=False, reason="NetworkPluginNotReady"),
            "cni_files": CniFiles(NET_D, ()),
        },
    ),
    "an editor left a file without its last bracket": Node(
        "network is not ready: container runtime network not ready: NetworkReady=false "
        "reason:NetworkPluginNotReady message:Network plugin returns error: cni plugin not "
        "initialized",
        WaitCause.NETWORK_NOT_READY,
        (f"{NET_D}/10-calico.conflist line 3: expected a comma",),
        "NetworkNotReady",
        {
            "runtime_status": RuntimeStatus(network_ready=False, reason="NetworkPluginNotReady"),
            "cni_files": CniFiles(
                NET_D, (CniFile("10-calico.conflist", "line 3: expected a comma"),)
            ),
            "runtimes": (ContainerRuntime(CONTAINERD),),
        },
    ),
    "the pause image is not in the registry of a site without internet": Node(
        f'{CREATING}failed to get sandbox image "registry.k8s.io/pause:3.8": failed to pull image '
        '"registry.k8s.io/pause:3.8": dial tcp 34.96.108.209:443: i/o timeout',
        WaitCause.SANDBOX_FAILED,
        ("the runtime cannot make the sandbox", "pause:3.8"),
        never=("CNI plugin",),
    ),
    "the node lacks the handler of a RuntimeClass": Node(
        f'{CREATING}failed to get sandbox runtime: no runtime for "gvisor" is configured',
        WaitCause.SANDBOX_FAILED,
        ('no runtime for "gvisor" is configured',),
    ),
    "an attachment names a network that does not exist": Node(
        f'{CRIO}plugin type="multus" name="multus-cni-network" failed (add): Multus: [shop/web/1c]: '
        "error loading k8s delegates k8s args: TryLoadPodDelegates: error in getting k8s network "
        "for pod: GetNetworkDelegates: failed getting the delegate: getKubernetesDelegate: cannot "
        "find a network-attachment-definition (macvlan) in namespace (shop): not found",
        WaitCause.PLUGIN_FAILED,
        ("cannot find a network-attachment-definition (macvlan)",),
    ),
    "the kernel has no cgroup left": Node(
        "unable to ensure pod container exists: failed to create container for [kubepods "
        "besteffort pod1c] : mkdir /sys/fs/cgroup/memory/kubepods/besteffort/pod1c: no space left "
        "on device",
        WaitCause.SANDBOX_FAILED,
        ("the kubelet says (FailedCreatePodContainer)", "no space left on device"),
        "FailedCreatePodContainer",
        {"disks": (Disk("/var/lib/cni", 10**9, 10**10, 9, 10**6),)},
        never=("is full", "no free inodes"),
    ),
    "a driver of dynamic resources has not come back": Node(
        "Failed to prepare dynamic resources: prepare dynamic resources: DRA driver "
        "gpu.example.com is not registered",
        WaitCause.SANDBOX_FAILED,
        ("DRA driver gpu.example.com is not registered",),
        "FailedPrepareDynamicResources",
        never=("release",),
    ),
    "a plugin waits for the API, and CRI-O still has the name": Node(
        f"{CREATING}Kubelet may be retrying requests that are timing out in CRI-O due to system "
        "load. Currently at stage sandbox network creation: context deadline exceeded: error "
        "reserving pod name k8s_web_shop_1c_0 for id 5f: name is reserved",
        WaitCause.SANDBOX_FAILED,
        ("it fits that CNI plugin multus (process 71) has been running for 9m",),
        facts={
            "processes": replace(
                processes(), plugins=(PluginProcess(71, "multus", NOW - 9 * MINUTE),)
            )
        },
    ),
    "containerd came with a new configuration, and the plugins are of 2018": Node(
        f'{BY_CONTAINERD}plugin type="bridge" failed (add): incompatible CNI versions; config is '
        '"1.0.0", plugin supports ["0.1.0" "0.2.0" "0.3.0" "0.3.1" "0.4.0"]',
        WaitCause.PLUGIN_FAILED,
        (
            "CNI plugin bridge fails: incompatible CNI versions",
            "this message is not about a lack of addresses",
        ),
        never=("free address",),
    ),
    "containerd ends whenever it starts": Node(
        "Failed to create pod sandbox: rpc error: code = Unavailable desc = connection error: desc "
        '= "transport: Error while dialing: dial unix /run/containerd/containerd.sock: connect: '
        'connection refused"',
        WaitCause.SANDBOX_FAILED,
        (
            "the runtime cannot make the sandbox: connection error",
            "this message is not about host-local's addresses",
        ),
        never=("CNI plugin",),
    ),
    "SELinux keeps host-local from its directory": Node(
        f'{CRIO}plugin type="bridge" failed (add): open /var/lib/cni/networks/cbr0/lock: '
        "permission denied",
        WaitCause.PLUGIN_FAILED,
        (
            "CNI plugin bridge fails in network cbr0: open /var/lib/cni",
            "this message is not about a lack of addresses",
        ),
        never=("no free address",),
    ),
    "a subnet was made smaller, and the end of its range was forgotten": Node(
        f'{BY_CONTAINERD}plugin type="bridge" failed (add): invalid range set 0: RangeEnd '
        "10.244.1.200 not in network 10.244.1.0/25",
        WaitCause.PLUGIN_FAILED,
        ("is refused, because rangeEnd 10.244.1.200 is not in 10.244.1.0/25",),
        facts={
            "networks": (
                RuntimeNetwork(
                    "net",
                    ("bridge",),
                    "host-local",
                    ranges=((WrittenRange("10.244.1.0/25", "10.244.1.10", "10.244.1.200"),),),
                ),
            )
        },
    ),
    "kubeadm reset left the bridge of the other network": Node(
        f'{BY_CONTAINERD}plugin type="bridge" failed (add): failed to set bridge addr: "cni0" '
        "already has an IP address different from 10.244.2.1/24",
        WaitCause.PLUGIN_FAILED,
        ("proof on this node: bridge cni0 has 10.244.1.1/24",),
        facts={"links": (Link("cni0", ("10.244.1.1/24",)),)},
    ),
}


def test_what_is_said_of_each() -> None:
    for report, case in REPORTED.items():
        facts: dict[str, Any] = {source: Known(value) for source, value in case.facts.items()}
        snapshot = with_events(replace(node(*some(3)), **facts), Event(case.words, case.reason))
        (finding,) = findings_of("waiting_pods", snapshot)
        assert (finding.cause, finding.severity) == (case.cause, case.severity), report
        for words in case.says:
            assert words in finding.message, report
        for words in case.never:
            assert words not in finding.message, report
        assert headline(scanned(snapshot)).startswith("Critical: 3 pods have waited"), report


def test_iptables_is_missing_and_each_retry_takes_an_address() -> None:
    words = f'{BY_CONTAINERD}plugin type="portmap" failed (add): exec: "iptables": not found'
    snapshot = with_events(node(*leaks(12, 8 * MINUTE), *some(2)), Event(words))
    (leak,) = findings_of("failing_plugin", snapshot)
    (finding,) = findings_of("waiting_pods", snapshot)
    assert "12 addresses leaked" in leak.message
    assert 'CNI plugin portmap fails: exec: "iptables": not found' in finding.message


def test_the_static_address_of_a_pod_is_held_by_its_earlier_sandbox() -> None:
    """The network of an attachment, and a sandbox that the kubelet has not removed yet."""
    words = (
        f'{CRIO}plugin type="multus" name="multus-cni-network" failed (add): [apps/late-0/1c:lab]: '
        'error adding container to network "lab": failed to allocate for range 0: requested IP '
        "address 10.88.0.101 is not available in range set 10.88.0.1-10.88.0.254"
    )
    earlier = sandbox("8" * 64, "apps/late-0", "not ready")
    snapshot = with_events(
        node(
            *some(1),
            earlier,
            reservation("10.88.0.101", "8" * 64, network="lab", ifname="net1"),
            networks=[RuntimeNetwork("lab", ("macvlan",), "host-local")],
        ),
        Event(words),
    )
    (finding,) = findings_of("waiting_pods", snapshot)
    assert (finding.cause, finding.severity) == (WaitCause.NO_ADDRESS, Severity.WARNING)
    assert "10.88.0.101 is reserved in network lab (state not ready:" in finding.message
    assert "so it is not known to be leaked" in finding.message


def test_a_burst_of_pods_on_a_slow_node_is_none_of_these() -> None:
    """Dozens of pods come at once, and the runtime makes one sandbox after the other."""
    started = replace(
        sandbox("5" * 64, "apps/first"), created=int((NOW - timedelta(seconds=20)).timestamp())
    )
    snapshot = with_events(node(*some(40, timedelta(seconds=100)), started))
    (finding,) = findings_of("waiting_pods", snapshot)
    assert finding.severity is Severity.INFO
    assert "no Event says why" in finding.message
    assert "Info: 40 pods have waited for up to 1m40s" in " ".join(
        scan_table(scanned(snapshot)).split()
    )
