"""One snapshot: each source once, in a safe order, and what fails or contradicts is reported, not guessed."""

from dataclasses import replace
from datetime import timedelta
from typing import Any, Final

import pytest

from agent.model.assessment import State
from agent.model.devices import TransitionKind
from agent.model.documents import dumps, loads
from agent.model.runtime import ContainerRuntime, RuntimeNetwork
from agent.model.snapshot import (
    SOURCES,
    Checkpoint,
    Container,
    Damage,
    DamagedResult,
    Known,
    NetworkStore,
    Node,
    NodeDevices,
    NotRequested,
    Reading,
    Snapshot,
    Unavailable,
)
from agent.sources.source import ReadBy
from tests import builders
from tests.builders import (
    CHECKPOINTS,
    CIDR,
    CONTAINERS,
    DISK,
    GONE,
    KVM,
    NO_DEVICES,
    NON_ADDRESS_SOURCES,
    OLD,
    PODS,
    UPTIME,
    WEB_ID,
    WORKER,
    cni_result,
    device_plugins,
    last_seen,
    node,
    node_using,
    plugin_socket,
    pod,
    processes,
    recorded,
    refused_pod,
    registered,
    registration,
    reservation,
    sandbox,
    scanned,
    transition,
    waiting_pod,
)
from tests.sources.recorded import NOW, RecordedSources

ORPHAN = reservation("10.244.1.9", GONE)
MOUNTED = "/var/run/netns/cni-9"
PINNED = cni_result(GONE, "shop/gone", CIDR, namespace=MOUNTED)
ALL_SOURCES_NEEDED = node(ORPHAN, PINNED, waiting_pod(), node=[node_using(DISK)])
"""A node for which every source is read."""


def test_reservations_are_read_before_owners_and_the_api_server_last() -> None:
    # On docker a sandbox exists before its address is reserved: in this order a race can orphan none.
    sources = RecordedSources(node(ORPHAN))
    sources.take()
    order = {source: number for number, source in enumerate(sources.requested)}
    assert order["networks"] < order["runtime_status"] < order["cni_files"] < order["reservations"]
    assert order["reservations"] < order["containers"] < order["addresses"]
    assert max(order["pods"], order["node"]) > order["containers"]
    # A pod is rejected for what the kubelet did not know then; what it learns later must not be attributed to it.
    assert order["device_plugins"] < order["pods"]


def test_the_snapshot_contains_what_was_read_once_and_how_long_it_took() -> None:
    damaged = DamagedResult("kubenet", GONE, "eth0", Damage.EMPTY)
    given = {
        "server_version": "v1.20.2",
        "damaged_results": (damaged,),
        "api_skew": timedelta(seconds=2),
    }
    sources = RecordedSources(replace(ALL_SOURCES_NEEDED, **given))  # type: ignore[arg-type]
    snapshot = sources.take()
    assert (
        sorted(sources.requested)
        == sorted(source for source, _ in snapshot.timings)
        == sorted(SOURCES)
    )
    assert {seconds for _, seconds in snapshot.timings} == {1.0}
    expected = replace(ALL_SOURCES_NEEDED, uptime=NOW.uptime)
    assert list(snapshot.readings()) == list(expected.readings())
    assert (snapshot.node_name, snapshot.taken_at, snapshot.uptime) == (
        "worker-1",
        NOW.wall,
        NOW.uptime,
    )
    assert {name: getattr(snapshot, name) for name in given} == given
    order = sources.requested
    assert max(map(order.index, ("pods", "node"))) < order.index("watches"), (
        "the API server's clock comes with its answer"
    )


