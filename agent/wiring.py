"""What a Config becomes: the sources of a look, and the daemon with everything that hangs on it."""

import platform
import signal
from collections.abc import Callable
from threading import Event, Thread
from typing import Any

from agent import daemon
from agent.config import Config, UsageError, option, variable
from agent.model.snapshot import Node, NotAsked, Pod, Reading, Seen, Unread
from agent.sources.containers import Docker
from agent.sources.live import LiveSources
from agent.sources.unavailable import Unavailable

_SWITCHED_OFF = f"{option('api')}=off"


def node_name(config: Config) -> str:
    """Return the name the node is shown by; without the API server the host's own name will do."""
    return config.node or platform.node()


def sources_for_a_look(config: Config) -> LiveSources:
    """Wire the sources for one command: the API server is asked once, and nothing is watched."""
    if config.api == "off":
        return _sources(config, _nobody("pods"), _nobody("node"))
    from agent.sources import node, pods
    from agent.sources.reflector import list_once

    connect = _connector(config)
    api = connect()

    def ask(source: str, path: str, query: Any, parse: Any) -> Callable[[], Reading[Any]]:
        def read() -> Reading[Any]:
            try:
                return Seen(list_once(api, path, query, parse))
            except Unavailable as error:
                return Unread(source, str(error))

        return read

    return _sources(
        config,
        ask("pods", pods.PATH, pods.query(config.node), pods.parse),
        ask("node", node.PATH, node.query(config.node), node.parse),
    )


def run_daemon(config: Config) -> int:
    """Run rounds until SIGTERM or SIGINT; returns the exit code."""
    from prometheus_client import CollectorRegistry

    from agent.exporters.http import HttpExporter
    from agent.exporters.log import LogExporter, configure
    from agent.exporters.metrics import MetricsExporter

    stop = Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    log = configure(config.log_format)
    reflectors = _reflectors(config)
    sources = _sources(
        config,
        reflectors["pods"].reading if reflectors else _nobody("pods"),
        reflectors["node"].reading if reflectors else _nobody("node"),
    )
    heartbeat = daemon.Heartbeat(config.interval * 3 + config.docker_timeout * 4)
    registry = CollectorRegistry()
    http = _listening(config, registry, heartbeat, HttpExporter)
    exporters: list[daemon.Exporter] = [
        LogExporter(log),
        MetricsExporter(registry, config.network, "observe", {name: one.counted for name, one in reflectors.items()}),
        http,
    ]
    for name, reflector in reflectors.items():
        Thread(target=reflector.run, args=(stop,), name=name, daemon=True).start()
    for reflector in reflectors.values():
        # The first round waits for the API server's first word, so that it does not begin blind.
        reflector.answered.wait(min(5.0, config.api_timeout.total_seconds()))
    http.start()
    log.info("agent.started", node=node_name(config), networks=list(config.network), port=http.port, mode="observe")
    daemon.run(
        sources,
        node_name(config),
        exporters,
        patience=config.grace,
        period=config.confirm,
        interval=config.interval,
        heartbeat=heartbeat,
        stop=stop,
    )
    http.close()
    log.info("agent.stopped")
    return 0


def _listening(config: Config, registry: Any, heartbeat: daemon.Heartbeat, exporter: Any) -> Any:
    host, port = config.listen
    try:
        return exporter((host, port), registry, lambda: heartbeat.alive)
    except OSError as error:
        raise UsageError(
            f"{option('listen')} ({variable('listen')}): cannot listen on {host or '*'}:{port}: {error.strerror}"
        ) from error


def _reflectors(config: Config) -> dict[str, Any]:
    if config.api == "off":
        return {}
    from agent.sources import node, pods
    from agent.sources.reflector import Reflector

    connect = _connector(config)
    connect().close()  # credentials that cannot work are a mistake to be told at once
    timing: Any = {"clock": daemon.clock, "stale_after": config.stale_after.total_seconds()}
    return {
        "pods": Reflector("pods", connect, pods.PATH, pods.query(config.node), pods.parse, **timing),
        "node": Reflector("node", connect, node.PATH, node.query(config.node), node.parse, **timing),
    }


def _connector(config: Config) -> Callable[[], Any]:
    from agent.sources.api import Api, NoCredentials

    def connect() -> Api:
        return Api(config.kubeconfig, config.api_timeout.total_seconds())

    try:
        connect().close()
    except NoCredentials as error:
        raise UsageError(f"{option('kubeconfig')} ({variable('kubeconfig')}): {error}; or {_SWITCHED_OFF}") from error
    return connect


def _sources(config: Config, pods: Callable[[], Reading[Pod]], node: Callable[[], Reading[Node]]) -> LiveSources:
    try:
        docker = Docker(config.docker_host or None, config.docker_timeout.total_seconds())
    except Unavailable as error:
        raise UsageError(f"{option('docker_host')} ({variable('docker_host')}, DOCKER_HOST): {error}") from error
    return LiveSources(
        networks=config.network,
        networks_dir=config.cni_networks_dir,
        checkpoint_dirs=config.checkpoint_dir,
        cache_dirs=config.cni_cache_dir,
        proc=config.proc,
        docker=docker,
        pods=pods,
        node=node,
    )


def _nobody(source: str) -> Callable[[], NotAsked]:
    return lambda: NotAsked(source, _SWITCHED_OFF)
