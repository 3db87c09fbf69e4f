"""What a Config becomes: the sources of a look, and the daemon with everything that hangs on it."""

import gc
import os
import platform
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from datetime import timedelta
from functools import cache
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
from agent.model.registration import Autoscaler, Registration
from agent.model.release import Cleaning, Limits
from agent.model.snapshot import Node, NotAsked, Pod, Reading, Seen, Unread
from agent.model.volumes import Attachments
from agent.sources.containers import Docker
from agent.sources.live import ApiServer, LiveSources, device_plugins_in, left_alone, mounts_below
from agent.sources.unavailable import Unavailable

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from agent.exporters.cluster.courier import Courier
    from agent.exporters.http import HttpExporter
    from agent.sources.api import Api, Query
    from agent.sources.reflector import Reflector
    from agent.sources.server_clock import ServerClock

T = TypeVar("T")

_OFF: Final = f"{option('api')}=off"

MODES: Final = {"off": "observe", "dry-run": "dry-run", "auto": "clean"}
"""What the agent may do to the node, in the words of `nodeleak_mode_info`."""


def node_name(config: Config) -> str:
    """Return the name the node is shown by; without the API server the host's own name will do."""
    return config.node or platform.node()


def sources_for_a_look(config: Config) -> LiveSources:
    """Wire the sources for one command: the API server is asked once, and nothing is watched."""
    if config.api == "off":
        return _sources(config, left_alone(_OFF))
    # The API client is the greater part of such a process: not without need.
    from agent.sources import node, pods
    from agent.sources.server_clock import ServerClock
    from agent.sources.server_version import ServerVersion

    clock, version = ServerClock(daemon.wall), ServerVersion()
    api = _connector(config, clock)()
    # A little more than for silence, which has the better message.
    seconds = config.api_timeout.total_seconds() * 1.2
    ask = version.asking(seconds)
    greet = cache(lambda: ask(api))  # once a command, however often it looks
    return _sources(
        config,
        ApiServer(
            pods=_asked_once("pods", api, pods.PATH, pods.query(config.node), pods.parse, seconds, greet),
            node=_asked_once("node", api, node.PATH, node.query(config.node), node.parse, seconds, greet),
            watches=lambda: NotAsked("watches", "one look watches nothing"),
            attachments=_attachments(config, clock),
            autoscaler=_autoscaler(config, clock),
            skew=lambda: clock.skew,
            version=lambda: version.said,
        ),
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
    from agent.exporters.last_seen import LastSeenExporter
    from agent.exporters.log import LogExporter, configure
    from agent.exporters.metrics import MetricsExporter

    threading.excepthook = _end_loudly
    stop = threading.Event()
    sources, watches = _watching(config)
    budget = Budget(
        per_round=(option("max_per_round"), config.max_per_round),
        per_hour=(option("max_per_hour"), config.max_per_hour),
    )
    mode = MODES[config.cleanup]
    api = config.api_timeout * 3 if watches else timedelta(0)
    heartbeat = daemon.Heartbeat(config.interval * 3 + config.docker_timeout * 4 + api + config.lock_timeout * 2)
    cleaning = cleaner(config, config.cleanup, "run", sources, limits(config), budget, heartbeat.beat)
    registry = CollectorRegistry()
    http = _listening(config, registry, heartbeat)
    log = configure(config.log_format)
    courier, told_to_the_cluster = _telling(
        config,
        registry,
        lambda what, cause, why: log.warning("delivery.failed", what=what, cause=cause, why=why),
    )
    exporters: Sequence[daemon.Exporter] = (
        LogExporter(log),
        MetricsExporter(registry, config.network, mode, watches),
        http,
        ChronicleExporter(config.state_dir, lambda why: log.warning("history.unwritten", why=why)),
        *told_to_the_cluster,
        LastSeenExporter(config.state_dir, lambda why: log.warning("registration.unwritten", why=why)),
    )
    for watch in watches:
        threading.Thread(target=watch.run, args=(stop,), name=watch.source, daemon=True).start()
    if told_to_the_cluster:
        threading.Thread(target=courier.run, name="courier", daemon=True).start()
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
        courier.end()
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


def _telling(
    config: Config, registry: "CollectorRegistry", warn: Callable[[str, str, str], None]
) -> tuple["Courier", Sequence[daemon.Exporter]]:
    """Wire who tells the API server: the courier, and the exporters that give it letters, where they are wanted."""
    from agent.exporters.cluster.condition import ConditionExporter
    from agent.exporters.cluster.courier import Courier
    from agent.exporters.cluster.events import EventExporter
    from agent.exporters.cluster.metrics import DeliveryMetrics
    from agent.exporters.cluster.writer import Writer

    tally = DeliveryMetrics(registry)
    courier = Courier(
        lambda: Writer(config.kubeconfig, config.api_timeout.total_seconds()),
        tally,
        warn,
    )
    exporters: list[daemon.Exporter] = []
    if config.events == "on" and config.api == "on":
        exporters.append(EventExporter(courier.post, tally.missed))
    if config.node_condition == "on":
        exporters.append(ConditionExporter(courier.post))
    return courier, exporters


def _watching(config: Config) -> tuple[LiveSources, "list[Reflector[Any]]"]:
    """Wire the sources for the daemon, and the reflectors that it has to run for them."""
    if config.api == "off":
        return _sources(config, left_alone(_OFF)), []
    from agent.sources import node, pods
    from agent.sources.reflector import Reflector
    from agent.sources.server_clock import ServerClock
    from agent.sources.server_version import ServerVersion
    from agent.sources.witness import Witness

    clock, version = ServerClock(daemon.wall), ServerVersion()
    connect, seconds = _connector(config, clock), config.api_timeout.total_seconds()
    witnesses: list[Witness] = []

    def watched(source: str, path: str, query: "Query", parse: Callable[[Mapping[str, Any]], T]) -> "Reflector[T]":
        witness = Witness(source, daemon.now, lambda: version.said)
        witnesses.append(witness)
        return Reflector(
            source,
            connect,
            path,
            query,
            parse,
            clock=daemon.clock,
            stale_after=config.stale_after.total_seconds(),
            saw=witness.saw,
            greet=version.asking(seconds),
        )

    of_pods = watched("pods", pods.PATH, pods.query(config.node), pods.parse)
    of_node = watched("node", node.PATH, node.query(config.node), node.parse)
    api = ApiServer(
        pods=of_pods.reading,
        node=of_node.reading,
        watches=lambda: Seen(tuple(watch for witness in witnesses for watch in witness.watches)),
        attachments=_attachments(config, clock),
        autoscaler=_autoscaler(config, clock),
        skew=lambda: clock.skew,
        version=lambda: version.said,
    )
    return _sources(config, api), [of_pods, of_node]


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
    source: str,
    api: "Api",
    path: str,
    query: "Query",
    parse: Callable[[Mapping[str, Any]], T],
    seconds: float,
    greet: Callable[[], None],
) -> Callable[[], Reading[T]]:
    """Return what lists a resource; `greet` follows the first answer, so that no silence is waited for twice."""
    from agent.sources.deadline import Deadline
    from agent.sources.reflector import list_once

    within = Deadline("API server", seconds)

    def read() -> Reading[T]:
        try:
            listed = within(lambda: list_once(api, path, query, parse))
        except Unavailable as error:
            return Unread(source, str(error))
        greet()
        return Seen(listed)

    return read


