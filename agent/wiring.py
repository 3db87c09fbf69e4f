"""What a Config becomes: the sources of a look, and the daemon with everything that hangs on it."""

import gc
import os
import platform
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

from agent import cycle, daemon
from agent.cleanup import restore as restoring
from agent.cleanup.actuator import Actuator
from agent.cleanup.book import Book, Busy
from agent.cleanup.cleaner import Cleaner, DryRun, Live, Off
from agent.cleanup.deferred import deferred
from agent.cleanup.journal import Entry, Journal
from agent.cleanup.judge import Budget, Judge
from agent.cleanup.restore import Restoration
from agent.cleanup.steps import said
from agent.config import BUG, Config, UsageError, option, variable
from agent.model.release import Cleaning, Limits
from agent.model.snapshot import Node, NotAsked, Pod, Reading, Seen, Unread
from agent.sources.containers import Docker
from agent.sources.live import LiveSources, device_plugins_in
from agent.sources.unavailable import Unavailable

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from agent.exporters.http import HttpExporter
    from agent.sources.api import Api, Query
    from agent.sources.reflector import Reflector
    from agent.sources.server_clock import ServerClock

T = TypeVar("T")

MODES: Final = {"off": "observe", "dry-run": "dry-run", "auto": "clean"}
"""What the agent may do to the node, in the words of `nodeleak_mode_info`."""


def node_name(config: Config) -> str:
    """Return the name the node is shown by; without the API server the host's own name will do."""
    return config.node or platform.node()


def sources_for_a_look(config: Config) -> LiveSources:
    """Wire the sources for one command: the API server is asked once, and nothing is watched."""
    if config.api == "off":
        return _sources(config, _left_alone("pods"), _left_alone("node"))
    # The API client is the greater part of such a process: not without need.
    from agent.sources import node, pods
    from agent.sources.server_clock import ServerClock

    clock = ServerClock(daemon.wall)
    api = _connector(config, clock)()
    # A little more than for silence, which has the better message.
    seconds = config.api_timeout.total_seconds() * 1.2
    return _sources(
        config,
        _asked_once("pods", api, pods.PATH, pods.query(config.node), pods.parse, seconds),
        _asked_once("node", api, node.PATH, node.query(config.node), node.parse, seconds),
        lambda: clock.skew,
    )


def cleaner(
    config: Config,
    mode: str,
    by: str,
    sources: LiveSources,
    limits: Limits,
    budget: Budget,
    alive: Callable[[], None] = lambda: None,
) -> Cleaner:
    """Wire who may clean: `off`, `dry-run` or `auto`. `by`: who the journal says it was. `alive`: see Live."""
    book = Book(config.state_dir)
    judge = Judge(limits, budget, book, by)
    match mode:
        case "off":
            return Off()
        case "dry-run":
            return DryRun(judge)
        case _:
            patience = config.lock_timeout.total_seconds()
            return Live(judge, sources, lambda: actuator(config), book, daemon.wall, patience, alive)


def actuator(config: Config) -> Actuator:
    return Actuator(
        config.cni_networks_dir, config.cni_cache_dir, config.lock_timeout.total_seconds(), daemon.clock
    )  # fmt: skip


def clean_once(
    config: Config,
    sources: LiveSources,
    until_told: ExitStack,
    *,
    only: frozenset[str] | None,
    most: int | None,
    mode: str,
) -> Cleaning:
    """Look twice, judge, and release what may be released in this mode (`dry-run` or `auto`).

    `until_told`: from the first release until it is closed, an ending waits.
    """
    budget = Budget(per_round=None if most is None else ("--max", most))
    one = cleaner(config, mode, "clean", sources, limits(config, only), budget)
    one.before_look(daemon.wall())
    looks = daemon.look_twice(sources, node_name(config), config.grace, config.confirm)
    until_told.enter_context(deferred())
    cleaning = one.after_look(looks, cycle.replay(looks, patience=config.grace, period=config.confirm))
    if cleaning is None:
        raise ValueError(mode)
    return cleaning


def read_journal(config: Config) -> Journal:
    try:
        return Book(config.state_dir).read()
    except Unavailable as error:
        raise UsageError(f"{option('state_dir')} ({variable('state_dir')}): {error}") from error


def releases(config: Config) -> tuple[tuple[Entry, ...] | Unread, tuple[str, ...]]:
    """Return what a timeline tells of the journal, which may be silent as any other record may, and its damage."""
    try:
        journal = Book(config.state_dir).read()
    except Unavailable as error:
        return Unread("journal", str(error)), ()
    return journal.entries, journal.damage


def restore(config: Config, entry: Entry) -> Restoration:
    """Put an entry back, as the only cleaner of the node."""
    book = Book(config.state_dir)
    try:
        with book.alone(config.lock_timeout.total_seconds()), deferred():
            _check_last(book.read(), entry)
            return restoring.restore(entry, actuator(config), book, daemon.wall())
    except (Busy, OSError, restoring.Refused, Unavailable) as error:
        return Restoration(entry, done=False, why=said(error))


def try_restore(config: Config, entry: Entry) -> Restoration:
    """Say what restoring would do, and touch nothing."""
    try:
        _check_last(read_journal(config), entry)
        restoring.missing_of(entry, actuator(config))
    except (restoring.Refused, OSError) as error:
        return Restoration(entry, done=False, why=said(error))
    return Restoration(entry, done=True)


def _check_last(journal: Journal, entry: Entry) -> None:
    if later := journal.released_again(entry):
        raise restoring.Refused(f"it was restored, and released again since: restore {later.name}")


