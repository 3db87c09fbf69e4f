"""The current state of each resource: registered or not, since when, after what delay, how many are in use. Pure."""

from collections.abc import Iterable
from datetime import datetime, timedelta

from agent.checks.devices.clocks import SLACK, boot_id, in_this_boot, kubelet_of_this_boot, plugins, written_since_start
from agent.checks.devices.history import last_by_resource, last_start, since_start
from agent.checks.devices.registration import LATE
from agent.checks.devices.replaced import replaced, requested
from agent.checks.devices.sockets import socket_pairs
from agent.model.devices import DevicePlugins, DeviceTransition, ResourceState, TransitionKind
from agent.model.snapshot import Known, Snapshot, known_or


def resource_states(snapshot: Snapshot) -> tuple[ResourceState, ...]:
    """Return every resource that the kubelet knows or should know, by name."""
    sockets = socket_pairs(plugins(snapshot).history, plugins(snapshot))
    return tuple(_state(resource, sockets.get(resource, ""), snapshot) for resource in expected_resources(snapshot))


def expected_resources(snapshot: Snapshot) -> tuple[str, ...]:
    """Return the resources that this kubelet should know, by name.

    A resource that only the Node names is expected if its capacity is 0, as the kubelet leaves it when it drops the
    resource, and a pod requests it: the 0 stays forever after a plugin is uninstalled. Any other capacity was set by
    hand. A resource that was dropped before the kubelet's last start is not expected: its plugin was removed. One that
    another has replaced is expected only if it is still requested.
    """
    names = _in_files(snapshot) | {one for one in named_by_node_only(snapshot) if requested(one, snapshot)}
    given_up = {resource for resource in replaced(snapshot) if requested(resource, snapshot) is False}
    return tuple(sorted(names - dropped_before_start(plugins(snapshot).history) - given_up))


def named_by_node_only(snapshot: Snapshot) -> frozenset[str]:
    """Return the resources with capacity 0 that no file here has."""
    node = known_or(snapshot.node, None)
    empty = () if node is None else (one.resource for one in node.devices if one.capacity == 0)
    return frozenset(empty) - _in_files(snapshot)


def _in_files(snapshot: Snapshot) -> frozenset[str]:
    devices = plugins(snapshot)
    return frozenset(last_by_resource(devices.history)) | {one.resource for one in devices.registered}


def dropped_before_start(history: Iterable[DeviceTransition]) -> frozenset[str]:
    """Return what the kubelet dropped before its last start, and has not known since."""
    history = tuple(history)
    since = last_by_resource(since_start(history))
    return frozenset(
        resource
        for resource, last in last_by_resource(history).items()
        if last.what is TransitionKind.DROPPED and resource not in since
    )


def kubelet_up_for(snapshot: Snapshot) -> timedelta | None:
    """Return how long the kubelet's device manager has been up; None: it has not started since the boot."""
    start = last_start(plugins(snapshot).history)
    if start is None or not kubelet_of_this_boot(snapshot, start):
        return None
    seen_for = snapshot.uptime - start.uptime if start.boot_id == boot_id(snapshot) else timedelta(0)
    by_wall = snapshot.taken_at - start.at
    # The wall clock, if the boot clock confirms it; otherwise how long it has been seen.
    return by_wall if in_this_boot(start.at, snapshot) and by_wall >= seen_for - SLACK else seen_for


def _state(resource: str, socket: str, snapshot: Snapshot) -> ResourceState:
    devices = plugins(snapshot)
    stream = next((one for one in devices.sockets if one.name == socket), None)
    connected = None if stream is None else stream.connected
    healthy = next((len(one.devices) for one in devices.registered if one.resource == resource), 0)
    registered = _registered(resource, healthy, connected, snapshot)
    last = last_by_resource(since_start(devices.history)).get(resource)
    return ResourceState(
        resource=resource,
        devices=None if registered is None else healthy if registered else 0,
        allocated=_allocated(resource, snapshot, devices),
        registered=registered,
        registered_since=last.at if registered and last and last.what is TransitionKind.REGISTERED else None,
        delay=_delay(resource, socket, snapshot),
        socket=socket,
        socket_present=stream is not None if socket else None,
        connected=connected,
    )


def _registered(resource: str, healthy: int, connected: bool | None, snapshot: Snapshot) -> bool | None:
    history = plugins(snapshot).history
    last = last_by_resource(since_start(history)).get(resource)
    bound = plugins(snapshot).kubelet_socket
    if bound is not None and not kubelet_of_this_boot(snapshot, last_start(history)):
        # By the current clock. If it was set since, only the open stream proves a registration.
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
    # An init container's device may be given to another container of its pod: one device, two entries.
    given = {
        (one.pod_uid, device)
        for one in devices.allocations
        if one.resource == resource and one.pod_uid in live
        for device in one.devices
    }
    return len(given)


def _delay(resource: str, socket: str, snapshot: Snapshot) -> timedelta | None:
    history = plugins(snapshot).history
    start, since = last_start(history), since_start(history)
    first = next((one for one in since if one.resource == resource and one.what is TransitionKind.REGISTERED), None)
    if start is None or first is None:
        return None
    vague = not first.exact and (first.uptime == start.uptime or _seen_late(first, snapshot))
    at = _socket_bound(socket, first, since) if vague else first.at
    return at - start.at if at is not None and at >= start.at else None


def _seen_late(transition: DeviceTransition, snapshot: Snapshot) -> bool:
    """Whether the snapshot that first saw a transition was taken long after the time it could find for it."""
    return (snapshot.taken_at - (snapshot.uptime - transition.uptime)) - transition.at > LATE


def _socket_bound(socket: str, registration: DeviceTransition, since: Iterable[DeviceTransition]) -> datetime | None:
    """Return when the plugin bound its socket, a moment before it registered."""
    bound = [
        one.at
        for one in since
        if socket and one.socket == socket and one.what is TransitionKind.SOCKET_APPEARED and one.at <= registration.at
    ]
    return min(bound, default=None)
