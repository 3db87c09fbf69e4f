"""Readings that contradict each other: which become unavailable, and which are accepted."""

from dataclasses import replace
from typing import Any

import pytest

from agent.model.devices import DevicePlugins
from agent.model.registration import Registration
from agent.model.snapshot import (
    Address,
    Checkpoint,
    CniResult,
    Container,
    Known,
    NetworkStore,
    Node,
    NodeDevices,
    NotRequested,
    Pod,
    ProcessStartTimes,
    Reading,
    Unavailable,
)
from agent.model.volumes import Mount
from agent.sources import crosscheck
from tests import builders
from tests.builders import (
    ADDRESSES,
    CHECKPOINTS,
    CONTAINERS,
    KVM,
    NO_DEVICES,
    PODS,
    WEB_ID,
    WORKER,
    device_plugins,
    last_seen,
    plugin_socket,
    pod,
    processes,
    refused_pod,
    registered,
    registration,
    reservation,
    sandbox,
)

SILENT = Unavailable("containers", "timed out")
NO_CONTAINERS: Reading[tuple[Container, ...]] = Known(())
NO_DIRECTORY: Reading[tuple[Checkpoint, ...]] = Unavailable(
    "checkpoints", "none of these exists: /var/lib/dockershim/sandbox", missing=True
)

NO_API = NotRequested("pods", "--api=off")
UNPROVEN_NAME: Reading[Registration] = Known(registration())
"""No evidence on this node confirms its name."""


def error_of(
    reading: Reading[tuple[Container, ...]]
    | Reading[tuple[Checkpoint, ...]]
    | Reading[tuple[Pod, ...]]
    | Reading[tuple[Address, ...]]
    | Reading[DevicePlugins],
) -> str:
    assert isinstance(reading, Unavailable)
    return reading.why


def test_a_mount_table_needs_the_process_table_of_the_node() -> None:
    mounts = Known((Mount("kubernetes.io/gce-pd/d-1"),))
    assert crosscheck.mounts(mounts, Known(processes())) == mounts
    assert crosscheck.mounts(mounts, Unavailable("processes", "not the node's")) == Unavailable(
        "mounts", "not the node's"
    )
    mounted = Known(("/run/netns/cni-1",))
    assert crosscheck.mounted_namespaces(mounted, Known(processes())) == mounted
    assert crosscheck.mounted_namespaces(mounted, Unavailable("processes", "not the node's")) == Unavailable(
        "mounted_namespaces", "not the node's"
    )
    left_alone = NotRequested("mounts", "--kubelet-dir=off")
    assert crosscheck.mounts(left_alone, Unavailable("processes", "not the node's")) == left_alone


def test_an_empty_list_on_a_node_with_running_pods_is_unavailable() -> None:
    assert error_of(crosscheck.containers(NO_CONTAINERS, Known(PODS))) == (
        "the runtime lists no container of the 3 pods that run here according to the API server"
    )


def test_a_list_without_any_running_pod_is_unavailable() -> None:
    strangers = Known((sandbox("f" * 64, "other/pod"), Container("e" * 64, "running", 0, "", "", sandbox=False)))
    assert error_of(crosscheck.containers(strangers, Known(PODS))) == (
        "the runtime lists 2 containers and none of the 3 pods that run here according to the API server"
    )


def test_a_list_with_one_running_pod_is_accepted() -> None:
    reading = Known((sandbox(WEB_ID, "shop/web"),))
    assert crosscheck.containers(reading, Known(PODS)) == reading


def test_an_empty_list_is_accepted_without_running_pods() -> None:
    # The last one waits for a new sandbox, and gets none where no address is free.
    for pods in (
        (),
        (pod("a/b", "10.88.0.2", phase="Pending"),),
        (pod("a/b", phase="Succeeded"),),
        (pod("a/b", "10.88.0.2", deleting=True),),
        (pod("a/b"),),
    ):
        assert crosscheck.containers(NO_CONTAINERS, Known(pods)) == NO_CONTAINERS


def test_without_the_api_server_the_list_of_docker_is_accepted() -> None:
    assert crosscheck.containers(NO_CONTAINERS, NO_API) == NO_CONTAINERS
    assert crosscheck.containers(NO_CONTAINERS, Unavailable("pods", "timed out")) == NO_CONTAINERS


