"""The daemon: wires sources, cleaner and exporters together, and runs the loop until the process is told to end."""

import os
import threading
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
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
from agent.exporters.log import LogExporter, Logger, configure
from agent.exporters.metrics import MetricsExporter
from agent.exporters.web.server import HttpExporter
from agent.kube_events.condition import ConditionExporter
from agent.kube_events.delivery import DeliveryMetrics, DeliveryQueue
from agent.kube_events.events import EventExporter
from agent.model import bug
from agent.sources.source import ReadBy, Sources
from agent.state.directory import read_disk
from agent.state.stores import DeviceHistoryStore, LastSeenExporter

if TYPE_CHECKING:  # the client library is loaded by a daemon that uses the API server
    from agent.sources.kube.list_watch import Reflector

MODES: Final = {"off": "observe", "dry-run": "dry-run", "auto": "clean"}
"""The label `mode` of `nodeleak_mode_info`, by the setting --cleanup."""
Exporters = Sequence[loop.Exporter]
Warn = Callable[..., None]  # logs an event with its fields


def run_daemon(config: Config) -> int:
    """Run until the process is told to end; returns the exit code."""
    log = configure(config.log_format)
    threading.excepthook = partial(_exit_with_thread, log)
    stop = threading.Event()
    registry = CollectorRegistry()
    bugs = BugReporter(registry, log)
    heartbeat = _heartbeat(config)
    # Before anything that may wait for the API server or its credentials.
    http = http_exporter(config, registry, documents(config, heartbeat, bugs), bugs, log)
    http.start()
    try:
        _run(config, registry, bugs, http, heartbeat, log, stop)
    finally:
        stop.set()
        http.close()
    return 0


def _run(
    config: Config,
    registry: CollectorRegistry,
    bugs: BugReporter,
    http: HttpExporter,
    heartbeat: loop.Heartbeat,
    log: Logger,
    stop: threading.Event,
) -> None:
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
    cleaner = _cleaner(config, sources, heartbeat)
    queue, cluster_exporters = _cluster_exporters(config, registry, log.warning, log.info)
    exporters: list[loop.Exporter] = [
        LogExporter(log),
        bugs,
        *_exporters(config, registry, watches, log.warning, bugs),
        history,
        http,
        *cluster_exporters,
    ]
    _start_threads(watches, queue, stop)
    log.info(
        "agent.started",
        node=displayed_name(config),
        networks=list(config.network),
        port=http.port,
        mode=MODES[config.cleanup],
    )
    try:
        for watch in watches:  # so that the first sync has data
            watch.answered.wait(config.api_timeout.total_seconds())
        node = displayed_name(config)
        loop.run_loop(config, sources.snapshot, node, exporters, cleaner, heartbeat, stop, bugs)
    finally:
        stop.set()
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
    if config.api == "off":
        return (), []
    from agent.app.api_server import watched

    return watched(config)


def _heartbeat(config: Config) -> loop.Heartbeat:
    """Return a heartbeat that allows for three intervals, and for every timeout that a sync can run into."""
    # Three sources ask in a sync. Each begins its last request within the timeout, and an answer may
    # take three times as long.
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


def _exporters(
    config: Config,
    registry: CollectorRegistry,
    watches: "Sequence[Reflector[Any]]",
    warn: Warn,
    bugs: BugReporter,
) -> Exporters:
    size = JournalStore(config.state_dir).size
    mode, build = MODES[config.cleanup], commit() or "unknown"
    return (
        MetricsExporter(registry, mode, watches, commit=build, journal_size=size, report_bug=bugs),
        LastSeenExporter(config.state_dir, lambda why: warn("registration.write_failed", why=why)),
    )


def _cluster_exporters(
    config: Config, registry: CollectorRegistry, warn: Warn, inform: Warn
) -> tuple[DeliveryQueue | None, Exporters]:
    """Return the queue of what is sent to the API server, and the exporters that fill it, if any are enabled."""
    metrics = DeliveryMetrics(registry)
    if config.api == "off" or "on" not in {config.events, config.node_condition}:
        return None, ()
    from agent.kube_events.writer import Writer

    queue = DeliveryQueue(
        Writer(config.kubeconfig, config.api_timeout.total_seconds()),
        metrics,
        lambda what, cause, why: warn("delivery.failed", what=what, cause=cause, why=why),
        lambda what: inform("delivery.recovered", what=what),
    )
    exporters: list[loop.Exporter] = []
    if config.events == "on":
        exporters.append(EventExporter(queue))
    if config.node_condition == "on":
        exporters.append(ConditionExporter(queue))
    return queue, exporters


def _exit_with_thread(log: Logger, failed: threading.ExceptHookArgs) -> NoReturn:
    """End the process when a thread fails: without it, the agent would report a part of the node as healthy."""
    name = failed.thread.name if failed.thread else "unknown"
    try:
        error = traceback.format_exception_only(failed.exc_type, failed.exc_value)[-1].strip()
        log.error("agent.failed", thread=name, error=error)
        traceback.print_exception(failed.exc_type, failed.exc_value, failed.exc_traceback)
    finally:
        os._exit(bug.EXIT_CODE)
