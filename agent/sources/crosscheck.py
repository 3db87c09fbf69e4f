"""A reading that the others contradict is no reading. Pure.

Runtimes do answer wrongly: an empty list after a restart, a list without what they failed to load. Believed once, it
makes every address of the node look leaked.
"""

from collections.abc import Iterable
from dataclasses import replace

from agent.model.assessment import KUBENET
from agent.model.devices import DevicePlugins
from agent.model.registration import Registration, who_says_ours
from agent.model.snapshot import (
    Address,
    Checkpoint,
    CniResult,
    Container,
    Known,
    Node,
    NotRequested,
    Pod,
    ProcessStartTimes,
    Reading,
    Store,
    Unavailable,
)
from agent.model.volumes import Mount


def runtime(reading: Reading[Container], node: Reading[Node]) -> Reading[Container]:
    """Leave docker alone on a node whose kubelet says that it runs its pods with another runtime.

    Only that word separates a node without docker from one where docker is stopped for a moment: of the latter the
    kubelet goes on saying docker. And a docker beside another runtime lists no pods, which would make all look gone.
    """
    told = _foreign_runtime(node)
    return NotRequested("containers", f"the runtime of this node is {told}, not docker") if told else reading


def reservations(
    stores: Iterable[Store], processes: Reading[ProcessStartTimes], node: Reading[Node]
) -> tuple[Store, ...]:
    """Miss no reservations of kubenet where no kubenet can be: it is docker's, and a choice that a flag tells of.

    A kubelet that does not run tells of nothing; and what is there is read, whatever is said.
    """
    why = _why_no_kubenet(processes, node)
    return tuple(
        replace(store, reading=NotRequested("reservations", why))
        if why and store.network == KUBENET and isinstance(store.reading, Unavailable) and _is_missing(store.reading)
        else store
        for store in stores
    )


def _why_no_kubenet(processes: Reading[ProcessStartTimes], node: Reading[Node]) -> str:
    if told := _foreign_runtime(node):
        return f"no kubenet on this node: its runtime is {told}"
    plugins = [one.network_plugin for one in processes.items] if isinstance(processes, Known) else []
    if not plugins or None in plugins or KUBENET in plugins:
        return ""
    return f"no kubenet on this node: its kubelet has --network-plugin={plugins[0]}"


def _foreign_runtime(node: Reading[Node]) -> str:
    told = [one.runtime for one in node.items] if isinstance(node, Known) else []
    return next((runtime for runtime in told if runtime and not runtime.startswith("docker://")), "")


def _is_missing(reading: Unavailable) -> bool:
    return " does not exist: " in reading.why or reading.why.startswith("none of these exists")


def cni_results(reading: Reading[CniResult], stores: tuple[Store, ...]) -> Reading[CniResult]:
    """Miss no cache where there is no network that it would be of."""
    whys = [store.reading.why for store in stores if isinstance(store.reading, NotRequested)]
    if isinstance(reading, Unavailable) and _is_missing(reading) and whys and len(whys) == len(stores):
        return NotRequested("cni_results", whys[0])
    return reading


def containers(reading: Reading[Container], pods: Reading[Pod]) -> Reading[Container]:
    """Disbelieve a list that holds none of the pods that run here by the API server's word."""
    if not isinstance(reading, Known) or not isinstance(pods, Known):
        return reading
    running = {pod.name for pod in pods.items if pod.phase == "Running" and not pod.deleting}
    if not running or running & {container.pod for container in reading.items}:
        return reading
    listed = f"{len(reading.items)} containers, none of them" if reading.items else "no container, not one"
    return Unavailable(
        "containers", f"the runtime lists {listed} of the {len(running)} pods that run here by the API server's word"
    )


