"""Which of a look's times can be compared. A node without a battery boots in the past, and its clock is set later."""

from datetime import datetime, timedelta
from typing import Final

from agent.model.devices import DevicePlugins, DeviceTransition
from agent.model.snapshot import Snapshot, known_or

SLACK: Final = timedelta(seconds=5)
"""What a clock may drift against the boot clock; more is a clock that was set."""


def plugins(snapshot: Snapshot) -> DevicePlugins:
    """Return what was read of the device plugins; blind where nothing was."""
    return snapshot.device_plugins.known()


def boot_id(snapshot: Snapshot) -> str:
    """Return the name of this boot; empty where it was not read."""
    processes = known_or(snapshot.processes, None)
    return processes.boot_id if processes else ""


def in_this_boot(at: datetime, snapshot: Snapshot) -> bool:
    """Tell whether the wall clock of now can have shown that time since the node booted."""
    return snapshot.taken_at - snapshot.uptime - SLACK <= at <= snapshot.taken_at + SLACK


def kubelet_of_this_boot(snapshot: Snapshot, start: DeviceTransition | None) -> bool:
    """Tell whether the kubelet has bound its socket since the boot. `start`: its last start that is known.

    A socket file outlives a reboot. One that a look of this boot saw fresh is of this boot, wherever the clock is now.
    """
    bound = plugins(snapshot).kubelet_socket
    if bound is None:
        return False
    return in_this_boot(bound, snapshot) or (
        start is not None and start.at == bound and start.boot_id != "" and start.boot_id == boot_id(snapshot)
    )


def written_since_start(snapshot: Snapshot) -> bool | None:
    """Tell whether the kubelet that runs now has written the checkpoint; None: its times cannot be compared."""
    devices = plugins(snapshot)
    written, bound = devices.checkpoint_written, devices.kubelet_socket
    if written is None or bound is None or not in_this_boot(bound, snapshot):
        return None
    if written > snapshot.taken_at + SLACK:
        return None
    return written >= bound
