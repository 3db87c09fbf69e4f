"""Wires what a node is read from, for one command or for the daemon: each source has a row here."""

import os
import platform
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from posixpath import normpath
from typing import Final, NamedTuple

from agent.app import loop
from agent.cleanup import probe
from agent.cleanup.recheck import Recheck
from agent.config import Config, UsageError, option, variable
from agent.model.devices import DevicePlugins
from agent.model.documents import StoredHistory
from agent.model.release import ProbeResult
from agent.model.runtime import DOCKER
from agent.model.snapshot import Node, NotRequested, Reservation, ReservationKey
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
from agent.sources.runtime.containers import ContainersSource, RuntimesSource
from agent.sources.runtime.node_runtimes import DOCKER_SOCKET, NodeRuntimes
from agent.sources.runtime.pod_networks import PodNetworks, RuntimeStatusSource
from agent.sources.runtime.runtime import Runtime
from agent.sources.source import Disabled, ReadBy, Source, Sources
from agent.sources.source_error import SourceError
from agent.state.stores import DeviceHistoryStore

API_SOURCES: Final = (
    "pods", "node", "watches", "attachments", "sandbox_failures", "autoscaler",
)  # fmt: skip
"""Those that the API server answers: their rows are in `agent/app/api_server.py`."""


class NodeSources(NamedTuple):
    """What a node is read from, and the live recheck of one sandbox."""

    snapshot: Sources
    recheck: Recheck


def displayed_name(config: Config) -> str:
    """Return the name the node is shown by; without the API server the host's own name will do."""
    return config.node or platform.node()


def for_command(config: Config) -> NodeSources:
    """Wire what one command reads; raises UsageError."""
    api: Sources = ()
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


@dataclass(frozen=True)
class _Readers:
    """What several sources and the recheck share, with what it remembers."""

    processes: ProcessTable
    runtimes: NodeRuntimes
    in_time: Deadline
    networks: PodNetworks
    results: CniResults
    checkpoints: CheckpointDirectories

    @classmethod
    def of_node(cls, config: Config) -> "_Readers":
        """Raises UsageError."""
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


def node_sources(
    config: Config,
    *,
    api: Sources,
    state: Source,
    history: Callable[[], StoredHistory],
    latest_node: Callable[[], Node | None],
) -> NodeSources:
    """Wire every source of this node; raises UsageError.

    `api`: those that the API server answers; none with --api=off. `history`: returns that of the
    device plugins. `latest_node`: returns the Node as the API server last sent it.
    """
    readers = _Readers.of_node(config)
    tracker = _registration_tracker(config, readers.processes, latest_node)
    sources: list[Source] = [
        readers.networks,
        RuntimeStatusSource(readers.networks),
        CniFilesSource(lambda: readers.runtimes.cni, readers.runtimes.programs),
        _reservations(config, readers.results),
        ContainersSource(readers.runtimes, readers.in_time),
        RuntimesSource(readers.runtimes),
        readers.checkpoints,
        CniResultsSource(readers.results),
        ProcessesSource(readers.processes, readers.networks.plugins),
        ReadBy("device_plugins", lambda _: _device_plugins(config, history)),
        ReadBy("registration", lambda read: tracker.read(read.node, read.pods, read.taken_at)),
        AddressesSource(config.proc),
        MountedNamespacesSource(config.proc, readers.processes),
        MountsSource(config.proc, config.kubelet_dir),
        LinksSource(config.proc),
        _disks(config, readers.runtimes),
        state,
        *api,
    ]
    if not api:
        sources += [Disabled(name, f"{option('api')}=off") for name in API_SOURCES]
    return NodeSources(sources, _recheck(config, readers))


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


def _device_plugins(
    config: Config, history: Callable[[], StoredHistory]
) -> DevicePlugins | NotRequested:
    if directory := config.device_plugins_dir:
        return read_device_plugins(directory, config.proc, history)
    return NotRequested("device_plugins", "--device-plugins-dir=off")


def _registration_tracker(
    config: Config, processes: ProcessTable, latest_node: Callable[[], Node | None]
) -> RegistrationTracker:
    return RegistrationTracker(
        name=displayed_name(config),
        expected=config.provider_id,
        state_dir=config.state_dir,
        flags=processes.kubelet_flags,
        proc=config.proc,
        latest=latest_node,
    )


def _recheck(config: Config, readers: _Readers) -> Recheck:
    runtimes = readers.runtimes
    return Recheck(
        has_container=lambda container_id: readers.in_time(lambda: runtimes.has(container_id)),
        has_checkpoint=lambda container_id: (
            readers.checkpoints.has(container_id) if runtimes.asks_docker else None
        ),
        results=readers.results,
        proc=config.proc,
        processes=readers.processes,
        probe_addresses=partial(_probe, config, readers),
    )


def _probe(
    config: Config, readers: _Readers, reservations: Sequence[Reservation], send: bool
) -> Mapping[ReservationKey, ProbeResult]:
    if config.probe == "off":
        not_probed = ProbeResult("not probed: --probe=off", conclusive=False)
        return {reservation.key: not_probed for reservation in reservations}
    # What may make the interfaces of a network: its cached results say so, the first plugin of its
    # chain, and any that isolates.
    plugins: dict[str, set[str]] = {reservation.network: set() for reservation in reservations}
    for result in readers.results.read():
        if result.plugin and result.network in plugins:
            plugins[result.network].add(result.plugin)
    for network in readers.networks.last:
        if network.name in plugins:
            isolating = probe.ISOLATING.intersection(network.plugins)
            plugins[network.name].update(network.plugins[:1], isolating)
    return probe.probe(reservations, plugins, loop.clock, config.proc, send=send)


def names_data_dir(config: Config, data_dir: str) -> bool:
    """Return whether libcni's cache or the CNI configuration names a dataDir now.

    Only entries of the journal that have one ask for it. Raises SourceError.
    """
    readers = _Readers.of_node(config)
    with suppress(SourceError):  # the configuration may name it
        cached = readers.results.read()
        if data_dir in {normpath(result.data_dir) for result in cached if result.data_dir}:
            return True
    networks = readers.in_time(readers.runtimes.networks)
    later = networks[0].later if networks else ()
    named = {network.data_dir for network in (*networks, *later) if network.data_dir}
    return data_dir in set(map(normpath, named))


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
        is_known = socket.is_relative_to(config.run_dir)
        docker_socket = _RUN / socket.relative_to(config.run_dir) if is_known else None
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


_RUN: Final = Path("/run")


def mounted_path(path: Path, run_dir: Path) -> Path:
    """Return where a path of the node is for this process. `run_dir`: where the node's /run is."""
    return run_dir / path.relative_to(_RUN) if path.is_relative_to(_RUN) else path