def test_an_unavailable_source_keeps_its_own_reason() -> None:
    assert crosscheck.containers(SILENT, Known(PODS)) == SILENT
    assert crosscheck.checkpoints(NO_DIRECTORY, SILENT, ()) == NO_DIRECTORY
    gone: Reading[tuple[Pod, ...]] = Unavailable("pods", "timed out")
    assert crosscheck.pods(gone, Known(None), UNPROVEN_NAME, "worker-1") == gone


def test_a_missing_checkpoint_directory_is_empty_without_sandboxes() -> None:
    unrelated = Known((Container("e" * 64, "running", 0, "", "", sandbox=False),))
    assert crosscheck.checkpoints(NO_DIRECTORY, unrelated, ()) == Known(())
    assert crosscheck.checkpoints(NO_DIRECTORY, NO_CONTAINERS, ()) == Known(())
    assert crosscheck.checkpoints(NO_DIRECTORY, NO_CONTAINERS, [NO_STORE]) == Known(())


def test_a_missing_checkpoint_directory_with_reservations_is_unavailable() -> None:
    stores = [NetworkStore("kubenet", Known((reservation("10.244.1.9"),)))]
    assert crosscheck.checkpoints(NO_DIRECTORY, NO_CONTAINERS, stores) == NO_DIRECTORY


def test_a_missing_checkpoint_directory_with_sandboxes_is_unavailable() -> None:
    assert crosscheck.checkpoints(NO_DIRECTORY, Known(CONTAINERS), ()) == NO_DIRECTORY


def test_an_unreadable_checkpoint_directory_is_unavailable() -> None:
    closed: Reading[tuple[Checkpoint, ...]] = Unavailable(
        "checkpoints", "/var/lib/dockershim/sandbox: Permission denied"
    )
    assert crosscheck.checkpoints(closed, NO_CONTAINERS, ()) == closed


def test_checkpoints_that_were_read_are_accepted() -> None:
    assert crosscheck.checkpoints(Known(CHECKPOINTS), NO_CONTAINERS, ()) == Known(CHECKPOINTS)


def of_runtime(runtime: str) -> Reading[Node | None]:
    return Known(replace(WORKER, runtime=runtime))


def plugged(plugin: str | None) -> Reading[ProcessStartTimes]:
    return Known(replace(processes(), network_plugin=plugin))


DOCKER, CONTAINERD = of_runtime("docker://20.10.24"), of_runtime("containerd://1.6.20")
REFUSED = Unavailable("containers", "docker: connection refused")
NO_STORE = NetworkStore(
    "kubenet", Unavailable("reservations", "/var/lib/cni/networks/kubenet does not exist", missing=True)
)
KUBENET, CNI = plugged("kubenet"), plugged("cni")
NOT_SELECTED = "no kubenet on this node: neither its kubelet nor cri-dockerd has --network-plugin=kubenet"


def identified(
    reading: Reading[tuple[Container, ...]], node: Reading[Node | None], runtime: str | None = None, **more: Any
) -> Reading[tuple[Container, ...]]:
    """Check a list on a node with a reservation, whose kubelet names a runtime."""
    named = Known(replace(processes(), runtime=runtime))
    given = {"containers": reading, "node": node, "processes": named, "checkpoints": NO_DIRECTORY} | more
    return crosscheck.runtime(replace(builders.node(reservation("10.244.1.9")), **given))


NO_NODE: Reading[Node | None] = NotRequested("node", "--api=off")
SOCKET = "unix:///run/containerd/containerd.sock"
EVERY_READING = [SILENT, REFUSED, NO_CONTAINERS, Known(CONTAINERS)]


ONLY_DOCKER = NotRequested("runtimes", "--runtime=docker")


@pytest.mark.parametrize("reading", EVERY_READING)
@pytest.mark.parametrize("named", [None, "", SOCKET])
def test_docker_is_not_requested_if_the_node_names_another_runtime(
    reading: Reading[tuple[Container, ...]], named: str | None
) -> None:
    why = f"the runtime of this node is {named or 'containerd://1.6.20'}, and it was not asked"
    assert identified(reading, CONTAINERD, named, runtimes=ONLY_DOCKER) == NotRequested("containers", why)
    assert identified(reading, CONTAINERD, named) == Unavailable(
        "containers", f"{why}: if it is stopped, start it; if it runs, set --cri-endpoint"
    )


def test_a_mount_table_of_a_container_lacks_the_namespaces_of_the_node() -> None:
    snapshot = replace(builders.node(), mounted_namespaces=Known(("/run/netns/cni-9",)))
    assert crosscheck.namespaces(snapshot).mounted_namespaces == snapshot.mounted_namespaces
    foreign = replace(snapshot, processes=Unavailable("processes", "not the node's"))
    assert crosscheck.namespaces(foreign).mounted_namespaces == Unavailable("mounted_namespaces", "not the node's")


