"""Which times of a snapshot can be compared. A node without a battery boots in the past, and its clock is set later."""

from datetime import datetime, timedelta
from typing import Final

from agent.model.devices import DevicePlugins, DeviceTransition
from agent.model.snapshot import Snapshot, known_or

SLACK: Final = timedelta(seconds=5)
"""How far the wall clock may drift from the boot clock; a larger difference means that it was set."""


def plugins(snapshot: Snapshot) -> DevicePlugins:
    """Return what was read of the device plugins; raises InsufficientData if they are unavailable."""
    return snapshot.device_plugins.known()


def boot_id(snapshot: Snapshot) -> str:
    """Return the id of this boot; empty if unavailable."""
    processes = known_or(snapshot.processes, None)
    return processes.boot_id if processes else ""


def in_this_boot(at: datetime, snapshot: Snapshot) -> bool:
    """Whether the wall clock, as it is set now, can have shown this time since the node booted."""
    return snapshot.taken_at - snapshot.uptime - SLACK <= at <= snapshot.taken_at + SLACK


def kubelet_of_this_boot(snapshot: Snapshot, start: DeviceTransition | None) -> bool:
    """Whether the kubelet has bound its socket since the boot. `start`: its last known start.

    A socket file outlives a reboot. A socket that a snapshot of this boot saw appear is of this boot, however the clock
    was set since.
    """
    bound = plugins(snapshot).kubelet_socket
    if bound is None:
        return False
    return in_this_boot(bound, snapshot) or (
        start is not None and start.at == bound and start.boot_id != "" and start.boot_id == boot_id(snapshot)
    )


def written_since_start(snapshot: Snapshot) -> bool | None:
    """Whether the running kubelet has written the checkpoint; None: the two times cannot be compared."""
    devices = plugins(snapshot)
    written, bound = devices.checkpoint_written, devices.kubelet_socket
    if written is None or bound is None or not in_this_boot(bound, snapshot):
        return None
    if written > snapshot.taken_at + SLACK:
        return None
    return written >= bound
