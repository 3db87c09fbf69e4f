"""Readings that contradict each other become unavailable. Pure.

Runtimes give wrong answers: an empty list after a restart, a list without the containers that they failed to load. A
wrong list that is believed once makes every address of the node look leaked.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import TypeAlias

from agent.checks import runtime as runtimes
from agent.model.devices import DevicePlugins
from agent.model.registration import Registration, evidence_of_node
from agent.model.runtime import RuntimeNetwork
from agent.model.snapshot import (
    Address,
    Checkpoint,
    CniResult,
    Container,
    Known,
    NetworkStore,
    Node,
    NotRequested,
    Pod,
    ProcessStartTimes,
    Reading,
    Snapshot,
    Unavailable,
    is_missing,
    known_or,
)
from agent.model.volumes import Mount
from agent.sources.networks import attributed

_Containers: TypeAlias = Reading[tuple[Container, ...]]
_Pods: TypeAlias = Reading[tuple[Pod, ...]]
_Node: TypeAlias = Reading[Node | None]
_Processes: TypeAlias = Reading[ProcessStartTimes]
_Checkpoints: TypeAlias = Reading[tuple[Checkpoint, ...]]


def all_sources(snapshot: Snapshot) -> Snapshot:
    """Return the snapshot with every reading that another one contradicts made unavailable."""
    node = snapshot.node
    found = containers(runtime(snapshot), snapshot.pods)
    believed_pods = pods(snapshot.pods, node, snapshot.registration, snapshot.node_name)
    of_docker = _without_checkpoints(snapshot) or snapshot.checkpoints
    believed = replace(
        snapshot, containers=found, pods=believed_pods, checkpoints=of_docker, networks=networks(snapshot)
    )
    stores = tuple(attributed(store, believed) for store in snapshot.reservations)
    return replace(
        believed,
        checkpoints=checkpoints(of_docker, found, stores),
        reservations=stores,
        cni_results=cni_results(snapshot.cni_results, stores),
        device_plugins=device_plugins(snapshot.device_plugins, found, believed_pods, node),
    )


def namespaces(snapshot: Snapshot) -> Snapshot:
    """Do the same for what is read last, through the process table."""
    return replace(
        snapshot,
        addresses=addresses(snapshot.addresses, snapshot.processes),
        mounted_namespaces=mounted_namespaces(snapshot.mounted_namespaces, snapshot.processes),
        mounts=mounts(snapshot.mounts, snapshot.processes),
    )


def runtime(snapshot: Snapshot) -> _Containers:
    """Use a list only where it is that of the kubelet's runtime.

    A docker beside another runtime lists no pods, so that every address would look leaked. A kubelet or a Node that
    names another runtime also tells a node without docker from one where docker is stopped for a moment.
    """
    reading = snapshot.containers
    if why := runtimes.contradiction(snapshot):
        return Unavailable("containers", f"it is unknown whose pods run here: {why}")
    if other := runtimes.not_asked(snapshot):
        why = f"the runtime of this node is {other}, and it was not asked"
        if isinstance(snapshot.runtimes, NotRequested):  # only docker was to be asked
            return NotRequested("containers", why)
        return Unavailable("containers", f"{why}: if it is stopped, start it; if it runs, set --cri-endpoint")
    if not isinstance(reading, Known) or not _any_reserved(snapshot.reservations):
        return reading
    if any(one.sandbox and one.running for one in reading.value) or runtimes.is_named(snapshot):
        return reading
    names = " and ".join(runtimes.names(snapshot)) or "the container runtime"
    return Unavailable(
        "containers",
        f"no running pod sandbox is in the list of {names}, and neither the kubelet's flags and configuration nor its "
        "Node names its runtime: the pods of this node may belong to another one",
    )


def _any_reserved(stores: Iterable[NetworkStore]) -> bool:
    return any(known_or(store.reading, ()) for store in stores)


def networks(snapshot: Snapshot) -> Reading[tuple[RuntimeNetwork, ...]]:
    """Use the networks only where they are those of the kubelet's runtime."""
    if not isinstance(snapshot.networks, Known):
        return snapshot.networks
    if why := runtimes.contradiction(snapshot):
        return Unavailable("networks", f"it is unknown whose pods run here: {why}")
    if other := runtimes.not_asked(snapshot):
        return NotRequested("networks", f"the runtime of this node is {other}, and it was not asked")
    return snapshot.networks


def cni_results(
    reading: Reading[tuple[CniResult, ...]], stores: tuple[NetworkStore, ...]
) -> Reading[tuple[CniResult, ...]]:
    """Do not report a missing cache where no pod had an address from any of the networks."""
    if not is_missing(reading):
        return reading
    if not stores:
        return NotRequested("cni_results", "no network of this node uses host-local")
    unused = [store.reading for store in stores if isinstance(store.reading, NotRequested)]
    if len(unused) == len(stores):
        return NotRequested("cni_results", unused[0].why)
    empty = [store for store in stores if store.absent and isinstance(store.reading, Known)]
    return Known(()) if len(empty) + len(unused) == len(stores) else reading


def containers(reading: _Containers, pods: _Pods) -> _Containers:
    """Reject a list without any of the pods that run on this node according to the API server."""
    if not isinstance(reading, Known) or not isinstance(pods, Known):
        return reading
    running = {pod.name for pod in pods.value if pod.has_sandbox}
    if not running or running & {container.pod for container in reading.value}:
        return reading
    listed = f"{len(reading.value)} containers and none" if reading.value else "no container"
    return Unavailable(
        "containers", f"the runtime lists {listed} of the {len(running)} pods that run here according to the API server"
    )