def test_a_healthy_node_never_pays_for_what_only_some_nodes_need_and_is_told_why() -> None:
    other, closed = "kubernetes.io/a/b", Unavailable("cni_results", "no")
    missing = [node_using(DISK, other, attached=[other])]
    all_optional = {"mounted_namespaces", "mounts", "attachments"}
    cases: tuple[tuple[Snapshot, str, set[str]], ...] = (
        (node(PINNED), "", set()),
        (node(ORPHAN, PINNED, cni_results=closed), "", set()),
        (node(ORPHAN, sandbox(GONE, "shop/old", "exited")), "", set()),
        (node(ORPHAN, PINNED), "", {"mounted_namespaces"}),
        (node(waiting_pod(), node=[node_using(DISK, attached=[DISK])]), "", set()),
        (node(waiting_pod(ago=timedelta(seconds=119)), node=missing), "", {"mounts"}),
        (
            node(waiting_pod(), waiting_pod("shop/new", ago=timedelta(0)), node=missing),
            "",
            {"mounts", "attachments"},
        ),
    )
    for snapshot, broken, needed in cases:
        sources = RecordedSources(snapshot, broken)
        taken = sources.take()
        assert all_optional & {*sources.requested} == needed
        assert {name for name in all_optional if isinstance(getattr(taken, name), Known)} == needed
    assert sources.requested.index("attachments") > sources.requested.index("node")
    healthy = RecordedSources(node()).take()
    for name, why in {
        "mounted_namespaces": "libcni's cache names no mounted network namespace of a sandbox without an owner",
        "mounts": "no volume is missing from the node's volumesAttached",
        "attachments": "no pod waits for a volume that is missing",
    }.items():
        assert getattr(healthy, name) == NotRequested(name, why)
    why = "network namespaces were not read, because the list of containers is missing"
    assert RecordedSources(node(), broken="containers").take().addresses == NotRequested(
        "addresses", why
    )


def test_a_failing_source_is_unavailable_and_the_others_are_read() -> None:
    through_proc = {"addresses", "mounted_namespaces", "mounts"}
    for source in (
        "checkpoints",
        "containers",
        "processes",
        "device_plugins",
        "pods",
        *through_proc,
    ):
        snapshot = RecordedSources(ALL_SOURCES_NEEDED, broken=source).take()
        assert getattr(snapshot, source) == Unavailable(source, "it broke")
        others = {reading.source for reading in snapshot.unavailable()} - {source}
        # What is read through the process table of a container is not the node's.
        assert others == (through_proc if source == "processes" else set()), source
    closed: dict[str, Any] = {
        source: Unavailable(source, "Permission denied") for source in NON_ADDRESS_SOURCES
    }
    snapshot = replace(RecordedSources(node(ORPHAN), broken="checkpoints").take(), **closed)
    assert snapshot.unavailable() == (Unavailable("checkpoints", "it broke"), *closed.values())
    assert snapshot.unavailable_about_addresses() == (Unavailable("checkpoints", "it broke"),)


BUG: Final = "bug in nodeleak: KeyError: 'metadata'"


def has_bug(*_: object) -> Any:
    raise KeyError("metadata")


def take_with_bug(reader: str) -> Snapshot:
    sources = RecordedSources(ALL_SOURCES_NEEDED)
    others = [source for source in sources.sources if source.name != reader]
    sources.sources = [*others, ReadBy(reader, has_bug)]
    return sources.take()


def test_a_bug_in_one_reader_makes_one_source_unavailable_and_is_reported() -> None:
    expected = {reader: {reader} for reader in SOURCES} | {
        "processes": {"processes", "addresses", "mounted_namespaces", "mounts"},
    }
    for reader, unavailable in expected.items():
        snapshot = take_with_bug(reader)
        reasons = {reading.source: reading.why for reading in snapshot.unavailable()}
        if reader == "reservations":  # which decide what is needed of the others
            assert reasons["reservations"] == BUG
        else:
            assert reasons == dict.fromkeys(unavailable, BUG), reader
        assert [(bug.part, bug.name, bug.reason) for bug in snapshot.bugs] == [
            ("source", reader, BUG)
        ]
        assert "has_bug" in snapshot.bugs[0].traceback
        assert scanned(snapshot).bugs == snapshot.bugs
    unknown = take_with_bug("watches")
    assert (unknown.api_skew, unknown.server_version) == (None, "")
    assert take_with_bug("cni_results").damaged_results == ()


def test_a_snapshot_with_a_bug_is_recorded_without_it() -> None:
    snapshot = take_with_bug("containers")
    (read,) = loads(dumps(recorded(snapshot))).snapshots
    assert read == snapshot
    assert read.bugs == ()