def _autoscaler(
    config: Config, clock: "ServerClock"
) -> Callable[[Reading[Node], Reading[Registration]], Reading[Autoscaler]]:
    """Return what asks for the autoscaler; it connects when there is a reason, which most nodes never have."""
    from agent.sources.api import Api
    from agent.sources.autoscaler import Cluster
    from agent.sources.deadline import Deadline

    seconds = config.api_timeout.total_seconds()
    within = Deadline("API server", seconds * 1.2)

    def get(path: str, query: "Query") -> bytes:
        def ask() -> bytes:
            # Anew each time, as it is seldom: credentials are rotated.
            api = Api(config.kubeconfig, seconds, clock)
            try:
                return api.get(path, query)
            finally:
                api.close()

        return within(ask)

    return Cluster(config.node, get, daemon.clock).read


def _attachments(
    config: Config, clock: "ServerClock"
) -> Callable[[Sequence[str], Sequence[Pod]], Reading[Attachments]]:
    from agent.sources.attachments import AttachmentsSource
    from agent.sources.deadline import Deadline

    # A few objects, each of which may take its time; a round does not wait for all of them at their slowest.
    within = Deadline("API server", config.api_timeout.total_seconds() * 1.2)
    return AttachmentsSource(_connector(config, clock), config.node, within, daemon.clock).read


def _sources(config: Config, api: ApiServer) -> LiveSources:
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
        api=api,
        device_plugins=device_plugins_in(config.device_plugins_dir, config.proc, config.state_dir),
        mounts=mounts_below(config.kubelet_dir, config.proc),
        state_dir=config.state_dir,
        node_name=node_name(config),
        provider_id=config.provider_id,
    )
