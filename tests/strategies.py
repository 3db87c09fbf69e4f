"""Random nodes out of a small world, so that their records meet: few ids, few addresses, few pods.

Strategies are made once, outside of the functions that draw: hypothesis validates each new one, which takes longer than
to draw from it.
"""

from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cache
from typing import Any

from hypothesis import strategies as st

from agent.model.devices import DevicePlugins, TransitionKind
from agent.model.documents import Recording
from agent.model.node_network import CniFile, CniFiles, RuntimeStatus, SubnetEnv
from agent.model.registration import (
    DELETION_CANDIDATE,
    TO_BE_DELETED,
    UNINITIALIZED,
    Autoscaler,
    Removal,
    Taint,
)
from agent.model.release import Limits
from agent.model.runtime import CONTAINERD, CRI_O, DOCKER, ContainerRuntime, RuntimeNetwork
from agent.model.settings import Expected
from agent.model.snapshot import (
    SOURCES,
    Address,
    Checkpoint,
    Container,
    Known,
    NetworkStore,
    Node,
    NotRequested,
    Reservation,
    SandboxFailure,
    Snapshot,
    UnrecognizedEntry,
)
from agent.model.watches import Evidence
from tests.builders import (
    GRACE,
    INSTANCE,
    KVM,
    KVM_SOCKET,
    NOW,
    OLD,
    UPTIME,
    allocation,
    cni_result,
    device_plugins,
    empty_file,
    last_seen,
    make_limits,
    node,
    plugin_socket,
    pod,
    processes,
    registered,
    registration,
    reservation,
    shown,
    transition,
    unrecognized,
    without,
    without_api,
    worker,
)

IDS = tuple(digit * 64 for digit in "12345")
PODS = ("shop/web", "shop/db", "kube-system/proxy", "shop/cart")
RANGES = {"kubenet": ("10.0.0.0/29", "fd00::/125"), "storage": ("10.9.0.0/30",)}
"""One truth about each network, whoever tells it: a node's records differ in what they know, not in this."""
IPS = (
    "10.0.0.1",
    "10.0.0.2",
    "10.0.0.3",
    "10.0.0.4",
    "10.0.0.5",
    "10.0.0.6",
    "fd00::2",
    "fd00::3",
    "10.9.0.2",
)
RESOURCES = (KVM, "nvidia.com/gpu")
PLUGIN_SOCKETS = (KVM_SOCKET, "nvidia-gpu.sock", "other.sock")
AGES = tuple(timedelta(seconds=n) for n in (-3600, -5, 0, 299, 300, 7200, 10**8))
SPANS = tuple(timedelta(seconds=n) for n in (1, 3600, 86400))
WORDS = ("running", "running", "running", "paused", "created", "exited")


@cache
def seldom() -> st.SearchStrategy[bool]:
    # Hypothesis likes 0 and False best; an oddity must not be what most nodes are like.
    return st.integers(0, 7).map(lambda n: n == 7)


ids, names, ips, ages = (
    st.sampled_from(IDS),
    st.sampled_from(PODS),
    st.sampled_from(IPS),
    st.sampled_from(AGES),
)


_file_names = st.lists(ips, unique=True, max_size=6)


@cache
@st.composite
def stores(draw: st.DrawFn, network: str) -> NetworkStore:
    """One directory: every name in it once, and behind it a file, an empty file, or something strange."""
    entries: list[Reservation | UnrecognizedEntry] = []
    for ip in draw(_file_names):
        if draw(seldom()):
            entries.append(unrecognized(ip, blocks=True, network=network))
        elif draw(seldom()):
            entries.append(replace(empty_file(ip, age=draw(ages)), network=network))
        else:
            entries.append(reservation(ip, draw(ids), age=draw(ages), network=network))
    if draw(seldom()):
        entries.append(unrecognized("notes.txt", network=network))
    return NetworkStore(
        network,
        Known(tuple(entry for entry in entries if isinstance(entry, Reservation))),
        tuple(entry for entry in entries if isinstance(entry, UnrecognizedEntry)),
    )