def test_a_bug_where_readings_are_compared_makes_what_it_judges_unavailable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    judged = {
        "agent.checks.readings.crosscheck.kubelet_runtime": {
            "containers",
            "networks",
            "checkpoints",
        },
        "agent.checks.readings.crosscheck.attributed": {"reservations"},
        "agent.checks.readings.crosscheck.pod_networks": {"networks"},
        "agent.checks.readings.crosscheck.is_missing": {
            "checkpoints",
            "cni_results",
            "device_plugins",
        },
        "agent.checks.cluster.detached_volume.missing": {"mounts", "attachments"},
        "agent.sources.host.mounted_namespaces.named_sandboxes": {"mounted_namespaces"},
    }
    for function, names in judged.items():
        with monkeypatch.context() as patched:
            patched.setattr(function, has_bug)
            snapshot = RecordedSources(ALL_SOURCES_NEEDED).take()
        failed = {reading.source for reading in snapshot.unavailable() if reading.why == BUG}
        assert failed == names, function
        assert {bug.name for bug in snapshot.bugs} == names, function
        assert {bug.part for bug in snapshot.bugs} == {"source"}


# Readings that contradict each other: which become unavailable, and which are accepted

NOTHING: Final[Reading[Any]] = Known(())
NO_API: Final[Reading[Any]] = NotRequested("pods", "--api=off")
NO_NODE: Final[Reading[Node | None]] = NotRequested("node", "--api=off")
SILENT: Final[Reading[Any]] = Unavailable("containers", "timed out")
REFUSED: Final[Reading[Any]] = Unavailable("containers", "docker: connection refused")
NO_DIRECTORY: Final = Unavailable(
    "checkpoints", "none of these exists: /var/lib/dockershim/sandbox", missing=True
)
CONTAINER: Final = Container("e" * 64, "running", 0, "", "", sandbox=False)
RESERVED: Final = NetworkStore("kubenet", Known((reservation("10.244.1.9"),)))
EMPTY_STORE: Final = NetworkStore("kubenet", Known(()))
MISSING_STORE: Final = NetworkStore(
    "kubenet", Unavailable("reservations", "it does not exist", missing=True)
)


def checked(**readings: Any) -> Snapshot:
    """Take a snapshot of a healthy node with these readings in place of its own."""
    return RecordedSources(replace(node(), **readings)).take()


def why_not(reading: Reading[object]) -> str:
    assert isinstance(reading, Unavailable)
    return reading.why


# The list of containers


def test_a_list_without_any_running_pod_is_unavailable() -> None:
    strangers = Known((sandbox("f" * 64, "other/pod"), CONTAINER))
    for containers, listed in ((NOTHING, "no container"), (strangers, "2 containers and none")):
        why = f"the runtime lists {listed} of the 3 pods that run here according to the API server"
        assert why_not(checked(containers=containers).containers) == why
    web = Known((sandbox(WEB_ID, "shop/web"),))
    assert checked(containers=web).containers == web
    # The last pod waits for a new sandbox, and gets none where no address is free.
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


SOCKET: Final = "unix:///run/containerd/containerd.sock"
ONLY_DOCKER: Final = NotRequested("runtimes", "--runtime=docker")


def of_runtime(runtime: str) -> Reading[Node | None]:
    return Known(replace(WORKER, runtime=runtime))


DOCKER, CONTAINERD = of_runtime("docker://20.10.24"), of_runtime("containerd://1.6.20")


def list_of(
    containers: Reading[Any],
    node_object: Reading[Node | None],
    runtime: str | None = None,
    **more: Any,
) -> Reading[tuple[Container, ...]]:
    """Check a list on a node with a leak and without pods, whose kubelet names a runtime."""
    kubelet = Known(replace(processes(), runtime=runtime))
    given = {
        "processes": kubelet,
        "checkpoints": NO_DIRECTORY,
        "reservations": (RESERVED,),
        "pods": NO_API,
    } | more
    return checked(containers=containers, node=node_object, **given).containers


