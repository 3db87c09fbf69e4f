"""The sources of a real node, each read where it lives."""

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from pathlib import Path

from agent.model.devices import DevicePlugins
from agent.model.registration import Autoscaler, Expected, Registration
from agent.model.snapshot import (
    Address,
    Checkpoint,
    CniResult,
    Container,
    Daemons,
    Node,
    NotAsked,
    Pod,
    Reading,
    Seen,
    Store,
    Unread,
)
from agent.model.watches import Watch
from agent.sources import addresses, checkpoints, reservations
from agent.sources.chronicle import StoredChronicle
from agent.sources.cni_results import CniResults
from agent.sources.containers import Docker
from agent.sources.daemons import ProcessTable
from agent.sources.deadline import Deadline
from agent.sources.device_plugins import DeviceManager
from agent.sources.registration import Registrar
from agent.sources.unavailable import Unavailable


def device_plugins_in(directory: Path | None, proc: Path, state_dir: Path) -> Callable[[], Reading[DevicePlugins]]:
    """Return what reads the kubelet's directory for device plugins; without one, it is left alone."""
    if directory is None:
        return lambda: NotAsked("device_plugins", "--device-plugins-dir=off")
    manager = DeviceManager(directory, proc, StoredChronicle(state_dir).read)

    def read() -> Reading[DevicePlugins]:
        try:
            return Seen((manager.read(),))
        except Unavailable as error:
            return Unread("device_plugins", str(error))

    return read


AskCluster = Callable[[Reading[Node], Reading[Registration]], Reading[Autoscaler]]


def never_asked(node: Reading[Node], registration: Reading[Registration]) -> NotAsked:
    """Leave the cluster alone, for the reason for which the Node was."""
    return NotAsked("autoscaler", next((one.why for one in (node, registration) if isinstance(one, NotAsked)), ""))


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
        device_plugins: Callable[[], Reading[DevicePlugins]],
        state_dir: Path,
        node_name: str,
        provider_id: Expected = Expected.AUTO,
        autoscaler: AskCluster = never_asked,
        watches: Callable[[], Reading[Watch]] = lambda: NotAsked("watches", "nobody watches"),
        api_skew: Callable[[], timedelta | None] = lambda: None,
        server_version: Callable[[], str] = lambda: "",
    ) -> None:
        self._networks, self._networks_dir = networks, networks_dir
        self._checkpoint_dirs = checkpoint_dirs
        self._proc = proc
        # A little more than docker's own patience, which bounds silence and is the better message.
        self._docker, self._in_time = docker, Deadline("docker", docker.timeout * 1.2)
        self._cni_results = CniResults(cache_dirs, networks)
        self._process_table = ProcessTable(proc)
        self._pods, self._node, self._watches = pods, node, watches
        self._api_skew, self._server_version = api_skew, server_version
        self._device_plugins = device_plugins
        self._registrar = Registrar(node_name, provider_id, state_dir, self._process_table.kubelet_flags, proc)
        self._autoscaler = autoscaler

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

    def device_plugins(self) -> Reading[DevicePlugins]:
        return self._device_plugins()

    def registration(self, node: Reading[Node], pods: Reading[Pod], at: datetime) -> Reading[Registration]:
        return self._registrar.read(node, pods, at)

    def autoscaler(self, node: Reading[Node], registration: Reading[Registration]) -> Reading[Autoscaler]:
        return self._autoscaler(node, registration)

    def watches(self) -> Reading[Watch]:
        return self._watches()

    def api_skew(self) -> timedelta | None:
        return self._api_skew()

    def server_version(self) -> str:
        return self._server_version()

    # The second look: the same places, asked about one sandbox.

    def has_container(self, container_id: str) -> bool:
        return self._in_time(lambda: self._docker.has(container_id))

    def has_checkpoint(self, container_id: str) -> bool:
        return checkpoints.has(self._checkpoint_dirs, container_id)

    def holder_of(self, ips: Sequence[str]) -> str:
        """Return the process that has one of the addresses configured; empty where none has."""
        held = (address for address in addresses.read(self._proc) if address.ip in ips)
        return next((f"process {address.pid} ({address.command})" for address in held), "")