def test_a_runtime_that_was_not_found_leaves_one_source_unavailable() -> None:
    """Such as that of k3s while it restarts, beside docker or without."""
    down = replace(
        builders.node(reservation("10.244.1.9"), containers=REFUSED), node=CONTAINERD, checkpoints=NO_DIRECTORY
    )
    seen = crosscheck.all_sources(down)
    assert [one.source for one in seen.unavailable_about_addresses()] == ["containers"]
    assert seen.checkpoints == NotRequested("checkpoints", "a kubelet with containerd://1.6.20 has none")


@pytest.mark.parametrize("reading", EVERY_READING)
@pytest.mark.parametrize(
    ("node", "named", "others"),
    [
        (CONTAINERD, "docker", "the kubelet names docker as runtime, and its Node names containerd://1.6.20"),
        (DOCKER, SOCKET, f"the kubelet names {SOCKET} as runtime, and its Node names docker://20.10.24"),
    ],
)
def test_a_kubelet_and_a_node_that_contradict_each_other_leave_the_runtime_unknown(
    reading: Reading[tuple[Container, ...]], node: Reading[Node | None], named: str, others: str
) -> None:
    assert identified(reading, node, named) == Unavailable("containers", f"it is unknown whose pods run here: {others}")


@pytest.mark.parametrize("reading", EVERY_READING)
@pytest.mark.parametrize("node", [DOCKER, CONTAINERD, NO_NODE])
def test_kubelets_that_contradict_each_other_leave_the_runtime_unknown(
    reading: Reading[tuple[Container, ...]], node: Reading[Node | None]
) -> None:
    two = Known(replace(processes(), runtime=SOCKET, runtime_disputed=True))
    assert identified(reading, node, processes=two) == Unavailable(
        "containers",
        f"it is unknown whose pods run here: processes named kubelet name different runtimes, such as {SOCKET}",
    )


@pytest.mark.parametrize("reading", EVERY_READING)
@pytest.mark.parametrize("node", [NO_NODE, of_runtime(""), Unavailable("node", "timed out")])
def test_docker_is_not_requested_if_the_kubelet_names_another_runtime(
    reading: Reading[tuple[Container, ...]], node: Reading[Node | None]
) -> None:
    assert identified(reading, node, SOCKET, runtimes=ONLY_DOCKER) == NotRequested(
        "containers", f"the runtime of this node is {SOCKET}, and it was not asked"
    )


@pytest.mark.parametrize("node", [DOCKER, of_runtime(""), Known(None), Unavailable("node", "timed out"), NO_NODE])
def test_a_docker_stopped_for_a_moment_is_unavailable(node: Reading[Node | None]) -> None:
    assert identified(REFUSED, node) == REFUSED


@pytest.mark.parametrize(
    ("node", "named", "more", "accepted"),
    [
        (NO_NODE, None, {}, False),
        (NO_NODE, "", {"checkpoints": Known(())}, False),
        (NO_NODE, "docker", {}, True),
        (DOCKER, "", {}, True),
        (NO_NODE, None, {"checkpoints": Known(())}, True),
        (NO_NODE, None, {"reservations": ()}, True),
        (NO_NODE, "", {"containers": Known((sandbox(WEB_ID, "shop/web"),))}, True),
        (NO_NODE, "", {"containers": Known((sandbox(WEB_ID, "shop/web", "exited"),))}, False),
    ],
    ids=[
        "nothing", "a left-over directory", "the kubelet", "the Node", "a directory", "no reservation", "a sandbox",
        "a sandbox from before",
    ],
)  # fmt: skip
def test_a_list_without_pods_needs_evidence_that_docker_is_the_runtime(
    node: Reading[Node | None], named: str | None, more: dict[str, Any], accepted: bool
) -> None:
    checked = identified(NO_CONTAINERS, node, named, **more)
    assert isinstance(checked, Known if accepted else Unavailable)


def test_without_docker_missing_checkpoints_are_empty_and_existing_ones_stay() -> None:
    no_docker = NotRequested("containers", "the runtime of this node is containerd://1.6.20, not docker")
    assert crosscheck.checkpoints(NO_DIRECTORY, no_docker, ()) == NotRequested("checkpoints", no_docker.why)
    assert crosscheck.checkpoints(Known(CHECKPOINTS), no_docker, ()) == Known(CHECKPOINTS)
    closed: Reading[tuple[Checkpoint, ...]] = Unavailable(
        "checkpoints", "cannot read /srv/what does not exist: permission denied"
    )
    assert crosscheck.checkpoints(closed, no_docker, ()) == closed