def limits(config: Config, only: frozenset[str] | None = None) -> Limits:
    """`only`: the addresses that were asked for by name."""
    return Limits(
        networks=frozenset(config.cleanup_network),
        grace=config.grace,
        settle=config.settle,
        max_share=config.max_share,
        only=only,
    )


def run_daemon(config: Config) -> int:
    """Run rounds until the process is told to end; returns the exit code."""
    from prometheus_client import CollectorRegistry

    from agent.exporters.chronicle import ChronicleExporter
    from agent.exporters.log import LogExporter, configure
    from agent.exporters.metrics import MetricsExporter
    from agent.sources.server_clock import ServerClock

    threading.excepthook = _end_loudly
    stop = threading.Event()
    clock = ServerClock(daemon.wall)
    pods, node = _reflectors(config, clock)
    watches = [reflector for reflector in (pods, node) if reflector is not None]
    sources = _sources(
        config,
        pods.reading if pods else _left_alone("pods"),
        node.reading if node else _left_alone("node"),
        lambda: clock.skew,
    )
    budget = Budget(
        per_round=(option("max_per_round"), config.max_per_round),
        per_hour=(option("max_per_hour"), config.max_per_hour),
    )
    mode = MODES[config.cleanup]
    heartbeat = daemon.Heartbeat(config.interval * 3 + config.docker_timeout * 4 + config.lock_timeout * 2)
    cleaning = cleaner(config, config.cleanup, "run", sources, limits(config), budget, heartbeat.beat)
    registry = CollectorRegistry()
    http = _listening(config, registry, heartbeat)
    log = configure(config.log_format)
    exporters: Sequence[daemon.Exporter] = (
        LogExporter(log),
        MetricsExporter(registry, config.network, mode, watches),
        http,
        ChronicleExporter(config.state_dir, lambda why: log.warning("history.unwritten", why=why)),
    )
    for watch in watches:
        threading.Thread(target=watch.run, args=(stop,), name=watch.source, daemon=True).start()
    http.start()
    log.info("agent.started", node=node_name(config), networks=list(config.network), port=http.port, mode=mode)
    # What was imported stays: it need not be looked through again.
    gc.collect()
    gc.freeze()
    gc.enable()
    try:
        for watch in watches:
            # The first round waits for the API server's first word, so that it does not begin blind.
            watch.answered.wait(config.api_timeout.total_seconds())
        daemon.run(
            sources,
            node_name(config),
            exporters,
            cleaning,
            patience=config.grace,
            period=config.confirm,
            interval=config.interval,
            heartbeat=heartbeat,
            stop=stop,
        )
    finally:
        stop.set()
        http.close()
        log.info("agent.stopped")
    return 0


def _end_loudly(failed: threading.ExceptHookArgs) -> NoReturn:
    """End the process with a thread that failed: half an agent would look like a healthy node."""
    traceback.print_exception(failed.exc_type, failed.exc_value, failed.exc_traceback)
    os._exit(BUG)


def _listening(config: Config, registry: "CollectorRegistry", heartbeat: daemon.Heartbeat) -> "HttpExporter":
    from agent.exporters.http import LINKS, HttpExporter
    from agent.exporters.page import Page

    host, port = config.listen
    page = Page(lambda: releases(config), LINKS) if config.page == "on" else None
    try:
        return HttpExporter(config.listen, registry, lambda: heartbeat.alive, page)
    except OSError as error:
        where = f"{option('listen')} ({variable('listen')})"
        raise UsageError(f"{where}: cannot listen on {host or '*'}:{port}: {error.strerror or error}") from error


def _reflectors(config: Config, clock: "ServerClock") -> tuple["Reflector[Pod] | None", "Reflector[Node] | None"]:
    if config.api == "off":
        return None, None
    from agent.sources import node, pods
    from agent.sources.reflector import Reflector

    connect = _connector(config, clock)
    timing: Mapping[str, Any] = {"clock": daemon.clock, "stale_after": config.stale_after.total_seconds()}
    return (
        Reflector("pods", connect, pods.PATH, pods.query(config.node), pods.parse, **timing),
        Reflector("node", connect, node.PATH, node.query(config.node), node.parse, **timing),
    )


def _connector(config: Config, clock: "ServerClock") -> Callable[[], "Api"]:
    """Return what makes a connection with credentials read anew; those that cannot work are told at once."""
    from agent.sources.api import Api, NoCredentials

    def connect() -> Api:
        return Api(config.kubeconfig, config.api_timeout.total_seconds(), clock)

    try:
        connect().close()
    except NoCredentials as error:
        where = f"{option('kubeconfig')} ({variable('kubeconfig')})"
        raise UsageError(f"{where}: {error}; {option('api')}=off does without the API server") from error
    return connect


def _asked_once(
    source: str, api: "Api", path: str, query: "Query", parse: Callable[[Mapping[str, Any]], T], seconds: float
) -> Callable[[], Reading[T]]:
    from agent.sources.deadline import Deadline
    from agent.sources.reflector import list_once

    within = Deadline("API server", seconds)

    def read() -> Reading[T]:
        try:
            return Seen(within(lambda: list_once(api, path, query, parse)))
        except Unavailable as error:
            return Unread(source, str(error))

    return read


def _sources(
    config: Config,
    pods: Callable[[], Reading[Pod]],
    node: Callable[[], Reading[Node]],
    api_skew: Callable[[], timedelta | None] = lambda: None,
) -> LiveSources:
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
        device_plugins=device_plugins_in(config.device_plugins_dir, config.proc, config.state_dir),
        api_skew=api_skew,
    )


def _left_alone(source: str) -> Callable[[], NotAsked]:
    return lambda: NotAsked(source, f"{option('api')}=off")
