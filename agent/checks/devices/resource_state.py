"""How each resource stands now: registered or not, since when, how late, and who has its devices. Pure."""

from collections.abc import Iterable
from datetime import datetime, timedelta

from agent.checks.devices.clocks import SLACK, boot_id, in_this_boot, kubelet_of_this_boot, plugins, written_since_start
from agent.checks.devices.history import device_history, last_by_resource, last_start, since_start
from agent.checks.devices.registration import LATE
from agent.checks.devices.sockets import socket_pairs
from agent.model.devices import DevicePlugins, DeviceTransition, ResourceState, TransitionKind
from agent.model.snapshot import Known, Snapshot, known_or


def resource_states(snapshot: Snapshot) -> tuple[ResourceState, ...]:
    """Return every resource that the kubelet has or should have, by name. Blind where plugins were not read."""
    history = device_history(snapshot)
    sockets = socket_pairs(history, plugins(snapshot))
    return tuple(_state(resource, sockets.get(resource, ""), snapshot, history) for resource in awaited(snapshot))


def awaited(snapshot: Snapshot) -> tuple[str, ...]:
    """Return the resources that this kubelet should know, by name.

    What the node object alone tells of is awaited where its capacity is 0, for so the kubelet leaves what it has
    dropped, and where a pod asks for it: the 0 stays for ever when a plugin is uninstalled. A capacity that somebody
    wrote there by hand is no plugin's. Nor is awaited what was dropped before the kubelet started: whoever took that
    plugin away has had time to.
    """
    history = device_history(snapshot)
    names = {one.resource for one in plugins(snapshot).registered}
    names |= last_by_resource(history).keys()
    if node := known_or(snapshot.node, None):
        empty = {one.resource for one in node.devices if one.capacity == 0}
        names |= empty & _asked_for(snapshot)
    return tuple(sorted(names - dropped_before(history)))


def _asked_for(snapshot: Snapshot) -> set[str]:
    pods = known_or(snapshot.pods, ())
    return {resource for pod in pods if pod.live or pod.rejection for resource in pod.wants}


def dropped_before(history: Iterable[DeviceTransition]) -> frozenset[str]:
    """Return what the kubelet had dropped before its last start, and has not known since."""
    history = tuple(history)
    since = last_by_resource(since_start(history))
    return frozenset(
        resource
        for resource, last in last_by_resource(history).items()
        if last.what is TransitionKind.DROPPED and resource not in since
    )


def kubelet_up_for(snapshot: Snapshot) -> timedelta | None:
    """Return how long the kubelet's device manager has been up; None: it was not started since the boot."""
    start = last_start(device_history(snapshot))
    if start is None or not kubelet_of_this_boot(snapshot, start):
        return None
    seen_for = snapshot.uptime - start.uptime if start.boot_id == boot_id(snapshot) else timedelta(0)
    by_wall = snapshot.taken_at - start.at
    # The wall clock where the boot clock bears it out; else how long it has been seen for.
    return by_wall if in_this_boot(start.at, snapshot) and by_wall >= seen_for - SLACK else seen_for


def _state(resource: str, socket: str, snapshot: Snapshot, history: tuple[DeviceTransition, ...]) -> ResourceState:
    devices = plugins(snapshot)
    stream = next((one for one in devices.sockets if one.name == socket), None)
    connected = None if stream is None else stream.connected
    healthy = next((len(one.devices) for one in devices.registered if one.resource == resource), 0)
    known = _registered(resource, healthy, connected, snapshot, history)
    last = last_by_resource(since_start(history)).get(resource)
    return ResourceState(
        resource=resource,
        devices=None if known is None else healthy if known else 0,
        allocated=_allocated(resource, snapshot, devices),
        registered=known,
        registered_since=last.at if known and last is not None and last.what is TransitionKind.REGISTERED else None,
        delay=_delay(resource, socket, snapshot, history),
        socket=socket,
        socket_present=stream is not None if socket else None,
        connected=connected,
    )


def _registered(
    resource: str, healthy: int, connected: bool | None, snapshot: Snapshot, history: tuple[DeviceTransition, ...]
) -> bool | None:
    last = last_by_resource(since_start(history)).get(resource)
    bound = plugins(snapshot).kubelet_socket
    if bound is not None and not kubelet_of_this_boot(snapshot, last_start(history)):
        # By the clock of now. Where it was set since, only the stream can tell.
        return bool(healthy) and connected is True
    if last is not None:
        return last.what is TransitionKind.REGISTERED
    if not healthy:
        return False
    return connected if written_since_start(snapshot) is None else connected is True


def _allocated(resource: str, snapshot: Snapshot, devices: DevicePlugins) -> int | None:
    if not isinstance(snapshot.pods, Known):
        return None
    live = {pod.uid for pod in snapshot.pods.value if pod.live}
    # A container may be given what an init container of its pod has left: one device, two entries.
    given = {
        (one.pod_uid, device)
        for one in devices.allocations
        if one.resource == resource and one.pod_uid in live
        for device in one.devices
    }
    return len(given)


def _delay(resource: str, socket: str, snapshot: Snapshot, history: tuple[DeviceTransition, ...]) -> timedelta | None:
    start, since = last_start(history), since_start(history)
    came = next((one for one in since if one.resource == resource and one.what is TransitionKind.REGISTERED), None)
    if start is None or came is None:
        return None
    vague = not came.exact and (came.uptime == start.uptime or _seen_late(came, snapshot))
    at = _appeared(socket, came, since) if vague else came.at
    return at - start.at if at is not None and at >= start.at else None


def _seen_late(came: DeviceTransition, snapshot: Snapshot) -> bool:
    """Tell whether the look that saw it first came long after the time that it could find."""
    return (snapshot.taken_at - (snapshot.uptime - came.uptime)) - came.at > LATE


def _appeared(socket: str, came: DeviceTransition, since: Iterable[DeviceTransition]) -> datetime | None:
    """Return when the plugin bound its socket before it registered: the two are a moment apart."""
    bound = [
        one.at
        for one in since
        if socket and one.socket == socket and one.what is TransitionKind.SOCKET_APPEARED and one.at <= came.at
    ]
    return min(bound, default=None)
