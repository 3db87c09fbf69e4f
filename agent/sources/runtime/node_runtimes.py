"""Asks the container runtimes of this node: docker, and those that speak CRI.

Evidence decides which there are: what the kubelet names, which sockets are listened on, which
processes run. All are asked, because any may own a reservation; a runtime that should answer and
does not makes the list unavailable.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from agent.model.assessment import KUBENET
from agent.model.node_network import RuntimeStatus
from agent.model.remedy import Remedy
from agent.model.runtime import DOCKER, ContainerRuntime, RuntimeNetwork
from agent.model.snapshot import Container, Snapshot
from agent.sources.deadline import Late
from agent.sources.host.cni_config import (
    DEFAULT_DIRECTORY,
    CniStatus,
    Configuration,
    NotConfigured,
    default_networks,
    loaded_networks,
    read_files,
)
from agent.sources.host.cni_plugins import PluginPrograms
from agent.sources.host.mount_table import is_on_node
from agent.sources.host.processes import RUNTIMES, ProcessTable
from agent.sources.host.unix_sockets import read_sockets
from agent.sources.runtime.runtime import RUNTIME_OF_SOCKET, NoCri, Runtime
from agent.sources.source import reservations_of
from agent.sources.source_error import NotFound, SourceError

_T = TypeVar("_T")

CRI: Final = "cri"
"""The setting that leaves docker out."""

DOCKER_SOCKET: Final = Path("/run/docker.sock")
ENDPOINTS: Final = (
    "/run/containerd/containerd.sock",
    "/run/k3s/containerd/containerd.sock",  # k3s and RKE2
    "/run/k0s/containerd.sock",
    "/var/snap/microk8s/common/run/containerd.sock",
    "/run/crio/crio.sock",
)
CRI_DOCKERD_SOCKETS: Final = (
    Path("/run/cri-dockerd.sock"),
    Path("/run/k3s/cri-dockerd/cri-dockerd.sock"),
)

DEFAULT_PLUGIN_DIRECTORY: Final = "/opt/cni/bin"
"""Of the kubelet and cri-dockerd, where no flag names another one."""
_DOCKER_ROOT: Final = Path("/var/lib/docker")

_OTHER_DIRECTORY: Final = Remedy("if the runtime reads another directory, set --cni-config-dir")
_NOT_MOUNTED: Final = Remedy(f"it must be mounted; {_OTHER_DIRECTORY}")

_UNKNOWN: Final = CniStatus()
_KUBENET: Final = RuntimeNetwork(KUBENET, plugins=("bridge",), ipam="host-local")
"""Its range is the node's pod CIDR."""


