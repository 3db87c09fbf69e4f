"""Readings that contradict each other become unavailable. Pure.

Runtimes give wrong answers: an empty list after a restart, a list without the containers that they
failed to load. A wrong list that is believed once makes every address of the node look leaked.
"""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final, TypeAlias

from agent.checks.cluster.registration import evidence_of_node
from agent.checks.devices.view import DeviceView
from agent.checks.kubelet_runtime import has_docker, kubelet_runtime
from agent.checks.readings import copies
from agent.checks.readings.attribution import attributed, pod_networks
from agent.model.bug import Bug, bug_of
from agent.model.devices import DevicePlugins
from agent.model.index import SnapshotIndex
from agent.model.runtime import KubeletRuntime, RuntimeNetwork
from agent.model.snapshot import (
    Checkpoint,
    CniResult,
    Container,
    Known,
    NetworkStore,
    NotRequested,
    Pod,
    Reading,
    Snapshot,
    Unavailable,
    is_missing,
    known_or,
)

_Containers: TypeAlias = Reading[tuple[Container, ...]]
_Checkpoints: TypeAlias = Reading[tuple[Checkpoint, ...]]

_KUBELET_STARTS_WITHIN: Final = timedelta(minutes=5)
"""From the start of its process a kubelet needs seconds, beside a runtime that answers."""
_THROUGH_PROC: Final = ("addresses", "mounted_namespaces", "mounts")
"""What is read through the process table."""


def all_sources(snapshot: Snapshot) -> Snapshot:
    """Return the snapshot with every reading that another one contradicts made unavailable.

    A check that raises, which is a bug, does so too: what it did not judge is unknown.
    """
    bugs: list[Bug] = []
    index = SnapshotIndex(snapshot)

    believed = replace(
        snapshot,
        containers=_judged("containers", bugs, _runtime_list, index),
        pods=_judged("pods", bugs, _pods, index),
        checkpoints=_judged("checkpoints", bugs, _checkpoints_of_docker, index),
        networks=_judged("networks", bugs, _networks, index),
    )

    believed = _judged_stores(copies.exclude_copy, believed, bugs)
    if not isinstance(believed.networks, Unavailable):
        index = SnapshotIndex(believed)
        believed = replace(believed, networks=_judged("networks", bugs, pod_networks, index))

    compared = _judged_stores(attributed, believed, bugs)
    index = SnapshotIndex(compared)
    return replace(
        compared,
        checkpoints=_judged("checkpoints", bugs, _checkpoints, index),
        cni_results=_judged("cni_results", bugs, _cni_results, index),
        device_plugins=_judged("device_plugins", bugs, _device_plugins, index),
        bugs=(*snapshot.bugs, *bugs),
    )


def _judged(
    source: str,
    bugs: list[Bug],
    judge: Callable[[SnapshotIndex], Reading[Any]],
    index: SnapshotIndex,
) -> Reading[Any]:
    """Return what a check makes of a source; unavailable, with a bug more, if the check raises."""
    try:
        return judge(index)
    except Exception as error:  # noqa: BLE001 (what no check has judged is not believed)
        bugs.append(bug_of("source", source, error))
        return Unavailable(source, bugs[-1].reason)


def _judged_stores(
    judge: Callable[[NetworkStore, SnapshotIndex], NetworkStore],
    snapshot: Snapshot,
    bugs: list[Bug],
) -> Snapshot:
    """Return the snapshot with what a check makes of each network's directory."""
    index = SnapshotIndex(snapshot)
    stores = tuple(_judged_store(judge, store, bugs, index) for store in snapshot.reservations)
    return replace(snapshot, reservations=stores)


def _judged_store(
    judge: Callable[[NetworkStore, SnapshotIndex], NetworkStore],
    store: NetworkStore,
    bugs: list[Bug],
    index: SnapshotIndex,
) -> NetworkStore:
    """Return what a check makes of a network's directory, like `_judged`."""
    try:
        return judge(store, index)
    except Exception as error:  # noqa: BLE001 (as above)
        bugs.append(bug_of("source", "reservations", error))
        unread = Unavailable("reservations", bugs[-1].reason)
        return replace(store, reading=unread, unrecognized=(), left_over=None)


