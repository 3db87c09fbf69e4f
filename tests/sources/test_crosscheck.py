"""Readings that contradict each other: which of them is no longer believed, and which still is."""

from dataclasses import replace

import pytest

from agent.model.devices import DevicePlugins
from agent.model.registration import Registration
from agent.model.snapshot import (
    Address,
    Checkpoint,
    CniResult,
    Container,
    Daemons,
    Node,
    NodeDevices,
    NotAsked,
    Pod,
    Reading,
    Seen,
    Store,
    Unread,
)
from agent.model.volumes import Mount
from agent.sources import crosscheck
from tests.builders import (
    ADDRESSES,
    CHECKPOINTS,
    CONTAINERS,
    KVM,
    NO_DEVICES,
    PODS,
    WEB_ID,
    WORKER,
    daemons,
    device_plugins,
    last_seen,
    plugin_socket,
    pod,
    refused_pod,
    registered,
    registration,
    sandbox,
)

SILENT = Unread("containers", "timed out")
NO_CONTAINERS: Reading[Container] = Seen(())
NO_DIRECTORY: Reading[Checkpoint] = Unread("checkpoints", "none of these exists: /var/lib/dockershim/sandbox")

NO_API = NotAsked("pods", "--api=off")
STRANGER: Reading[Registration] = Seen((registration(),))
"""Nobody on this node says that it is the one of that name."""


def why(
    reading: Reading[Container] | Reading[Checkpoint] | Reading[Pod] | Reading[Address] | Reading[DevicePlugins],
) -> str:
    assert isinstance(reading, Unread)
    return reading.why


def test_a_mount_table_is_believed_only_where_the_process_table_is_the_nodes() -> None:
    mounts = Seen((Mount("kubernetes.io/gce-pd/d-1"),))
    assert crosscheck.mounts(mounts, Seen((daemons(),))) == mounts
    assert crosscheck.mounts(mounts, Unread("daemons", "not the node's")) == Unread("mounts", "not the node's")
    left_alone = NotAsked("mounts", "--kubelet-dir=off")
    assert crosscheck.mounts(left_alone, Unread("daemons", "not the node's")) == left_alone


def test_unread_is_not_empty_no_container_on_a_node_with_running_pods_is_unread() -> None:
    assert why(crosscheck.containers(NO_CONTAINERS, Seen(PODS))) == (
        "the runtime lists no container, not one of the 3 pods that run here by the API server's word"
    )


def test_a_list_without_any_of_the_running_pods_is_unread() -> None:
    strangers = Seen((sandbox("f" * 64, "other/pod"), Container("e" * 64, "running", 0, "", "", sandbox=False)))
    assert why(crosscheck.containers(strangers, Seen(PODS))) == (
        "the runtime lists 2 containers, none of them of the 3 pods that run here by the API server's word"
    )


def test_a_list_with_one_of_the_running_pods_is_believed() -> None:
    reading = Seen((sandbox(WEB_ID, "shop/web"),))
    assert crosscheck.containers(reading, Seen(PODS)) == reading


def test_a_node_that_runs_nothing_may_list_nothing() -> None:
    for pods in ((), (pod("a/b", phase="Pending"),), (pod("a/b", phase="Succeeded"),), (pod("a/b", deleting=True),)):
        assert crosscheck.containers(NO_CONTAINERS, Seen(pods)) == NO_CONTAINERS


def test_without_the_api_server_docker_is_believed() -> None:
    assert crosscheck.containers(NO_CONTAINERS, NO_API) == NO_CONTAINERS
    assert crosscheck.containers(NO_CONTAINERS, Unread("pods", "timed out")) == NO_CONTAINERS


def test_what_was_unread_stays_unread_with_its_own_reason() -> None:
    assert crosscheck.containers(SILENT, Seen(PODS)) == SILENT
    assert crosscheck.checkpoints(NO_DIRECTORY, SILENT) == NO_DIRECTORY
    gone: Reading[Pod] = Unread("pods", "timed out")
    assert crosscheck.pods(gone, Seen(()), STRANGER, "worker-1") == gone


def test_no_checkpoint_directory_is_none_where_no_sandbox_would_be_in_it() -> None:
    unrelated = Seen((Container("e" * 64, "running", 0, "", "", sandbox=False),))
    assert crosscheck.checkpoints(NO_DIRECTORY, unrelated) == Seen(())
    assert crosscheck.checkpoints(NO_DIRECTORY, NO_CONTAINERS) == Seen(())


