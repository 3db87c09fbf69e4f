"""Readings that contradict each other: which become unavailable, and which are accepted."""

from dataclasses import replace
from typing import Any, Final

import pytest

from agent.model.registration import Registration
from agent.model.runtime import ContainerRuntime
from agent.model.snapshot import (
    Checkpoint,
    Container,
    Known,
    NetworkStore,
    Node,
    NodeDevices,
    NotRequested,
    Pod,
    Reading,
    Snapshot,
    Unavailable,
)
from agent.model.volumes import Mount
from agent.sources.crosscheck import all_sources, namespaces
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
    node,
    plugin_socket,
    pod,
    processes,
    refused_pod,
    registered,
    registration,
    reservation,
    sandbox,
)

NOTHING: Final[Reading[Any]] = Known(())
NO_API: Final[Reading[Any]] = NotRequested("pods", "--api=off")
SILENT: Final[Reading[Any]] = Unavailable("containers", "timed out")
REFUSED: Final[Reading[Any]] = Unavailable("containers", "docker: connection refused")
NO_DIRECTORY: Final[Reading[Any]] = Unavailable(
    "checkpoints", "none of these exists: /var/lib/dockershim/sandbox", missing=True
)
CONTAINER: Final = Container("e" * 64, "running", 0, "", "", sandbox=False)


def checked(**readings: Any) -> Snapshot:
    """Check a healthy node with these readings in place of its own."""
    return all_sources(replace(node(), **readings))


def why_not(reading: Reading[object]) -> str:
    assert isinstance(reading, Unavailable)
    return reading.why


def test_what_is_read_through_the_process_table_of_a_container_is_unavailable() -> None:
    foreign = Unavailable("processes", "not the node's")
    read = {
        "addresses": Known(ADDRESSES),
        "mounted_namespaces": Known(("/run/netns/cni-1",)),
        "mounts": Known((Mount("kubernetes.io/gce-pd/d-1"),)),
    }
    for name, reading in read.items():
        off = NotRequested(name, "--kubelet-dir=off")
        for given, table, expected in (
            (reading, Known(processes()), reading),
            (reading, foreign, Unavailable(name, "not the node's")),
            (off, foreign, off),
        ):
            snapshot = replace(node(), processes=table, **{name: given})  # type: ignore[arg-type]
            assert getattr(namespaces(snapshot), name) == expected


# The list of containers, beside that of the pods


def test_a_list_without_any_running_pod_is_unavailable() -> None:
    assert why_not(checked(containers=NOTHING).containers) == (
        "the runtime lists no container of the 3 pods that run here according to the API server"
    )
    strangers = Known((sandbox("f" * 64, "other/pod"), CONTAINER))
    assert why_not(checked(containers=strangers).containers) == (
        "the runtime lists 2 containers and none of the 3 pods that run here according to the API server"
    )
    one = Known((sandbox(WEB_ID, "shop/web"),))
    assert checked(containers=one).containers == one


def test_an_empty_list_is_accepted_without_running_pods() -> None:
    # The last one waits for a new sandbox, and gets none where no address is free.
    for pods in (
        NOTHING,
        Known((pod("a/b", "10.88.0.2", phase="Pending"),)),
        Known((pod("a/b", phase="Succeeded"),)),
        Known((pod("a/b", "10.88.0.2", deleting=True),)),
        Known((pod("a/b"),)),
        NO_API,
        Unavailable("pods", "timed out"),
    ):
        assert checked(containers=NOTHING, pods=pods).containers == NOTHING
    assert checked(containers=SILENT).containers == SILENT


# The runtime


SOCKET: Final = "unix:///run/containerd/containerd.sock"
EVERY_LIST: Final = (SILENT, REFUSED, NOTHING, Known(CONTAINERS))
NO_NODE: Final[Reading[Node | None]] = NotRequested("node", "--api=off")
ONLY_DOCKER: Final = NotRequested("runtimes", "--runtime=docker")


