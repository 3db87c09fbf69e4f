"""What a snapshot of a node contains: facts, and what could not be read."""

import posixpath
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, Final, Generic, NamedTuple, NoReturn, TypeAlias, TypeGuard, TypeVar

from agent.model.brake import Brake
from agent.model.bug import Bug
from agent.model.devices import DevicePlugins
from agent.model.fields import NOT_RECORDED
from agent.model.node_network import CniFiles, Disk, Link, RuntimeStatus
from agent.model.ranges import RangeSets
from agent.model.registration import Autoscaler, Registration, Taint
from agent.model.rejections import Rejection
from agent.model.remedy import Remedy
from agent.model.runtime import CONTAINERD, CRI_O, DOCKER, ContainerRuntime, RuntimeNetwork
from agent.model.volumes import Attachments, Mount
from agent.model.watches import Watch

_T = TypeVar("_T")
T_co = TypeVar("T_co", covariant=True)


class InsufficientData(Exception):
    """Nothing can be concluded, because a source is unavailable."""

    chosen = False

    def __init__(self, text: object, missing: "Unavailable | None" = None) -> None:
        """`missing`: the reading that failed; None: the value that was read is not enough."""
        super().__init__(text)
        self.missing = missing


class SourceDisabled(InsufficientData):
    """Nothing can be concluded, because a source was not requested, which is a choice."""

    chosen = True


@dataclass(frozen=True, slots=True)
class Known(Generic[T_co]):
    """A source was read to the end; an empty tuple means that there is nothing."""

    value: T_co

    def known(self) -> T_co:
        return self.value


@dataclass(frozen=True, slots=True)
class Unavailable:
    """A source could not be read, or contradicts others; nothing may be concluded from it."""

    source: str
    why: str
    missing: bool = False  # it does not exist
    remedy: Remedy | None = field(default=None, compare=False, metadata=NOT_RECORDED)
    """What to do, which `why` says as well; None: it depends. It is not recorded."""

    def known(self) -> NoReturn:
        raise InsufficientData(f"{self.source}: {self.why}", self)


@dataclass(frozen=True, slots=True)
class NotRequested:
    """A source was not read on purpose: by a setting, or because the node does not need it."""

    source: str
    why: str

    def known(self) -> NoReturn:
        raise SourceDisabled(f"{self.source}: {self.why}")


Reading: TypeAlias = Known[_T] | Unavailable | NotRequested


def known_or(reading: Reading[_T], default: _T) -> _T:
    """Return what was read, or a default where nothing may be concluded from its absence."""
    return reading.value if isinstance(reading, Known) else default


def require_available(*readings: Reading[object]) -> None:
    """Raise InsufficientData if a reading failed. One that was not requested may be absent."""
    for reading in readings:
        if isinstance(reading, Unavailable):
            reading.known()


def is_missing(reading: Reading[object]) -> TypeGuard[Unavailable]:
    """Return whether nothing could be read because it does not exist."""
    return isinstance(reading, Unavailable) and reading.missing


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
EARLIEST: Final = datetime(1000, 1, 1, tzinfo=UTC)
LATEST: Final = datetime(9000, 1, 1, tzinfo=UTC)
"""Times of a snapshot lie between these: nearer to the ends of the calendar, adding a duration
overflows."""
LONGEST_DURATION: Final = timedelta(days=36_500)
"""No duration of a snapshot is longer, whatever its sign."""


