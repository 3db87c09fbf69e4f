"""What a container runtime says of itself, and which one the pods of a node belong to."""

from dataclasses import dataclass, field
from typing import Final

from agent.model.fields import NOT_RECORDED
from agent.model.ranges import Range, subnet_range

DOCKER: Final = "docker"
CONTAINERD: Final = "containerd"
CRI_O: Final = "cri-o"


@dataclass(frozen=True, slots=True)
class ContainerRuntime:
    """A container runtime of this node."""

    name: str  # `docker`, or what the runtime calls itself in CRI: `containerd`, `cri-o`
    version: str = ""  # as it was built: `1.7.24`, `1.6.20~ds1`, `2.1.9+unknown`; empty: not known
    endpoint: str = ""  # the path of its CRI socket; empty for docker
    chosen: bool = False  # `--cri-endpoint` names it

    def __str__(self) -> str:
        return f"{self.name} {self.version}".rstrip()


@dataclass(frozen=True, slots=True)
class WrittenRange:
    """One range as it is written in host-local's configuration: `usePodCidr` is not a subnet."""

    subnet: str
    first: str = ""
    last: str = ""
    gateway: str = ""

    def parse(self) -> Range:
        """Return what host-local takes it for. Raises ValueError as `subnet_range` does."""
        return subnet_range(self.subnet, self.first, self.last, self.gateway)


@dataclass(frozen=True, slots=True)
class RuntimeNetwork:
    """A network that the runtime attaches its sandboxes to."""

    name: str
    plugins: tuple[str, ...]  # the types of its plugins, in the order of their execution
    ipam: str = ""  # the type of its IPAM plugin; empty: it has none of its own
    data_dir: str = ""  # empty: the IPAM plugin's default
    ranges: tuple[tuple[WrittenRange, ...], ...] = ()
    """The sets of ranges: a sandbox gets an address from each."""
    forwards_ports: bool = True
    """A plugin of it, or the kubelet, may forward host ports. An old recording does not say."""
    plugin_files: bool = False
    """Plugins of it may be in files of their own (libcni >= 1.3), whose configuration libcni's
    cache does not have."""
    later: tuple["RuntimeNetwork", ...] = field(default=(), compare=False, metadata=NOT_RECORDED)
    """Those of later files: CRI-O and docker use them if a plugin of the first is missing."""
    changed_ns: int = field(default=0, compare=False, metadata=NOT_RECORDED)
    """When the first file was put there; 0: it is sure to be in use."""

    @property
    def may_use_host_local(self) -> bool:
        """Whether host-local is its IPAM plugin.

        It may also be that of a plugin which it delegates to, as flannel does.
        """
        return self.ipam in {"host-local", ""}


@dataclass(frozen=True, slots=True)
class KubeletRuntime:
    """Which container runtime the pods of a node belong to, as far as a snapshot shows it."""

    asked: tuple[ContainerRuntime, ...]
    """The runtimes that were asked for their containers."""
    used: tuple[ContainerRuntime, ...]
    """Those of them that the kubelet may use. None if it is unknown, or was not asked; several if
    the Node does not tell them apart."""
    not_asked: str | None
    """The kubelet's runtime, if it is known and was not asked."""
    contradiction: str | None
    """Who contradicts whom about which runtime it is."""
    keeps_checkpoints: bool
    """Whether the kubelet has, or may have, checkpoints of its sandboxes."""
    deletes_at_start: bool
    """Whether a start of the runtime tears down leaks whose result is in libcni's cache."""
    without_record_order: tuple[ContainerRuntime, ...]
    """The runtimes whose list may lack a sandbox that has an address already."""

    @property
    def names(self) -> tuple[str, ...]:
        """The name of the kubelet's runtime; if that is unknown, of each that was asked."""
        return tuple(dict.fromkeys(runtime.name for runtime in self.used or self.asked))

    @property
    def name(self) -> str:
        """What texts call it."""
        return self.names[0] if len(self.names) == 1 else "the container runtime"
