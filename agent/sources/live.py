"""The sources of a real node, each read where it lives."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from agent.model.device_history import StoredHistory
from agent.model.devices import DevicePlugins
from agent.model.registration import Autoscaler, Expected, Registration
from agent.model.snapshot import (
    Address,
    Checkpoint,
    CniResult,
    Container,
    Known,
    Node,
    NotRequested,
    Pod,
    ProcessStartTimes,
    Reading,
    Store,
    Unavailable,
)
from agent.model.volumes import Attachments, Mount
from agent.model.watches import Watch
from agent.sources.deadline import Deadline
from agent.sources.error import SourceError
from agent.sources.host import addresses, checkpoints, mounts, reservations
from agent.sources.host.cni_cache import CniResults
from agent.sources.host.device_plugins import DeviceManager
from agent.sources.host.processes import ProcessTable
from agent.sources.host.registration import RegistrationTracker
from agent.sources.runtime.docker import Docker


def device_plugins_in(
    directory: Path | None, proc: Path, history: Callable[[], StoredHistory]
) -> Callable[[], Reading[DevicePlugins]]:
    """Return what reads the kubelet's directory for device plugins; without one, it is left alone."""
    if directory is None:
        return lambda: NotRequested("device_plugins", "--device-plugins-dir=off")
    manager = DeviceManager(directory, proc, history)

    def read() -> Reading[DevicePlugins]:
        try:
            return Known((manager.read(),))
        except SourceError as error:
            return Unavailable("device_plugins", str(error))

    return read


def mounts_below(kubelet_dir: Path | None, proc: Path) -> Callable[[], Reading[Mount]]:
    """Return what reads which volumes are mounted; without the kubelet's directory, they are left alone."""
    if kubelet_dir is None:
        return lambda: NotRequested("mounts", "--kubelet-dir=off")
    below = kubelet_dir

    def read() -> Reading[Mount]:
        try:
            return Known(mounts.read(proc, below))
        except SourceError as error:
            return Unavailable("mounts", str(error))

    return read


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiServer:
    """What is asked of the API server, by whoever talks to it: reflectors, a command that asks once, or nobody."""

    pods: Callable[[], Reading[Pod]]
    node: Callable[[], Reading[Node]]
    watches: Callable[[], Reading[Watch]]
    attachments: Callable[[Sequence[str], Sequence[Pod]], Reading[Attachments]]
    """Of volumes that are missing, and pods that wait for them."""
    autoscaler: Callable[[Reading[Node], Reading[Registration]], Reading[Autoscaler]]
    skew: Callable[[], timedelta | None]
    version: Callable[[], str]


def left_alone(why: str) -> ApiServer:
    return ApiServer(
        pods=lambda: NotRequested("pods", why),
        node=lambda: NotRequested("node", why),
        watches=lambda: NotRequested("watches", why),
        attachments=lambda _volumes, _pods: NotRequested("attachments", why),
        autoscaler=lambda _node, _registration: NotRequested("autoscaler", why),
        skew=lambda: None,
        version=lambda: "",
    )


class LiveSources:
    """What one node is read from."""

    def __init__(
        self,
        *,
        networks: Sequence[str],
        networks_dir: Path,
        checkpoint_dirs: Sequence[Path],
        cache_dirs: Sequence[Path],
        proc: Path,
        docker: Docker,
        api: ApiServer,
        device_plugins: Callable[[], Reading[DevicePlugins]],
        mounts: Callable[[], Reading[Mount]],
        state_dir: Path,
        node_name: str,
        provider_id: Expected = Expected.AUTO,
    ) -> None:
        self._networks, self._networks_dir = networks, networks_dir
        self._checkpoint_dirs = checkpoint_dirs
        self._proc = proc
        # A little more than docker's own patience, which bounds silence and is the better message.
        self._docker, self._in_time = docker, Deadline("docker", docker.timeout * 1.2)
        self._cni_results = CniResults(cache_dirs, networks)
        self._process_table = ProcessTable(proc)
        self._api, self._device_plugins, self._mounts = api, device_plugins, mounts
        self._registrar = RegistrationTracker(
            node_name, provider_id, state_dir, self._process_table.kubelet_flags, proc
        )

    def reservations(self) -> tuple[Store, ...]:
        return tuple(reservations.read(self._networks_dir, network) for network in self._networks)

    def checkpoints(self) -> tuple[Checkpoint, ...]:
        return checkpoints.read(self._checkpoint_dirs)

    def containers(self) -> tuple[Container, ...]:
        return self._in_time(self._docker.containers)

    def cni_results(self) -> tuple[CniResult, ...]:
        return self._cni_results.read()

    def processes(self) -> tuple[ProcessStartTimes, ...]:
        return (self._process_table.read(),)

    def addresses(self) -> tuple[Address, ...]:
        return addresses.read(self._proc)

    def pods(self) -> Reading[Pod]:
        return self._api.pods()

    def node(self) -> Reading[Node]:
        return self._api.node()

    def device_plugins(self) -> Reading[DevicePlugins]:
        return self._device_plugins()

    def registration(self, node: Reading[Node], pods: Reading[Pod], at: datetime) -> Reading[Registration]:
        return self._registrar.read(node, pods, at)

    def autoscaler(self, node: Reading[Node], registration: Reading[Registration]) -> Reading[Autoscaler]:
        return self._api.autoscaler(node, registration)

    def watches(self) -> Reading[Watch]:
        return self._api.watches()

    def mounts(self) -> Reading[Mount]:
        return self._mounts()

    def attachments(self, volumes: Sequence[str], pods: Sequence[Pod]) -> Reading[Attachments]:
        return self._api.attachments(volumes, pods)

    def api_skew(self) -> timedelta | None:
        return self._api.skew()

    def server_version(self) -> str:
        return self._api.version()

    # The second look: the same places, asked about one sandbox.

    def has_container(self, container_id: str) -> bool:
        return self._in_time(lambda: self._docker.has(container_id))

    def has_checkpoint(self, container_id: str) -> bool:
        return checkpoints.has(self._checkpoint_dirs, container_id)

    def holder_of(self, ips: Sequence[str]) -> str:
        """Return the process that has one of the addresses configured; empty where none has."""
        held = (address for address in addresses.read(self._proc) if address.ip in ips)
        return next((f"process {address.pid} ({address.command})" for address in held), "")
