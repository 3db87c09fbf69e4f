"""The daemon: wires sources, cleaner and exporters, and runs the loop until it is told to end."""

import os
import threading
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NoReturn

from prometheus_client import CollectorRegistry

from agent.app import cleaning, commit, loop
from agent.app.port import documents, http_exporter
from agent.app.sources import NodeSources, displayed_name, node_sources
from agent.cleanup.journal_store import JournalStore
from agent.cleanup.run import Cleaner
from agent.config import Config, option
from agent.exporters.bugs import BugReporter
from agent.exporters.deliveries import DeliveryMetrics
from agent.exporters.log import LogExporter, Logger, configure
from agent.exporters.prometheus import MetricsExporter
from agent.exporters.web.server import HttpExporter
from agent.kube_events.condition import ConditionExporter
from agent.kube_events.delivery import DeliveryQueue
from agent.kube_events.events import EventExporter
from agent.model import bug
from agent.sources.source import ReadBy, Sources
from agent.state.directory import read_disk
from agent.state.stores import DeviceHistoryStore, LastSeenExporter

if TYPE_CHECKING:  # the client library is loaded by a daemon that uses the API server
    from agent.sources.kube.list_watch import Reflector

MODES: Final = {"off": "observe", "dry-run": "dry-run", "auto": "clean"}
"""The label `mode` of `nodeleak_mode_info`, by the setting --cleanup."""


@dataclass(frozen=True)
class _Parts:
    """What the parts of one daemon share."""

    config: Config
    log: Logger
    registry: CollectorRegistry
    bugs: BugReporter
    heartbeat: loop.Heartbeat
    stop: threading.Event


def run_daemon(config: Config) -> int:
    """Run until the process is told to end; returns the exit code."""
    log = configure(config.log_format)
    threading.excepthook = partial(_exit_with_thread, log)
    registry = CollectorRegistry()
    parts = _Parts(
        config=config,
        log=log,
        registry=registry,
        bugs=BugReporter(registry, log),
        heartbeat=_heartbeat(config),
        stop=threading.Event(),
    )
    # Before anything that may wait for the API server or its credentials.
    shown = documents(config, parts.heartbeat, parts.bugs)
    http = http_exporter(config, registry, shown, parts.bugs, log)
    http.start()
    try:
        _run(parts, http)
    finally:
        parts.stop.set()
        http.close()
    return 0


def _run(parts: _Parts, http: HttpExporter) -> None:
    config = parts.config
    log = parts.log
    history = DeviceHistoryStore(
        config.state_dir, lambda why: log.warning("history.write_failed", why=why)
    )
    api, watches = _api_server(config)
    sources = node_sources(
        config,
        api=api,
        state=ReadBy("state", lambda _: read_disk(config.state_dir)),
        history=history.read,
        latest_node=lambda: watches[1].replica.latest if watches else None,
    )
    cleaner = _cleaner(config, sources, parts.heartbeat)
    queue = _delivery(parts)
    exporters = [*_exporters(parts, watches), history, http, *_cluster_exporters(config, queue)]
    _start_threads(watches, queue, parts.stop)
    node = displayed_name(config)
    mode = MODES[config.cleanup]
    networks = list(config.network)
    log.info("agent.started", node=node, networks=networks, port=http.port, mode=mode)
    try:
        for watch in watches:  # so that the first sync has data
            watch.answered.wait(config.api_timeout.total_seconds())
        loop.run_loop(
            config,
            sources=sources.snapshot,
            node=node,
            exporters=exporters,
            cleaner=cleaner,
            heartbeat=parts.heartbeat,
            stop=parts.stop,
            report_bug=parts.bugs,
        )
    finally:
        parts.stop.set()
        if queue:
            queue.stop()
        log.info("agent.stopped")


def _start_threads(
    watches: "Sequence[Reflector[Any]]", queue: DeliveryQueue | None, stop: threading.Event
) -> None:
    for watch in watches:
        threading.Thread(target=watch.run, args=(stop,), name=watch.source, daemon=True).start()
    if queue:
        threading.Thread(target=queue.run, name="delivery", daemon=True).start()


def _api_server(config: Config) -> "tuple[Sources, list[Reflector[Any]]]":
    """Return the sources of the API server, and its watches, which have to run."""
    if config.api == "off":
        return (), []
    from agent.app.api_server import watched

    return watched(config)


def _heartbeat(config: Config) -> loop.Heartbeat:
    """Return a heartbeat that allows for three intervals, and for every timeout of one sync."""
    # Three sources send requests in a sync. Each begins its last one within the timeout, and a
    # response may take three times as long.
    api = config.api_timeout * 3 * (1 + 3) if config.api == "on" else timedelta(0)
    return loop.Heartbeat(
        config.interval * 3 + config.docker_timeout * 4 + api + config.lock_timeout * 2
    )


def _cleaner(config: Config, sources: NodeSources, heartbeat: loop.Heartbeat) -> Cleaner | None:
    if config.cleanup == "off":
        return None
    dry_run = config.cleanup != "auto"
    limits = replace(
        cleaning.limits(config, dry_run=dry_run),
        per_sync=(option("max_per_sync"), config.max_per_sync),
        per_hour=(option("max_per_hour"), config.max_per_hour),
        unattended=True,
    )
    return cleaning.cleaner(
        config, "run", sources.recheck, limits, dry_run=dry_run, heartbeat=heartbeat.beat
    )


def _exporters(parts: _Parts, watches: "Sequence[Reflector[Any]]") -> list[loop.Exporter]:
    config = parts.config
    log = parts.log
    metrics = MetricsExporter(
        parts.registry,
        MODES[config.cleanup],
        watches,
        commit=commit() or "unknown",
        journal_size=JournalStore(config.state_dir).size,
        report_bug=parts.bugs,
    )
    last_seen = LastSeenExporter(
        config.state_dir, lambda why: log.warning("registration.write_failed", why=why)
    )
    return [LogExporter(log), parts.bugs, metrics, last_seen]


def _delivery(parts: _Parts) -> DeliveryQueue | None:
    """Return the queue of what is sent to the API server, if anything is."""
    config = parts.config
    log = parts.log
    metrics = DeliveryMetrics(parts.registry)
    if config.api == "off" or "on" not in {config.events, config.node_condition}:
        return None
    from agent.kube_events.writer import Writer

    return DeliveryQueue(
        Writer(config.kubeconfig, config.api_timeout.total_seconds()),
        metrics,
        lambda what, cause, why: log.warning("delivery.failed", what=what, cause=cause, why=why),
        lambda what: log.info("delivery.recovered", what=what),
    )


def _cluster_exporters(config: Config, queue: DeliveryQueue | None) -> Iterator[loop.Exporter]:
    """Yield the exporters that fill the queue."""
    if queue and config.events == "on":
        yield EventExporter(queue)
    if queue and config.node_condition == "on":
        yield ConditionExporter(queue)


def _exit_with_thread(log: Logger, failed: threading.ExceptHookArgs) -> NoReturn:
    """End the process if a thread fails: else the agent would report a part of the node as healthy.

    Installed as `threading.excepthook`.
    """
    name = failed.thread.name if failed.thread else "unknown"
    try:
        error = traceback.format_exception_only(failed.exc_type, failed.exc_value)[-1].strip()
        log.error("agent.failed", thread=name, error=error)
        traceback.print_exception(failed.exc_type, failed.exc_value, failed.exc_traceback)
    finally:
        os._exit(bug.EXIT_CODE)
