"""Asks the container runtimes of this node: docker, and those that speak CRI.

Evidence decides which there are: what the kubelet names, which sockets are listened on, which processes run. All are
asked, because any may own a reservation; a runtime that should answer and does not makes the list unavailable.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Final, TypeVar

from agent.model.assessment import KUBENET
from agent.model.runtime import DOCKER, ContainerRuntime, RuntimeNetwork
from agent.model.snapshot import Container, Snapshot, known_or
from agent.sources.deadline import Late
from agent.sources.host.cni_config import (
    DEFAULT_DIRECTORY,
    CniStatus,
    NotConfigured,
    default_networks,
    loaded_networks,
)
from agent.sources.host.mount_table import is_missing_on_node
from agent.sources.host.processes import RUNTIMES, ProcessTable
from agent.sources.host.reservations import is_directory
from agent.sources.host.unix_sockets import read_sockets
from agent.sources.runtime.runtime import RUNTIME_OF_SOCKET, NoCri, Runtime
from agent.sources.source_error import SourceError

_T = TypeVar("_T")

CRI: Final = "cri"
DOCKER_SOCKET: Final = Path("/run/docker.sock")
ENDPOINTS: Final = (
    "/run/containerd/containerd.sock",
    "/run/k3s/containerd/containerd.sock",  # k3s and RKE2
    "/run/k0s/containerd.sock",
    "/var/snap/microk8s/common/run/containerd.sock",
    "/run/crio/crio.sock",
)
_KUBENET: Final = RuntimeNetwork(
    KUBENET, ("bridge",), "host-local"
)  # its range is the node's pod CIDR
_NONE_SERVES: Final = "no container runtime serves CRI at its socket (check --cri-endpoint)"


@dataclass
class NodeRuntimes:
    """The runtimes of this node. They are found anew for each snapshot and recheck: a node may change to another."""

    docker: Callable[[], Runtime]
    connect: Callable[[Path], Runtime]  # to an endpoint
    processes: ProcessTable
    proc: Path
    choice: str  # `auto`, `docker` or `cri`
    docker_socket: Path | None  # None where docker is asked elsewhere
    endpoint: Path | None  # as settings name it
    config_dir: Path | None  # of CNI, in place of the directory that the runtime names
    asked: tuple[ContainerRuntime, ...] = ()  # for the last list, whether they answered or not
    _found: Sequence[Runtime] = ()  # for this snapshot's networks; their containers come next
    _cri: Sequence[Runtime] = ()  # those of the last search that are asked by CRI
    _served: Collection[Path] = ()  # the sockets that are listened on, by a runtime that runs
    _late: Late | None = (
        None  # why the networks are not known: a runtime is waited for once a snapshot
    )

    def containers(self, snapshot: Snapshot) -> tuple[Container, ...]:
        """List the containers of all runtimes; raises SourceError if any of them fails."""
        reserved = {
            held.container_id
            for store in snapshot.reservations
            for held in known_or(store.reading, ())
        }
        found: list[Container] = []
        self.asked = ()
        runtimes, self._found = self._found or self._runtimes(), ()
        for runtime in runtimes:
            others, chosen = self.asked, Path(runtime.expected.endpoint) == self.endpoint
            self.asked = (*others, replace(runtime.expected, chosen=chosen))
            if self._late:
                raise self._late
            identity = self._ask(runtime, runtime.identify)
            self.asked = (*others, replace(identity, chosen=chosen)) if identity else others
            if identity:
                found += runtime.containers(
                    reserved.difference(container.id for container in found)
                )
        if not self.asked:
            raise SourceError(_NONE_SERVES)
        return tuple(found)

    @property
    def asks_docker(self) -> bool:
        """Whether docker may be the kubelet's runtime: only then it has checkpoints, and others were left over."""
        return not self.asked or any(runtime.name == DOCKER for runtime in self.asked)

    def has(self, container_id: str) -> bool:
        """Return whether any runtime has it; raises SourceError if any of them fails."""
        # One that was asked for the last list has to be asked again: the others cannot deny what is in it.
        runtimes = {runtime.expected.endpoint: runtime for runtime in self._runtimes()}
        answers = {
            path: self._ask(found, partial(found.has, container_id))
            for path, found in runtimes.items()
        }
        if any(answers.values()):
            return True
        if silent := [runtime for runtime in self.asked if answers.get(runtime.endpoint) is None]:
            raise SourceError(
                f"{silent[0]} no longer serves its socket, and only it can deny its containers"
            )
        if False not in answers.values():
            raise SourceError(_NONE_SERVES)
        return False

    def networks(self) -> tuple[RuntimeNetwork, ...]:
        """Return the networks that give pods their addresses; raises SourceError if they are not known."""
        # The word of the kubelet's runtime comes first, then the kubelet's flag, then the CNI configuration.
        self._late, self._found = None, ()
        runtimes = self._found = self._runtimes()
        certain = len(runtimes) == 1 or bool(self._named())
        status = self._status(runtimes[0]) if certain else CniStatus()
        directory = self.config_dir or status.directory or DEFAULT_DIRECTORY
        if status.loaded is not None:
            others = chain.from_iterable(self._of_class(other) for other in status.others)
            return (*loaded_networks(status.loaded, directory), *others)
        if any(
            runtime.expected.name == DOCKER for runtime in (runtimes[:1] if certain else runtimes)
        ):
            return self._docker_networks(certain=certain)
        return default_networks(directory, status.default)

    def _status(self, runtime: Runtime) -> CniStatus:
        try:
            return self._ask(runtime, runtime.networks) or CniStatus()
        except Late as late:
            self._late, self._found = late, ()
            raise

    def _of_class(self, directory: Path) -> Sequence[RuntimeNetwork]:
        """Return the networks of a runtime class with a directory of its own: without a file, it can start no pod."""
        try:
            return default_networks(directory)
        except NotConfigured:
            if is_directory(directory) or is_missing_on_node(directory, self.proc):
                return ()
            raise

    def _docker_networks(self, *, certain: bool) -> tuple[RuntimeNetwork, ...]:
        """Return those that the kubelet or cri-dockerd chooses by its flag. `certain`: docker is the runtime."""
        node = self.processes.read(complete=False)
        if not any(
            (node.cri_dockerd, node.network_plugin)
        ):  # it may have been started since the last search
            node = self.processes.read()
        if node.network_plugin == KUBENET:
            return (_KUBENET,)
        directory = self.config_dir or Path(
            self.processes.network_flag("cni-conf-dir") or DEFAULT_DIRECTORY
        )
        try:
            return default_networks(directory)
        except NotConfigured:
            if certain and node.network_plugin == "" and node.cri_dockerd is None:
                return ()  # dockershim without a network plugin; the default of cri-dockerd, also within k3s, is cni
            if (
                node.network_plugin is None
            ):  # no kubelet runs, and only kubenet needs no configuration
                return (_KUBENET,)
            raise

    def _ask(self, runtime: Runtime, question: Callable[[], _T]) -> _T | None:
        """Return the answer. None: without CRI it is no runtime, which is a fault if somebody named its endpoint."""
        endpoint = Path(runtime.expected.endpoint)
        if runtime in self._cri and endpoint not in self._served:
            raise SourceError(
                f"no container runtime listens at {endpoint} on this node, so it was not asked"
            )
        try:
            return question()
        except NoCri as error:
            if endpoint in {self.endpoint, Path(self._named())}:
                raise SourceError(str(error)) from error
            return None

    def _runtimes(self) -> Sequence[Runtime]:
        named = "" if self.choice == DOCKER else self._named()
        if self.choice == DOCKER or (named == DOCKER and self.choice != CRI):
            return [self.docker()]
        found = self._cri = self._cri_runtimes(named)
        if self.choice == CRI:
            if not found:
                raise SourceError(
                    f"no container runtime listens at {', '.join(ENDPOINTS)} (set --cri-endpoint)"
                )
            return found
        if not found:
            self.processes.require(
                *RUNTIMES
            )  # where nothing else runs, docker says why it does not answer
        return [*found, self.docker()] if not found or self._runs_docker() else found

    def _cri_runtimes(self, named: str) -> list[Runtime]:
        """Return those to ask. An endpoint that somebody names must answer."""
        known: list[Path] = []
        if self.endpoint:
            wanted = [self.endpoint]
        else:
            wanted = [Path(named)] if named not in {"", DOCKER} else []
            known = [Path(endpoint) for endpoint in ENDPOINTS]
        # The node's list of sockets is long: it is read once a question.
        self._served = self._find_served({*wanted, *known, *filter(None, [self.docker_socket])})
        endpoints = dict.fromkeys([*wanted, *(path for path in known if path in self._served)])
        return list(map(self.connect, endpoints))

    def _named(self) -> str:
        try:
            return self.processes.named_runtime() or ""
        except SourceError as error:
            why = f"it is unknown which one runs: {error}"
            raise SourceError(f"no container runtime was asked, because {why}") from error

    def _find_served(self, sockets: Iterable[Path]) -> frozenset[Path]:
        spellings = {path: {bytes(path), b"/var" + bytes(path)} for path in sockets}
        listening = read_sockets(self.proc, chain.from_iterable(spellings.values())).listening
        found = {
            path: RUNTIME_OF_SOCKET.get(path.name)
            for path, names in spellings.items()
            if names & listening
        }
        # Systemd may listen in the place of a runtime, and start it for a question.
        running = self.processes.running(set(filter(None, found.values())))
        return frozenset(
            path for path, runtime in found.items() if runtime is None or runtime in running
        )

    def _runs_docker(self) -> bool:
        return (
            DOCKER in self.processes.running([DOCKER])
            if self.docker_socket is None
            else self.docker_socket in self._served
        )