def test_without_a_network_a_missing_cni_cache_is_empty() -> None:
    no_cache: Reading[tuple[CniResult, ...]] = Unavailable(
        "cni_results", "none of these exists: /var/lib/cni/cache/results", missing=True
    )
    no_kubenet = NetworkStore("kubenet", NotRequested("reservations", "no kubenet on this node"))
    assert crosscheck.cni_results(no_cache, (no_kubenet,)) == NotRequested("cni_results", "no kubenet on this node")
    assert crosscheck.cni_results(no_cache, (no_kubenet, NetworkStore("bridge", Known(())))) == no_cache
    assert crosscheck.cni_results(no_cache, (NO_STORE,)) == no_cache
    closed: Reading[tuple[CniResult, ...]] = Unavailable("cni_results", "/var/lib/cni/cache/results: Permission denied")
    assert crosscheck.cni_results(closed, (no_kubenet,)) == closed


def test_namespaces_read_in_a_container_are_unavailable() -> None:
    table = Unavailable("processes", "/proc shows no kubelet and no container runtime: not the node's (hostPID?)")
    assert error_of(crosscheck.addresses(Known(ADDRESSES), table)) == table.why
    assert crosscheck.addresses(Known(ADDRESSES), Known(processes())) == Known(ADDRESSES)


def test_an_empty_pod_list_of_a_missing_node_is_unavailable() -> None:
    assert error_of(crosscheck.pods(Known(()), Known(None), UNPROVEN_NAME, "wrker-1")) == (
        "the API server has no Node named wrker-1: check --node"
    )


def test_an_empty_pod_list_of_an_existing_node_is_empty() -> None:
    assert crosscheck.pods(Known(()), Known(WORKER), UNPROVEN_NAME, "worker-1") == Known(())


@pytest.mark.parametrize("listed", [(), PODS[:1], PODS])
@pytest.mark.parametrize(
    "known",
    [registration(last_seen()), registration(kubelet_name="worker-1"), registration(listed_pods=1)],
    ids=["remembered", "the kubelet's own name", "pods of it"],
)
def test_the_pods_of_a_deleted_node_are_unavailable(listed: tuple[Pod, ...], known: Registration) -> None:
    assert error_of(crosscheck.pods(Known(listed), Known(None), Known(known), "worker-1")) == (
        "the Node worker-1 was deleted together with its pods, so the list of pods is not reliable"
    )


def test_pods_not_requested_stay_not_requested() -> None:
    assert crosscheck.pods(NO_API, Known(None), UNPROVEN_NAME, "worker-1") == NO_API


def test_an_empty_pod_list_of_a_node_that_may_not_exist_is_unavailable() -> None:
    checked = crosscheck.pods(Known(()), Unavailable("node", "403 forbidden"), UNPROVEN_NAME, "worker-1")
    assert isinstance(checked, Unavailable)
    assert "worker-1" in checked.why
    assert "403 forbidden" in checked.why
    assert crosscheck.pods(Known(PODS), Unavailable("node", "403 forbidden"), UNPROVEN_NAME, "worker-1") == Known(PODS)


def test_a_checkpoint_directory_without_running_sandboxes_is_unavailable() -> None:
    running = sandbox("1" * 64, "shop/web")
    checked = crosscheck.checkpoints(Known((Checkpoint("9" * 64, ""),)), Known((running,)), ())
    assert isinstance(checked, Unavailable)
    assert "check --checkpoint-dir" in checked.why


def test_a_checkpoint_directory_with_some_running_sandboxes_is_accepted() -> None:
    reading = Known((Checkpoint("1" * 64, "shop/web"),))
    running = (sandbox("1" * 64, "shop/web"), sandbox("2" * 64, "shop/db"))
    assert crosscheck.checkpoints(reading, Known(running), ()) == reading
    assert crosscheck.checkpoints(Known(()), Known((sandbox("1" * 64, "shop/web", "exited"),)), ()) == Known(())


# Device plugins

MISSING: Reading[DevicePlugins] = Unavailable(
    "device_plugins", "/var/lib/kubelet/device-plugins does not exist", missing=True
)
EMPTY: Reading[DevicePlugins] = Known(device_plugins(kubelet_socket=None))
NO_NODE_OBJECT: Reading[Node | None] = NotRequested("node", "--api=off")

