"""Runs the daemon: wires sources, cleaner and exporters, and runs the loop until it is stopped."""

import os
import threading
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NoReturn

from prometheus_client import CollectorRegistry

from agent.app import cleaning, commit, loop
from agent.app.api_sources import NO_API, ApiSources
from agent.app.port import documents, http_exporter
from agent.app.sources import displayed_name, node_sources
from agent.cleanup.journal_store import JournalStore
from agent.config import Config
from agent.exporters.bugs import BugReporter
from agent.exporters.deliveries import DeliveryMetrics
from agent.exporters.log import LogExporter, Logger, configure
from agent.exporters.prometheus import MetricsExporter
from agent.exporters.web.server import HttpExporter
from agent.kube_events.condition import ConditionExporter
from agent.kube_events.delivery import DeliveryQueue
from agent.kube_events.events import EventExporter
from agent.model import bug
from agent.sources.source import ReadBy
from agent.state.directory import read_disk
from agent.state.stores import DeviceHistoryStore, LastSeenExporter

if TYPE_CHECKING:  # the client library is loaded by a daemon that uses the API server
    from agent.sources.kube.list_watch import Reflector

MODES: Final = {"off": "observe", "dry-run": "dry-run", "auto": "clean"}
"""The label `mode` of `nodeleak_mode_info`, by the setting --cleanup."""


@dataclass(frozen=True)
class _Parts:
    """What several parts of one daemon need."""

    config: Config
    log: Logger
    registry: CollectorRegistry
    bugs: BugReporter
    heartbeat: loop.Heartbeat
    stop: threading.Event


def run_daemon(config: Config) -> int:
    """Run until the process is told to end; return the exit code."""
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

    pages = documents(config, parts.heartbeat, parts.bugs)
    http = http_exporter(config, registry, pages, parts.bugs, log)
    # It answers before anything waits for the API server or its credentials.
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
    node_watch = watches[1] if watches else None
    sources = node_sources(
        config,
        api=api,
        state=ReadBy("state", lambda _: read_disk(config.state_dir)),
        history=history.read,
        latest_node=lambda: node_watch.replica.latest if node_watch else None,
    )
    cleaner = cleaning.cleaner_of_daemon(config, sources, parts.heartbeat.beat)
    queue = _delivery(parts)
    exporters: list[loop.Exporter] = [*_exporters(parts, watches), history, http]
    if queue and config.events == "on":
        exporters.append(EventExporter(queue))
    if queue and config.node_condition == "on":
        exporters.append(ConditionExporter(queue))
    node = displayed_name(config)

    _start_threads(watches, queue, parts.stop)
    log.info(
        "agent.started",
        node=node,
        networks=list(config.network),
        port=http.port,
        mode=MODES[config.cleanup],
    )
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


def _api_server(config: Config) -> "tuple[ApiSources, list[Reflector[Any]]]":
    """Return the sources of the API server, and the watches of pods, the Node and the brake.

    The watches have to run.
    """
    if config.api == "off":
        return NO_API, []
    from agent.app.api_server import watched

    return watched(config)


def _heartbeat(config: Config) -> loop.Heartbeat:
    """Return a heartbeat that allows for three intervals, and for every timeout of one sync."""
    limit = config.interval * 3 + config.docker_timeout * 4 + config.lock_timeout * 2
    if config.api == "on":
        # Three sources send requests in a sync, and a release reads the brake. Each begins its last
        # request within the timeout, and a response may take three times as long.
        limit += config.api_timeout * 4 * (1 + 3)
    return loop.Heartbeat(limit)


def _exporters(parts: _Parts, watches: "Sequence[Reflector[Any]]") -> list[loop.Exporter]:
    """Return those that every daemon has, with or without an API server."""
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
    """Return the queue of what is sent to the API server; None: nothing is."""
    config = parts.config
    log = parts.log
    # The metrics exist even if nothing is sent.
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


def _exit_with_thread(log: Logger, failed: threading.ExceptHookArgs) -> NoReturn:
    """Log the error of a thread, and end the process. It is the `threading.excepthook`.

    Without the thread, the agent would report a part of the node as healthy.
    """
    name = failed.thread.name if failed.thread else "unknown"
    try:
        error = traceback.format_exception_only(failed.exc_type, failed.exc_value)[-1].strip()
        log.error("agent.failed", thread=name, error=error)
        traceback.print_exception(failed.exc_type, failed.exc_value, failed.exc_traceback)
    finally:
        os._exit(bug.EXIT_CODE)
