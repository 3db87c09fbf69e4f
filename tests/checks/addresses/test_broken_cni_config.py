"""A CNI configuration that gives pods no network, or will not when it is read again."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

from agent.checks.node_network import why_no_network
from agent.model.finding import Finding, Severity
from agent.model.node_network import CniFile, CniFiles, RuntimeStatus
from agent.model.runtime import CONTAINERD, CRI_O, DOCKER, ContainerRuntime, RuntimeNetwork
from agent.model.snapshot import (
    Known,
    NotRequested,
    PluginProcess,
    ProcessStartTimes,
    Snapshot,
    Unavailable,
)
from tests.builders import (
    NOW,
    WORKER,
    findings_of,
    gap_of,
    processes,
    the_finding,
    the_node,
    unavailable,
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
    refused,
)

BROKEN = "broken_cni_config"
READY = RuntimeStatus(network_ready=True)
NOT_INITIALIZED = RuntimeStatus(
    network_ready=False,
    reason="NetworkPluginNotReady",
    message="Network plugin returns error: cni plugin not initialized",
)
FLANNEL = network("cbr0", "flannel", "10.244.1.0/24", more=["portmap"])
CALICO = own_pools("k8s-pod-network", "calico", "calico-ipam")
CRIO_BRIDGE = network("crio", "bridge", "10.85.0.0/16")
CRI_O_RUNTIME = Known((ContainerRuntime(CRI_O, "1.35.6"),))
WAITING = (waiting_pod("apps/web-0"), waiting_pod("apps/web-1"))


def a_node(
    files: CniFiles | Unavailable,
    status: RuntimeStatus | NotRequested = NOT_INITIALIZED,
    networks: tuple[RuntimeNetwork, ...] | Unavailable = (),
    **given: Any,
) -> Snapshot:
    snapshot = pod_node([], cni_files=files, runtime_status=status, **given)
    return replace(
        snapshot, networks=networks if isinstance(networks, Unavailable) else Known(networks)
    )


def steps_of(finding: Finding) -> str:
    return "\n".join(step.text for step in finding.steps)


def says(finding: Finding, severity: Severity, *texts: str) -> None:
    """Check a finding's severity, and that its message or its steps have these texts."""
    told = f"{finding.message}\n{steps_of(finding)}"
    assert (finding.severity, [text for text in texts if text not in told]) == (severity, []), told


def test_containerd_loads_nothing_if_one_file_is_broken_and_the_others_are_to_be_kept() -> None:
    files = cni_files(refused("05-mesh.conflist"), accepted("10-flannel.conflist", FLANNEL))
    told = the_finding(BROKEN, a_node(files, more=WAITING))
    says(
        told,
        Severity.CRITICAL,
        "containerd has no network for pods: 05-mesh.conflist is empty (in /etc/cni/net.d)",
        "Move 05-mesh.conflist out of the directory and keep 10-flannel.conflist (network cbr0)",
        "2 pods wait for an address (see waiting_pods)",
    )
    says(the_finding(BROKEN, a_node(files)), Severity.WARNING, "05-mesh.conflist is empty")
    loaded_none = the_finding(BROKEN, a_node(files, READY, ()))
    says(loaded_none, Severity.WARNING, "containerd has no network for pods: 05-mesh.conflist")
    # It is no part of a node's start.
    says(the_finding(BROKEN, _young(a_node(files, more=WAITING))), Severity.CRITICAL, "is empty")
    # Without another file, the broken one is the cluster's.
    alone = a_node(cni_files(refused("10-flannel.conflist", "line 3: expected a comma")))
    says(
        the_finding(BROKEN, alone), Severity.WARNING, "10-flannel.conflist line 3: expected a comma"
    )
    assert "out of the directory" not in steps_of(the_finding(BROKEN, alone))


def test_what_containerd_does_not_read_now_is_told_only_if_it_reads_it_first() -> None:
    files = cni_files(accepted("10-flannel.conflist", FLANNEL), refused("99-mesh.conflist"))
    assert findings_of(BROKEN, a_node(files, READY, (FLANNEL,))) == []
    files = cni_files(refused("05-mesh.conflist"), accepted("10-flannel.conflist", FLANNEL))
    says(
        the_finding(BROKEN, a_node(files, READY, (FLANNEL,))),
        Severity.WARNING,
        "05-mesh.conflist is empty",
        "loads nothing when it reads the directory again",
    )