NAMESPACES = ("/run/netns/cni-1", "/run/netns/cni-2")
containers = st.builds(
    Container,
    ids,
    st.sampled_from(WORDS),
    st.just(0),
    names,
    st.just("uid"),
    seldom().map(lambda app: not app),
)
pods = st.builds(
    lambda name, several, phase, host, deleting, uid: pod(
        name, *several, phase=phase, host_network=host, deleting=deleting, uid=uid
    ),
    names,
    st.lists(ips, max_size=2),
    st.sampled_from(["Running", "Running", "Running", "Pending", "Succeeded", "Failed"]),
    seldom(),
    seldom(),
    st.sampled_from(["uid-1", "uid-2"]),
)
results = st.builds(
    lambda container_id, name, network, age, path: cni_result(
        container_id, name, *RANGES[network], network=network, age=age, namespace=path
    ),
    ids,
    st.one_of(st.just(""), names),
    st.sampled_from(sorted(RANGES)),
    ages,
    st.sampled_from(["", *NAMESPACES]),
)
_spans, _perhaps_long_ago = (
    st.sampled_from(SPANS),
    st.sampled_from([None, timedelta(minutes=1), OLD]),
)
_started = st.one_of(st.none(), _spans)
started = st.builds(processes, booted=_spans, kubelet=_started, docker=_started)
taints = st.builds(
    Taint,
    st.sampled_from([UNINITIALIZED, TO_BE_DELETED, DELETION_CANDIDATE]),
    st.sampled_from([None, NOW - OLD]),
)
nodes_objects = st.builds(
    lambda cidrs, most, age, provider_id, tainted, pressure: replace(
        worker(*tainted, provider_id=provider_id, age=age),
        pod_cidrs=cidrs,
        max_pods=most,
        address_pressure=pressure,
    ),
    st.sampled_from([RANGES["kubenet"], RANGES["kubenet"], ()]),
    st.sampled_from([110, 4, 2, None]),
    st.sampled_from([OLD, *AGES, None]),
    st.sampled_from([INSTANCE, INSTANCE, "kind://other", "k3s://worker-1", ""]),
    st.lists(taints, max_size=2, unique_by=lambda taint: taint.key),
    st.sampled_from(["", "False", "True", "Unknown"]),
)
memories = st.builds(
    last_seen,
    _spans,
    provider_id=st.sampled_from([INSTANCE, ""]),
    earlier_id=st.sampled_from([None, "kind://other"]),
    changed=_perhaps_long_ago,
    removal=st.sampled_from(Removal),
    gone=_perhaps_long_ago,
    in_use=_perhaps_long_ago,
)
registrations = st.builds(
    registration,
    st.one_of(st.none(), memories),
    expected=st.sampled_from(Expected),
    kubelet_name=st.sampled_from([None, None, "worker-1", "another"]),
    cloud_provider=st.sampled_from([None, "external"]),
    listed_pods=st.integers(0, 2),
)
autoscalers = st.builds(
    Autoscaler,
    others=st.integers(1, 3),
    others_with_id=st.integers(0, 2),
    unregistered=st.sampled_from([None, 0, 2]),
    long_unregistered=st.sampled_from([None, 0, 1]),
    told=st.sampled_from([None, NOW, NOW - OLD]),
    why=st.sampled_from([None, None, "no permission to get it"]),
    exists=st.sampled_from([None, True, False]),
    schemes=st.sampled_from([(), ("aws",), ("k3s",), ("aws", "k3s")]),
    marked=st.integers(0, 1),
)


resources = st.sampled_from(RESOURCES)
devices = st.lists(st.sampled_from(["d0", "d1", "d2"]), max_size=2, unique=True)
agos = st.sampled_from([timedelta(seconds=n) for n in (0, 9, 60, 600, 3600, 10**6)])
moments = st.builds(
    transition,
    st.sampled_from(TransitionKind),
    st.one_of(st.just(""), resources),
    socket=st.sampled_from(["", *PLUGIN_SOCKETS]),
    ago=agos,
    exact=st.booleans(),
)
_connected = st.sampled_from([True, True, False, None])
_sockets = st.lists(st.sampled_from(PLUGIN_SOCKETS), max_size=2, unique=True)
_registered = st.lists(resources, max_size=2, unique=True)
_holders = st.one_of(names, st.builds("{}-{}".format, names, st.integers(0, 2)))
"""Of pods too that `pods_with_devices` makes."""
_allocated = st.lists(
    st.builds(
        allocation,
        _holders,
        resources,
        st.sampled_from(["d0", "d0", "d1", "gone"]),
    ),
    max_size=3,
)
_changes = st.lists(moments, max_size=4)
_perhaps_ago = st.one_of(st.none(), agos)


@cache
@st.composite
def device_managers(draw: st.DrawFn) -> DevicePlugins:
    """A kubelet's device manager, whatever its plugins are up to."""
    plugins = device_plugins(
        *(
            replace(
                plugin_socket(name, ago=draw(agos), connected=draw(_connected)),
                registry=draw(seldom()),
            )
            for name in draw(_sockets)
        ),
        *(registered(resource, *draw(devices)) for resource in draw(_registered)),
        *draw(_allocated),
        *sorted(draw(_changes), key=lambda moment: moment.at),
        kubelet_socket=draw(_perhaps_ago),
        checkpoint_written=draw(_perhaps_ago),
    )
    drivers = ("gpu.nvidia.com",) if draw(seldom()) else ()
    return replace(plugins, drivers=drivers, listens_without_file=draw(seldom()))