no_kubelets = pytest.mark.parametrize(
    ("reading", "reason"),
    [
        (MISSING, "/var/lib/kubelet/device-plugins does not exist"),
        (EMPTY, "the device plugin directory is empty, but 3 sandboxes are running"),
    ],
    ids=["missing", "empty"],
)


@no_kubelets
def test_another_plugin_directory_is_accepted_if_no_devices_are_requested(
    reading: Reading[DevicePlugins], reason: str
) -> None:
    left_alone = NotRequested("device_plugins", f"{reason}, and no pod here requests devices")
    assert crosscheck.device_plugins(reading, Known(CONTAINERS), Known(PODS), Known(WORKER)) == left_alone
    assert crosscheck.device_plugins(reading, Known(CONTAINERS), Known(()), Known(None)) == left_alone
    assert crosscheck.device_plugins(reading, Known(CONTAINERS), NO_API, NO_NODE_OBJECT) == left_alone


@no_kubelets
@pytest.mark.parametrize("asking", [refused_pod("shop/gpu"), replace(pod("shop/gpu"), wants=(KVM,))])
def test_with_a_pod_that_requests_devices_the_directory_is_needed(
    reading: Reading[DevicePlugins], reason: str, asking: Pod
) -> None:
    checked = crosscheck.device_plugins(reading, Known(CONTAINERS), Known((*PODS, asking)), Known(WORKER))
    assert (
        error_of(checked) == f"{reason}, but shop/gpu uses devices: check --device-plugins-dir, and that it is mounted"
    )


@no_kubelets
def test_with_devices_on_the_node_the_directory_is_needed(reading: Reading[DevicePlugins], reason: str) -> None:
    worker = replace(WORKER, devices=(NodeDevices(KVM, 3, 0),))
    checked = crosscheck.device_plugins(reading, Known(CONTAINERS), Known(PODS), Known(worker))
    assert (
        error_of(checked)
        == f"{reason}, but node worker-1 uses devices: check --device-plugins-dir, and that it is mounted"
    )


@no_kubelets
def test_leftovers_of_an_uninstalled_plugin_do_not_need_the_directory(
    reading: Reading[DevicePlugins], reason: str
) -> None:
    worker = replace(WORKER, devices=(NodeDevices(KVM, 0, 0),))
    checked = crosscheck.device_plugins(reading, Known(CONTAINERS), Known(PODS), Known(worker))
    assert checked == NotRequested("device_plugins", f"{reason}, and no pod here requests devices")


@no_kubelets
def test_without_the_pods_it_is_unknown_whether_the_directory_is_needed(
    reading: Reading[DevicePlugins], reason: str
) -> None:
    unavailable_pods = Unavailable("pods", "timed out")
    assert error_of(crosscheck.device_plugins(reading, Known(CONTAINERS), unavailable_pods, Known(WORKER))) == reason
    assert (
        error_of(crosscheck.device_plugins(reading, Known(CONTAINERS), Known(PODS), Unavailable("node", "403")))
        == reason
    )


def test_an_unreadable_plugin_directory_is_unavailable() -> None:
    closed: Reading[DevicePlugins] = Unavailable("device_plugins", "/var/lib/kubelet/device-plugins: Permission denied")
    assert crosscheck.device_plugins(closed, Known(CONTAINERS), Known(PODS), Known(WORKER)) == closed


def test_an_empty_directory_is_accepted_without_known_running_pods() -> None:
    for runtime in (NO_CONTAINERS, Known((sandbox(WEB_ID, "shop/web", "exited"),)), SILENT):
        assert crosscheck.device_plugins(EMPTY, runtime, Known(PODS), Known(WORKER)) == EMPTY


@pytest.mark.parametrize(
    "devices",
    [
        NO_DEVICES,
        device_plugins(plugin_socket(), kubelet_socket=None),
        device_plugins(registered(KVM, "kvm0"), kubelet_socket=None),
    ],
    ids=["the kubelet's socket", "a plugin's socket", "a checkpoint"],
)
def test_a_directory_with_any_kubelet_file_is_accepted(devices: DevicePlugins) -> None:
    reading = Known(devices)
    assert crosscheck.device_plugins(reading, Known(CONTAINERS), Known(PODS), Known(WORKER)) == reading


def test_a_disabled_source_stays_disabled() -> None:
    off = NotRequested("device_plugins", "--device-plugins-dir=off")
    assert crosscheck.device_plugins(off, Known(CONTAINERS), Known((refused_pod("shop/gpu"),)), Known(WORKER)) == off
