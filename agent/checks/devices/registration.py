"""When a resource was registered, by the files of one look. Pure.

The kubelet writes its checkpoint when a plugin registers, and again whenever it gives a device to a pod. So its time
is the registration's only where it follows the plugin's socket, or where a look before saw that it was not yet.
"""

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Final

from agent.checks.devices.clocks import plugins
from agent.checks.devices.sockets import socket_pairs
from agent.model.devices import DeviceTransition, TransitionKind
from agent.model.snapshot import Snapshot

LATE: Final = timedelta(seconds=60)
"""A checkpoint that is older than this when it is seen need not be the first that told what it tells."""
PROMPTLY: Final = timedelta(seconds=1)
"""A plugin that has bound its socket is registered so soon after: 0.2 s at most, on a real node."""


def by_files(
    resource: str,
    history: Iterable[DeviceTransition],
    snapshot: Snapshot,
    *,
    lost: DeviceTransition | None,
    alone: bool,
) -> tuple[datetime, bool]:
    """Return when it was, and whether that is exact.

    `history`: up to the files of this look. `lost`: what it came back from, since the kubelet's start. `alone`: no
    other
    resource was registered since the look before.
    """
    history, devices = tuple(history), plugins(snapshot)
    written = devices.checkpoint_written or snapshot.taken_at
    socket = socket_pairs(history, devices).get(resource)
    appeared = next(
        (one for one in reversed(history) if one.what is TransitionKind.SOCKET_APPEARED and one.socket == socket), None
    )
    if appeared is not None and _made_to_register(appeared, written, lost, snapshot):
        return (written if written - appeared.at <= PROMPTLY else appeared.at), True
    return written, alone and _looked_since_start(snapshot) and abs(snapshot.taken_at - written) <= LATE


def _made_to_register(
    appeared: DeviceTransition, written: datetime, lost: DeviceTransition | None, snapshot: Snapshot
) -> bool:
    """Tell whether a plugin bound its socket for this registration, as far as earlier looks tell."""
    devices = plugins(snapshot)
    if appeared in devices.history:
        looked = snapshot.taken_at - (snapshot.uptime - appeared.uptime)
        if looked - appeared.at > PROMPTLY:
            return False  # a look saw the socket, and that the resource was not registered promptly
    since = devices.kubelet_socket if lost is None else lost.at
    return since is not None and since < appeared.at <= written


def _looked_since_start(snapshot: Snapshot) -> bool:
    """Tell whether an earlier look saw this run of the kubelet, and so that the resource was not registered yet."""
    devices = plugins(snapshot)
    starts = [one.at for one in devices.history if one.what is TransitionKind.KUBELET_STARTED]
    return bool(starts) and starts[-1] == devices.kubelet_socket