def test_cri_o_skips_a_broken_file_and_that_is_told_if_it_comes_first() -> None:
    files = cni_files(refused("10-flannel.conflist"), accepted("100-crio-bridge.conf", CRIO_BRIDGE))
    says(
        the_finding(BROKEN, a_node(files, READY, (CRIO_BRIDGE,), runtime=CRI_O)),
        Severity.WARNING,
        "CRI-O skips the first file of /etc/cni/net.d and uses 100-crio-bridge.conf (network "
        "crio): 10-flannel.conflist is empty",
    )
    unread = without(a_node(files, READY, (CRIO_BRIDGE,), runtime=CRI_O), "networks")
    assert gap_of(BROKEN, unread) == "networks: it gave no word"
    later = cni_files(accepted("10-flannel.conflist", FLANNEL), refused("99-mesh.conflist"))
    assert findings_of(BROKEN, a_node(later, READY, (FLANNEL,), runtime=CRI_O)) == []
    # `cni_default_network` names another one.
    assert findings_of(BROKEN, a_node(files, READY, (CALICO,), runtime=CRI_O)) == []
    none = cni_files(refused("10-flannel.conflist"), refused("99-mesh.conflist", "has no plugins"))
    says(
        the_finding(BROKEN, a_node(none, runtime=CRI_O, more=WAITING)),
        Severity.CRITICAL,
        "CRI-O has no network for pods: 10-flannel.conflist is empty; 99-mesh.conflist has no ",
    )
    skipped = cni_files(accepted("10-calico.conflist", CALICO), missing_plugins=("calico",))
    says(
        the_finding(BROKEN, a_node(skipped, runtime=CRI_O)),
        Severity.WARNING,
        "CRI-O has no network for pods: plugin calico of 10-calico.conflist is not installed",
    )


def test_no_file_is_said_of_the_directory_and_is_info_while_the_node_is_new() -> None:
    for files, text in (
        (cni_files(), "/etc/cni/net.d has no CNI configuration"),
        (cni_files(exists=False), "/etc/cni/net.d does not exist"),
    ):
        for runtime in (CONTAINERD, CRI_O):
            snapshot = a_node(files, runtime=runtime, more=WAITING)
            says(the_finding(BROKEN, snapshot), Severity.CRITICAL, text, "DaemonSet", "2 pods wait")
            says(the_finding(BROKEN, _young(snapshot)), Severity.INFO, text, "the node is new")
            registered = replace(WORKER, created=NOW - timedelta(minutes=4))
            joined = replace(snapshot, node=Known(registered))
            says(the_finding(BROKEN, joined), Severity.INFO, text)
        # A mount is missing, or the directory is another one: the runtime knows better.
        assert findings_of(BROKEN, a_node(files, READY, (FLANNEL,))) == []
    gone = the_finding(BROKEN, a_node(cni_files(exists=False)))
    assert "restart containerd" in steps_of(gone)


def _young(snapshot: Snapshot) -> Snapshot:
    return replace(snapshot, uptime=timedelta(minutes=4))


def test_docker_does_not_say_whether_its_network_is_ready() -> None:
    status = RuntimeStatus(network_ready=None)
    unread = unavailable("networks")
    for none in (status, NotRequested("runtime_status", "docker has none")):
        snapshot = a_node(cni_files(), none, unread, runtime=DOCKER, more=WAITING)
        says(the_finding(BROKEN, snapshot), Severity.CRITICAL, "docker has no network for pods")
        # Its kubelet may read another directory.
        assert findings_of(BROKEN, a_node(cni_files(), none, unread, runtime=DOCKER)) == []
        # The kubelet has kubenet.
        kubenet = RuntimeNetwork("kubenet", ("bridge",), "host-local")
        assert findings_of(BROKEN, a_node(cni_files(), none, (kubenet,), runtime=DOCKER)) == []


def test_the_runtimes_own_words_are_told_where_the_files_show_nothing() -> None:
    files = cni_files(accepted("10-flannel.conflist", FLANNEL))
    words = "cni config load failed: no network config found in /opt/net.d"
    for status, text in (
        (NOT_INITIALIZED, "containerd says: Network plugin returns error: cni plugin not "),
        (replace(NOT_INITIALIZED, load_error=words), f"containerd says: {words}"),
        (RuntimeStatus(network_ready=False), "it does not say why"),
    ):
        says(the_finding(BROKEN, a_node(files, status)), Severity.WARNING, text)
    snapshot = a_node(unavailable("cni_files"), NOT_INITIALIZED)
    reason = why_no_network(snapshot)
    assert reason is not None
    assert reason.reason.startswith("containerd says: ")


