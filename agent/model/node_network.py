"""What a node itself shows of its pod network: the runtime's word, files, links and disks."""

from dataclasses import dataclass

from agent.model.runtime import RuntimeNetwork


@dataclass(frozen=True, slots=True)
class RuntimeStatus:
    """What the kubelet's runtime says of its network: `Status` of CRI."""

    network_ready: bool | None
    """Its condition NetworkReady. None: it has none, as dockershim's docker."""
    reason: str = ""  # of that condition, where it is not ready
    message: str = ""
    load_error: str = ""
    """Why containerd has loaded no configuration; empty: it has, or does not say."""


@dataclass(frozen=True, slots=True)
class CniFile:
    """One file of the runtime's directory of the CNI configuration."""

    name: str
    problem: str | None = None
    """Why libcni refuses it, in words about the file, such as `is empty`. None: it accepts it."""
    network: str = ""  # the name in it; empty: it cannot be read
    networks: tuple[RuntimeNetwork, ...] = ()
    """What it gives pods."""


@dataclass(frozen=True, slots=True)
class SubnetEnv:
    """The file in which flannel's daemon names the node's subnets."""

    path: str
    problem: str | None = None  # such as `does not exist`
    subnets: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CniFiles:
    """The directory of the CNI configuration, and what its files refer to."""

    directory: str
    files: tuple[CniFile, ...]  # in the order in which runtimes read them
    exists: bool = True
    subnet_env: SubnetEnv | None = None  # None: no configured plugin reads it
    missing_plugins: tuple[str, ...] | None = None
    """The types of configured plugins without a program. None: their directory cannot be read."""


@dataclass(frozen=True, slots=True)
class Link:
    """A network interface of the node itself."""

    name: str
    addresses: tuple[str, ...] = ()  # with prefix length: `10.88.0.1/16`


@dataclass(frozen=True, slots=True)
class Disk:
    """A file system of the node, as statvfs has it."""

    path: str  # a path of the node in it
    free_bytes: int
    total_bytes: int
    free_inodes: int
    total_inodes: int  # 0: it does not count them
    read_only: bool = False