def of_runtime(runtime: str) -> Reading[Node | None]:
    return Known(replace(WORKER, runtime=runtime))


DOCKER, CONTAINERD = of_runtime("docker://20.10.24"), of_runtime("containerd://1.6.20")


def list_of(
    containers: Reading[Any], node_object: Reading[Node | None], runtime: str | None = None, **more: Any
) -> Reading[tuple[Container, ...]]:
    """Check a list on a node with a leak and without pods, whose kubelet names a runtime."""
    stores = (NetworkStore("kubenet", Known((reservation("10.244.1.9"),))),)
    kubelet = Known(replace(processes(), runtime=runtime))
    given = {"processes": kubelet, "checkpoints": NO_DIRECTORY, "reservations": stores, "pods": NO_API} | more
    return checked(containers=containers, node=node_object, **given).containers


def test_docker_is_not_requested_if_the_kubelet_or_its_node_names_another_runtime() -> None:
    for reading in EVERY_LIST:
        for node_object, named in ((CONTAINERD, None), (CONTAINERD, ""), (CONTAINERD, SOCKET), (NO_NODE, SOCKET)):
            why = f"the runtime of this node is {named or 'containerd://1.6.20'}, and it was not asked"
            found = list_of(reading, node_object, named, runtimes=ONLY_DOCKER)
            assert found == NotRequested("containers", why)
            assert why_not(list_of(reading, node_object, named)) == (
                f"{why}: if it is stopped, start it; if it runs, set --cri-endpoint"
            )


def test_a_runtime_that_was_not_found_leaves_one_source_unavailable() -> None:
    """Such as that of k3s while it restarts, beside docker or without."""
    seen = checked(containers=REFUSED, node=CONTAINERD, checkpoints=NO_DIRECTORY)
    assert [reading.source for reading in seen.unavailable_about_addresses()] == ["containers"]
    assert seen.checkpoints == NotRequested("checkpoints", "a kubelet with containerd://1.6.20 has none")


def test_who_contradicts_another_leaves_the_runtime_unknown() -> None:
    unknown = "it is unknown whose pods run here: "
    two = Known(replace(processes(), runtime=SOCKET, runtime_disputed=True))
    for reading in EVERY_LIST:
        assert why_not(list_of(reading, CONTAINERD, "docker")) == (
            f"{unknown}the kubelet names docker as runtime, and its Node names containerd://1.6.20"
        )
        assert why_not(list_of(reading, DOCKER, SOCKET)) == (
            f"{unknown}the kubelet names {SOCKET} as runtime, and its Node names docker://20.10.24"
        )
        for node_object in (DOCKER, CONTAINERD, NO_NODE):
            assert why_not(list_of(reading, node_object, processes=two)) == (
                f"{unknown}processes named kubelet name different runtimes, such as {SOCKET}"
            )


def test_a_docker_stopped_for_a_moment_is_unavailable() -> None:
    for node_object in (DOCKER, of_runtime(""), Known(None), Unavailable("node", "timed out"), NO_NODE):
        assert list_of(REFUSED, node_object) == REFUSED


