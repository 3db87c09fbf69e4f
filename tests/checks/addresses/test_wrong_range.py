"""A range that is not the node's, or that host-local refuses; and many that are right."""

from dataclasses import replace
from typing import Any

from agent.model.finding import Finding, Severity
from agent.model.runtime import CRI_O, DOCKER, RuntimeNetwork, WrittenRange
from agent.model.snapshot import Known, Snapshot
from tests.builders import (
    findings_and_gap,
    findings_of,
    gap_of,
    pod,
    scanned,
    the_finding,
    waiting_pod,
    without,
)
from tests.checks.addresses.pod_network_nodes import (
    accepted,
    cni_files,
    flannel_env,
    network,
    own_pools,
    pod_node,
    pods_of,
)

WRONG = "wrong_range"
CIDR = "10.244.1.0/24"
CONTAINERD_NET = network("containerd-net", "bridge", "10.88.0.0/16", more=["portmap"])
CRIO_BRIDGE = network("crio", "bridge", "10.85.0.0/16", "1100:200::/24")
FLANNEL = network("cbr0", "flannel", CIDR, more=["portmap"])
CALICO = own_pools("k8s-pod-network", "calico", "calico-ipam")
EASY = [f"10.88.0.{last}" for last in range(2, 7)]


def says(finding: Finding, severity: Severity, *texts: str) -> None:
    """Check a finding's severity, and that its message or its steps have these texts."""
    steps = [f"{step.text} {step.command}" for step in finding.steps]
    told = "\n".join([finding.message, *steps])
    assert (finding.severity, [text for text in texts if text not in told]) == (severity, []), told


def silent(snapshot: Snapshot) -> None:
    assert findings_of(WRONG, snapshot) == []
    assert findings_of("broken_cni_config", snapshot) == []
    assert findings_of("overlapping_ranges", snapshot) == []


def test_a_sample_that_shadows_the_clusters_network_is_critical_with_the_pods_and_both_files() -> (
    None
):
    files = cni_files(
        accepted("10-containerd-net.conflist", CONTAINERD_NET),
        accepted("10-flannel.conflist", FLANNEL),
        subnet_env=flannel_env(CIDR),
    )
    pods = pods_of("containerd-net", *EASY)
    says(
        the_finding(WRONG, pod_node([CONTAINERD_NET], pods, cni_files=files)),
        Severity.CRITICAL,
        "containerd-net gives pods addresses of 10.88.0.0/16 (the sample of containerd and podman, "
        "the same on every node), which is outside of the node's pod CIDR 10.244.1.0/24",
        "10-flannel.conflist (network cbr0, 10.244.1.0/24) is not used, because "
        "/etc/cni/net.d/10-containerd-net.conflist comes first",
        "5 addresses in use: apps/containerd-net-0 10.88.0.2, ",
        "Move that one file away then, and keep the others: mv /etc/cni/net.d/10-containerd-net.conflist ",
    )
    # Nobody has an address yet.
    unused = the_finding(WRONG, pod_node([CONTAINERD_NET], cni_files=files))
    says(unused, Severity.WARNING, "10-flannel.conflist")
    # Calico's nodes need no pod CIDR.
    files = cni_files(
        accepted("10-containerd-net.conflist", CONTAINERD_NET),
        accepted("20-calico.conflist", CALICO),
    )
    without_cidr = pod_node([CONTAINERD_NET], pods, cidrs=(), cni_files=files)
    says(the_finding(WRONG, without_cidr), Severity.CRITICAL, "20-calico.conflist", "10.88.0.2")