def test_docker_is_not_requested_beside_another_runtime_whose_restart_leaves_one_source_unavailable() -> (
    None
):
    for reading in (SILENT, REFUSED, NOTHING, Known(CONTAINERS)):
        for node_object, named in (
            (CONTAINERD, None),
            (CONTAINERD, ""),
            (CONTAINERD, SOCKET),
            (NO_NODE, SOCKET),
        ):
            why = f"the runtime of this node is {named or 'containerd://1.6.20'}, and it was not asked"
            found = list_of(reading, node_object, named, runtimes=ONLY_DOCKER)
            assert found == NotRequested("containers", why)
            remedy = "if it is stopped, start it; if it runs, set --cri-endpoint"
            assert why_not(list_of(reading, node_object, named)) == f"{why}: {remedy}"
    for node_object in (
        DOCKER,
        of_runtime(""),
        Known(None),
        Unavailable("node", "timed out"),
        NO_NODE,
    ):
        assert list_of(REFUSED, node_object) == REFUSED
    seen = checked(containers=REFUSED, node=CONTAINERD, checkpoints=NO_DIRECTORY)
    assert [reading.source for reading in seen.unavailable_about_addresses()] == ["containers"]
    assert seen.checkpoints == NotRequested(
        "checkpoints", "a kubelet with containerd://1.6.20 has none"
    )


# Checkpoints and the cache


def test_a_missing_checkpoint_directory_is_empty_only_where_nothing_could_have_one() -> None:
    for containers, store, expected in (
        (Known((CONTAINER,)), EMPTY_STORE, NOTHING),
        (NOTHING, EMPTY_STORE, NOTHING),
        (NOTHING, MISSING_STORE, NOTHING),
        (NOTHING, RESERVED, NO_DIRECTORY),
        (Known(CONTAINERS), EMPTY_STORE, NO_DIRECTORY),
        (SILENT, EMPTY_STORE, NO_DIRECTORY),
    ):
        seen = checked(
            containers=containers, reservations=(store,), checkpoints=NO_DIRECTORY, pods=NO_API
        )
        assert seen.checkpoints == expected
    # What is missing is told by a field and not by words.
    closed = Unavailable(
        "checkpoints", "cannot read /x does not exist: permission denied", missing=False
    )
    seen = checked(containers=NOTHING, reservations=(EMPTY_STORE,), checkpoints=closed, pods=NO_API)
    assert seen.checkpoints == closed


def test_checkpoints_of_no_running_sandbox_are_unavailable_and_missing_ones_without_docker_not_requested() -> (
    None
):
    running = (sandbox("1" * 64, "shop/web"), sandbox("2" * 64, "shop/db"))
    for checkpoints, containers, accepted in (
        ((Checkpoint("9" * 64, ""),), running, False),
        ((Checkpoint("1" * 64, "shop/web"),), running, True),
        ((), (sandbox("1" * 64, "shop/web", "exited"),), True),
        (CHECKPOINTS, (), True),
    ):
        seen = checked(
            checkpoints=Known(checkpoints), containers=Known(containers), pods=NO_API
        ).checkpoints
        assert seen == Known(checkpoints) if accepted else "check --checkpoint-dir" in why_not(seen)
    containerd = Known((ContainerRuntime("containerd", "1.7.24", SOCKET),))
    unnamed = {
        "node": NO_NODE,
        "processes": Known(replace(processes(), runtime="")),
        "runtimes": containerd,
    }
    for elsewhere in ({"node": CONTAINERD, "runtimes": ONLY_DOCKER}, unnamed):
        assert isinstance(checked(checkpoints=NO_DIRECTORY, **elsewhere).checkpoints, NotRequested)
    unreadable = replace(NO_DIRECTORY, missing=False)
    assert checked(checkpoints=unreadable, **unnamed).checkpoints == unreadable


def test_without_a_network_a_missing_cni_cache_is_empty() -> None:
    no_cache = Unavailable(
        "cni_results", "none of these exists: /var/lib/cni/cache/results", missing=True
    )
    podman = NetworkStore("podman", NOTHING)
    absent = replace(MISSING_STORE, absent=True)
    for stores, expected in (
        ((), NotRequested("cni_results", "no network of this node uses host-local")),
        ((podman,), NotRequested("cni_results", "its addresses are those of podman")),
        ((podman, EMPTY_STORE), no_cache),
        ((absent,), no_cache),
    ):
        assert checked(cni_results=no_cache, reservations=stores).cni_results == expected
    seen = checked(
        cni_results=no_cache, reservations=(podman, absent), containers=NOTHING, pods=NO_API
    )
    assert seen.cni_results == NOTHING, "before the first pod"
    closed = Unavailable("cni_results", "/var/lib/cni/cache/results: Permission denied")
    assert checked(cni_results=closed, reservations=(podman,)).cni_results == closed


