"""What one look at a node saw: facts, and what could not be read. Nothing here judges."""

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final, Generic, NoReturn, TypeAlias, TypeVar

from agent.model.devices import DevicePlugins
from agent.model.ranges import RangeSets
from agent.model.registration import Autoscaler, Registration, Taint
from agent.model.rejections import Rejection
from agent.model.volumes import Attachments, Mount
from agent.model.watches import Watch

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class InsufficientData(Exception):
    """Nothing can be concluded, because a source gave no word."""


class SourceDisabled(InsufficientData):
    """The source was not asked, because somebody chose so: no word, and no fault."""


@dataclass(frozen=True, slots=True)
class Known(Generic[T_co]):
    """A source was read to the end; an empty tuple means that there is nothing."""

    items: tuple[T_co, ...]

    def known(self) -> tuple[T_co, ...]:
        return self.items


@dataclass(frozen=True, slots=True)
class Unavailable:
    """A source could not be read, or cannot be believed; nothing may be concluded from it."""

    source: str
    why: str

    def known(self) -> NoReturn:
        raise InsufficientData(f"{self.source}: {self.why}")


@dataclass(frozen=True, slots=True)
class NotRequested:
    """A source was left alone on purpose. No fault of the node, and no word from it either."""

    source: str
    why: str

    def known(self) -> NoReturn:
        raise SourceDisabled(f"{self.source}: {self.why}")


Reading: TypeAlias = Known[T] | Unavailable | NotRequested


@dataclass(frozen=True, slots=True)
class Reservation:
    """One host-local file: an address promised to a container."""

    network: str
    ip: str
    """The file's name: an address as Go's `net.IP.String()` prints it."""
    container_id: str
    """The sandbox's id, 64 hex digits; empty where the file is empty."""
    ifname: str
    """Empty in the format of host-local < 0.8.0."""
    inode: int
    size: int
    mtime_ns: int


@dataclass(frozen=True, slots=True)
class UnrecognizedEntry:
    """An entry in host-local's directory that is not a reservation: listed, never followed, never judged."""

    network: str
    name: str
    why: str
    blocks: bool
    """Its name is an address, so host-local will not give that address out."""


@dataclass(frozen=True, slots=True)
class Store:
    """One network's directory, as `sources/reservations.py` read it."""

    network: str
    reading: Reading[Reservation]
    unrecognized: tuple[UnrecognizedEntry, ...] = ()


@dataclass(frozen=True, slots=True)
class Container:
    id: str
    state: str
    """The engine's own word: created, running, paused, restarting, removing, exited, dead."""
    created: int
    """Seconds since the epoch."""
    pod: str
    """`namespace/name`, empty where the container belongs to no pod."""
    pod_uid: str
    sandbox: bool

    @property
    def running(self) -> bool:
        return self.state in {"running", "paused", "restarting"}


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The kubelet's note that it made this sandbox, and has not finished with it."""

    container_id: str
    pod: str


@dataclass(frozen=True, slots=True)
class CniResult:
    """libcni's memory of one ADD: whose address it was, and what the network looked like."""

    network: str
    container_id: str
    ifname: str
    pod: str
    ranges: RangeSets
    data_dir: str
    mtime_ns: int


@dataclass(frozen=True, slots=True)
class Address:
    """An address configured in the network namespace of a process of this node."""

    ip: str
    pid: int
    command: str


@dataclass(frozen=True, slots=True)
class Pod:
    name: str
    """`namespace/name`."""
    uid: str
    """As the kubelet knows it: of a static pod its own, not that of its mirror in the API."""
    phase: str
    host_network: bool
    deleting: bool
    ips: tuple[str, ...]
    created: datetime | None = None
    started: datetime | None = None
    """When the first of its containers started, by the kubelet's clock to the second; None: none did."""
    wants: tuple[str, ...] = ()
    """The device resources in its limits, those of init containers too."""
    wants_in_init: tuple[str, ...] = ()
    """Those of them that init containers ask for."""
    rejection: Rejection | None = None
    """How the kubelet refused it for a device; None: it did not."""
    controller: str = ""
    """`Kind/name` of its controller; empty: it has none, and nobody replaces it."""
    deletion: datetime | None = None
    """When it should be gone at the latest (deletionTimestamp, which includes the grace period)."""
    finalizers: tuple[str, ...] = ()
    scheduled: datetime | None = None
    """When it was given to the node; None: not known, or it is not Pending any more."""
    claims: tuple[str, ...] = ()
    """The names of its PersistentVolumeClaims, which are of its namespace."""
    volumes: tuple[str, ...] = ()
    """What it has to have attached without a claim, as the node's status names it."""

    @property
    def live(self) -> bool:
        """It may still own its addresses."""
        return self.phase not in {"Succeeded", "Failed"}


