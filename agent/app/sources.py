"""Wires what a node is read from, for one command or for the daemon: each source has a row here."""

import os
import platform
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Final, NamedTuple

from agent.app import loop
from agent.app.api_sources import NO_API, ApiSources, ReadBrake
from agent.config import Config, UsageError, option, variable
from agent.model.documents import StoredHistory
from agent.model.runtime import DOCKER
from agent.model.snapshot import Container, Node, Snapshot
from agent.sources.deadline import Deadline
from agent.sources.host.addresses import AddressesSource
from agent.sources.host.checkpoints import CheckpointDirectories
from agent.sources.host.cni_cache import CniResults, CniResultsSource
from agent.sources.host.cni_files import CniFilesSource
from agent.sources.host.cni_plugins import PluginPrograms
from agent.sources.host.device_plugins import read_device_plugins
from agent.sources.host.disks import DisksSource
from agent.sources.host.links import LinksSource
from agent.sources.host.mount_table import is_on_node
from agent.sources.host.mounted_namespaces import MountedNamespacesSource
from agent.sources.host.mounts import MountsSource
from agent.sources.host.network_directories import ReservationsSource
from agent.sources.host.processes import ProcessesSource, ProcessTable
from agent.sources.host.registration import RegistrationTracker
from agent.sources.runtime.node_runtimes import DOCKER_SOCKET, NodeRuntimes
from agent.sources.runtime.pod_networks import PodNetworks, RuntimeStatusSource
from agent.sources.runtime.runtime import Runtime
from agent.sources.source import Disabled, ReadBy, Source, Sources
from agent.sources.source_error import SourceError
from agent.state.stores import DeviceHistoryStore

_RUN: Final = Path("/run")
API_SOURCES: Final = (
    "pods", "node", "watches", "brake", "attachments", "sandbox_failures", "autoscaler",
)  # fmt: skip
"""Those that the API server answers: their rows are in `agent/app/api_server.py`."""


def displayed_name(config: Config) -> str:
    """Return the name the node is shown by; without the API server the host's own name will do."""
    return config.node or platform.node()


@dataclass(frozen=True)
class Readers:
    """What several sources and the recheck of a release share, with what it remembers."""

    processes: ProcessTable
    runtimes: NodeRuntimes
    in_time: Deadline
    networks: PodNetworks
    results: CniResults
    checkpoints: CheckpointDirectories

    @classmethod
    def of_node(cls, config: Config) -> "Readers":
        """Return those of this node; raises UsageError."""
        processes = ProcessTable(config.proc)
        runtimes = _runtimes(config, processes)
        # A little more than the timeout of one response, which has the better message.
        in_time = Deadline("container runtime", config.docker_timeout.total_seconds() * 1.2)
        is_missing = partial(is_on_node, proc=config.proc)
        return cls(
            processes=processes,
            runtimes=runtimes,
            in_time=in_time,
            networks=PodNetworks(runtimes, in_time, config.run_dir, config.network),
            results=CniResults(config.cni_cache_dir, is_missing),
            checkpoints=CheckpointDirectories(config.checkpoint_dir),
        )

    def containers(self, snapshot: Snapshot) -> tuple[Container, ...]:
        """Return the containers of every runtime; raises SourceError."""
        return self.in_time(lambda: self.runtimes.containers(snapshot))


class NodeSources(NamedTuple):
    """What a node is read from."""

    snapshot: Sources
    readers: Readers
    brake: ReadBrake


def node_sources(
    config: Config,
    *,
    api: ApiSources,
    state: Source,
    history: Callable[[], StoredHistory],
    latest_node: Callable[[], Node | None],
) -> NodeSources:
    """Wire every source of this node; raises UsageError.

    `api`: those that the API server answers; `NO_API` with --api=off. `history`: returns that of
    the device plugins. `latest_node`: returns the Node as the API server last sent it.
    """
    readers = Readers.of_node(config)
    tracker = _registration_tracker(config, readers.processes, latest_node)

    sources: list[Source] = [
        readers.networks,
        RuntimeStatusSource(readers.networks),
        CniFilesSource(lambda: readers.runtimes.cni, readers.runtimes.programs),
        _reservations(config, readers.results),
        ReadBy("containers", readers.containers),
        _asked_runtimes(config, readers.runtimes),
        readers.checkpoints,
        CniResultsSource(readers.results),
        ProcessesSource(readers.processes, readers.networks.plugins),
        _device_plugins(config, history),
        ReadBy("registration", lambda read: tracker.read(read.node, read.pods, read.taken_at)),
        AddressesSource(config.proc),
        MountedNamespacesSource(config.proc, readers.processes),
        MountsSource(config.proc, config.kubelet_dir),
        LinksSource(config.proc),
        _disks(config, readers.runtimes),
        state,
        *api.snapshot,
    ]
    if not api.snapshot:
        sources += [Disabled(name, f"{option('api')}=off") for name in API_SOURCES]

    return NodeSources(sources, readers, api.brake)


