"""What a node is read from: for one command, or for the daemon."""

import os
import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
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
from agent.model.runtime import AUTO, DOCKER, ContainerRuntime, RuntimeNetwork
from agent.model.snapshot import (
    CniResult,
    NetworkStore,
    Node,
    NotRequested,
    Reservation,
    ReservationKey,
    Snapshot,
)
from agent.model.volumes import Mount
from agent.sources.collector import Sources, unowned
from agent.sources.deadline import Deadline
from agent.sources.host import addresses, mounts
from agent.sources.host.checkpoints import CheckpointDirectories
from agent.sources.host.cni_cache import CniResults
from agent.sources.host.cni_config import with_subnet
from agent.sources.host.device_plugins import read_device_plugins
from agent.sources.host.network_directories import NetworkDirectories
from agent.sources.host.processes import ProcessTable
from agent.sources.host.registration import RegistrationTracker
from agent.sources.runtime.node_runtimes import DOCKER_SOCKET, NodeRuntimes
from agent.sources.runtime.runtime import Runtime
from agent.sources.source_error import SourceError
from agent.state.stores import DeviceHistoryStore


class NodeSources(NamedTuple):
    """What a node is read from, and where one sandbox is asked about again."""

    snapshot: Sources
    recheck: Recheck


def displayed_name(config: Config) -> str:
    """Return the name the node is shown by; without the API server the host's own name will do."""
    return config.node or platform.node()


def for_command(config: Config) -> NodeSources:
    if config.api == "off":
        api = without_api_server()
    else:
        from agent.app.api_server import asked_once

        api = asked_once(config)
    rest: Sources = {**api, "state": partial(_not_requested, "state", "no daemon")}
    return node_sources(config, rest, DeviceHistoryStore(config.state_dir).read, lambda: None)


def without_api_server() -> Sources:
    names = ("pods", "node", "watches", "attachments", "sandbox_failures", "autoscaler")
    return {name: partial(_not_requested, name, f"{option('api')}=off") for name in names}


def _not_requested(name: str, why: str, _: Snapshot) -> NotRequested:
    return NotRequested(name, why)


def node_sources(
    config: Config,
    rest: Sources,
    history: Callable[[], StoredHistory],
    latest_node: Callable[[], Node | None],
) -> NodeSources:
    """Wire what is read on the node beside the rest; raises UsageError. `history`: of the device plugins."""
    processes = ProcessTable(config.proc)
    runtimes = _runtimes(config, processes)
    in_time = _deadline(config)
    checkpoints = CheckpointDirectories(config.checkpoint_dir)
    is_missing = partial(mounts.is_missing_on_node, proc=config.proc)
    results = CniResults(config.cni_cache_dir, is_missing)
    last = LastNetworks(lambda: in_time(runtimes.networks), config)
    tracker = _registration_tracker(config, processes, latest_node)
    host: Sources = {
        "networks": lambda _: last.read(),
        "reservations": partial(_reservations, _directories(config, is_missing), results),
        "checkpoints": checkpoints.read,
        "containers": lambda snapshot: in_time(lambda: runtimes.containers(snapshot)),
        "runtimes": lambda _: _asked_runtimes(config, runtimes),
        "cni_results": lambda _: results.read(),
        "damaged_results": lambda _: results.damaged,
        # The search is expensive, and its result matters where something may be released. After the reservations: a
        # plugin that has ended by now has given its address to somebody whom `addresses` finds.
        "processes": lambda found: processes.read(
            found.uptime, last.plugins(), complete=bool(unowned(found))
        ),
        "addresses": lambda _: addresses.read_addresses(config.proc),
        "device_plugins": lambda _: _device_plugins(config, history),
        "mounted_namespaces": lambda _: mounts.read_namespaces(config.proc, processes.runtimes()),
        "mounts": lambda _: _mounts(config),
        "registration": lambda snapshot: tracker.read(
            snapshot.node, snapshot.pods, snapshot.taken_at
        ),
    }
    recheck = Recheck(
        has_container=lambda container_id: in_time(lambda: runtimes.has(container_id)),
        has_checkpoint=lambda container_id: (
            checkpoints.has(container_id) if runtimes.asks_docker else None
        ),
        results=results,
        proc=config.proc,
        processes=processes,
        probe_addresses=partial(_probe, config, results, last),
    )
    return NodeSources({**host, **rest}, recheck)


def _registration_tracker(
    config: Config, processes: ProcessTable, latest_node: Callable[[], Node | None]
) -> RegistrationTracker:
    return RegistrationTracker(
        displayed_name(config),
        config.provider_id,
        config.state_dir,
        processes.kubelet_flags,
        config.proc,
        latest_node,
    )


def names_data_dir(config: Config, data_dir: str) -> bool:
    """Return whether libcni's cache or the CNI configuration names a dataDir now.

    Only entries of the journal that have one ask for it. Raises SourceError.
    """
    try:
        cached = CniResults(config.cni_cache_dir).read()
    except SourceError:  # the configuration may name it
        cached = ()
    if data_dir in {normpath(result.data_dir) for result in cached if result.data_dir}:
        return True
    runtimes = _runtimes(config, ProcessTable(config.proc))
    networks = _deadline(config)(runtimes.networks)
    later = (network for first in networks[:1] for network in first.later)
    named = (network.data_dir for network in (*networks, *later) if network.data_dir)
    return data_dir in set(map(normpath, named))