def test_unread_is_not_empty_no_checkpoint_directory_beside_sandboxes_is_unread() -> None:
    assert crosscheck.checkpoints(NO_DIRECTORY, Seen(CONTAINERS)) == NO_DIRECTORY


def test_a_checkpoint_directory_we_may_not_open_is_unread_whatever_runs() -> None:
    closed: Reading[Checkpoint] = Unread("checkpoints", "/var/lib/dockershim/sandbox: Permission denied")
    assert crosscheck.checkpoints(closed, NO_CONTAINERS) == closed


def test_checkpoints_that_were_read_are_believed() -> None:
    assert crosscheck.checkpoints(Seen(CHECKPOINTS), NO_CONTAINERS) == Seen(CHECKPOINTS)


def of_runtime(runtime: str) -> Reading[Node]:
    return Seen((replace(WORKER, runtime=runtime),))


def plugged(plugin: str | None) -> Reading[Daemons]:
    return Seen((replace(daemons(), network_plugin=plugin),))


DOCKER, CONTAINERD = of_runtime("docker://20.10.24"), of_runtime("containerd://1.6.20")
REFUSED = Unread("containers", "docker: connection refused")
NO_STORE = Store(
    "kubenet", Unread("reservations", "/var/lib/cni/networks/kubenet does not exist: no pod of it ran here")
)
KUBENET, CNI = plugged("kubenet"), plugged("cni")


@pytest.mark.parametrize("reading", [SILENT, REFUSED, NO_CONTAINERS, Seen(CONTAINERS)])
def test_docker_has_no_say_where_the_kubelet_has_another_runtime(reading: Reading[Container]) -> None:
    assert crosscheck.runtime(reading, CONTAINERD) == NotAsked(
        "containers", "the runtime of this node is containerd://1.6.20, not docker"
    )


@pytest.mark.parametrize(
    "node", [DOCKER, of_runtime(""), Seen(()), Unread("node", "timed out"), NotAsked("node", "off")]
)
def test_a_docker_that_is_stopped_for_a_moment_is_unread(node: Reading[Node]) -> None:
    assert crosscheck.runtime(REFUSED, node) == REFUSED


@pytest.mark.parametrize(
    ("node", "table", "why"),
    [
        (CONTAINERD, KUBENET, "no kubenet on this node: its runtime is containerd://1.6.20"),
        (DOCKER, CNI, "no kubenet on this node: its kubelet has --network-plugin=cni"),
        (NotAsked("node", "--api=off"), CNI, "no kubenet on this node: its kubelet has --network-plugin=cni"),
        (DOCKER, plugged(""), "no kubenet on this node: its kubelet has --network-plugin="),
    ],
)
def test_without_kubenet_nobody_misses_its_reservations(node: Reading[Node], table: Reading[Daemons], why: str) -> None:
    stores = crosscheck.reservations([NO_STORE], table, node)
    assert [store.reading for store in stores] == [NotAsked("reservations", why)]


@pytest.mark.parametrize("table", [KUBENET, plugged(None), Unread("daemons", "not the node's")])
def test_reservations_that_are_missing_from_a_node_of_kubenet_are_unread(table: Reading[Daemons]) -> None:
    assert crosscheck.reservations([NO_STORE], table, DOCKER) == (NO_STORE,)


@pytest.mark.parametrize(
    "store",
    [
        replace(NO_STORE, network="bridge"),
        Store("kubenet", Unread("reservations", "/var/lib/cni/networks/kubenet: Permission denied")),
        Store("kubenet", Seen(())),
    ],
)
def test_other_networks_and_other_faults_are_told_as_they_are(store: Store) -> None:
    assert crosscheck.reservations([store], CNI, CONTAINERD) == (store,)


def test_without_docker_nobody_misses_checkpoints_and_those_there_are_stay() -> None:
    no_docker = NotAsked("containers", "the runtime of this node is containerd://1.6.20, not docker")
    assert crosscheck.checkpoints(NO_DIRECTORY, no_docker) == NotAsked("checkpoints", no_docker.why)
    assert crosscheck.checkpoints(Seen(CHECKPOINTS), no_docker) == Seen(CHECKPOINTS)
    closed: Reading[Checkpoint] = Unread("checkpoints", "/var/lib/dockershim/sandbox: Permission denied")
    assert crosscheck.checkpoints(closed, no_docker) == closed