def from_mtime(ns: int) -> datetime:
    """Return the modification time of a file, or the nearest time that a snapshot can have."""
    try:
        at = _EPOCH + timedelta(microseconds=ns // 1000)
    except OverflowError:
        return LATEST if ns > 0 else EARLIEST
    return min(max(at, EARLIEST), LATEST)


class ReservationKey(NamedTuple):
    """What a reservation is known by: host-local has one file for each address of a network."""

    network: str
    ip: str

    def __str__(self) -> str:
        return f"{self.network}/{self.ip}"


@dataclass(frozen=True, slots=True)
class Reservation:
    """One host-local file: an address reserved for a container."""

    network: str
    ip: str  # the file's name: an address as Go's `net.IP.String()` prints it
    container_id: str  # the sandbox's id, 64 hex digits; empty where the file is empty
    ifname: str  # empty in the format of host-local < 0.8.0
    inode: int
    size: int
    mtime_ns: int
    data_dir: str = field(default="", compare=False, metadata=NOT_RECORDED)
    """The `dataDir` that it is in, as a path of the node; empty: --cni-networks-dir."""

    @property
    def key(self) -> ReservationKey:
        return ReservationKey(self.network, self.ip)

    @property
    def mtime(self) -> datetime:
        """When it was made: host-local writes the file once, and never again."""
        return from_mtime(self.mtime_ns)

    @property
    def directory(self) -> str:
        """The directory of its network: a path of the node, or relative to --cni-networks-dir."""
        return posixpath.join(self.data_dir, self.network)


class EntryKind(StrEnum):
    """What an entry of a directory is, if it is not a regular file."""

    DIRECTORY = "a directory"
    LINK = "a symbolic link"
    FIFO = "a FIFO"
    SOCKET = "a socket"
    DEVICE = "a device"


@dataclass(frozen=True, slots=True)
class UnrecognizedEntry:
    """An entry in host-local's directory that is not a reservation: listed, never followed."""

    network: str
    name: str
    why: str
    blocks: bool  # its name is an address, so host-local will not give that address out
    program: str = ""
    """The program that writes such IDs, and does not run pods; empty: none that is known."""
    kind: EntryKind | None = None
    """None: a regular file. host-local opens every entry of the directory, and waits forever for
    whoever writes to a FIFO."""


@dataclass(frozen=True, slots=True)
class LeftOver:
    """What an earlier setup of the node left in a directory that no pod uses, or a backup."""

    directory: str
    files: int
    oldest_ns: int
    newest_ns: int
    pods: int  # how many of its IDs are those of pods, as far as libcni's cache knows
    copy_of: str = ""  # the network of whose directory it is a copy; empty: it is none


DEFAULT_DATA_DIR: Final = "/var/lib/cni/networks"
"""The `dataDir` of host-local where a configuration names none."""


@dataclass(frozen=True, slots=True)
class NetworkStore:
    """One network's directory."""

    network: str
    reading: Reading[tuple[Reservation, ...]]
    unrecognized: tuple[UnrecognizedEntry, ...] = ()
    data_dir: str = field(default="", compare=False, metadata=NOT_RECORDED)
    """The directory that it lies in, as `dataDir` in a configuration names it; empty: not known."""
    absent: bool = field(default=False, compare=False, metadata=NOT_RECORDED)
    """It does not exist, and a mount is not what is missing."""
    discovered: bool = field(default=False, compare=False, metadata=NOT_RECORDED)
    """No setting names it: the runtime does, or it was found."""
    left_over: LeftOver | None = None
    """None: it may be in use, or nothing is in it, or whose it is is not known."""

    @property
    def directory(self) -> str:
        """Its path, like `data_dir`."""
        return posixpath.join(self.data_dir, self.network)


SANDBOX_NOT_READY: Final = "not ready"
"""The state of a sandbox that CRI lists and that does not run."""
SANDBOX_RECORDED: Final = "recorded but not listed"
"""The state of a sandbox that only containerd's records have."""
SANDBOX_OF_ANOTHER_CLIENT: Final = "in another namespace of containerd"
"""The state of a container of docker or nerdctl, running or not, in the records of containerd."""
ENDED: Final = frozenset({SANDBOX_NOT_READY, SANDBOX_RECORDED, "exited", "dead"})
"""The states of a sandbox that only waits for its teardown."""


@dataclass(frozen=True, slots=True)
class Container:
    id: str
    state: str
    """As docker reports it: created, running, paused, restarting, removing, exited, dead. Of CRI's
    sandboxes: `running`, `SANDBOX_NOT_READY`, `SANDBOX_RECORDED`."""
    created: int  # seconds since the epoch
    pod: str  # `namespace/name`, empty where the container belongs to no pod
    pod_uid: str
    sandbox: bool

    @property
    def running(self) -> bool:
        return self.state in {"running", "paused", "restarting"}


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The kubelet's record that it created this sandbox and has not torn it down completely."""

    container_id: str
    pod: str
    host_network: bool = False


@dataclass(frozen=True, slots=True)
class PortMapping:
    """A `hostPort` of a pod: a port of the node that a CNI plugin or the runtime forwards to it."""

    host_port: int
    protocol: str  # in lower case

    def __str__(self) -> str:
        return f"{self.host_port}/{self.protocol}"


@dataclass(frozen=True, slots=True)
class CniResult:
    """libcni's cached result of one ADD."""

    network: str
    container_id: str
    ifname: str
    pod: str | None
    """Empty: the ADD was given none, as with kubenet. None: unknown, as with libcni < 0.8."""
    ranges: RangeSets
    data_dir: str
    mtime_ns: int
    namespace: str = ""
    """Where the sandbox's network namespace is mounted; empty: unknown, or a process names it."""
    port_mappings: tuple[PortMapping, ...] = ()  # those that a plugin of its configuration forwards
    uses_pod_cidr: bool = False
    """Its configuration has the node's pod CIDRs in place of ranges, as Calico's have."""
    plugin: str = ""
    """The type of the plugin that made the interface, such as `bridge`; empty: not known."""


class Damage(StrEnum):
    """Why a file has no result."""

    EMPTY = "it is empty"
    MALFORMED = "its JSON is malformed"
    TOO_LARGE = "it is too large"


@dataclass(frozen=True, slots=True)
class DamagedResult:
    """A file of libcni's cache without a result.

    libcni does not sync it, so a power cut can leave it empty.
    """

    network: str
    container_id: str
    ifname: str
    damage: Damage

    @property
    def file(self) -> str:
        return f"{self.network}-{self.container_id}-{self.ifname}"


INIT: Final = 1
"""The process whose network namespace is the node's own."""


@dataclass(frozen=True, slots=True)
class Address:
    """An address configured in the network namespace of a process of this node."""

    ip: str
    pid: int
    command: str
    namespace: int = 0
    """The inode of its table in /proc, which each network namespace has; 0: unknown."""
    contained: bool = False
    """Its process is in a container that the runtime has, by its cgroup, or that is unknown."""
    passing: bool = False
    """The process may have it for a moment only, as one that enters a pod's namespace."""


@dataclass(frozen=True, slots=True)
class Pod:
    name: str  # `namespace/name`
    uid: str  # as the kubelet knows it: a static pod's own uid, not that of its mirror pod
    phase: str
    host_network: bool
    deleting: bool
    ips: tuple[str, ...]
    created: datetime | None = None
    started: datetime | None = None
    """When its first container started, by the kubelet's clock to the second; None: none has."""
    wants: tuple[str, ...] = ()  # the device resources in its limits, those of init containers too
    wants_in_init: tuple[str, ...] = ()
    """Those that its init containers request, without sidecars (which run on)."""
    rejection: Rejection | None = None  # how the kubelet rejected it; None: it did not
    controller: str = ""
    """`Kind/name` of its controller; empty: it has none and will not be replaced."""
    deletion: datetime | None = None
    """When it should be gone (deletionTimestamp, which includes the grace period)."""
    finalizers: tuple[str, ...] = ()
    scheduled: datetime | None = None
    """When it was scheduled; None: not known, or it has an address of its own, or has begun."""
    unready: datetime | None = None
    """Since when it has not been Ready; None: not known, or it has an address."""
    claims: tuple[str, ...] = ()  # the names of its PersistentVolumeClaims
    volumes: tuple[str, ...] = ()
    """The volumes that it needs without a claim, as the node's status names them."""
    static: bool = False  # the kubelet runs it from a file; the API server has its mirror
    host_ports: tuple[PortMapping, ...] | None = None
    """Those in its spec that are forwarded; None: an old recording."""
    waiting: bool = False  # a container of it waits to be started, as after a crash
    dra_resources: tuple[str, ...] = ()
    """Of `wants`, those that DRA serves, not a device plugin, by `extendedResourceClaimStatus`."""
    has_resource_claims: bool = False  # it has claims of DRA

    @property
    def namespace(self) -> str:
        return self.name.partition("/")[0]

    @property
    def live(self) -> bool:
        """Whether it may still own its addresses."""
        return self.phase not in {"Succeeded", "Failed"}

    @property
    def networked(self) -> bool:
        """Whether it may have addresses of its own."""
        return self.live and not self.host_network

    @property
    def has_sandbox(self) -> bool:
        """Whether the kubelet reports a running sandbox.

        Without one the phase stays Running, and the address goes.
        """
        return self.phase == "Running" and bool(self.ips) and not self.deleting


FAILED_SANDBOX: Final = "FailedCreatePodSandBox"
NETWORK_NOT_READY: Final = "NetworkNotReady"
FAILED_KILL: Final = "FailedKillPod"
VOLUME_REASONS: Final = ("FailedAttachVolume", "FailedMount", "FailedMapVolume")
CREATION_REASONS: Final = (
    FAILED_SANDBOX, NETWORK_NOT_READY, "FailedCreatePodContainer", "NoNetworkFound",
    "FailedPrepareDynamicResources", *VOLUME_REASONS, "FailedSync",
)  # fmt: skip
"""The reasons of the Events that say why a pod has no sandbox.

Of several that are recent, the first one here is the obstacle: the kubelet gets to it last.
"""


@dataclass(frozen=True, slots=True)
class SandboxFailure:
    """An Event that says why the sandbox of a pod was not created, or cannot be removed."""

    pod: str  # `namespace/name`
    at: datetime | None  # the last time, by the API server's clock; None: not known
    message: str  # of the program that failed, without the prefixes of its callers
    plugin: str = ""
    """The type of the CNI plugin that failed, such as `portmap`; empty: the message names none."""
    network: str = ""  # empty: the message does not name it
    operation: str = ""  # `add` or `delete`; empty: not known
    exhausted: str = ""
    """The range set without a free address, as host-local names it; empty: not the cause."""
    reason: str = FAILED_SANDBOX  # of the Event
    count: int = 1
    first: datetime | None = None  # the first time, as `at`
    entry: str = ""  # the key of the message in the catalog; empty: it is not known
    kind: str = ""  # the message without its variable parts: equal where the cause is equal
    requested_ip: str = ""  # the one address that the pod asks for; empty: any will do


@dataclass(frozen=True, slots=True)
class NodeDevices:
    """How many devices of a resource the node's status has."""

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
    """`status.allocatable.pods`: how many pods the kubelet accepts; None: not set."""
    devices: tuple[NodeDevices, ...] = ()  # the device resources of its status
    address_pressure: str = ""
    """The status of its condition `ADDRESS_PRESSURE` (True, False, Unknown); empty: none."""
    uid: str = ""
    created: datetime | None = None  # by the API server's clock
    provider_id: str = ""  # the cloud's name of the instance that it is (`spec.providerID`)
    taints: tuple[Taint, ...] = ()  # only the taints that concern its registration
    ready: bool = False
    not_ready: str = ""
    """The message of its condition Ready where that is not True; empty: it is, or none is given."""
    controller_attach: bool = False  # the controller-manager attaches its volumes, not the kubelet
    volumes_in_use: tuple[str, ...] = ()  # the volumes that the kubelet uses or is about to use
    volumes_attached: tuple[str, ...] = ()  # the volumes that the controller reports as attached
    unschedulable: bool = False  # it is cordoned: the scheduler assigns it no more pods
    runtime: str = ""
    """`nodeInfo.containerRuntimeVersion`, such as `docker://20.10.24`; empty: not set."""
    kubelet: str = ""  # `nodeInfo.kubeletVersion`, such as `v1.37.2`
    labels: tuple[str, ...] = ()
    """As `KEY=VALUE`, of those that a setting names: none if it lacks them."""
    has_machine: bool = False  # a Machine of Cluster API, or of Rancher, stands for it


@dataclass(frozen=True, slots=True)
class PluginProcess:
    pid: int
    command: str
    started: datetime  # to the second
    parent: int = 0
    """The ID of the process that started it; 0: unknown."""


@dataclass(frozen=True, slots=True)
class ProcessStartTimes:
    """When the node booted, and when the youngest process of each kind started.

    None: no such process was found.
    """

    booted: datetime
    boot_id: str
    kubelet: datetime | None
    docker: datetime | None
    network_plugin: str | None = None
    """`--network-plugin` of the kubelet or cri-dockerd; empty: not set. None: not known."""
    cri_dockerd: datetime | None = None
    runtime: str | None = None
    """What the kubelet names as its runtime: `DOCKER`, or another's endpoint; empty: it names none.
    None: not known."""
    runtime_disputed: bool = False
    """A process named kubelet names `runtime`, and another process a different runtime."""
    containerd: datetime | None = None
    crio: datetime | None = None
    plugins: tuple[PluginProcess, ...] = ()
    """Looked for once a minute, and where a reservation has no owner."""

    def start_of(self, runtime: str) -> datetime | None:
        """Return when a runtime started, by the name in `ContainerRuntime`."""
        return {DOCKER: self.docker, CONTAINERD: self.containerd, CRI_O: self.crio}.get(runtime)


_ADDRESSES: Final = {"about_addresses": True}
"""Of a source that has a say in the release of addresses: if it is unavailable, nothing is
released."""
_NOT_ADDRESSES: Final = {"about_addresses": False}


def _added_source(name: str, metadata: dict[str, bool]) -> Any:
    """Return the field of a source that the first recordings do not have."""
    why = "the snapshot was taken by a version that did not read it"
    return field(default=NotRequested(name, why), metadata=metadata)


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Everything that was read.

    A field with `about_addresses` is a source: its name is the metric label and the JSON key.
    """

    node_name: str
    taken_at: datetime  # the node's wall clock before the first source was read
    uptime: timedelta
    """The node's boot clock at the same moment; no step of the wall clock moves it."""
    reservations: tuple[NetworkStore, ...] = field(metadata=_ADDRESSES)
    checkpoints: Reading[tuple[Checkpoint, ...]] = field(metadata=_ADDRESSES)
    containers: Reading[tuple[Container, ...]] = field(metadata=_ADDRESSES)
    """Of every runtime in `runtimes`."""
    cni_results: Reading[tuple[CniResult, ...]] = field(metadata=_ADDRESSES)
    addresses: Reading[tuple[Address, ...]] = field(metadata=_ADDRESSES)
    pods: Reading[tuple[Pod, ...]] = field(metadata=_ADDRESSES)
    node: Reading[Node | None] = field(metadata=_ADDRESSES)
    """None: the API server has no Node of this name."""
    processes: Reading[ProcessStartTimes] = field(metadata=_ADDRESSES)
    runtimes: Reading[tuple[ContainerRuntime, ...]] = _added_source("runtimes", _ADDRESSES)
    networks: Reading[tuple[RuntimeNetwork, ...]] = _added_source("networks", _ADDRESSES)
    """Those of the kubelet's runtime."""
    mounted_namespaces: Reading[tuple[str, ...]] = _added_source("mounted_namespaces", _ADDRESSES)
    """Where they are mounted."""
    brake: Reading[Brake] = _added_source("brake", _ADDRESSES)
    """That of the whole cluster. A release reads it again."""
    device_plugins: Reading[DevicePlugins] = _added_source("device_plugins", _NOT_ADDRESSES)
    registration: Reading[Registration] = _added_source("registration", _NOT_ADDRESSES)
    autoscaler: Reading[Autoscaler] = _added_source("autoscaler", _NOT_ADDRESSES)
    watches: Reading[tuple[Watch, ...]] = _added_source("watches", _NOT_ADDRESSES)
    mounts: Reading[tuple[Mount, ...]] = _added_source("mounts", _NOT_ADDRESSES)
    attachments: Reading[Attachments] = _added_source("attachments", _NOT_ADDRESSES)
    sandbox_failures: Reading[tuple[SandboxFailure, ...]] = _added_source(
        "sandbox_failures", _NOT_ADDRESSES
    )
    """Of some pods that wait for their sandbox."""
    runtime_status: Reading[RuntimeStatus] = _added_source("runtime_status", _NOT_ADDRESSES)
    """That of the kubelet's runtime."""
    cni_files: Reading[CniFiles] = _added_source("cni_files", _NOT_ADDRESSES)
    links: Reading[tuple[Link, ...]] = _added_source("links", _NOT_ADDRESSES)
    """Read only while a pod waits or a sandbox is stuck, as are `disks`."""
    disks: Reading[tuple[Disk, ...]] = _added_source("disks", _NOT_ADDRESSES)
    state: Reading[bool] = _added_source("state", _NOT_ADDRESSES)
    """True: the disk of the agent's own directory has space, and answers (daemon only)."""
    api_skew: timedelta | None = None
    """How far the API server's clock is ahead of the node's, by its last `Date`; None: unknown."""
    damaged_results: tuple[DamagedResult, ...] = ()
    """The files of libcni's cache without a result, which `cni_results` lacks."""
    server_version: str = ""  # the API server's version (`v1.20.2`); empty: not known
    timings: tuple[tuple[str, float], ...] = field(default=(), compare=False, metadata=NOT_RECORDED)
    """How long each source took to read, in seconds."""
    bugs: tuple[Bug, ...] = field(default=(), compare=False, metadata=NOT_RECORDED)
    """What failed while it was taken because of a bug of the agent. It is not recorded."""

    @property
    def api_time(self) -> datetime:
        """The time by the API server's clock; by the node's where their difference is not known.

        If the calendar does not have that time, it is the nearest that it has.
        """
        skew = self.api_skew or timedelta(0)
        try:
            return self.taken_at + skew
        except OverflowError:
            return LATEST if skew > timedelta(0) else EARLIEST

    @property
    def network_names(self) -> tuple[str, ...]:
        """The networks of the kubelet's runtime, as `networks`; none also if that is not known."""
        return tuple(network.name for network in known_or(self.networks, ()))

    @property
    def kubelet_version(self) -> str:
        """The version of this node's kubelet, such as `v1.37.2`; empty: not known."""
        node = known_or(self.node, None)
        return node.kubelet if node else ""

    @property
    def network_ready(self) -> bool | None:
        """Whether the runtime says that its network is ready; None: neither, or unknown."""
        status = known_or(self.runtime_status, None)
        return status.network_ready if status else None

    @property
    def kubelet_started(self) -> datetime | None:
        """When the kubelet's process started; None: there is none, or that is not known."""
        processes = known_or(self.processes, None)
        return processes.kubelet if processes else None

    def readings(self) -> Iterator[tuple[str, Reading[object]]]:
        """Yield every reading with the name of its source, in the order of `SOURCES`.

        Each network has a reading.
        """
        yield from (("reservations", store.reading) for store in self.reservations)
        yield from ((name, getattr(self, name)) for name in SOURCES if name != "reservations")

    def unavailable(self) -> tuple[Unavailable, ...]:
        """Return what failed, with an entry for each source and network."""
        return tuple(reading for _, reading in self.readings() if isinstance(reading, Unavailable))

    def unavailable_about_addresses(self) -> tuple[Unavailable, ...]:
        """Return what failed of the sources that addresses depend on."""
        readings = (reading for name, reading in self.readings() if name not in NON_ADDRESS_SOURCES)
        return tuple(reading for reading in readings if isinstance(reading, Unavailable))


SOURCES: Final = tuple(
    source.name for source in fields(Snapshot) if "about_addresses" in source.metadata
)
"""Every source by the name of its field, its reader and its metric label."""

NON_ADDRESS_SOURCES: Final = tuple(
    source.name for source in fields(Snapshot) if source.metadata == _NOT_ADDRESSES
)
"""The sources that have no say in addresses."""