def _deadline(config: Config) -> Deadline:
    """Allow a runtime a little more than one answer's timeout, which has the better message."""
    return Deadline("container runtime", config.docker_timeout.total_seconds() * 1.2)


def _asked_runtimes(
    config: Config, runtimes: NodeRuntimes
) -> tuple[ContainerRuntime, ...] | NotRequested:
    if config.runtime == DOCKER:
        return NotRequested("runtimes", "--runtime=docker")
    return runtimes.asked


def _runtimes(config: Config, processes: ProcessTable) -> NodeRuntimes:
    timeout = config.docker_timeout.total_seconds()

    @cache
    def docker() -> Runtime:
        from agent.sources.runtime.docker import Docker

        return Docker(config.docker_host or None, timeout, partial(processes.require, DOCKER))

    def cri(path: Path) -> Runtime:
        from agent.sources.runtime.cri import Cri

        return Cri(path, timeout, loop.clock, mounted_path(path, config.run_dir))

    docker_socket: Path | None = DOCKER_SOCKET
    if docker_host := config.docker_host or os.environ.get("DOCKER_HOST", ""):
        try:
            docker()
        except SourceError as error:  # a wrong host is wrong usage
            setting = f"{option('docker_host')} ({variable('docker_host')}, DOCKER_HOST)"
            raise UsageError(f"{setting}: {error}") from error
        socket = Path(docker_host.removeprefix("unix://"))
        docker_socket = (
            _RUN / socket.relative_to(config.run_dir)
            if socket.is_relative_to(config.run_dir)
            else None
        )
    named = config.cri_endpoint, config.cni_config_dir
    return NodeRuntimes(docker, cri, processes, config.proc, config.runtime, docker_socket, *named)


_RUN: Final = Path("/run")


def mounted_path(path: Path, run_dir: Path) -> Path:
    """Return where a path of the node is for this process."""
    return run_dir / path.relative_to(_RUN) if path.is_relative_to(_RUN) else path


def _probe(
    config: Config,
    results: CniResults,
    last: "LastNetworks",
    reservations: Sequence[Reservation],
    send: bool,
) -> Mapping[ReservationKey, ProbeResult]:
    if config.probe == "off":
        not_probed = ProbeResult("not probed: --probe=off", conclusive=False)
        return {reservation.key: not_probed for reservation in reservations}
    networks, cached = {reservation.network for reservation in reservations}, results.read()
    plugins = {network: last.plugins_of(network, cached) for network in networks}
    return probe.probe(reservations, plugins, loop.clock, config.proc, send=send)


@dataclass
class LastNetworks:
    ask: Callable[[], tuple[RuntimeNetwork, ...]]
    config: Config
    _networks: tuple[RuntimeNetwork, ...] = ()

    def read(self) -> tuple[RuntimeNetwork, ...] | NotRequested:
        self._networks = ()
        try:
            networks = with_subnet(self.ask(), self.config.run_dir)
        except SourceError as error:
            if AUTO in self.config.network:
                raise
            return NotRequested(
                "networks", f"--network names them, and the configuration does not: {error}"
            )
        self._networks = (
            *networks,
            *(later for network in networks[:1] for later in network.later),
        )
        return networks

    def plugins(self) -> set[str]:
        return {
            name for network in self._networks for name in (*network.plugins, network.ipam) if name
        }

    def plugins_of(self, network: str, cached: Iterable[CniResult]) -> set[str]:
        """Return what may make the interfaces of a network: the first plugin of its chain, and any that isolates."""
        plugins = {
            result.plugin for result in cached if result.network == network and result.plugin
        }
        for chain in (
            configured.plugins for configured in self._networks if configured.name == network
        ):
            plugins |= {*chain[:1], *probe.ISOLATING.intersection(chain)}
        return plugins


def _directories(config: Config, is_missing: Callable[[Path], bool]) -> NetworkDirectories:
    mounted = partial(mounted_path, run_dir=config.run_dir)
    return NetworkDirectories(
        settings=config.network,
        networks_dir=config.cni_networks_dir,
        mounted=mounted,
        most=config.max_reservations,
        local=config.local_filesystem,
        is_missing=is_missing,
    )


def _reservations(
    directories: NetworkDirectories, results: CniResults, snapshot: Snapshot
) -> tuple[NetworkStore, ...]:
    try:
        cached = results.read()
    except SourceError:  # which is told when it is read for its own sake
        cached = ()
    return directories.read(snapshot.networks, cached)


def _device_plugins(
    config: Config, history: Callable[[], StoredHistory]
) -> DevicePlugins | NotRequested:
    if directory := config.device_plugins_dir:
        return read_device_plugins(directory, config.proc, history)
    return NotRequested("device_plugins", "--device-plugins-dir=off")


def _mounts(config: Config) -> tuple[Mount, ...] | NotRequested:
    if directory := config.kubelet_dir:
        return mounts.read_mounts(config.proc, directory)
    return NotRequested("mounts", "--kubelet-dir=off")
