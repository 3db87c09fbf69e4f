"""Networks of other IPAMs and of other programs over the range of the pods."""

from dataclasses import replace

from agent.model.finding import Finding, Severity
from agent.model.snapshot import LeftOver, NetworkStore, NotRequested, Snapshot
from tests.builders import findings_of, gap_of, the_finding, without
from tests.checks.addresses.pod_network_nodes import (
    accepted,
    cni_files,
    network,
    own_pools,
    pod_node,
    pods_of,
)

OVERLAP = "overlapping_ranges"
CIDR = "10.244.1.0/24"
CALICO = own_pools("k8s-pod-network", "calico", "calico-ipam")
FLANNEL = network("cbr0", "flannel", CIDR)
CONTAINERD_NET = network("containerd-net", "bridge", "10.88.0.0/16")
PODMAN = network("podman", "bridge", "10.88.0.0/16")


def says(finding: Finding, severity: Severity, *texts: str) -> None:
    assert finding.severity is severity, finding.message
    assert [text for text in texts if text not in finding.message] == [], finding.message


def test_calico_over_flannels_range_is_told_with_the_pods_that_keep_it_in_use() -> None:
    left = pods_of("cbr0", "10.244.1.2", "10.244.1.3", subnet=CIDR)

    def with_calico(*ips: str) -> Snapshot:
        new = pods_of("k8s-pod-network", *ips, plugin="calico", reserved=False)
        return pod_node([CALICO], left, new)

    snapshot = with_calico("10.244.1.130", "10.244.1.131")
    says(
        the_finding(OVERLAP, snapshot),
        Severity.WARNING,
        "k8s-pod-network gives pods addresses in the range of cbr0",
        "such as 10.244.1.130 of pod apps/k8s-pod-network-0: two pods can get the same address",
        "cbr0 is no longer in the CNI configuration, and apps/cbr0-0, apps/cbr0-1 still have",
    )
    # Its pool is elsewhere.
    assert findings_of(OVERLAP, with_calico("192.168.77.4")) == []
    for source in ("pods", "containers", "cni_results"):
        assert gap_of(OVERLAP, without(snapshot, source)) == f"{source}: it gave no word"
    # No pod can have an address of another IPAM.
    alone = pod_node([FLANNEL], left)
    for source in ("pods", "containers", "cni_results"):
        assert findings_of(OVERLAP, without(alone, source)) == []


def test_another_programs_network_with_the_range_of_the_pods() -> None:
    files = cni_files(
        accepted("10-containerd-net.conflist", CONTAINERD_NET),
        accepted("87-podman-bridge.conflist", PODMAN),
    )
    snapshot = pod_node(
        [CONTAINERD_NET], pods_of("containerd-net", "10.88.0.2"), cidrs=(), cni_files=files
    )
    says(
        the_finding(OVERLAP, snapshot),
        Severity.INFO,
        "containerd-net and podman (see /etc/cni/net.d/87-podman-bridge.conflist) can both give "
        "out 10.88.0.2",
    )
    not_in_use = NotRequested("reservations", "its addresses are those of podman")
    used = NetworkStore("podman", not_in_use)
    left_over = LeftOver("/var/lib/cni/networks/podman", 3, 0, 0, 0)
    for store, severity in (
        (used, Severity.WARNING),
        (replace(used, absent=True), Severity.INFO),
        (replace(used, left_over=left_over), Severity.INFO),
    ):
        stores = (*snapshot.reservations, store)
        says(the_finding(OVERLAP, replace(snapshot, reservations=stores)), severity, "podman")


def test_a_file_of_the_cluster_that_waits_for_its_turn_is_no_other_programs() -> None:
    spare = network("gke-ptp", "ptp", CIDR)
    files = cni_files(accepted("05-net.conflist", FLANNEL), accepted("10-gke-ptp.conflist", spare))
    assert (
        findings_of(OVERLAP, pod_node([FLANNEL], pods_of("cbr0", "10.244.1.2"), cni_files=files))
        == []
    )