def test_the_sample_bridge_alone_is_a_warning_where_the_node_has_a_pod_cidr() -> None:
    files = cni_files(accepted("100-crio-bridge.conf", CRIO_BRIDGE))
    ips = [f"10.85.0.{last}" for last in range(2, 24)]
    snapshot = pod_node(
        [CRIO_BRIDGE],
        pods_of("crio", *ips),
        cidrs=["10.244.2.0/24"],
        runtime=CRI_O,
        cni_files=files,
    )
    found = the_finding(WRONG, snapshot)
    says(
        found,
        Severity.WARNING,
        "10.85.0.0/16 (the sample of CRI-O, the same on every node), which is outside of the "
        "node's pod CIDR 10.244.2.0/24",
        "see /etc/cni/net.d/100-crio-bridge.conf",
        "22 addresses in use: ",
        " and 7 more",
    )
    # The family that the Node has no pod CIDR of is not compared.
    assert "1100:200::/24" not in found.message
    dual = replace(
        snapshot, node=replace(snapshot.node, value=_worker("10.85.0.0/16", "fd00::/64"))
    )
    assert "1100:200::/24, which is outside of" in the_finding(WRONG, dual).message
    no_cidr = replace(snapshot, node=replace(snapshot.node, value=_worker()))
    silent(no_cidr)


def _worker(*cidrs: str) -> Any:
    return pod_node([], cidrs=cidrs).node.known()


def test_k3s_runs_flannel_itself_so_that_no_pod_of_it_can_be_deleted() -> None:
    flannel = network("cbr0", "flannel", "10.244.3.0/24")
    files = cni_files(
        accepted("10-flannel.conflist", flannel), subnet_env=flannel_env("10.244.3.0/24")
    )
    snapshot = pod_node([flannel], cni_files=files)
    present = snapshot.node.known()
    assert present is not None
    for kubelet, command in (("v1.33.1+k3s1", "k3s*.service"), ("v1.33.1+rke2r1", "")):
        node = Known(replace(present, kubelet=kubelet))
        steps = the_finding(WRONG, replace(snapshot, node=node)).steps
        assert any(command in (step.command or "") for step in steps if "subnet.env" in step.text)
        assert any("flannel's pod" in step.text for step in steps) is not bool(command)


def test_flannels_subnet_that_is_not_the_nodes_is_a_warning_with_both() -> None:
    flannel = network("cbr0", "flannel", "10.244.3.0/24")
    files = cni_files(
        accepted("10-flannel.conflist", flannel), subnet_env=flannel_env("10.244.3.0/24")
    )
    for users in ([], ["10.244.3.7"]):
        pods = pods_of("cbr0", *users, plugin="bridge")
        says(
            the_finding(WRONG, pod_node([flannel], pods, cni_files=files)),
            Severity.WARNING,
            "10.244.3.0/24, which is outside of the node's pod CIDR 10.244.1.0/24",
            "/run/flannel/subnet.env",
        )


def test_pods_of_an_earlier_range_or_network_are_named() -> None:
    """flannel has another subnet since they started, or another file is in use."""
    pods = pods_of("cbr0", "10.244.1.5", "10.244.7.9")
    says(
        the_finding(WRONG, pod_node([FLANNEL], pods)),
        Severity.WARNING,
        "cbr0: 1 pod has an address of an earlier range, outside of the node's pod CIDR",
        "apps/cbr0-1 10.244.7.9",
    )
    left = pods_of("containerd-net", "10.88.0.6")
    for current in (FLANNEL, CALICO):
        says(
            the_finding(WRONG, pod_node([current], left)),
            Severity.WARNING,
            "1 pod got an address from containerd-net",
            f"new pods get theirs from {current.name}",
            "apps/containerd-net-0 10.88.0.6",
        )
    for used in (pods, left):
        why = gap_of(WRONG, without(pod_node([FLANNEL], used), "containers"))
        assert why == "containers: it gave no word", "it is unknown whether they run"
    unknown = without(pod_node([FLANNEL], left), "networks")
    (found,), _ = findings_and_gap(WRONG, unknown)
    says(found, Severity.WARNING, "containerd-net", "apps/containerd-net-0 10.88.0.6")
    # The bridge of a node without a pod CIDR has another subnet now.
    bridge = network("net", "bridge", "10.7.0.0/24")
    before = pod_node([bridge], pods_of("net", "10.6.0.4", "10.7.0.4"), cidrs=())
    says(the_finding(WRONG, before), Severity.WARNING, "its range 10.7.0.0/24", "net-0 10.6.0.4")
    silent(pod_node([bridge], pods_of("net", "10.7.0.4"), cidrs=()))