def _without_checkpoints(snapshot: Snapshot) -> NotRequested | None:
    """Judge no left-over directory: only docker's kubelets have checkpoints."""
    if runtimes.keeps_checkpoints(snapshot):
        return None
    runtime = runtimes.not_asked(snapshot) or runtimes.name_of(snapshot)
    return NotRequested("checkpoints", f"a kubelet with {runtime} has none")


def checkpoints(reading: _Checkpoints, runtime: _Containers, stores: Iterable[NetworkStore]) -> _Checkpoints:
    """Accept missing checkpoints only where nothing could have one.

    A missing directory means no checkpoints where the runtime has no sandbox and no address is reserved. A directory
    without any of the running sandboxes (left over from another kubelet, or created by a mount) is not the kubelet's.
    """
    if is_missing(reading):
        return _missing_checkpoints(reading, runtime, stores)
    if not isinstance(reading, Known) or not isinstance(runtime, Known):
        return reading
    running = {container.id for container in runtime.value if container.sandbox and container.running}
    if not running or running & {checkpoint.container_id for checkpoint in reading.value}:
        return reading
    return Unavailable(
        "checkpoints", f"{len(running)} sandboxes are running and none has a checkpoint: check --checkpoint-dir"
    )


def _missing_checkpoints(reading: Unavailable, runtime: _Containers, stores: Iterable[NetworkStore]) -> _Checkpoints:
    if isinstance(runtime, NotRequested):
        return NotRequested("checkpoints", runtime.why)
    sandboxes = any(container.sandbox for container in known_or(runtime, ()))
    if isinstance(runtime, Known) and not sandboxes and not _any_reserved(stores):
        return Known(())
    return reading


def addresses(reading: Reading[tuple[Address, ...]], processes: _Processes) -> Reading[tuple[Address, ...]]:
    """Reject namespaces that were read through a container's process table."""
    if isinstance(reading, Known) and isinstance(processes, Unavailable):
        return Unavailable("addresses", processes.why)
    return reading


def mounted_namespaces(reading: Reading[tuple[str, ...]], processes: _Processes) -> Reading[tuple[str, ...]]:
    """Reject a container's mount table: it lacks the node's namespaces."""
    if isinstance(reading, Known) and isinstance(processes, Unavailable):
        return Unavailable("mounted_namespaces", processes.why)
    return reading


def mounts(reading: Reading[tuple[Mount, ...]], processes: _Processes) -> Reading[tuple[Mount, ...]]:
    """Reject a mount table for the same reason: a container's is not the node's."""
    if isinstance(reading, Known) and isinstance(processes, Unavailable):
        return Unavailable("mounts", processes.why)
    return reading


def pods(reading: _Pods, node: _Node, registration: Reading[Registration], name: str) -> _Pods:
    """Reject the pods of a Node that does not exist.

    A wrong name has no pods. The pods of a deleted Node are removed from the API, and may still run here. An empty list
    proves nothing where it is not known whether the Node exists.
    """
    if not isinstance(reading, Known):
        return reading
    match node:
        case Known(None):
            known = known_or(registration, None)
            if known is not None and evidence_of_node(known, name):
                return Unavailable(
                    "pods", f"the Node {name} was deleted together with its pods, so the list of pods is not reliable"
                )
            return Unavailable("pods", f"the API server has no Node named {name}: check --node")
        case Unavailable(_, why) if not reading.value:
            return Unavailable("pods", f"node {name} has no pods, and it is unknown whether the node exists: {why}")
        case _:
            return reading


def device_plugins(
    reading: Reading[DevicePlugins], runtime: _Containers, pods: _Pods, node: _Node
) -> Reading[DevicePlugins]:
    """Reject an empty directory beside running sandboxes: no kubelet started with it.

    This matters only where a pod or the node has devices. Kubelets without device plugins have no such directory, and
    that must not make a report about addresses incomplete.
    """
    why = _why_not_the_kubelets(reading, runtime)
    if not why or isinstance(pods, Unavailable) or isinstance(node, Unavailable):
        return Unavailable("device_plugins", why) if why else reading
    asking = [one.name for one in known_or(pods, ()) if one.wants or one.rejection]
    # The 0 of a plugin that was taken away stays in the node's status for ever.
    if (object_ := known_or(node, None)) and any(one.capacity for one in object_.devices):
        asking.append(f"node {object_.name}")
    if asking:
        return Unavailable(
            "device_plugins", f"{why}, but {asking[0]} uses devices: check --device-plugins-dir, and that it is mounted"
        )
    return NotRequested("device_plugins", f"{why}, and no pod here requests devices")


def _why_not_the_kubelets(reading: Reading[DevicePlugins], runtime: _Containers) -> str:
    if is_missing(reading):
        return reading.why
    if not isinstance(reading, Known) or not isinstance(runtime, Known):
        return ""
    empty = not (reading.value.kubelet_socket or reading.value.sockets or reading.value.checkpoint_written)
    running = sum(container.sandbox and container.running for container in runtime.value)
    return f"the device plugin directory is empty, but {running} sandboxes are running" if empty and running else ""
