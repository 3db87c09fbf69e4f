"""What a look tells of device plugins: their sockets, the kubelet's checkpoint, and what earlier looks left behind."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum


@dataclass(frozen=True, slots=True)
class PluginSocket:
    """One plugin's socket in the kubelet's directory."""

    name: str
    made: datetime
    """Its file's time: the plugin bound it then, by the node's clock."""
    connected: bool | None
    """Whether the kubelet has its stream open; None where the host's sockets could not be read."""


@dataclass(frozen=True, slots=True)
class Registered:
    """One resource in the checkpoint."""

    resource: str
    devices: tuple[str, ...]
    """The healthy ones. Empty: known, and not registered again yet, or none is healthy."""


@dataclass(frozen=True, slots=True)
class Allocation:
    """Devices that the kubelet gave to a container, by its checkpoint; those of dead pods stay for a while."""

    pod_uid: str
    container: str
    resource: str
    devices: tuple[str, ...]


class TransitionKind(StrEnum):
    """What can happen to a device plugin, or to all of them."""

    KUBELET_STARTED = "kubelet_started"
    """The kubelet bound `kubelet.sock`: its device manager started, and knows no plugin."""
    SOCKET_APPEARED = "socket_appeared"
    SOCKET_GONE = "socket_gone"
    REGISTERED = "registered"
    """The kubelet knows healthy devices of the resource."""
    LOST = "lost"
    """The kubelet knew devices of the resource, and knows none now."""
    DROPPED = "dropped"
    """The kubelet has forgotten the resource, five minutes after its plugin was gone; the node's capacity is 0."""


@dataclass(frozen=True, slots=True)
class DeviceTransition:
    """One thing that happened, as far as files and earlier looks tell."""

    what: TransitionKind
    at: datetime
    """The node's wall clock: of the file where a file tells it, else of the look that saw it first."""
    uptime: timedelta
    """The boot clock of the look that saw it first."""
    boot_id: str
    resource: str = ""
    socket: str = ""
    exact: bool = True
    """False: it happened at some time between the look before and `at`."""


@dataclass(frozen=True, slots=True)
class DevicePlugins:
    """The kubelet's device manager, from outside."""

    kubelet_socket: datetime | None
    """When the kubelet's device manager started, as `kubelet.sock` tells; None: there is none."""
    sockets: tuple[PluginSocket, ...]
    checkpoint_written: datetime | None
    """None: there is no checkpoint. No device was ever registered here, or somebody removed it."""
    registered: tuple[Registered, ...]
    allocations: tuple[Allocation, ...]
    history: tuple[DeviceTransition, ...] = ()
    """What earlier looks saw, oldest first, as the state file keeps it."""
    trouble: str = ""
    """Why the state file could not be read, and the history begins anew; empty where nothing is wrong with it."""


@dataclass(frozen=True, slots=True)
class ResourceState:
    """How one resource stands now."""

    resource: str
    devices: int | None
    """Healthy ones that the kubelet knows; 0 while the resource is not registered; None: not known."""
    allocated: int | None
    """Those that live pods have; None where the pods are not known."""
    registered: bool | None
    """Whether the kubelet knows healthy devices of it; None: a clock was moved, and nothing else tells."""
    registered_since: datetime | None
    """None: it is not registered, or nobody saw when."""
    delay: timedelta | None
    """From the kubelet's last start to the first registration after it; None: there was none, or nobody saw when."""
    socket: str
    """The plugin's socket, as far as names and times tell; empty: not known."""
    socket_present: bool | None
    """None: which socket is its own is not known."""
    connected: bool | None
    """Whether the kubelet has the plugin's stream open; None: not known."""