def namespaces(snapshot: Snapshot) -> Snapshot:
    """Reject what is read last, if the process table is a container's and not the node's."""
    processes = snapshot.processes
    if not isinstance(processes, Unavailable):
        return snapshot
    rejected: dict[str, Any] = {
        name: Unavailable(name, processes.why)
        for name in _THROUGH_PROC
        if isinstance(getattr(snapshot, name), Known)
    }
    return replace(snapshot, **rejected)


def _runtime_list(index: SnapshotIndex) -> _Containers:
    """Reject a list without any of the pods that run on this node according to the API server."""
    reading = list_of_kubelet_runtime(index)
    if not isinstance(reading, Known):
        return reading

    running = {pod.name for pod in known_or(index.snapshot.pods, ()) if pod.has_sandbox}
    if not running or running & {container.pod for container in reading.value}:
        return reading
    listed = f"{len(reading.value)} containers and none" if reading.value else "no container"
    reason = (
        f"the runtime lists {listed} of the {len(running)} pods that run here according to the API "
        "server"
    )
    return Unavailable("containers", reason)


def list_of_kubelet_runtime(index: SnapshotIndex) -> _Containers:
    """Reject a list that may not be that of the kubelet's runtime."""
    # A docker beside another runtime lists no pods, so that every address would look leaked. A
    # kubelet or a Node that names another runtime also tells a node without docker from a node
    # where docker is stopped for a moment.
    snapshot = index.snapshot
    reading = snapshot.containers
    runtime = kubelet_runtime(snapshot)
    if rejected := _answer_of_another_runtime("containers", runtime):
        only_docker_asked = isinstance(snapshot.runtimes, NotRequested)
        if isinstance(rejected, Unavailable) or only_docker_asked:
            return rejected
        remedy = "if it is stopped, start it; if it runs, set --cri-endpoint"
        return Unavailable("containers", f"{rejected.why}: {remedy}")

    if not isinstance(reading, Known) or not index.reservations:
        return reading
    if index.running_sandboxes or _is_identified(runtime, snapshot):
        return reading

    names = " and ".join(runtime.names) or "the container runtime"
    reason = (
        f"no running pod sandbox is in the list of {names}, and neither the kubelet's flags and "
        "configuration nor its Node names its runtime: the pods of this node may belong to another "
        "one"
    )
    return Unavailable("containers", reason)


def _is_identified(runtime: KubeletRuntime, snapshot: Snapshot) -> bool:
    """Return whether anything but its list shows that the kubelet's runtime was asked."""
    if runtime.used:
        return True
    # Only docker's kubelets have checkpoints. The directory may be a remnant: it counts if the
    # kubelet cannot be asked.
    if not has_docker(runtime.asked) or not isinstance(snapshot.checkpoints, Known):
        return False
    processes = known_or(snapshot.processes, None)
    return processes is None or processes.runtime is None


def _answer_of_another_runtime(
    source: str, runtime: KubeletRuntime
) -> Unavailable | NotRequested | None:
    """Return why a runtime's answer says nothing of the pods of this node; None: it does."""
    if runtime.contradiction:
        reason = f"it is unknown whose pods run here: {runtime.contradiction}"
        return Unavailable(source, reason)
    if runtime.not_asked:
        reason = f"the runtime of this node is {runtime.not_asked}, and it was not asked"
        return NotRequested(source, reason)
    return None


def _networks(index: SnapshotIndex) -> Reading[tuple[RuntimeNetwork, ...]]:
    """Reject the networks of a runtime that is not the kubelet's."""
    reading = index.snapshot.networks
    if not isinstance(reading, Known):
        return reading
    return _answer_of_another_runtime("networks", kubelet_runtime(index.snapshot)) or reading


def _cni_results(index: SnapshotIndex) -> Reading[tuple[CniResult, ...]]:
    """Accept a missing cache if no pod had an address from any of the networks."""
    reading = index.snapshot.cni_results
    stores = index.snapshot.reservations
    if not is_missing(reading):
        return reading

    unused = [store.reading for store in stores if isinstance(store.reading, NotRequested)]
    if len(unused) == len(stores):
        reason = unused[0].why if unused else "no network of this node uses host-local"
        return NotRequested("cni_results", reason)

    empty = [store for store in stores if store.absent and isinstance(store.reading, Known)]
    # Missing, and no network has anything that it could contain.
    return Known(()) if len(empty) + len(unused) == len(stores) else reading