@dataclass
class NodeRuntimes:
    """The runtimes of this node.

    They are found anew for each snapshot and recheck: a node may change to another.
    """

    docker: Callable[[], Runtime]
    connect: Callable[[Path], Runtime]
    """Returns the runtime at an endpoint."""
    programs: PluginPrograms
    processes: ProcessTable
    proc: Path

    choice: str
    """`auto`, `docker` or `cri`."""
    docker_socket: Path | None
    """None: docker is asked elsewhere."""
    endpoint: Path | None
    """The one that a setting names; None: none does."""
    config_dir: Path | None
    """Of CNI, in place of the directory that the runtime names; None: no setting names one."""

    cni: CniStatus = _UNKNOWN
    """Of the last `networks`: what the kubelet's runtime says. Without a directory, it is unknown
    which runtime that is, or it needs no CNI configuration."""
    asked: tuple[ContainerRuntime, ...] = ()
    """For the last list, whether they answered or not."""

    _found: Sequence[Runtime] = ()
    """Those of this snapshot's networks; their containers come next."""
    _cri: Sequence[Runtime] = ()
    """Those of the last search that are asked by CRI."""
    _served: Collection[Path] = ()
    """The sockets that are listened on, by a runtime that runs."""
    _is_docker: bool = False
    """The kubelet's runtime is docker, at the last `networks`."""
    _late: Late | None = None
    """Set when `networks` timed out: `containers` of this snapshot fails without a second wait."""

    def containers(self, snapshot: Snapshot) -> tuple[Container, ...]:
        """Return the containers of all runtimes; raises SourceError if any of them fails."""
        reserved = {reservation.container_id for reservation in reservations_of(snapshot)}
        self.asked = ()
        runtimes = self._found or self._runtimes()
        self._found = ()

        containers: list[Container] = []
        for runtime in runtimes:
            before = self.asked
            is_chosen = Path(runtime.expected.endpoint) == self.endpoint
            self.asked = (*before, replace(runtime.expected, chosen=is_chosen))
            if self._late:
                raise self._late

            identity = self._call(runtime, runtime.identify)
            if identity is None:
                self.asked = before
                continue
            self.asked = (*before, replace(identity, chosen=is_chosen))

            listed = {container.id for container in containers}
            containers += runtime.containers(reserved - listed)

        if not self.asked:
            raise _none_serves()
        return tuple(containers)

    @property
    def asks_docker(self) -> bool:
        """Whether docker may be the kubelet's runtime: only then checkpoints are not left over."""
        return not self.asked or any(runtime.name == DOCKER for runtime in self.asked)

    def has(self, container_id: str) -> bool:
        """Return whether any runtime has it; raises SourceError if any of them fails."""
        answers = {}  # by endpoint; None: it serves no CRI
        for runtime in self._runtimes():
            call = partial(runtime.has, container_id)
            answers[runtime.expected.endpoint] = self._call(runtime, call)
        if any(answers.values()):
            return True

        # One that was asked for the last list has to answer: the others cannot deny what is in it.
        for asked in self.asked:
            if answers.get(asked.endpoint) is None:
                reason = "no longer serves its socket, and only it can deny its containers"
                raise SourceError(f"{asked} {reason}")
        if False not in answers.values():
            raise _none_serves()
        return False

    def networks(self) -> tuple[RuntimeNetwork, ...]:
        """Return the networks that give pods their addresses; raises SourceError.

        The word of the kubelet's runtime comes first, then the kubelet's flag, then the CNI
        configuration. None if the runtime says that it has none.
        """
        self._late = None
        self._found = ()
        self.cni = _UNKNOWN
        self._is_docker = False

        runtimes = self._found = self._runtimes()
        is_certain = len(runtimes) == 1 or bool(self._named())
        candidates = runtimes[:1] if is_certain else runtimes
        status = self._status(runtimes[0]) if is_certain else _UNKNOWN
        if any(runtime.expected.name == DOCKER for runtime in candidates):
            return self._docker_networks(is_certain=is_certain)

        directory = self.config_dir or status.directory or DEFAULT_DIRECTORY
        self.cni = replace(status, directory=directory)
        if status.loaded is None:
            return self._configured_networks()

        networks = loaded_networks(status.loaded, directory)
        for class_directory in status.class_directories:
            networks += self._class_networks(class_directory)
        return networks

    def _configured_networks(self) -> tuple[RuntimeNetwork, ...]:
        """Return the networks of the directory by the rule of CRI-O and docker.

        These skip a file that libcni refuses, and one that names a plugin without a program. None
        if there is no other, and the runtime says so too.
        """
        directory = self.cni.directory or DEFAULT_DIRECTORY
        try:
            return default_networks(directory, self.cni.default, self._is_usable)
        except NotConfigured as error:
            is_of_node = is_on_node(directory, self.proc)
            status = self.runtime_status() if is_of_node else None
            if status and status.network_ready is False:
                return ()
            remedy = _OTHER_DIRECTORY if is_of_node else _NOT_MOUNTED
            raise NotConfigured(f"{error} ({remedy})", remedy) from error

    def _is_usable(self, configuration: Configuration) -> bool:
        """Return whether the plugins of a chain are installed, as far as that is known."""
        # libcni's ValidateNetworkList looks for no program of `ipam` and of delegates.
        types = {str(plugin["type"]) for plugin in configuration["plugins"]}
        return not self.programs.missing(types, self.cni.plugin_directories)

    def _status(self, runtime: Runtime) -> CniStatus:
        """Return what the kubelet's runtime says of its network; raises SourceError."""
        try:
            return self._call(runtime, runtime.networks) or _UNKNOWN
        except Late as late:
            self._late = late
            self._found = ()
            raise

    def runtime_status(self) -> RuntimeStatus | None:
        """Return what the kubelet's runtime says of its network; raises SourceError.

        None: it is unknown which runtime that is. It is that of the last `networks`. cri-dockerd,
        which serves CRI for docker, is asked when this is called.
        """
        if self.cni.status is None and self._is_docker:
            status = RuntimeStatus(network_ready=None)
            for socket in CRI_DOCKERD_SOCKETS:
                if self.programs.mounted(socket).is_socket():
                    status = self.connect(socket).networks().status or status
            self.cni = replace(self.cni, status=status)
        return self.cni.status

    def _class_networks(self, directory: Path) -> tuple[RuntimeNetwork, ...]:
        """Return the networks of a runtime class of containerd with a directory of its own.

        Without a file there, or with a first one that libcni refuses, it can start no pod.
        """
        try:
            files = read_files(directory)
            return default_networks(directory) if files and not files[0].problem else ()
        except NotFound as error:
            if is_on_node(directory, self.proc):
                return ()
            raise SourceError(f"{error} ({_NOT_MOUNTED})", _NOT_MOUNTED) from error

    def _docker_networks(self, *, is_certain: bool) -> tuple[RuntimeNetwork, ...]:
        """Return those that the kubelet or cri-dockerd chooses by its flag.

        `is_certain`: whether docker is known to be the runtime.
        """
        self._is_docker = is_certain
        node = self.processes.read(complete=False)
        if not node.cri_dockerd and not node.network_plugin:
            node = self.processes.read()  # it may have been started since the last search
        if node.network_plugin == KUBENET:
            return (_KUBENET,)

        flag = self.processes.network_flag("cni-conf-dir")
        programs = self.processes.network_flag("cni-bin-dir") or DEFAULT_PLUGIN_DIRECTORY
        self.cni = CniStatus(
            directory=self.config_dir or Path(flag or DEFAULT_DIRECTORY),
            plugin_directories=tuple(map(Path, programs.split(","))),
            root=_DOCKER_ROOT,
        )

        try:
            return self._configured_networks()
        except NotConfigured:
            # dockershim without a network plugin. The default of cri-dockerd, also within k3s, is
            # cni.
            if is_certain and node.network_plugin == "" and node.cri_dockerd is None:
                return ()
            if node.network_plugin is None:  # no kubelet runs: only kubenet needs no configuration
                return (_KUBENET,)
            raise

    def _call(self, runtime: Runtime, call: Callable[[], _T]) -> _T | None:
        """Return the result of a call; raises SourceError.

        None: no CRI at this socket, which is an error if a setting or the kubelet names it.
        """
        endpoint = Path(runtime.expected.endpoint)
        if runtime in self._cri and endpoint not in self._served:
            reason = f"no container runtime listens at {endpoint} on this node"
            raise SourceError(f"{reason}, so it was not asked")

        try:
            return call()
        except NoCri as error:
            if endpoint in {self.endpoint, Path(self._named())}:
                raise SourceError(str(error)) from error
            return None

    def _runtimes(self) -> Sequence[Runtime]:
        """Return the runtimes to ask, the kubelet's first; raises SourceError."""
        named = "" if self.choice == DOCKER else self._named()
        if self.choice == DOCKER or (named == DOCKER and self.choice != CRI):
            return [self.docker()]

        runtimes = self._cri = self._cri_runtimes(named)
        if self.choice == CRI:
            if not runtimes:
                remedy = Remedy("set --cri-endpoint")
                endpoints = ", ".join(ENDPOINTS)
                raise SourceError(f"no container runtime listens at {endpoints} ({remedy})", remedy)
            return runtimes
        if not runtimes:
            self.processes.require(*RUNTIMES)
            return [self.docker()]  # it says why it does not answer

        if self.docker_socket:
            runs_docker = self.docker_socket in self._served
        else:
            runs_docker = DOCKER in self.processes.running([DOCKER])
        return [*runtimes, self.docker()] if runs_docker else runtimes

    def _cri_runtimes(self, named: str) -> list[Runtime]:
        """Return those to ask by CRI. An endpoint that a setting or the kubelet names must answer.

        `named`: what the kubelet names; empty: nothing.
        """
        required = []
        usual = [*map(Path, ENDPOINTS)]
        if self.endpoint:
            required.append(self.endpoint)
            usual.clear()
        elif named not in {"", DOCKER}:
            required.append(Path(named))

        # The node's list of sockets is long: it is read once.
        sockets = {*required, *usual, *filter(None, [self.docker_socket])}
        self._served = self._served_by_runtimes(sockets)
        served = [path for path in usual if path in self._served]
        return [self.connect(path) for path in dict.fromkeys([*required, *served])]

    def _named(self) -> str:
        """Return the runtime that the kubelet names; empty: none. Raises SourceError."""
        try:
            return self.processes.named_runtime() or ""
        except SourceError as error:
            text = f"no container runtime was asked, because it is unknown which one runs: {error}"
            raise SourceError(text, error.remedy) from error

    def _served_by_runtimes(self, sockets: Iterable[Path]) -> frozenset[Path]:
        """Return the sockets that are listened on, and not by systemd.

        systemd may listen in the place of a runtime, and start it for a request.
        """
        # The runtime may have bound /var/run, which is a link to /run.
        spellings = {path: {bytes(path), b"/var" + bytes(path)} for path in sockets}
        paths = (spelling for names in spellings.values() for spelling in names)
        listening = read_sockets(self.proc, paths).listening
        runtime_of = {
            path: RUNTIME_OF_SOCKET.get(path.name)
            for path, names in spellings.items()
            if names & listening
        }

        running = self.processes.running(set(filter(None, runtime_of.values())))
        return frozenset(
            path for path, name in runtime_of.items() if name is None or name in running
        )


def _none_serves() -> SourceError:
    remedy = Remedy("check --cri-endpoint")
    return SourceError(f"no container runtime serves CRI at its socket ({remedy})", remedy)