@pytest.mark.parametrize(
    ("node_object", "named", "more", "accepted"),
    [
        (NO_NODE, None, {}, False),
        (NO_NODE, "", {"checkpoints": NOTHING}, False),
        (NO_NODE, "docker", {}, True),
        (DOCKER, "", {}, True),
        (NO_NODE, None, {"checkpoints": NOTHING}, True),
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
    node_object: Reading[Node | None], named: str | None, more: dict[str, Any], accepted: bool
) -> None:
    given = dict(more)
    found = list_of(given.pop("containers", NOTHING), node_object, named, **given)
    assert isinstance(found, Known if accepted else Unavailable)


# Checkpoints and the cache


def test_a_missing_checkpoint_directory_is_empty_only_where_nothing_could_have_one() -> None:
    empty = (NetworkStore("kubenet", NOTHING),)
    missing = (NetworkStore("kubenet", Unavailable("reservations", "it does not exist", missing=True)),)
    reserved = (NetworkStore("kubenet", Known((reservation("10.244.1.9"),))),)
    for containers, stores, expected in (
        (Known((CONTAINER,)), empty, NOTHING),
        (NOTHING, empty, NOTHING),
        (NOTHING, missing, NOTHING),
        (NOTHING, reserved, NO_DIRECTORY),
        (Known(CONTAINERS), empty, NO_DIRECTORY),
        (SILENT, empty, NO_DIRECTORY),
    ):
        seen = checked(containers=containers, reservations=stores, checkpoints=NO_DIRECTORY, pods=NO_API)
        assert seen.checkpoints == expected
    closed = Unavailable("checkpoints", "cannot read /x does not exist: permission denied", missing=False)
    assert checked(containers=NOTHING, reservations=empty, checkpoints=closed, pods=NO_API).checkpoints == closed


def test_a_checkpoint_directory_without_running_sandboxes_is_unavailable() -> None:
    running = (sandbox("1" * 64, "shop/web"), sandbox("2" * 64, "shop/db"))
    for checkpoints, containers, accepted in (
        ((Checkpoint("9" * 64, ""),), running, False),
        ((Checkpoint("1" * 64, "shop/web"),), running, True),
        ((), (sandbox("1" * 64, "shop/web", "exited"),), True),
        (CHECKPOINTS, (), True),
    ):
        seen = checked(checkpoints=Known(checkpoints), containers=Known(containers), pods=NO_API).checkpoints
        assert seen == Known(checkpoints) if accepted else "check --checkpoint-dir" in why_not(seen)


def test_without_docker_missing_checkpoints_are_not_requested_and_existing_ones_stay() -> None:
    elsewhere = {"node": CONTAINERD, "runtimes": ONLY_DOCKER}
    assert isinstance(checked(checkpoints=NO_DIRECTORY, **elsewhere).checkpoints, NotRequested)


def test_what_is_missing_is_told_by_a_field_and_not_by_words() -> None:
    """On a node without docker, whose kubelet names no runtime."""
    containerd = Known((ContainerRuntime("containerd", "1.7.24", SOCKET),))
    elsewhere = {"node": NO_NODE, "processes": Known(replace(processes(), runtime="")), "runtimes": containerd}
    closed = Unavailable("checkpoints", "cannot read /x does not exist: permission denied", missing=False)
    assert checked(checkpoints=closed, **elsewhere).checkpoints == closed
    assert isinstance(checked(checkpoints=replace(closed, missing=True), **elsewhere).checkpoints, NotRequested)


def test_without_a_network_a_missing_cni_cache_is_empty() -> None:
    no_cache = Unavailable("cni_results", "none of these exists: /var/lib/cni/cache/results", missing=True)
    podman = NetworkStore("podman", NOTHING)
    absent = NetworkStore("kubenet", Unavailable("reservations", "it does not exist", missing=True), absent=True)
    for stores, expected in (
        ((), NotRequested("cni_results", "no network of this node uses host-local")),
        ((podman,), NotRequested("cni_results", "its addresses are those of podman")),
        ((podman, NetworkStore("kubenet", NOTHING)), no_cache),
        ((absent,), no_cache),
    ):
        assert checked(cni_results=no_cache, reservations=stores).cni_results == expected
    seen = checked(cni_results=no_cache, reservations=(podman, absent), containers=NOTHING, pods=NO_API)
    assert seen.cni_results == NOTHING, "before the first pod"
    closed = Unavailable("cni_results", "/var/lib/cni/cache/results: Permission denied")
    assert checked(cni_results=closed, reservations=(podman,)).cni_results == closed


# Pods


def test_the_pods_of_a_node_that_does_not_exist_are_unavailable() -> None:
    for listed in ((), PODS[:1], PODS):
        unproven = checked(pods=Known(listed), node=Known(None), registration=Known(registration()))
        assert why_not(unproven.pods) == "the API server has no Node named worker-1: check --node"
        evidence: tuple[Registration, ...] = (
            registration(last_seen()),
            registration(kubelet_name="worker-1"),
            registration(listed_pods=1),
        )
        for known in evidence:
            seen = checked(pods=Known(listed), node=Known(None), registration=Known(known))
            assert why_not(seen.pods) == (
                "the Node worker-1 was deleted together with its pods, so the list of pods is not reliable"
            )


def test_an_empty_pod_list_needs_the_node() -> None:
    forbidden = Unavailable("node", "403 forbidden")
    assert checked(pods=NOTHING).pods == NOTHING
    assert why_not(checked(pods=NOTHING, node=forbidden).pods) == (
        "node worker-1 has no pods, and it is unknown whether the node exists: 403 forbidden"
    )
    for reading, node_object in ((Known(PODS), forbidden), (NO_API, Known(None)), (Unavailable("pods", "x"), NO_NODE)):
        assert checked(pods=reading, node=node_object).pods == reading


# Device plugins

MISSING: Final[Reading[Any]] = Unavailable(
    "device_plugins", "/var/lib/kubelet/device-plugins does not exist", missing=True
)
EMPTY: Final[Reading[Any]] = Known(device_plugins(kubelet_socket=None))


@pytest.mark.parametrize(
    ("reading", "reason"),
    [(MISSING, MISSING.why), (EMPTY, "the device plugin directory is empty, but 3 sandboxes are running")],  # type: ignore[union-attr]
    ids=["missing", "empty"],
)
def test_a_directory_that_is_not_the_kubelets_is_needed_if_somebody_uses_devices(
    reading: Reading[Any], reason: str
) -> None:
    def seen(pods: Reading[Any] = Known(PODS), node_object: Reading[Node | None] = Known(WORKER)) -> Reading[Any]:  # noqa: B008
        return checked(device_plugins=reading, pods=pods, node=node_object).device_plugins

    def with_devices(number: int) -> Reading[Node | None]:
        return Known(replace(WORKER, devices=(NodeDevices(KVM, number, 0),)))

    left_alone = NotRequested("device_plugins", f"{reason}, and no pod here requests devices")
    # The 0 is left of a plugin that was uninstalled.
    assert seen() == seen(NO_API, NO_NODE) == seen(node_object=with_devices(0)) == left_alone
    remedy = "uses devices: check --device-plugins-dir, and that it is mounted"
    asking: tuple[Pod, ...] = (refused_pod("shop/gpu"), replace(pod("shop/gpu"), wants=(KVM,)))
    for gpu in asking:
        assert why_not(seen(Known((*PODS, gpu)))) == f"{reason}, but shop/gpu {remedy}"
    assert why_not(seen(node_object=with_devices(3))) == f"{reason}, but node worker-1 {remedy}"
    for unknown in (seen(Unavailable("pods", "timed out")), seen(node_object=Unavailable("node", "403"))):
        assert why_not(unknown) == reason, "it is unknown whether it is needed"


def test_any_other_plugin_directory_is_accepted() -> None:
    for reading in (
        Known(NO_DEVICES),  # with the kubelet's socket
        Known(device_plugins(plugin_socket(), kubelet_socket=None)),
        Known(device_plugins(registered(KVM, "kvm0"), kubelet_socket=None)),
        Unavailable("device_plugins", "/var/lib/kubelet/device-plugins: Permission denied"),
        NotRequested("device_plugins", "--device-plugins-dir=off"),
    ):
        assert checked(device_plugins=reading, pods=Known((*PODS, refused_pod("shop/gpu")))).device_plugins == reading
    for containers in (NOTHING, Known((sandbox(WEB_ID, "shop/web", "exited"),)), SILENT):
        assert checked(device_plugins=EMPTY, containers=containers, pods=NO_API).device_plugins == EMPTY