# Networks


def test_running_sandboxes_show_whether_the_first_file_is_what_the_runtime_uses() -> None:
    bridge, of_first, made = (
        ("bridge",),
        cni_result(WEB_ID, "", CIDR, network="old"),
        int((NOW.wall - OLD).timestamp()),
    )
    used, other = (
        RuntimeNetwork("kubenet", bridge),
        reservation("10.99.0.2", WEB_ID, network="x"),
    )
    skipped = "a plugin of old may be missing (install it, or remove its file if nothing needs it"
    unknown = "no pod has started since old came first in the CNI configuration"
    for later, ago, ipam, records, expected in (
        ((used,), 61, "", (), "kubenet"),
        ((used,), 61, "", (replace(other, ifname="net1"),), "kubenet"),
        ((used,), 61, "", (other,), skipped),  # contradicts
        ((), 61, "", (), skipped),  # it reads another directory
        ((used,), 59, "", (), unknown),  # it may have changed to the first since
        ((used,), 59, "calico-ipam", (), "old"),
        ((), 59, "", (), "old"),  # it was renamed
        ((used,), 61, "", (of_first,), "old"),
        ((used,), 61, "", (SILENT,), "old"),
    ):
        first = RuntimeNetwork("old", bridge, ipam, later=later, changed_ns=(made - ago) * 10**9)
        given = node(*records, networks=(first,), cni_results=SILENT if SILENT in records else ())
        stores = tuple(replace(store, discovered=True) for store in given.reservations)
        seen = RecordedSources(
            replace(given, reservations=(*stores, replace(MISSING_STORE, network="old")))
        ).take()
        if expected in {skipped, unknown}:
            assert expected in why_not(seen.networks), (later, ago)
        else:
            assert [network.name for network in seen.networks.known()] == [expected], (
                later,
                ago,
                records,
            )
        assert isinstance(seen.reservations[0].reading, Known)


def test_a_directory_with_addresses_of_running_sandboxes_is_never_told_unused() -> None:
    wrapper, absent = (
        RuntimeNetwork("kubenet", ("bridge",), "node-ipam"),
        replace(MISSING_STORE, network="old", absent=True, discovered=True),
    )
    stores = (*node().reservations, replace(node().reservations[0], network="podman"), absent)
    kubenet, podman, old = checked(networks=Known((wrapper,)), reservations=stores).reservations
    assert isinstance(kubenet.reading, Known)
    assert isinstance(podman.reading, Known)
    assert isinstance(old.reading, NotRequested), "the runtime skips its file"


# Pods


def test_the_pods_of_a_node_that_does_not_exist_are_unavailable() -> None:
    unproven = "the API server has no Node named worker-1: check --node"
    deleted = (
        "the Node worker-1 was deleted together with its pods, so the list of pods is not reliable"
    )
    for found, why in (
        (registration(), unproven),
        (registration(last_seen()), deleted),
        (registration(kubelet_name="worker-1"), deleted),
        (registration(listed_pods=1), deleted),
    ):
        for listed in ((), PODS[:1], PODS):
            seen = checked(pods=Known(listed), node=Known(None), registration=Known(found))
            assert why_not(seen.pods) == why
    gone = node(ORPHAN, pods=builders.PODS[:1], node=[], registration=registration(last_seen()))
    for given, state in ((gone, State.UNKNOWN), (node(ORPHAN), State.LEAKED)):
        assert builders.state(RecordedSources(given).take(), "10.244.1.9") is state