def test_without_a_network_nobody_misses_the_cache_of_its_results() -> None:
    no_cache: Reading[CniResult] = Unread("cni_results", "none of these exists: /var/lib/cni/cache/results")
    no_kubenet = Store("kubenet", NotAsked("reservations", "no kubenet on this node"))
    assert crosscheck.cni_results(no_cache, (no_kubenet,)) == NotAsked("cni_results", "no kubenet on this node")
    assert crosscheck.cni_results(no_cache, (no_kubenet, Store("bridge", Seen(())))) == no_cache
    assert crosscheck.cni_results(no_cache, (NO_STORE,)) == no_cache
    closed: Reading[CniResult] = Unread("cni_results", "/var/lib/cni/cache/results: Permission denied")
    assert crosscheck.cni_results(closed, (no_kubenet,)) == closed


def test_namespaces_seen_through_a_containers_process_table_are_unread() -> None:
    table = Unread("daemons", "/proc shows no kubelet and no container runtime: not the node's (hostPID?)")
    assert why(crosscheck.addresses(Seen(ADDRESSES), table)) == table.why
    assert crosscheck.addresses(Seen(ADDRESSES), Seen((daemons(),))) == Seen(ADDRESSES)


def test_no_pod_on_a_node_that_does_not_exist_is_unread() -> None:
    assert why(crosscheck.pods(Seen(()), Seen(()), STRANGER, "wrker-1")) == (
        "the API server has no Node named 'wrker-1': is the node's name right?"
    )


def test_no_pod_on_a_node_that_exists_is_none() -> None:
    assert crosscheck.pods(Seen(()), Seen((WORKER,)), STRANGER, "worker-1") == Seen(())


@pytest.mark.parametrize("listed", [(), PODS[:1], PODS])
@pytest.mark.parametrize(
    "known",
    [registration(last_seen()), registration(kubelet_name="worker-1"), registration(listed_pods=1)],
    ids=["remembered", "the kubelet's own name", "pods of it"],
)
def test_unread_is_not_empty_the_pods_of_a_vanished_node_are_swept_and_convict_nobody(
    listed: tuple[Pod, ...], known: Registration
) -> None:
    assert why(crosscheck.pods(Seen(listed), Seen(()), Seen((known,)), "worker-1")) == (
        "the Node 'worker-1' is gone, and its pods with it: nothing follows from their list"
    )


def test_pods_that_were_not_asked_for_stay_so() -> None:
    assert crosscheck.pods(NO_API, Seen(()), STRANGER, "worker-1") == NO_API


def test_no_pods_of_a_node_that_may_not_exist_are_not_believed() -> None:
    doubted = crosscheck.pods(Seen(()), Unread("node", "403 forbidden"), STRANGER, "worker-1")
    assert isinstance(doubted, Unread)
    assert "'worker-1'" in doubted.why
    assert "403 forbidden" in doubted.why
    assert crosscheck.pods(Seen(PODS), Unread("node", "403 forbidden"), STRANGER, "worker-1") == Seen(PODS)


def test_a_directory_without_the_sandboxes_that_run_is_not_the_kubelets() -> None:
    running = sandbox("1" * 64, "shop/web")
    doubted = crosscheck.checkpoints(Seen((Checkpoint("9" * 64, ""),)), Seen((running,)))
    assert isinstance(doubted, Unread)
    assert "is it the kubelet's directory?" in doubted.why


def test_a_directory_with_some_of_the_sandboxes_that_run_is_believed() -> None:
    reading = Seen((Checkpoint("1" * 64, "shop/web"),))
    running = (sandbox("1" * 64, "shop/web"), sandbox("2" * 64, "shop/db"))
    assert crosscheck.checkpoints(reading, Seen(running)) == reading
    assert crosscheck.checkpoints(Seen(()), Seen((sandbox("1" * 64, "shop/web", "exited"),))) == Seen(())


# Device plugins

MISSING: Reading[DevicePlugins] = Unread("device_plugins", "/var/lib/kubelet/device-plugins does not exist")
EMPTY: Reading[DevicePlugins] = Seen((device_plugins(kubelet_socket=None),))
NO_NODE_OBJECT: Reading[Node] = NotAsked("node", "--api=off")

no_kubelets = pytest.mark.parametrize(
    ("reading", "reason"),
    [
        (MISSING, "/var/lib/kubelet/device-plugins does not exist"),
        (EMPTY, "the directory is empty, while 3 sandboxes run"),
    ],
    ids=["missing", "empty"],
)