def test_a_plugin_that_is_not_installed_stops_the_network_that_pods_use() -> None:
    files = accepted("10-flannel.conflist", FLANNEL), accepted("99-other.conflist", CALICO)
    for missing, severity, text, more in (
        (("portmap",), Severity.CRITICAL, "plugin portmap of network cbr0 is", WAITING),
        (("bridge", "host-local"), Severity.WARNING, "bridge, host-local of network cbr0 are", ()),
    ):
        snapshot = a_node(cni_files(*files, missing_plugins=missing), READY, (FLANNEL,), more=more)
        told = f"{text} not installed: every ADD and DEL fails"
        says(the_finding(BROKEN, snapshot), severity, told)
        says(the_finding(BROKEN, _young(snapshot)), Severity.INFO, told)
        says(
            the_finding(BROKEN, replace(snapshot, runtimes=CRI_O_RUNTIME)),
            Severity.WARNING,
            "CRI-O skips the first file of /etc/cni/net.d and uses 99-other.conflist (network "
            "k8s-pod-network): plugin",
            " of 10-flannel.conflist ",
        )
    for complete in ((), None):
        snapshot = a_node(cni_files(*files, missing_plugins=complete), READY, (FLANNEL,))
        assert findings_of(BROKEN, snapshot) == []


def test_flannels_missing_file_is_told_while_its_network_has_no_range() -> None:
    problem = flannel_env(problem="does not exist")
    files = cni_files(accepted("10-flannel.conflist", FLANNEL), subnet_env=problem)
    bare = replace(FLANNEL, ranges=())
    snapshot = a_node(files, READY, (bare,), more=WAITING)
    text = "/run/flannel/subnet.env does not exist: flannel gives no pod an address"
    says(the_finding(BROKEN, snapshot), Severity.CRITICAL, text, "2 pods wait")
    assert gap_of(BROKEN, without(snapshot, "networks")) == "networks: it gave no word"
    without_cidr = a_node(files, READY, (bare,), more=WAITING, cidrs=())
    says(
        the_finding(BROKEN, without_cidr),
        Severity.CRITICAL,
        text,
        "the Node has no pod CIDR, without which flannel does not start",
        "in the log of kube-controller-manager why the Node gets no pod CIDR",
    )
    says(the_finding(BROKEN, _young(snapshot)), Severity.INFO, text)
    assert findings_of(BROKEN, a_node(files, READY, (CALICO,))) == []
    k3s = replace(snapshot, node=Known(replace(the_node(snapshot), kubelet="v1.33.1+k3s1")))
    says(the_finding(BROKEN, k3s), Severity.CRITICAL, text, "flannel, which is part of k3s")


def test_nothing_is_advised_that_blocks_containerd_behind_a_hanging_plugin() -> None:
    files = cni_files(refused("05-mesh.conflist"), accepted("10-flannel.conflist", FLANNEL))
    hanging = PluginProcess(77, "bridge", NOW - timedelta(minutes=9))
    started: ProcessStartTimes = replace(processes(), plugins=(hanging,))
    snapshot = a_node(files, more=WAITING, processes=(started,))
    text = "End the CNI plugin bridge (process 77), which hangs, then move 05-mesh.conflist"
    says(the_finding(BROKEN, snapshot), Severity.CRITICAL, text)


def test_containerd_reads_no_file_after_the_first() -> None:
    """Its `max_conf_num` is 1: a damaged later file is no cause, unless containerd names it."""
    files = cni_files(
        accepted("10-flannel.conflist", FLANNEL), CniFile("20-b.conflist", "is empty")
    )
    finding = the_finding(BROKEN, a_node(files, NOT_INITIALIZED))
    assert "20-b.conflist" not in finding.message
    error = "failed to load CNI config list file /etc/cni/net.d/20-b.conflist: unexpected end"
    finding = the_finding(BROKEN, a_node(files, replace(NOT_INITIALIZED, load_error=error)))
    assert "20-b.conflist is empty" in finding.message


def test_what_the_runtime_does_not_answer_is_a_gap() -> None:
    files = cni_files(accepted("10-flannel.conflist", FLANNEL))
    healthy = pod_node(
        [FLANNEL], pods_of("cbr0", "10.244.1.4"), cni_files=files, runtime_status=READY
    )
    assert findings_of(BROKEN, healthy) == []
    assert gap_of(BROKEN, without(healthy, "runtime_status")) == "runtime_status: it gave no word"
    assert gap_of(BROKEN, without(healthy, "cni_files")) == "cni_files: it gave no word"
    assert gap_of(BROKEN, without(healthy, "runtimes")) == "runtimes: it gave no word"
    assert findings_of(BROKEN, pod_node([FLANNEL], runtimes=(ContainerRuntime(DOCKER),))) == []