def test_an_empty_pod_list_needs_the_node() -> None:
    forbidden = Unavailable("node", "403 forbidden")
    assert checked(pods=NOTHING).pods == NOTHING
    assert why_not(checked(pods=NOTHING, node=forbidden).pods) == (
        "node worker-1 has no pods, and it is unknown whether the node exists: 403 forbidden"
    )
    for reading, node_object in (
        (Known(PODS), forbidden),
        (NO_API, Known(None)),
        (Unavailable("pods", "x"), NO_NODE),
    ):
        assert checked(pods=reading, node=node_object).pods == reading


# Device plugins


def test_a_directory_that_is_not_the_kubelets_is_needed_if_somebody_uses_devices() -> None:
    missing = Unavailable(
        "device_plugins", "/var/lib/kubelet/device-plugins does not exist", missing=True
    )
    empty = "the device plugin directory is empty, but 3 sandboxes are running"
    unused, used = (
        Known(replace(WORKER, devices=(NodeDevices(KVM, number, 0),))) for number in (0, 3)
    )
    refused, asking = refused_pod("shop/gpu"), replace(pod("shop/gpu"), wants=(KVM,))
    remedy = "uses devices: check --device-plugins-dir, and that it is mounted"
    for reading, reason in (
        (missing, missing.why),
        (Known(device_plugins(kubelet_socket=None)), empty),
    ):
        left_alone = NotRequested("device_plugins", f"{reason}, and no pod here requests devices")
        cases: tuple[tuple[dict[str, Any], Reading[Any]], ...] = (
            ({}, left_alone),
            ({"pods": NO_API, "node": NO_NODE}, left_alone),
            ({"node": unused}, left_alone),  # the 0 is left of a plugin that was uninstalled
            (
                {"pods": Known((*PODS, refused))},
                Unavailable("device_plugins", f"{reason}, but shop/gpu {remedy}"),
            ),
            (
                {"pods": Known((*PODS, asking))},
                Unavailable("device_plugins", f"{reason}, but shop/gpu {remedy}"),
            ),
            (
                {"node": used},
                Unavailable("device_plugins", f"{reason}, but node worker-1 {remedy}"),
            ),
            ({"pods": Unavailable("pods", "x")}, Unavailable("device_plugins", reason)),
            ({"node": Unavailable("node", "403")}, Unavailable("device_plugins", reason)),
        )
        for more, expected in cases:
            assert checked(device_plugins=reading, **more).device_plugins == expected
    needed, nothing = Known((*PODS, refused_pod("shop/gpu"))), device_plugins(kubelet_socket=None)
    written = device_plugins(registered(KVM, "kvm0"), kubelet_socket=None)
    seen_before = replace(
        nothing, history=(transition(TransitionKind.KUBELET_STARTED, ago=UPTIME),)
    )
    for plugins in (NO_DEVICES, written, seen_before):
        assert isinstance(checked(device_plugins=Known(plugins), pods=needed).device_plugins, Known)
    # Plugins bind their sockets in the directory that they are given, whether or not it is right.
    bound = replace(nothing, sockets=(plugin_socket(),))
    socket_missing = "the device plugin directory has no kubelet.sock"
    doubt = f"{socket_missing}, and nothing in it is of the running kubelet"
    assert checked(device_plugins=Known(bound), pods=needed).device_plugins == Unavailable(
        "device_plugins", f"{doubt}, but 3 sandboxes are running, but shop/gpu {remedy}"
    )
    assert checked(device_plugins=Known(bound)).device_plugins == NotRequested(
        "device_plugins", f"{doubt}, but 3 sandboxes are running, and no pod here requests devices"
    )
    for kubelet in (timedelta(minutes=4), None):
        young = Known(processes(kubelet=kubelet))
        seen = checked(device_plugins=Known(bound), pods=needed, processes=young)
        assert isinstance(seen.device_plugins, Known), "it may yet start there"
    for containers in (NOTHING, Known((sandbox(WEB_ID, "shop/web", "exited"),)), SILENT):
        seen = checked(device_plugins=Known(nothing), containers=containers, pods=NO_API)
        assert isinstance(seen.device_plugins, Known)
    unreadable = Unavailable("device_plugins", "/var/lib/kubelet/device-plugins: Permission denied")
    off = NotRequested("device_plugins", "--device-plugins-dir=off")
    for other in (unreadable, off):
        assert checked(device_plugins=other, pods=needed).device_plugins == other
