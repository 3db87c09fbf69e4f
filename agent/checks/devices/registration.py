"""When a resource was registered, by the files of one snapshot. Pure.

The kubelet writes its checkpoint when a plugin registers, and also whenever it gives a device to a pod. So the file's
time is the registration's only if it follows the plugin's socket, or if an earlier snapshot saw that the resource was
not registered.
"""

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Final

from agent.checks.devices.clocks import plugins
from agent.checks.devices.sockets import socket_pairs
from agent.model.devices import DeviceTransition, TransitionKind
from agent.model.snapshot import Snapshot

LATE: Final = timedelta(seconds=60)
"""A checkpoint older than this need not be the first version with its content."""
PROMPTLY: Final = timedelta(seconds=1)
"""A plugin registers this soon after it bound its socket: within 0.2 s on a real node."""


def by_files(
    resource: str,
    history: Iterable[DeviceTransition],
    snapshot: Snapshot,
    *,
    lost: DeviceTransition | None,
    alone: bool,
) -> tuple[datetime, bool]:
    """Return the time, and whether it is exact.

    `history`: includes the files of this snapshot. `lost`: the last transition of the resource since the kubelet
    started. `alone`: no other resource has registered since the last snapshot.
    """
    history, devices = tuple(history), plugins(snapshot)
    written = devices.checkpoint_written or snapshot.taken_at
    socket = socket_pairs(history, devices).get(resource)
    appeared = next(
        (one for one in reversed(history) if one.what is TransitionKind.SOCKET_APPEARED and one.socket == socket), None
    )
    if appeared is not None and _bound_to_register(appeared, written, lost, snapshot):
        return (written if written - appeared.at <= PROMPTLY else appeared.at), True
    return written, alone and _run_seen_before(snapshot) and abs(snapshot.taken_at - written) <= LATE


def _bound_to_register(
    appeared: DeviceTransition, written: datetime, lost: DeviceTransition | None, snapshot: Snapshot
) -> bool:
    """Whether a plugin bound its socket for this registration, as far as earlier snapshots tell."""
    devices = plugins(snapshot)
    if appeared in devices.history:
        seen = snapshot.taken_at - (snapshot.uptime - appeared.uptime)
        if seen - appeared.at > PROMPTLY:
            return False  # that snapshot saw the socket, and that the resource was not registered promptly
    since = devices.kubelet_socket if lost is None else lost.at
    return since is not None and since < appeared.at <= written


def _run_seen_before(snapshot: Snapshot) -> bool:
    """Whether an earlier snapshot saw this run of the kubelet, and thus that the resource was not registered yet."""
    devices = plugins(snapshot)
    starts = [one.at for one in devices.history if one.what is TransitionKind.KUBELET_STARTED]
    return bool(starts) and starts[-1] == devices.kubelet_socket
