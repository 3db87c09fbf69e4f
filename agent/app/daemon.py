"""The daemon: its rounds, and everything that hangs on them."""

import gc
import os
import threading
import traceback
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Final, NoReturn

from agent.app import api_server, cleaning, loop
from agent.app import sources as looking
from agent.cleanup.session import Budget
from agent.config import BUG, Config, UsageError, option, variable

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from agent.exporters.web.server import HttpExporter
    from agent.kube_events.queue import DeliveryQueue

MODES: Final = {"off": "observe", "dry-run": "dry-run", "auto": "clean"}
"""What the agent may do to the node, in the words of `nodeleak_mode_info`."""


def run_daemon(config: Config) -> int:
    """Run rounds until the process is told to end; returns the exit code."""
    from prometheus_client import CollectorRegistry

    from agent.exporters.log import LogExporter, configure
    from agent.exporters.metrics import MetricsExporter
    from agent.state.device_history import DeviceHistoryExporter
    from agent.state.last_seen import LastSeenExporter

    threading.excepthook = _end_loudly
    stop = threading.Event()
    api, watches = api_server.watched(config)
    sources = looking.node_sources(config, api)
    budget = Budget(
        per_sync=(option("max_per_round"), config.max_per_sync),
        per_hour=(option("max_per_hour"), config.max_per_hour),
    )
    mode = MODES[config.cleanup]
    heartbeat = _heartbeat(config)
    cleaner = cleaning.cleaner(
        config, config.cleanup, "run", sources.recheck, cleaning.limits(config), budget, heartbeat.beat
    )
    registry = CollectorRegistry()
    http = listening(config, registry, heartbeat)
    log = configure(config.log_format)
    delivery, told_to_the_cluster = _telling(
        config,
        registry,
        lambda what, cause, why: log.warning("delivery.failed", what=what, cause=cause, why=why),
    )
    exporters: Sequence[loop.Exporter] = (
        LogExporter(log),
        MetricsExporter(registry, config.network, mode, watches),
        http,
        DeviceHistoryExporter(config.state_dir, lambda why: log.warning("history.write_failed", why=why)),
        *told_to_the_cluster,
        LastSeenExporter(config.state_dir, lambda why: log.warning("registration.write_failed", why=why)),
    )
    for watch in watches:
        threading.Thread(target=watch.run, args=(stop,), name=watch.source, daemon=True).start()
    if told_to_the_cluster:
        threading.Thread(target=delivery.run, name="courier", daemon=True).start()
    http.start()
    log.info("agent.started", node=looking.node_name(config), networks=list(config.network), port=http.port, mode=mode)
    # What was imported stays: it need not be looked through again.
    gc.collect()
    gc.freeze()
    gc.enable()
    try:
        for watch in watches:
            # The first round waits for the API server's first word, so that it does not begin blind.
            watch.answered.wait(config.api_timeout.total_seconds())
        loop.run(
            sources.snapshot,
            looking.node_name(config),
            exporters,
            cleaner,
            grace=config.grace,
            confirm_after=config.confirm_after,
            interval=config.interval,
            heartbeat=heartbeat,
            stop=stop,
        )
    finally:
        stop.set()
        delivery.stop()
        http.close()
        log.info("agent.stopped")
    return 0


def _heartbeat(config: Config) -> loop.Heartbeat:
    """Return what is told of every round: three intervals, and what each may wait for on the way."""
    api = config.api_timeout * 3 if config.api == "on" else timedelta(0)
    return loop.Heartbeat(config.interval * 3 + config.docker_timeout * 4 + api + config.lock_timeout * 2)


def _end_loudly(failed: threading.ExceptHookArgs) -> NoReturn:
    """End the process with a thread that failed: half an agent would look like a healthy node."""
    traceback.print_exception(failed.exc_type, failed.exc_value, failed.exc_traceback)
    os._exit(BUG)


def listening(config: Config, registry: "CollectorRegistry", heartbeat: loop.Heartbeat) -> "HttpExporter":
    from agent.exporters.web.page import Page
    from agent.exporters.web.server import LINKS, HttpExporter

    host, port = config.listen
    page = Page(lambda: cleaning.releases(config), LINKS) if config.page == "on" else None
    try:
        return HttpExporter(config.listen, registry, lambda: heartbeat.alive, page)
    except OSError as error:
        where = f"{option('listen')} ({variable('listen')})"
        raise UsageError(f"{where}: cannot listen on {host or '*'}:{port}: {error.strerror or error}") from error


def _telling(
    config: Config, registry: "CollectorRegistry", warn: Callable[[str, str, str], None]
) -> tuple["DeliveryQueue", Sequence[loop.Exporter]]:
    """Wire who tells the API server: the courier, and the exporters that give it letters, where they are wanted."""
    from agent.kube_events.condition import ConditionExporter
    from agent.kube_events.events import EventExporter
    from agent.kube_events.metrics import DeliveryMetrics
    from agent.kube_events.queue import DeliveryQueue
    from agent.kube_events.writer import Writer

    tally = DeliveryMetrics(registry)
    delivery = DeliveryQueue(
        lambda: Writer(config.kubeconfig, config.api_timeout.total_seconds()),
        tally,
        warn,
    )
    exporters: list[loop.Exporter] = []
    if config.events == "on" and config.api == "on":
        exporters.append(EventExporter(delivery.put, tally.failed))
    if config.node_condition == "on":
        exporters.append(ConditionExporter(delivery.put))
    return delivery, exporters