def for_command(config: Config) -> NodeSources:
    """Wire what one command reads; raises UsageError."""
    api = NO_API
    if config.api == "on":
        from agent.app import api_server

        api = api_server.for_command(config)

    return node_sources(
        config,
        api=api,
        state=Disabled("state", "no daemon"),
        history=DeviceHistoryStore(config.state_dir).read,
        latest_node=lambda: None,
    )


def _reservations(config: Config, results: CniResults) -> ReservationsSource:
    return ReservationsSource(
        results=results,
        settings=config.network,
        networks_dir=config.cni_networks_dir,
        mounted=partial(mounted_path, run_dir=config.run_dir),
        limit=config.max_reservations,
        local=config.local_filesystem,
        is_missing=partial(is_on_node, proc=config.proc),
    )


def _disks(config: Config, runtimes: NodeRuntimes) -> DisksSource:
    cni = config.cni_networks_dir
    directories = [cni.parent, cni, *config.cni_cache_dir, _RUN]
    if config.kubelet_dir:
        directories.append(config.kubelet_dir)

    return DisksSource(
        directories=tuple(directories),
        runtime_root=lambda: runtimes.cni.root,
        mounted=runtimes.programs.mounted,
        proc=config.proc,
    )


def _asked_runtimes(config: Config, runtimes: NodeRuntimes) -> Source:
    """Return what was asked for the last list of containers, whether it answered or not."""
    if config.runtime == DOCKER:
        return Disabled("runtimes", "--runtime=docker")
    return ReadBy("runtimes", lambda _: runtimes.asked)


def _device_plugins(config: Config, history: Callable[[], StoredHistory]) -> Source:
    directory = config.device_plugins_dir
    if directory is None:
        return Disabled("device_plugins", "--device-plugins-dir=off")
    return ReadBy("device_plugins", lambda _: read_device_plugins(directory, config.proc, history))


def _registration_tracker(
    config: Config, processes: ProcessTable, latest_node: Callable[[], Node | None]
) -> RegistrationTracker:
    return RegistrationTracker(
        name=displayed_name(config),
        expected=config.provider_id,
        provision_time=config.max_node_provision_time,
        state_dir=config.state_dir,
        flags=processes.kubelet_flags,
        proc=config.proc,
        latest=latest_node,
    )


def _runtimes(config: Config, processes: ProcessTable) -> NodeRuntimes:
    """Raises UsageError for a docker host that cannot be one."""
    timeout = config.docker_timeout.total_seconds()

    @cache
    def docker() -> Runtime:
        from agent.sources.runtime.docker import Docker

        return Docker(config.docker_host or None, timeout, partial(processes.require, DOCKER))

    def cri(path: Path) -> Runtime:
        from agent.sources.runtime.cri import Cri

        return Cri(path, timeout, loop.clock, mounted=mounted_path(path, config.run_dir))

    docker_socket: Path | None = DOCKER_SOCKET
    if docker_host := config.docker_host or os.environ.get("DOCKER_HOST", ""):
        try:
            docker()
        except SourceError as error:
            setting = f"{option('docker_host')} ({variable('docker_host')}, DOCKER_HOST)"
            raise UsageError(f"{setting}: {error}") from error
        socket = Path(docker_host.removeprefix("unix://"))
        docker_socket = None
        if socket.is_relative_to(config.run_dir):
            docker_socket = _RUN / socket.relative_to(config.run_dir)

    return NodeRuntimes(
        docker=docker,
        connect=cri,
        programs=PluginPrograms(partial(mounted_path, run_dir=config.run_dir), config.proc),
        processes=processes,
        proc=config.proc,
        choice=config.runtime,
        docker_socket=docker_socket,
        endpoint=config.cri_endpoint,
        config_dir=config.cni_config_dir,
    )


def mounted_path(path: Path, run_dir: Path) -> Path:
    """Return where a path of the node is for this process. `run_dir`: where the node's /run is."""
    return run_dir / path.relative_to(_RUN) if path.is_relative_to(_RUN) else path
