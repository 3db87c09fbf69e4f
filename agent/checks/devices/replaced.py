"""Resources that a plugin offers under another name now, as after a change of MIG or of time slicing. Pure.

The kubelet drops the old name after five minutes, and the node's status keeps it with capacity 0 forever.
"""

from agent.checks.devices.clocks import plugins
from agent.checks.devices.history import last_by_resource, since_start
from agent.checks.devices.sockets import socket_pairs
from agent.model.devices import DeviceTransition, TransitionKind
from agent.model.snapshot import Snapshot, Unavailable, known_or


def replaced(snapshot: Snapshot) -> frozenset[str]:
    """Return the dropped resources that have a successor, by the history.

    That is a resource which registered for the first time after the loss, with the same socket, or of a vendor with one
    plugin. If a resource that had registered before outlasts the loss, its vendor has several plugins.
    """
    last = last_by_resource(plugins(snapshot).history)
    dropped = (resource for resource, one in last.items() if one.what is TransitionKind.DROPPED)
    return frozenset(resource for resource in dropped if _has_successor(resource, snapshot))


def requested(resource: str, snapshot: Snapshot) -> bool | None:
    """Whether a pod requests a resource, or the node's status has some of it; None: not known."""
    asking = (pod for pod in known_or(snapshot.pods, ()) if pod.live or pod.rejection is not None)
    node = known_or(snapshot.node, None)
    listed = node.devices if node is not None else ()
    if any(resource in pod.wants for pod in asking) or any(one.resource == resource and one.capacity for one in listed):
        return True
    return None if isinstance(snapshot.pods, Unavailable) or isinstance(snapshot.node, Unavailable) else False


def _has_successor(resource: str, snapshot: Snapshot) -> bool:
    devices = plugins(snapshot)
    lost = _loss(resource, devices.history)
    if lost is None:
        return False
    socket = socket_pairs(devices.history[: lost + 1], devices).get(resource)
    sockets = socket_pairs(devices.history, devices)
    new = _first_registered_since(lost, devices.history)
    if socket is not None and any(sockets.get(other) == socket for other in new):
        return True
    by_several = _vendor(resource) in map(_vendor, _registered_since(lost, devices.history) - new)
    return not by_several and _vendor(resource) in map(_vendor, new)


def _loss(resource: str, history: tuple[DeviceTransition, ...]) -> int | None:
    """Return the place of what ended the last registration of a resource; None: no registration is known."""
    registered, lost = False, None
    for place, one in enumerate(history):
        if one.resource == resource and one.what is TransitionKind.REGISTERED:
            registered, lost = True, None
        elif lost is None and registered and (one.resource == resource or one.what is TransitionKind.KUBELET_STARTED):
            lost = place
    return lost


def _registered_since(lost: int, history: tuple[DeviceTransition, ...]) -> set[str]:
    """Return what was registered at some time after the loss: it is now, or registered meanwhile."""
    now = last_by_resource(since_start(history)).values()
    return {one.resource for one in (*history[lost:], *now) if one.what is TransitionKind.REGISTERED}


def _first_registered_since(lost: int, history: tuple[DeviceTransition, ...]) -> set[str]:
    """Return what registered for the first time since then; the snapshot that saw the loss may have seen both."""
    first: dict[str, int] = {}
    for place, one in enumerate(history):
        if one.what is TransitionKind.REGISTERED:
            first.setdefault(one.resource, place)
    return {
        resource for resource, place in first.items() if place > lost or history[place].uptime == history[lost].uptime
    }


def _vendor(resource: str) -> str:
    return resource.partition("/")[0]
