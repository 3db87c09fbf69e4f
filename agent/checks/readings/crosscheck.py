"""Readings that contradict each other become unavailable. Pure.

Runtimes give wrong answers: an empty list after a restart, a list without the containers that they failed to load. A
wrong list that is believed once makes every address of the node look leaked.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final, TypeAlias

from agent.checks import kubelet_runtime as runtimes
from agent.checks.cluster.registration import evidence_of_node
from agent.checks.devices.view import DeviceView
from agent.checks.readings.attribution import attributed, of_pods, running_sandboxes
from agent.model.bug import Bug, bug_of
from agent.model.devices import DevicePlugins
from agent.model.runtime import RuntimeNetwork
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
_THROUGH_PROC: Final = (
    "addresses",
    "mounted_namespaces",
    "mounts",
)  # as whoever has the process table sees them


def all_sources(snapshot: Snapshot) -> Snapshot:
    """Return the snapshot with every reading that another reading contradicts made unavailable.

    So does a check that raises, which is a bug: what it did not judge is not known.
    """
    bugs: list[Bug] = []
    believed = replace(
        snapshot,
        containers=_judged("containers", bugs, _runtimes_list, snapshot),
        pods=_judged("pods", bugs, _pods, snapshot),
        checkpoints=_judged("checkpoints", bugs, _checkpoints_of_docker, snapshot),
        networks=_judged("networks", bugs, _networks, snapshot),
    )
    if not isinstance(believed.networks, Unavailable):
        believed = replace(believed, networks=_judged("networks", bugs, of_pods, believed))
    stores = tuple(_judged_store(store, bugs, believed) for store in snapshot.reservations)
    compared = replace(believed, reservations=stores)
    return replace(
        compared,
        checkpoints=_judged("checkpoints", bugs, _checkpoints, compared),
        cni_results=_judged("cni_results", bugs, _cni_results, compared),
        device_plugins=_judged("device_plugins", bugs, _device_plugins, compared),
        bugs=(*snapshot.bugs, *bugs),
    )


def _judged(
    source: str, bugs: list[Bug], judge: Callable[[Snapshot], Reading[Any]], snapshot: Snapshot
) -> Reading[Any]:
    """Return what a check makes of a source; unavailable, with a bug more, if the check raises."""
    try:
        return judge(snapshot)
    except Exception as error:  # noqa: BLE001 (what no check has judged is not believed)
        bugs.append(bug_of("source", source, error))
        return Unavailable(source, bugs[-1].reason)


def _judged_store(store: NetworkStore, bugs: list[Bug], snapshot: Snapshot) -> NetworkStore:
    """Return what the check makes of a network's directory, like `_judged`."""
    try:
        return attributed(store, snapshot)
    except Exception as error:  # noqa: BLE001 (as above)
        bugs.append(bug_of("source", "reservations", error))
        unread = Unavailable("reservations", bugs[-1].reason)
        return replace(store, reading=unread, unrecognized=(), left_over=None)


def _runtimes_list(snapshot: Snapshot) -> _Containers:
    return _with_running_pods(runtime(snapshot), snapshot.pods)


def _networks(snapshot: Snapshot) -> Reading[tuple[RuntimeNetwork, ...]]:
    rejected = (
        _of_another_runtime("networks", snapshot) if isinstance(snapshot.networks, Known) else None
    )
    return rejected or snapshot.networks


def namespaces(snapshot: Snapshot) -> Snapshot:
    """Do the same for what is read last: through the process table of a container, it is not the node's."""
    if not isinstance(snapshot.processes, Unavailable):
        return snapshot
    read = [name for name in _THROUGH_PROC if isinstance(getattr(snapshot, name), Known)]
    rejected: dict[str, Any] = {name: Unavailable(name, snapshot.processes.why) for name in read}
    return replace(snapshot, **rejected)


def runtime(snapshot: Snapshot) -> _Containers:
    """Use a list only where it is that of the kubelet's runtime."""
    # A docker beside another runtime lists no pods, so that every address would look leaked. A kubelet or a Node that
    # names another runtime also tells a node without docker from a node where docker is stopped for a moment.
    reading = snapshot.containers
    if rejected := _of_another_runtime("containers", snapshot):
        if isinstance(rejected, Unavailable) or isinstance(
            snapshot.runtimes, NotRequested
        ):  # only docker was asked
            return rejected
        remedy = "if it is stopped, start it; if it runs, set --cri-endpoint"
        return Unavailable("containers", f"{rejected.why}: {remedy}")
    if not isinstance(reading, Known) or not _any_reserved(snapshot.reservations):
        return reading
    if running_sandboxes(reading) or runtimes.is_named(snapshot):
        return reading
    names = " and ".join(runtimes.names(snapshot)) or "the container runtime"
    why = (
        f"no running pod sandbox is in the list of {names}, and neither the kubelet's flags and configuration nor its "
        "Node names its runtime: the pods of this node may belong to another one"
    )
    return Unavailable("containers", why)


def _of_another_runtime(source: str, snapshot: Snapshot) -> Unavailable | NotRequested | None:
    """Return why a runtime's answer says nothing of the pods of this node; None: it does."""
    if why := runtimes.contradiction(snapshot):
        return Unavailable(source, f"it is unknown whose pods run here: {why}")
    other = runtimes.not_asked(snapshot)
    return (
        NotRequested(source, f"the runtime of this node is {other}, and it was not asked")
        if other
        else None
    )


def _any_reserved(stores: Iterable[NetworkStore]) -> bool:
    return any(known_or(store.reading, ()) for store in stores)