def test_a_range_wider_than_the_pod_cidr_is_a_warning_only_once_pods_are_outside_on_a_worker() -> (
    None
):
    """As the bridge of minikube has it, which is right on a single node."""
    bridge = network("bridge", "bridge", "10.244.0.0/16")
    files = cni_files(accepted("1-k8s.conflist", bridge))
    inside, outside = pods_of("bridge", "10.244.1.4"), pods_of("bridge", "10.244.2.4")
    api_server = replace(pod("kube-system/kube-apiserver-worker-1", host_network=True), static=True)
    for users, control_plane, severity in (
        (inside, (), Severity.INFO),
        (outside, (api_server,), Severity.INFO),
        (outside, (), Severity.WARNING),
    ):
        snapshot = pod_node([bridge], users, more=control_plane, cni_files=files)
        says(
            the_finding(WRONG, snapshot), severity, "10.244.0.0/16, wider than the node's pod CIDR"
        )


REFUSED: tuple[tuple[Any, str], ...] = (
    (((WrittenRange("10.47.128.1/24"),),), "10.47.128.1/24 has host bits set: its network "),
    ((), "it has no range"),
    (((),), "it has no range"),
    (((WrittenRange("10.1.0.0/31"),),), "10.1.0.0/31 is too small to allocate from"),
    (
        ((WrittenRange("10.1.0.0/24", "10.2.0.1"),),),
        "rangeStart 10.2.0.1 is not in 10.1.0.0/24",
    ),
    (((WrittenRange("10.1.0.0/24", last="10.2.0.1"),),), "rangeEnd 10.2.0.1 is not in"),
    (((WrittenRange("10.1.0.0/24"), WrittenRange("fd00::/64")),), "of both families"),
    (
        ((WrittenRange("10.1.0.0/24"),), (WrittenRange("10.1.0.0/16"),)),
        "two of its ranges overlap: 10.1.0.1-10.1.0.254 and 10.1.0.1-10.1.255.254",
    ),
    (((WrittenRange("10.1.0.0/24"),), ()), "one of its range sets is empty"),
    (((WrittenRange("podcidr"),),), "podcidr is not a subnet"),
)


def test_ranges_that_host_local_refuses() -> None:
    for ranges, reason in REFUSED:
        bridge = RuntimeNetwork("net", ("bridge",), "host-local", ranges=ranges)
        given: Any = {
            "cidrs": ["10.1.0.0/16"],
            "cni_files": cni_files(accepted("10-net.conflist", bridge)),
        }
        where = "Correct the range in /etc/cni/net.d/10-net.conflist"
        says(the_finding(WRONG, pod_node([bridge], **given)), Severity.WARNING, reason, where)
        waits = pod_node([bridge], more=[waiting_pod()], **given)
        pods = "1 pod waits for an address (see waiting_pods)"
        says(the_finding(WRONG, waits), Severity.CRITICAL, reason, pods)
        # The host-local of this node evidently accepts it.
        running = pod_node([bridge], pods_of("net", "10.1.0.4"), **given)
        assert findings_of(WRONG, running) == []


def test_ranges_that_somebody_else_writes_are_not_missing() -> None:
    for plugin, runtime in (
        ("antrea", CRI_O),  # its agent passes the pod CIDR on
        ("flannel", CRI_O),
        ("bridge", DOCKER),  # the capability ipRanges
    ):
        silent(pod_node([network("net", plugin)], runtime=runtime))
    # flannel's file has the node's own address in it.
    silent(pod_node([network("cbr0", "flannel", "10.244.1.1/24")]))


