"""The node's device plugins: sockets, the kubelet's checkpoint, history, state of resources."""

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from agent.model.fields import NONE_IS_EMPTY

ENDPOINT_GRACE: Final = timedelta(minutes=5)
"""How long the kubelet keeps a resource without its plugin, also after its own start
(`endpointStopGracePeriod` in `devicemanager/endpoint.go`)."""
KUBELET_SOCKET: Final = "kubelet.sock"  # where plugins register, in the device plugin directory
SURELY_DROPPED_AFTER: Final = ENDPOINT_GRACE + timedelta(minutes=1)
"""By then the kubelet has reported the node's status, too."""


@dataclass(frozen=True, slots=True)
class PluginSocket:
    """One plugin's socket in the kubelet's directory."""

    name: str
    made: datetime  # when the plugin bound it, by the file's time
    connected: bool | None
    """Whether the kubelet has its stream open; None: the host's sockets are unavailable."""
    registry: bool = False
    """It is in `plugins_registry`, where drivers of storage and of DRA have theirs too."""


@dataclass(frozen=True, slots=True)
class Registered:
    """One resource in the checkpoint."""

    resource: str
    devices: tuple[str, ...]
    """The healthy ones. Empty: not registered again yet, or none is healthy."""


@dataclass(frozen=True, slots=True)
class Allocation:
    """Devices that the kubelet gave to a container, by its checkpoint.

    Entries of dead pods stay for a while.
    """

    pod_uid: str
    container: str
    resource: str
    devices: tuple[str, ...]


class TransitionKind(StrEnum):
    """What can happen to the kubelet's device manager or to a plugin, in the order of action."""

    KUBELET_STARTED = "kubelet_started"
    """The kubelet bound `kubelet.sock`: its device manager started, and knows no plugin."""
    SOCKET_APPEARED = "socket_appeared"
    REGISTERED = "registered"  # the kubelet knows healthy devices of the resource
    LOST = "lost"  # the kubelet knew healthy devices of the resource, and knows none now
    DROPPED = "dropped"
    """The kubelet dropped the resource `ENDPOINT_GRACE` after its plugin. Its capacity is now 0."""
    SOCKET_GONE = "socket_gone"  # of a plugin, or `kubelet.sock`: then no plugin can register


@dataclass(frozen=True, slots=True)
class DeviceTransition:
    """One change, as far as files and earlier snapshots tell."""

    what: TransitionKind
    at: datetime
    """By the node's wall clock: the file's time, or that of the snapshot that saw it first."""
    uptime: timedelta  # the boot clock of the snapshot that saw it first
    boot_id: str
    resource: str = ""
    socket: str = ""
    exact: bool = True  # False: it happened between the snapshot before and `at`


@dataclass(frozen=True, slots=True)
class DevicePlugins:
    """The kubelet's device manager, from outside."""

    kubelet_socket: datetime | None
    """When the kubelet's device manager started, by `kubelet.sock`; None: there is none."""
    sockets: tuple[PluginSocket, ...]
    checkpoint_written: datetime | None
    """None: there is none. No device was ever registered, or the file was removed."""
    registered: tuple[Registered, ...]
    allocations: tuple[Allocation, ...]
    history: tuple[DeviceTransition, ...] = ()  # oldest first
    trouble: str | None = field(default=None, metadata=NONE_IS_EMPTY)
    """Why the state file could not be read, so that the history starts anew; None: it could."""
    drivers: tuple[str, ...] = ()
    """The drivers of storage and of DRA with a socket in `plugins_registry`; of a rolling update,
    with an ID behind it."""
    listens_without_file: bool = False
    """The kubelet listens on the `kubelet.sock` of this directory, and the file was removed. False:
    it does not, or the node's list of unix sockets is not known."""


@dataclass(frozen=True, slots=True)
class ResourceState:
    """The current state of a resource."""

    resource: str
    devices: int | None
    """Healthy ones that the kubelet knows; 0 while it is not registered; None: unknown."""
    allocated: int | None  # devices of live pods; None: the pods are unavailable
    registered: bool | None
    """Whether the kubelet knows healthy devices of it; None: not known, as the clock was set."""
    registered_since: datetime | None  # None: it is not registered, or no snapshot saw when
    delay: timedelta | None
    """From the kubelet's last start to its first registration; None: none, or unknown."""
    socket: str | None  # the plugin's socket, by convention or by time; None: unknown
    socket_present: bool | None  # None: its socket is not known
    connected: bool | None  # whether the kubelet has the plugin's stream open; None: not known