@dataclass(frozen=True, slots=True)
class NodeDevices:
    """How many devices of a resource the node object tells of."""

    resource: str
    capacity: int
    allocatable: int


ADDRESS_PRESSURE: Final = "CNIAddressPressure"
"""The type of the condition that the agent may keep on the node object."""


@dataclass(frozen=True, slots=True)
class Node:
    name: str
    pod_cidrs: tuple[str, ...]
    max_pods: int | None
    """`status.allocatable.pods`: how many pods the kubelet takes; None where it has not said."""
    devices: tuple[NodeDevices, ...] = ()
    """The device resources of its status."""
    address_pressure: str = ""
    """The status of its condition `ADDRESS_PRESSURE`: True, False or Unknown; empty: it has none."""
    uid: str = ""
    created: datetime | None = None
    """By the API server's clock."""
    provider_id: str = ""
    """The cloud's name of the instance that it is (`spec.providerID`)."""
    taints: tuple[Taint, ...] = ()
    """Those of its taints that tell of its registration."""
    ready: bool = False
    controller_attach: bool = False
    """The controller-manager attaches volumes to it, and not the kubelet by itself."""
    volumes_in_use: tuple[str, ...] = ()
    """What the kubelet has to have attached, or has."""
    volumes_attached: tuple[str, ...] = ()
    """What the controller says that it has attached."""
    runtime: str = ""
    """The kubelet's runtime by its own word, such as `docker://20.10.24`; empty: it has not said."""


@dataclass(frozen=True, slots=True)
class ProcessStartTimes:
    """When the parts of the node began. None: no such process runs now."""

    booted: datetime
    boot_id: str
    kubelet: datetime | None
    docker: datetime | None
    network_plugin: str | None = None
    """What the kubelet, or cri-dockerd, was told to connect pods with; empty: nothing. None: no kubelet runs to ask."""


@dataclass(frozen=True, slots=True)
class Timing:
    source: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    node_name: str
    taken_at: datetime
    """The node's wall clock before the first source was read."""
    uptime: timedelta
    """The node's boot clock at the same moment; no step of the wall clock moves it."""
    reservations: tuple[Store, ...]
    checkpoints: Reading[Checkpoint]
    containers: Reading[Container]
    cni_results: Reading[CniResult]
    addresses: Reading[Address]
    pods: Reading[Pod]
    node: Reading[Node]
    processes: Reading[ProcessStartTimes]
    device_plugins: Reading[DevicePlugins] = NotRequested("device_plugins", "this look was taken before they were read")
    registration: Reading[Registration] = NotRequested("registration", "this look was taken before they were read")
    autoscaler: Reading[Autoscaler] = NotRequested("autoscaler", "this look was taken before they were read")
    watches: Reading[Watch] = NotRequested("watches", "this look was taken before they were read")
    mounts: Reading[Mount] = NotRequested("mounts", "this look was taken before they were read")
    attachments: Reading[Attachments] = NotRequested("attachments", "this look was taken before they were read")
    api_skew: timedelta | None = None
    """How far the API server's clock is ahead of the node's, from its last answer's `Date`; None: not known."""
    server_version: str = ""
    """What the API server calls its version (`v1.20.2`); empty: not known."""
    timings: tuple[Timing, ...] = field(default=(), compare=False)

    def unavailable(self) -> tuple[Unavailable, ...]:
        """Return what failed, one entry a source and network, in the order of reading."""
        readings: tuple[Reading[object], ...] = (*(store.reading for store in self.reservations), *self.others())
        return tuple(reading for reading in readings if isinstance(reading, Unavailable))

    def unavailable_about_addresses(self) -> tuple[Unavailable, ...]:
        """Return what failed of all that has a say in an address."""
        mute = tuple(getattr(self, source) for source in NON_ADDRESS_SOURCES)
        return tuple(one for one in self.unavailable() if not any(one is other for other in mute))

    def others(self) -> tuple[Reading[object], ...]:
        """Return every reading but the reservations, in the order of `SOURCES`."""
        return (
            self.checkpoints,
            self.containers,
            self.cni_results,
            self.addresses,
            self.pods,
            self.node,
            self.processes,
            self.device_plugins,
            self.registration,
            self.autoscaler,
            self.watches,
            self.mounts,
            self.attachments,
        )


SOURCES = (
    "reservations",
    "checkpoints",
    "containers",
    "cni_results",
    "addresses",
    "pods",
    "node",
    "processes",
    "device_plugins",
    "registration",
    "autoscaler",
    "watches",
    "mounts",
    "attachments",
)
"""Every source by the name of its field, its file and its metric label."""

NON_ADDRESS_SOURCES = ("device_plugins", "registration", "autoscaler", "watches", "mounts", "attachments")
"""The sources that have no say in addresses."""