@no_kubelets
def test_a_directory_that_is_no_kubelets_is_no_fault_where_nobody_asks_for_devices(
    reading: Reading[DevicePlugins], reason: str
) -> None:
    left_alone = NotAsked("device_plugins", f"{reason}, and nothing here is known to ask for devices")
    assert crosscheck.device_plugins(reading, Seen(CONTAINERS), Seen(PODS), Seen((WORKER,))) == left_alone
    assert crosscheck.device_plugins(reading, Seen(CONTAINERS), Seen(()), Seen(())) == left_alone
    assert crosscheck.device_plugins(reading, Seen(CONTAINERS), NO_API, NO_NODE_OBJECT) == left_alone


@no_kubelets
@pytest.mark.parametrize("asking", [refused_pod("shop/gpu"), replace(pod("shop/gpu"), wants=(KVM,))])
def test_unread_is_not_empty_a_pod_that_asks_for_devices_needs_the_directory(
    reading: Reading[DevicePlugins], reason: str, asking: Pod
) -> None:
    doubted = crosscheck.device_plugins(reading, Seen(CONTAINERS), Seen((*PODS, asking)), Seen((WORKER,)))
    assert why(doubted) == f"{reason}, and shop/gpu has to do with devices: is it mounted?"


@no_kubelets
def test_unread_is_not_empty_a_node_with_devices_needs_the_directory(
    reading: Reading[DevicePlugins], reason: str
) -> None:
    worker = replace(WORKER, devices=(NodeDevices(KVM, 3, 0),))
    doubted = crosscheck.device_plugins(reading, Seen(CONTAINERS), Seen(PODS), Seen((worker,)))
    assert why(doubted) == f"{reason}, and node worker-1 has to do with devices: is it mounted?"


@no_kubelets
def test_what_an_uninstalled_plugin_left_in_the_nodes_status_asks_for_nothing(
    reading: Reading[DevicePlugins], reason: str
) -> None:
    worker = replace(WORKER, devices=(NodeDevices(KVM, 0, 0),))
    doubted = crosscheck.device_plugins(reading, Seen(CONTAINERS), Seen(PODS), Seen((worker,)))
    assert doubted == NotAsked("device_plugins", f"{reason}, and nothing here is known to ask for devices")


@no_kubelets
def test_unread_is_not_empty_who_asks_is_not_known_without_the_pods(
    reading: Reading[DevicePlugins], reason: str
) -> None:
    silent = Unread("pods", "timed out")
    assert why(crosscheck.device_plugins(reading, Seen(CONTAINERS), silent, Seen((WORKER,)))) == reason
    assert why(crosscheck.device_plugins(reading, Seen(CONTAINERS), Seen(PODS), Unread("node", "403"))) == reason


def test_a_directory_that_may_not_be_read_is_unread_whoever_asks() -> None:
    closed: Reading[DevicePlugins] = Unread("device_plugins", "/var/lib/kubelet/device-plugins: Permission denied")
    assert crosscheck.device_plugins(closed, Seen(CONTAINERS), Seen(PODS), Seen((WORKER,))) == closed


def test_an_empty_directory_is_one_where_no_pod_runs_yet_or_nobody_knows() -> None:
    for runtime in (NO_CONTAINERS, Seen((sandbox(WEB_ID, "shop/web", "exited"),)), SILENT):
        assert crosscheck.device_plugins(EMPTY, runtime, Seen(PODS), Seen((WORKER,))) == EMPTY


@pytest.mark.parametrize(
    "devices",
    [
        NO_DEVICES,
        device_plugins(plugin_socket(), kubelet_socket=None),
        device_plugins(registered(KVM, "kvm0"), kubelet_socket=None),
    ],
    ids=["the kubelet's socket", "a plugin's socket", "a checkpoint"],
)
def test_a_directory_with_anything_of_the_kubelets_is_believed(devices: DevicePlugins) -> None:
    reading = Seen((devices,))
    assert crosscheck.device_plugins(reading, Seen(CONTAINERS), Seen(PODS), Seen((WORKER,))) == reading


def test_what_was_left_alone_stays_so() -> None:
    off = NotAsked("device_plugins", "--device-plugins-dir=off")
    assert crosscheck.device_plugins(off, Seen(CONTAINERS), Seen((refused_pod("shop/gpu"),)), Seen((WORKER,))) == off
