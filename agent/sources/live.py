"""The sources of a real node, each read where it lives."""

from collections.abc import Callable, Sequence
from pathlib import Path

from agent.model.snapshot import Address, Checkpoint, CniResult, Container, Daemons, Node, Pod, Reading, Store
from agent.sources import addresses, checkpoints, reservations
from agent.sources.cni_results import CniResults
from agent.sources.containers import Docker
from agent.sources.daemons import ProcessTable
from agent.sources.deadline import Deadline


class LiveSources:
    """What one node is read from; pods and node come from whoever talks to the API server, or from nobody."""

    def __init__(
        self,
        *,
        networks: Sequence[str],
        networks_dir: Path,
        checkpoint_dirs: Sequence[Path],
        cache_dirs: Sequence[Path],
        proc: Path,
        docker: Docker,
        pods: Callable[[], Reading[Pod]],
        node: Callable[[], Reading[Node]],
    ) -> None:
        self._networks, self._networks_dir = networks, networks_dir
        self._checkpoint_dirs = checkpoint_dirs
        self._proc = proc
        # A little more than docker's own patience, which bounds silence and is the better message.
        self._docker, self._in_time = docker, Deadline("docker", docker.timeout * 1.2)
        self._cni_results = CniResults(cache_dirs, networks)
        self._process_table = ProcessTable(proc)
        self._pods, self._node = pods, node

    def reservations(self) -> tuple[Store, ...]:
        return tuple(reservations.read(self._networks_dir, network) for network in self._networks)

    def checkpoints(self) -> tuple[Checkpoint, ...]:
        return checkpoints.read(self._checkpoint_dirs)

    def containers(self) -> tuple[Container, ...]:
        return self._in_time(self._docker.containers)

    def cni_results(self) -> tuple[CniResult, ...]:
        return self._cni_results.read()

    def daemons(self) -> tuple[Daemons, ...]:
        return (self._process_table.read(),)

    def addresses(self) -> tuple[Address, ...]:
        return addresses.read(self._proc)

    def pods(self) -> Reading[Pod]:
        return self._pods()

    def node(self) -> Reading[Node]:
        return self._node()

    # The second look: the same places, asked about one sandbox.

    def has_container(self, container_id: str) -> bool:
        return self._in_time(lambda: self._docker.has(container_id))

    def has_checkpoint(self, container_id: str) -> bool:
        return checkpoints.has(self._checkpoint_dirs, container_id)

    def holder_of(self, ips: Sequence[str]) -> str:
        """Return the process that has one of the addresses configured; empty where none has."""
        held = (address for address in addresses.read(self._proc) if address.ip in ips)
        return next((f"process {address.pid} ({address.command})" for address in held), "")
