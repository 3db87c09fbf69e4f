"""What a node is read from: for one command, or for the daemon."""

import platform

from agent.app import api_server
from agent.config import Config, UsageError, option, variable
from agent.sources.error import SourceError
from agent.sources.live import ApiServer, LiveSources, device_plugins_in, mounts_below
from agent.sources.runtime.docker import Docker
from agent.state.device_history import DeviceHistoryStore


def node_name(config: Config) -> str:
    """Return the name the node is shown by; without the API server the host's own name will do."""
    return config.node or platform.node()


def sources_for_a_look(config: Config) -> LiveSources:
    return sources(config, api_server.asked_once(config), DeviceHistoryStore(config.state_dir))


def sources(config: Config, api: ApiServer, history: DeviceHistoryStore) -> LiveSources:
    try:
        docker = Docker(config.docker_host or None, config.docker_timeout.total_seconds())
    except SourceError as error:
        raise UsageError(f"{option('docker_host')} ({variable('docker_host')}, DOCKER_HOST): {error}") from error
    return LiveSources(
        networks=config.network,
        networks_dir=config.cni_networks_dir,
        checkpoint_dirs=config.checkpoint_dir,
        cache_dirs=config.cni_cache_dir,
        proc=config.proc,
        docker=docker,
        api=api,
        device_plugins=device_plugins_in(config.device_plugins_dir, config.proc, history.read),
        mounts=mounts_below(config.kubelet_dir, config.proc),
        state_dir=config.state_dir,
        node_name=node_name(config),
        provider_id=config.provider_id,
    )