def checkpoints(reading: Reading[Checkpoint], runtime: Reading[Container]) -> Reading[Checkpoint]:
    """Believe an absence only where the runtime agrees.

    No directory at all is none, where the runtime has no sandbox that would be in it. A directory without any of the
    sandboxes that run (left over by another kubelet, or made by a mount) is not the kubelet's.
    """
    if isinstance(runtime, NotRequested) and isinstance(reading, Unavailable) and _is_missing(reading):
        return NotRequested("checkpoints", runtime.why)
    if not isinstance(runtime, Known):
        return reading
    if isinstance(reading, Known):
        running = {container.id for container in runtime.items if container.sandbox and container.running}
        if not running or running & {checkpoint.container_id for checkpoint in reading.items}:
            return reading
        return Unavailable(
            "checkpoints", f"{len(running)} sandboxes run, and none has one: is it the kubelet's directory?"
        )
    if not isinstance(reading, Unavailable):
        return reading
    if _is_missing(reading) and not any(container.sandbox for container in runtime.items):
        return Known(())
    return reading


def addresses(reading: Reading[Address], processes: Reading[ProcessStartTimes]) -> Reading[Address]:
    """Disbelieve namespaces that were seen through the process table of a container."""
    if isinstance(reading, Known) and isinstance(processes, Unavailable):
        return Unavailable("addresses", processes.why)
    return reading


def mounts(reading: Reading[Mount], processes: Reading[ProcessStartTimes]) -> Reading[Mount]:
    """Disbelieve a mount table for the same reason: that of a container is not the node's."""
    if isinstance(reading, Known) and isinstance(processes, Unavailable):
        return Unavailable("mounts", processes.why)
    return reading


def pods(reading: Reading[Pod], node: Reading[Node], registration: Reading[Registration], name: str) -> Reading[Pod]:
    """Disbelieve the pods of a Node that is not there.

    A wrong name has no pods; those of a Node that was deleted are swept, and whoever is missing may still run here.
    Of a Node that may not be there, an empty list says no more.
    """
    if not isinstance(reading, Known):
        return reading
    match node:
        case Known(()):
            known = next(iter(registration.items), None) if isinstance(registration, Known) else None
            if known is not None and who_says_ours(known, name):
                return Unavailable(
                    "pods", f"the Node {name!r} is gone, and its pods with it: nothing follows from their list"
                )
            return Unavailable("pods", f"the API server has no Node named {name!r}: is the node's name right?")
        case Unavailable(_, why) if not reading.items:
            return Unavailable(
                "pods", f"there are none of node {name!r}, and whether there is such a node is not known: {why}"
            )
        case _:
            return reading


def device_plugins(
    reading: Reading[DevicePlugins], runtime: Reading[Container], pods: Reading[Pod], node: Reading[Node]
) -> Reading[DevicePlugins]:
    """Disbelieve an empty directory beside pods that run: no kubelet started with it.

    Whether it is the kubelet's at all matters only where somebody asks for devices. Elsewhere (kubelets without device
    plugins have no such directory) its want is no fault, and no reason for a look at addresses to be incomplete.
    """
    why = _why_not_the_kubelets(reading, runtime)
    if not why or isinstance(pods, Unavailable) or isinstance(node, Unavailable):
        return Unavailable("device_plugins", why) if why else reading
    asking = [one.name for one in pods.items if one.wants or one.rejection] if isinstance(pods, Known) else []
    # The 0 of a plugin that was taken away stays in the node's status for ever.
    asking += [f"node {one.name}" for one in node.items if _has_devices(one)] if isinstance(node, Known) else []
    if asking:
        return Unavailable("device_plugins", f"{why}, and {asking[0]} has to do with devices: is it mounted?")
    return NotRequested("device_plugins", f"{why}, and nothing here is known to ask for devices")


def _has_devices(node: Node) -> bool:
    return any(one.capacity for one in node.devices)


def _why_not_the_kubelets(reading: Reading[DevicePlugins], runtime: Reading[Container]) -> str:
    if isinstance(reading, Unavailable):
        return reading.why if reading.why.endswith(" does not exist") else ""
    if not isinstance(reading, Known) or not isinstance(runtime, Known):
        return ""
    empty = all(not (one.kubelet_socket or one.sockets or one.checkpoint_written) for one in reading.items)
    running = sum(container.sandbox and container.running for container in runtime.items)
    return f"the directory is empty, while {running} sandboxes run" if empty and running else ""