_kinds = st.tuples(st.sampled_from(Evidence), st.sampled_from(["pods", "node"]))
_watches = st.lists(
    st.builds(lambda kind, ago: shown(*kind, ago=ago), _kinds, agos),
    max_size=3,
    unique_by=lambda watch: (watch.resource, watch.evidence),
)
_checkpoints = st.lists(
    st.builds(Checkpoint, ids, st.one_of(st.just(""), names)),
    max_size=5,
    unique_by=lambda one: one.container_id,
)
_containers = st.lists(containers, max_size=5, unique_by=lambda one: one.id)
_pods = st.lists(pods, max_size=4, unique_by=lambda one: one.name)
_results = st.lists(results, min_size=1, max_size=4)
_addresses = st.lists(
    st.builds(Address, ips, st.integers(1, 3), st.sampled_from(["java", "sh"])), max_size=3
)
_namespaces = st.lists(st.sampled_from(NAMESPACES), max_size=2, unique=True)
_seconds = st.integers(0, 3)


_ready = st.sampled_from([True, False, None])
_statuses = st.builds(
    lambda ready, error: RuntimeStatus(ready, load_error=error if ready is False else ""),
    _ready,
    st.sampled_from(["", "cni config load failed: 10-a.conflist"]),
)
_cni_file = st.builds(
    lambda problem, network: CniFile(
        f"10-{network}.conflist",
        problem=problem,
        network=network,
        networks=() if problem else (RuntimeNetwork(network, ("bridge",), "host-local"),),
    ),
    st.sampled_from([None, None, "is empty"]),
    st.sampled_from(["kubenet", "other", "storage"]),
)
_cni_files = st.builds(
    CniFiles,
    directory=st.just("/etc/cni/net.d"),
    files=st.lists(_cni_file, max_size=3, unique_by=lambda file: file.name).map(tuple),
    subnet_env=st.sampled_from([None, SubnetEnv("/run/flannel/subnet.env", "does not exist")]),
    missing_plugins=st.sampled_from([None, (), ("bridge",)]),
)
_runtimes = st.sampled_from([DOCKER, CONTAINERD, CRI_O]).map(ContainerRuntime)
_failed = st.lists(
    st.builds(
        lambda name, what, ago: SandboxFailure(name, NOW - ago, "failed", **what),
        names,
        st.sampled_from([
            {"plugin": "portmap", "network": "kubenet", "operation": "add"},
            {"plugin": "bridge", "exhausted": "10.0.0.1-10.0.0.254"},
            {"reason": "NetworkNotReady"},
            {"reason": "FailedMount"},
        ]),
        agos,
    ),
    max_size=3,
)  # fmt: skip


@cache
@st.composite
def read_nodes(draw: st.DrawFn, two_networks: bool = False) -> Snapshot:
    """A node of which everything was read."""
    snapshot = node(
        checkpoints=draw(_checkpoints),
        containers=draw(_containers),
        cni_results=draw(_results),
        addresses=draw(_addresses),
        mounted_namespaces=draw(_namespaces),
        pods=draw(_pods),
        node=[] if draw(seldom()) else [draw(nodes_objects)],
        processes=[draw(started)],
        device_plugins=draw(device_managers()) if draw(seldom()) else None,
        registration=draw(registrations),
        autoscaler=draw(autoscalers),
        watches=draw(_watches) if draw(seldom()) else None,
        later=timedelta(seconds=draw(_seconds)),
    )
    networks = [
        draw(stores("kubenet")),
        *([draw(stores("storage"))] if two_networks or draw(seldom()) else []),
    ]
    snapshot = replace(snapshot, reservations=tuple(networks))
    if draw(seldom()):
        return snapshot
    return replace(
        snapshot,
        runtimes=Known((draw(_runtimes),)),
        runtime_status=Known(draw(_statuses)),
        cni_files=Known(draw(_cni_files)),
        sandbox_failures=Known(tuple(draw(_failed))),
    )


_unread = st.lists(st.sampled_from(SOURCES), max_size=2, unique=True)


@cache
@st.composite
def nodes(draw: st.DrawFn, two_networks: bool = False) -> Snapshot:
    """A node of which any source may be unavailable or disabled."""
    snapshot = draw(read_nodes(two_networks))
    if draw(seldom()):
        snapshot = without_api(snapshot)
    return without(snapshot, *draw(_unread))


recordings = st.builds(
    Recording,
    grace=st.timedeltas(timedelta(0), timedelta(days=400)),
    confirm_after=st.timedeltas(timedelta(0), UPTIME),
    snapshots=st.lists(nodes(), min_size=1, max_size=2).map(tuple),
)


