"""The daemon: wires sources, cleaner and exporters together, and runs the loop until the process is told to end."""

import os
import threading
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from importlib.metadata import version
from typing import Any, Final, NoReturn

from prometheus_client import CollectorRegistry

from agent.app import api_server, cleaning, commit, loop
from agent.app.sources import NodeSources, displayed_name, node_sources, without_api_server
from agent.cleanup.journal import JournalStore
from agent.cleanup.run import Cleaner
from agent.config import BUG, Config, UsageError, option, variable
from agent.exporters.json.scan import status_document
from agent.exporters.log import LogExporter, configure
from agent.exporters.metrics import MetricsExporter
from agent.exporters.web.page import Page
from agent.exporters.web.server import LINKS, Document, HttpExporter
from agent.kube_events.condition import ConditionExporter
from agent.kube_events.delivery import DeliveryMetrics, DeliveryQueue
from agent.kube_events.events import EventExporter
from agent.kube_events.writer import Writer
from agent.sources.kube.list_watch import Reflector
from agent.state.directory import read_disk
from agent.state.stores import DeviceHistoryStore, LastSeenExporter

MODES: Final = {"off": "observe", "dry-run": "dry-run", "auto": "clean"}
"""The label `mode` of `nodeleak_mode_info`, by the setting --cleanup."""
Exporters = Sequence[loop.Exporter]
Warn = Callable[..., None]  # logs an event with its fields


def run_daemon(config: Config) -> int:
    """Run until the process is told to end; returns the exit code."""
    threading.excepthook = _exit_with_thread
    stop = threading.Event()
    log = configure(config.log_format)
    history = DeviceHistoryStore(
        config.state_dir, lambda why: log.warning("history.write_failed", why=why)
    )
    api, watches = api_server.watched(config) if config.api == "on" else (without_api_server(), [])
    rest = {**api, "state": lambda _: read_disk(config.state_dir)}
    sources = node_sources(
        config, rest, history.read, lambda: watches[1].replica.latest if watches else None
    )
    heartbeat = _heartbeat(config)
    cleaner = _cleaner(config, sources, heartbeat)
    registry = CollectorRegistry()
    http = http_exporter(config, registry, heartbeat, _status(config, heartbeat))
    queue, cluster_exporters = _cluster_exporters(config, registry, log.warning)
    exporters: list[loop.Exporter] = [
        LogExporter(log),
        *_exporters(config, registry, watches, log.warning),
        history,
    ]
    exporters += [http, *cluster_exporters]
    for watch in watches:
        threading.Thread(target=watch.run, args=(stop,), name=watch.source, daemon=True).start()
    if cluster_exporters:
        threading.Thread(target=queue.run, name="delivery", daemon=True).start()
    http.start()
    mode = MODES[config.cleanup]
    log.info(
        "agent.started",
        node=displayed_name(config),
        networks=list(config.network),
        port=http.port,
        mode=mode,
    )
    try:
        for watch in watches:  # so that the first sync has data
            watch.answered.wait(config.api_timeout.total_seconds())
        loop.run_loop(
            config, sources.snapshot, displayed_name(config), exporters, cleaner, heartbeat, stop
        )
    finally:
        stop.set()
        queue.stop()
        http.close()
        log.info("agent.stopped")
    return 0


def _heartbeat(config: Config) -> loop.Heartbeat:
    """Return a heartbeat that allows for three intervals, and for every timeout that a sync can run into."""
    api = config.api_timeout * 3 if config.api == "on" else timedelta(0)
    return loop.Heartbeat(
        config.interval * 3 + config.docker_timeout * 4 + api + config.lock_timeout * 2
    )


def _cleaner(config: Config, sources: NodeSources, heartbeat: loop.Heartbeat) -> Cleaner | None:
    if config.cleanup == "off":
        return None
    applied = config.cleanup == "auto"
    per_sync, per_hour = (
        (option("max_per_sync"), config.max_per_sync),
        (option("max_per_hour"), config.max_per_hour),
    )
    limits = cleaning.limits(config, applied=applied)
    limits = replace(limits, per_sync=per_sync, per_hour=per_hour, unattended=True)
    return cleaning.cleaner(
        config, "run", sources.recheck, limits, applied=applied, heartbeat=heartbeat.beat
    )


def _status(config: Config, heartbeat: loop.Heartbeat) -> Document:
    return lambda report, age: status_document(
        report,
        cleaning.cleanup_status(config, report),
        version("nodeleak"),
        age=age,
        interval=config.interval.total_seconds(),
        alive=heartbeat.alive,
    )


def http_exporter(
    config: Config,
    registry: CollectorRegistry,
    heartbeat: loop.Heartbeat,
    status: Document | None = None,
) -> HttpExporter:
    host, port = config.listen
    page = None
    if config.page == "on":
        page = Page(lambda: cleaning.releases(config), LINKS, version("nodeleak"), config.cleanup)
    try:
        return HttpExporter(config.listen, registry, lambda: heartbeat.alive, page, status)
    except OSError as error:
        setting = f"{option('listen')} ({variable('listen')})"
        raise UsageError(
            f"{setting}: cannot listen on {host or '*'}:{port}: {error.strerror or error}"
        ) from error


def _exporters(
    config: Config, registry: CollectorRegistry, watches: Sequence[Reflector[Any]], warn: Warn
) -> Exporters:
    size = JournalStore(config.state_dir).size
    mode, build = MODES[config.cleanup], commit() or "unknown"
    return (
        MetricsExporter(registry, mode, watches, commit=build, journal_size=size),
        LastSeenExporter(config.state_dir, lambda why: warn("registration.write_failed", why=why)),
    )


def _cluster_exporters(
    config: Config, registry: CollectorRegistry, warn: Warn
) -> tuple[DeliveryQueue, Exporters]:
    """Return the queue of what is sent to the API server, and the exporters that fill it, if any are enabled."""
    writer = Writer(config.kubeconfig, config.api_timeout.total_seconds())
    queue = DeliveryQueue(
        writer,
        DeliveryMetrics(registry),
        lambda what, cause, why: warn("delivery.failed", what=what, cause=cause, why=why),
    )
    exporters: list[loop.Exporter] = []
    if config.events == "on" and config.api == "on":
        exporters.append(EventExporter(queue))
    if config.node_condition == "on":
        exporters.append(ConditionExporter(queue))
    return queue, exporters


def _exit_with_thread(failed: threading.ExceptHookArgs) -> NoReturn:
    """End the process when a thread fails: without it, the agent would report a part of the node as healthy."""
    traceback.print_exception(failed.exc_type, failed.exc_value, failed.exc_traceback)
    os._exit(BUG)