HEALTHY: dict[str, Snapshot] = {
    "calico with own pools": pod_node(
        [CALICO],
        pods_of("k8s-pod-network", "192.168.77.4", plugin="calico", reserved=False),
        cni_files=cni_files(accepted("10-calico.conflist", CALICO)),
    ),
    "canal, RKE2, AKS with Calico: usePodCidr": pod_node(
        [network("k8s-pod-network", "calico", "usePodCidr")],
        pods_of("k8s-pod-network", "10.244.1.4", plugin="calico"),
    ),
    "calico with host-local and a range of its own": pod_node(
        [network("k8s-pod-network", "calico", "172.20.0.0/24")],
        pods_of("k8s-pod-network", "172.20.0.4", plugin="calico"),
    ),
    "cilium, beside the file of CRI-O": pod_node(
        [own_pools("cilium", "cilium-cni")],
        pods_of("cilium", "10.0.3.17", plugin="cilium-cni", reserved=False),
        runtime=CRI_O,
        cni_files=cni_files(
            accepted("05-cilium.conflist", own_pools("cilium", "cilium-cni")),
            accepted("100-crio-bridge.conf", CRIO_BRIDGE),
        ),
    ),
    "EKS": pod_node(
        [network("aws-cni", "aws-cni", "169.254.172.0/22", more=["egress-cni", "portmap"])],
        pods_of("aws-cni", "169.254.172.9", plugin="aws-cni", ifname="v4if0"),
        cidrs=(),
    ),
    "AKS, azure overlay": pod_node(
        [own_pools("azure", "azure-vnet", "azure-cns")], cidrs=["10.244.0.0/24"]
    ),
    "GKE": pod_node(
        [network("gke-pod-network", "ptp", "10.8.3.0/24")],
        pods_of("gke-pod-network", "10.8.3.9", plugin="ptp"),
        cidrs=["10.8.3.0/24"],
        cni_files=cni_files(
            accepted("10-gke-ptp.conflist", network("gke-pod-network", "ptp", "10.8.3.0/24"))
        ),
    ),
    "GKE, Dataplane V2": pod_node(
        [network("gke-pod-network", "cilium-cni", "10.8.3.0/24")],
        pods_of("gke-pod-network", "10.8.3.9", plugin="cilium-cni"),
        cidrs=["10.8.3.0/24"],
        cni_files=cni_files(
            accepted("05-cilium.conflist", network("gke-pod-network", "cilium-cni", "10.8.3.0/24")),
            accepted("10-gke-ptp.conflist", network("gke-ptp", "ptp", "10.8.3.0/24")),
        ),
    ),
    "OpenShift with OVN": pod_node(
        [own_pools("ovn-kubernetes", "ovn-k8s-cni-overlay")], cidrs=(), runtime=CRI_O
    ),
    "k3s": pod_node(
        [network("cbr0", "flannel", "10.42.0.1/24")],
        pods_of("cbr0", "10.42.0.8"),
        cidrs=["10.42.0.0/24"],
        cni_files=cni_files(
            accepted("10-flannel.conflist", network("cbr0", "flannel", "10.42.0.1/24")),
            subnet_env=flannel_env("10.42.0.1/24"),
        ),
    ),
    "kind, dual stack": pod_node(
        [network("kindnet", "ptp", "10.244.0.0/24", "fd00:10:244::/64")],
        pods_of("kindnet", "10.244.0.5", "fd00:10:244::5", plugin="ptp"),
        cidrs=["10.244.0.0/24", "fd00:10:244::/64"],
    ),
    "IPv6 only": pod_node(
        [network("kindnet", "ptp", "fd00:10:244:2::/64")],
        pods_of("kindnet", "fd00:10:244:2::5", plugin="ptp"),
        cidrs=["fd00:10:244:2::/64"],
    ),
    "IPv4 pods on a dual-stack Node": pod_node(
        [network("net", "bridge", CIDR)],
        pods_of("net", "10.244.1.5"),
        cidrs=[CIDR, "fd00:10:244:1::/64"],
    ),
    "kube-router, with podman's file": pod_node(
        [network("mynet", "bridge", CIDR)],
        pods_of("mynet", "10.244.1.5"),
        cni_files=cni_files(
            accepted("10-kuberouter.conflist", network("mynet", "bridge", CIDR)),
            accepted("87-podman-bridge.conflist", network("podman", "bridge", "10.88.0.0/16")),
        ),
    ),
    "microk8s, with flannel's file left over": pod_node(
        [CALICO],
        pods_of("k8s-pod-network", "10.1.128.201", plugin="calico", reserved=False),
        cidrs=["10.1.0.0/24"],
        cni_files=cni_files(
            accepted("10-calico.conflist", CALICO), accepted("flannel.conflist", FLANNEL)
        ),
    ),
    "multus over flannel, and a macvlan with a range of the LAN": pod_node(
        [FLANNEL],
        pods_of("cbr0", "10.244.1.8"),
        pods_of("lan", "192.168.7.201", plugin="macvlan", ifname="net1"),
    ),
    "macvlan as the pods' network": pod_node(
        [network("lan", "macvlan", "192.168.7.0/24")],
        pods_of("lan", "192.168.7.201", plugin="macvlan"),
    ),
    "bridge with an IPAM of its own": pod_node(
        [own_pools("net", "bridge", "whereabouts")],
        pods_of("net", "172.31.0.9", reserved=False),
    ),
    "a range within the pod CIDR": pod_node(
        [network("k8s-net", "bridge", "10.244.1.128/25")], pods_of("k8s-net", "10.244.1.4")
    ),
    "a single CRI-O without a pod CIDR": pod_node(
        [CRIO_BRIDGE], pods_of("crio", "10.85.0.4"), cidrs=(), runtime=CRI_O
    ),
}  # fmt: skip