# For whoever releases: nodes on which something can be released, and settings by which it may be.


HANDED_OUT = ("10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.5", "10.0.0.6", "fd00::2", "fd00::3")
_files = st.builds(
    lambda ip, container_id, old: (
        reservation(ip, container_id, age=OLD if old else timedelta(seconds=200))
        if container_id
        else empty_file(ip, age=OLD)
    ),
    st.sampled_from(HANDED_OUT),
    st.sampled_from([*IDS, ""]),
    seldom().map(lambda recent: not recent),
)


_few_pods = st.lists(pods, max_size=2, unique_by=lambda pod: pod.name)
_one_container = st.lists(
    st.builds(
        Container, ids, st.sampled_from(WORDS), st.just(0), names, st.just(""), st.just(True)
    ),
    max_size=1,
)
_some_files = st.lists(_files, min_size=2, max_size=6, unique_by=lambda file: file.ip)
_one_checkpoint = st.lists(st.builds(Checkpoint, ids, st.just("")), max_size=1)
_one_address = st.lists(st.builds(Address, ips, st.just(1), st.just("java")), max_size=1)


@cache
@st.composite
def leaky_nodes(draw: st.DrawFn) -> Snapshot:
    """A node that has settled, and docker lists all that runs on it; most of its files have no owner."""
    running = draw(_few_pods)
    listed = [
        Container(f"{n:x}" * 64, "running", 0, pod.name, pod.uid, sandbox=True)
        for n, pod in enumerate(running, 10)
    ]
    one_more = draw(_one_container)
    reserved = draw(_some_files)
    elsewhere = [
        replace(reservation, network="storage", ip="10.9.0.2")
        for reservation in reserved[:1]
        if draw(seldom())
    ]
    return node(
        reservations=[*reserved, *elsewhere],
        checkpoints=draw(_one_checkpoint),
        containers=[*listed, *one_more],
        cni_results=[
            cni_result("f" * 64, "shop/web", *subnets, network=name)
            for name, subnets in RANGES.items()
        ],
        addresses=draw(_one_address),
        pods=running,
        node=[Node("worker-1", RANGES["kubenet"], 110)],
        processes=[processes()],
    )


any_nodes = st.one_of(leaky_nodes(), leaky_nodes(), leaky_nodes(), nodes())


_LISTS = (
    "checkpoints", "containers", "cni_results", "addresses", "mounted_namespaces", "pods", "watches", "mounts",
)  # fmt: skip


def _odd(snapshot: Snapshot, source: str, how: int) -> Snapshot:
    """Say of a source what no source ever says, and a recording by hand may."""
    empty: dict[str, Any] = {"node": Known(None)} | dict.fromkeys(_LISTS, Known(()))
    odd: dict[str, Any] = {
        source: empty[source]
        if how and source in empty
        else NotRequested(source, "it was left alone")
    }
    return replace(snapshot, **odd)


odd_nodes = st.builds(
    _odd, st.one_of(nodes(), leaky_nodes()), st.sampled_from(SOURCES[1:]), st.integers(0, 1)
)


_limits = st.builds(
    make_limits,
    networks=st.sampled_from([frozenset(RANGES), frozenset({"kubenet"}), frozenset[str]()]),
    grace=st.sampled_from([timedelta(0), timedelta(0), GRACE]),
    settle=st.sampled_from([GRACE, GRACE, timedelta(0)]),
    max_share=st.sampled_from([0.5, 0.0, 1.0]),
    only=st.one_of(*[st.none()] * 3, st.sets(ips, min_size=1, max_size=5).map(frozenset)),
)
"""Mostly less strict than in practice."""


@dataclass(frozen=True)
class CleanupInput:
    """Two snapshots and the limits: the input of a cleaner."""

    first: Snapshot
    last: Snapshot
    limits: Limits

    @property
    def snapshots(self) -> tuple[Snapshot, Snapshot]:
        return self.first, self.last


_differences = st.sampled_from([(), (), (), SOURCES, *((source,) for source in SOURCES)])


@st.composite
def cleanup_inputs(
    draw: st.DrawFn, snapshots: st.SearchStrategy[Snapshot] = any_nodes
) -> CleanupInput:
    """Two snapshots: the second is equal, or differs in all or some sources."""
    differs = draw(_differences)
    first = draw(snapshots)
    other = draw(snapshots) if differs else first
    changed: dict[str, Any] = {source: getattr(other, source) for source in differs}
    later = timedelta(seconds=15)
    last = replace(first, **changed, taken_at=first.taken_at + later, uptime=first.uptime + later)
    return CleanupInput(first, last, draw(_limits))