def _checkpoints_of_docker(index: SnapshotIndex) -> _Checkpoints:
    """Ignore a left-over directory: only docker's kubelets have checkpoints."""
    runtime = kubelet_runtime(index.snapshot)
    if runtime.keeps_checkpoints:
        return index.snapshot.checkpoints
    name = runtime.not_asked or runtime.name
    return NotRequested("checkpoints", f"a kubelet with {name} has none")


def _checkpoints(index: SnapshotIndex) -> _Checkpoints:
    """Accept missing checkpoints only if nothing could have one.

    A directory without any of the running sandboxes is not the kubelet's: it is left over from
    another kubelet, or was created by a mount.
    """
    reading = index.snapshot.checkpoints
    if is_missing(reading):
        containers = index.snapshot.containers
        if isinstance(containers, NotRequested):
            return NotRequested("checkpoints", containers.why)

        sandboxes = any(container.sandbox for container in index.containers.values())
        unused = isinstance(containers, Known) and not sandboxes
        # Missing, and nothing on this node could have one.
        return Known(()) if unused and not index.reservations else reading

    running = index.running_sandboxes
    if not isinstance(reading, Known) or not running or not index.checkpoints.isdisjoint(running):
        return reading
    reason = (
        f"{len(running)} sandboxes are running and none has a checkpoint: check --checkpoint-dir"
    )
    return Unavailable("checkpoints", reason)


def _pods(index: SnapshotIndex) -> Reading[tuple[Pod, ...]]:
    """Reject the pods of a Node that does not exist.

    A wrong name has no pods. The pods of a deleted Node are removed from the API, and may still run
    here. An empty list proves nothing if it is unknown whether the Node exists.
    """
    snapshot = index.snapshot
    reading = snapshot.pods
    name = snapshot.node_name
    if not isinstance(reading, Known):
        return reading
    match snapshot.node:
        case Known(None):
            registration = known_or(snapshot.registration, None)
            reason = f"the API server has no Node named {name}: check --node"
            if registration is not None and evidence_of_node(registration, name):
                reason = (
                    f"the Node {name} was deleted together with its pods, so the list of pods is "
                    "not reliable"
                )
            return Unavailable("pods", reason)
        case Unavailable(_, why) if not reading.value:
            reason = f"node {name} has no pods, and it is unknown whether the node exists: {why}"
            return Unavailable("pods", reason)
        case _:
            return reading


def _device_plugins(index: SnapshotIndex) -> Reading[DevicePlugins]:
    """Reject a directory that shows no sign of the kubelet, beside running sandboxes.

    This matters only if a pod or the node has devices. Kubelets without device plugins have no such
    directory, and that must not make a report about addresses incomplete.
    """
    snapshot = index.snapshot
    reading = snapshot.device_plugins
    if is_missing(reading):
        reason = reading.why
    elif index.running_sandboxes and (doubt := _doubt_about_directory(snapshot)):
        reason = f"{doubt}, but {len(index.running_sandboxes)} sandboxes are running"
    else:
        return reading

    if isinstance(snapshot.pods, Unavailable) or isinstance(snapshot.node, Unavailable):
        return Unavailable("device_plugins", reason)
    if user := _user_of_devices(snapshot):
        remedy = "check --device-plugins-dir, and that it is mounted"
        return Unavailable("device_plugins", f"{reason}, but {user} uses devices: {remedy}")
    return NotRequested("device_plugins", f"{reason}, and no pod here requests devices")


def _doubt_about_directory(snapshot: Snapshot) -> str | None:
    """Return why it may not be the kubelet's; None: it is, or the kubelet may yet start there."""
    plugins = known_or(snapshot.device_plugins, None)
    if plugins is None or plugins.kubelet_socket or DeviceView.of(snapshot).is_of_running_kubelet:
        return None
    if not plugins.sockets and not plugins.checkpoint_written:
        return "the device plugin directory is empty"

    started = snapshot.kubelet_started
    if started is None or snapshot.taken_at - started < _KUBELET_STARTS_WITHIN:
        return None
    return (
        "the device plugin directory has no kubelet.sock, and nothing in it is of the running "
        "kubelet"
    )


def _user_of_devices(snapshot: Snapshot) -> str | None:
    """Return a pod that uses devices, or else the node."""
    for pod in known_or(snapshot.pods, ()):
        if pod.wants or (pod.rejection and pod.rejection.for_device):
            return pod.name
    node = known_or(snapshot.node, None)
    # The 0 of a plugin that was removed stays in the node's status forever.
    if node and any(devices.capacity for devices in node.devices):
        return f"node {node.name}"
    return None