def test_nothing_is_said_of_healthy_nodes() -> None:
    for kind, snapshot in HEALTHY.items():
        told = scanned(snapshot).findings
        assert [tracked.finding.message for tracked in told] == [], kind
        silent(snapshot)


def test_without_the_node_the_range_is_not_judged() -> None:
    files = cni_files(accepted("10-containerd-net.conflist", CONTAINERD_NET))
    snapshot = pod_node([CONTAINERD_NET], pods_of("containerd-net", *EASY), cni_files=files)
    found, gap = findings_and_gap(WRONG, without(snapshot, "node"))
    assert (found, gap.why) == ([], "node: it gave no word")
    refused = RuntimeNetwork("net", ("bridge",), "host-local")
    found, _ = findings_and_gap(WRONG, without(pod_node([refused]), "node"))
    assert ["no range" in finding.message for finding in found] == [True]


def test_without_the_runtimes_a_network_that_may_be_refused_is_not_compared() -> None:
    bare = RuntimeNetwork("net", ("bridge",), "host-local")
    moved = pod_node([bare], pods_of("net", "10.244.7.9"), pods=[waiting_pod("apps/web-0")])
    assert "has no range" in the_finding(WRONG, moved).message
    found, gap = findings_and_gap(WRONG, without(moved, "runtimes"))
    assert (found, gap.why) == ([], "runtimes: it gave no word")


def test_a_refused_range_is_not_judged_where_it_is_unknown_whether_pods_have_addresses() -> None:
    refused = RuntimeNetwork("net", ("bridge",), "host-local")
    snapshot = pod_node([refused], pods_of("net", *EASY))
    assert findings_of(WRONG, snapshot) == [], "its pods run"
    for source in ("containers", "reservations", "cni_files"):
        found, gap = findings_and_gap(WRONG, without(snapshot, source))
        assert found == [], source
        assert gap.why, source