def _with_running_pods(reading: _Containers, pods: Reading[tuple[Pod, ...]]) -> _Containers:
    """Reject a list without any of the pods that run on this node according to the API server."""
    if not isinstance(reading, Known):
        return reading
    running = {pod.name for pod in known_or(pods, ()) if pod.has_sandbox}
    if not running or running & {container.pod for container in reading.value}:
        return reading
    listed = f"{len(reading.value)} containers and none" if reading.value else "no container"
    why = f"the runtime lists {listed} of the {len(running)} pods that run here according to the API server"
    return Unavailable("containers", why)


def _cni_results(snapshot: Snapshot) -> Reading[tuple[CniResult, ...]]:
    """Do not report a missing cache where no pod had an address from any of the networks."""
    stores = snapshot.reservations
    if not is_missing(snapshot.cni_results):
        return snapshot.cni_results
    unused = [store.reading for store in stores if isinstance(store.reading, NotRequested)]
    if len(unused) == len(stores):
        why = unused[0].why if unused else "no network of this node uses host-local"
        return NotRequested("cni_results", why)
    empty = [store for store in stores if store.absent and isinstance(store.reading, Known)]
    return Known(()) if len(empty) + len(unused) == len(stores) else snapshot.cni_results


def _checkpoints_of_docker(snapshot: Snapshot) -> _Checkpoints:
    """Judge no left-over directory: only docker's kubelets have checkpoints."""
    if runtimes.keeps_checkpoints(snapshot):
        return snapshot.checkpoints
    name = runtimes.not_asked(snapshot) or runtimes.name_of(snapshot)
    return NotRequested("checkpoints", f"a kubelet with {name} has none")


def _checkpoints(snapshot: Snapshot) -> _Checkpoints:
    """Accept missing checkpoints only where nothing could have a checkpoint."""
    # A directory without any of the running sandboxes (left over from another kubelet, or created by a mount) is not
    # the kubelet's.
    reading = snapshot.checkpoints
    if is_missing(reading):
        return _missing_checkpoints(reading, snapshot.containers, snapshot.reservations)
    running = running_sandboxes(snapshot.containers)
    written = {checkpoint.container_id for checkpoint in known_or(reading, ())}
    if not isinstance(reading, Known) or not running or running & written:
        return reading
    why = f"{len(running)} sandboxes are running and none has a checkpoint: check --checkpoint-dir"
    return Unavailable("checkpoints", why)


def _missing_checkpoints(
    reading: Unavailable, containers: _Containers, stores: Iterable[NetworkStore]
) -> _Checkpoints:
    if isinstance(containers, NotRequested):
        return NotRequested("checkpoints", containers.why)
    sandboxes = any(container.sandbox for container in known_or(containers, ()))
    return (
        Known(())
        if isinstance(containers, Known) and not sandboxes and not _any_reserved(stores)
        else reading
    )


def _pods(snapshot: Snapshot) -> Reading[tuple[Pod, ...]]:
    """Reject the pods of a Node that does not exist."""
    # A wrong name has no pods. The pods of a deleted Node are removed from the API, and may still run here. An empty
    # list proves nothing where it is not known whether the Node exists.
    reading, name = snapshot.pods, snapshot.node_name
    if not isinstance(reading, Known):
        return reading
    match snapshot.node:
        case Known(None):
            registration = known_or(snapshot.registration, None)
            if registration is not None and evidence_of_node(registration, name):
                why = f"the Node {name} was deleted together with its pods, so the list of pods is not reliable"
                return Unavailable("pods", why)
            return Unavailable("pods", f"the API server has no Node named {name}: check --node")
        case Unavailable(_, why) if not reading.value:
            return Unavailable(
                "pods", f"node {name} has no pods, and it is unknown whether the node exists: {why}"
            )
        case _:
            return reading


def _device_plugins(snapshot: Snapshot) -> Reading[DevicePlugins]:
    """Reject a directory that shows no sign of the kubelet, beside running sandboxes."""
    # This matters only where a pod or the node has devices. Kubelets without device plugins have no such directory, and
    # that must not make a report about addresses incomplete.
    reading, running = snapshot.device_plugins, len(running_sandboxes(snapshot.containers))
    if is_missing(reading):
        why = reading.why
    elif running and (doubt := _doubt_about_directory(snapshot)):
        why = f"{doubt}, but {running} sandboxes are running"
    else:
        return reading
    if isinstance(snapshot.pods, Unavailable) or isinstance(snapshot.node, Unavailable):
        return Unavailable("device_plugins", why)
    if asking := _uses_devices(snapshot):
        why = (
            f"{why}, but {asking} uses devices: check --device-plugins-dir, and that it is mounted"
        )
        return Unavailable("device_plugins", why)
    return NotRequested("device_plugins", f"{why}, and no pod here requests devices")


def _doubt_about_directory(snapshot: Snapshot) -> str:
    """Return why it may not be the kubelet's; empty: it is, or the kubelet may yet start there."""
    found = known_or(snapshot.device_plugins, None)
    if found is None or found.kubelet_socket or DeviceView.of(snapshot).is_of_running_kubelet:
        return ""
    if not found.sockets and not found.checkpoint_written:
        return "the device plugin directory is empty"
    processes = known_or(snapshot.processes, None)
    started = processes.kubelet if processes else None
    if started is None or snapshot.taken_at - started < _KUBELET_STARTS_WITHIN:
        return ""
    missing = "the device plugin directory has no kubelet.sock"
    return f"{missing}, and nothing in it is of the running kubelet"


def _uses_devices(snapshot: Snapshot) -> str:
    """Return a pod that uses devices, or else the node; empty: none is known to."""
    for pod in known_or(snapshot.pods, ()):
        if pod.wants or pod.rejection:
            return pod.name
    node = known_or(snapshot.node, None)
    # The 0 of a plugin that was taken away stays in the node's status for ever.
    return f"node {node.name}" if node and any(devices.capacity for devices in node.devices) else ""
