"""How the API server is asked: not at all, once for a command, or by watching it for as long as the daemon runs."""

from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, Final, TypeVar

from agent.app import loop
from agent.checks.volumes import lost_volumes
from agent.config import Config, UsageError, option, variable
from agent.model.snapshot import Known, Node, NotRequested, Reading, Snapshot, Unavailable
from agent.model.volumes import Attachments
from agent.sources.collector import Reader, Sources
from agent.sources.error import SourceError

if TYPE_CHECKING:
    from agent.sources.kube.client import Api, Query
    from agent.sources.kube.list_watch import Reflector
    from agent.sources.kube.server_clock import ServerClock

T = TypeVar("T")

_OFF: Final = f"{option('api')}=off"


def asked_once(config: Config) -> Sources:
    """Wire it for one command: it is asked once, and nothing is watched."""
    if config.api == "off":
        return _not_requested(_OFF)
    # The API client is the greater part of such a process: not without need.
    from agent.sources.kube import node, pods
    from agent.sources.kube.server_clock import ServerClock
    from agent.sources.kube.server_version import ServerVersion

    clock, version = ServerClock(loop.wall), ServerVersion()
    api = _connector(config, clock)()
    # A little more than for silence, which has the better message.
    seconds = config.api_timeout.total_seconds() * 1.2
    ask = version.asking(seconds)
    on_connect = cache(lambda: ask(api))  # once a command, however often it looks
    list_pods = _listed("pods", api, pods.PATH, pods.query(config.node), pods.parse, seconds, on_connect)
    list_nodes = _listed("node", api, node.PATH, node.query(config.node), node.parse, seconds, on_connect)
    list_node = _named(list_nodes, config.node)
    return Sources(
        {
            "pods": lambda _: list_pods(),
            "node": lambda _: list_node(),
            "watches": lambda _: NotRequested("watches", "a single command watches nothing"),
            "attachments": _attachments(config, clock),
            "autoscaler": _autoscaler(config, clock),
        },
        api_skew=lambda: clock.skew,
        server_version=lambda: version.said,
    )


def watched(config: Config) -> tuple[Sources, "list[Reflector[Any]]"]:
    """Wire it for the daemon, with the reflectors that have to be run for it."""
    if config.api == "off":
        return _not_requested(_OFF), []
    from agent.sources.kube import node, pods
    from agent.sources.kube.list_watch import Reflector
    from agent.sources.kube.server_clock import ServerClock
    from agent.sources.kube.server_version import ServerVersion
    from agent.sources.kube.watch_monitor import WatchMonitor

    clock, version = ServerClock(loop.wall), ServerVersion()
    connect, seconds = _connector(config, clock), config.api_timeout.total_seconds()
    witnesses: list[WatchMonitor] = []

    def reflector(source: str, path: str, query: "Query", parse: Callable[[Mapping[str, Any]], T]) -> "Reflector[T]":
        witness = WatchMonitor(source, loop.now, lambda: version.said)
        witnesses.append(witness)
        return Reflector(
            source,
            connect,
            path,
            query,
            parse,
            clock=loop.clock,
            stale_after=config.stale_after.total_seconds(),
            saw=witness.saw,
            on_connect=version.asking(seconds),
        )

    of_pods = reflector("pods", pods.PATH, pods.query(config.node), pods.parse)
    of_node = reflector("node", node.PATH, node.query(config.node), node.parse)
    read_node = _named(of_node.reading, config.node)
    api = Sources(
        {
            "pods": lambda _: of_pods.reading(),
            "node": lambda _: read_node(),
            "watches": lambda _: Known(tuple(watch for witness in witnesses for watch in witness.watches)),
            "attachments": _attachments(config, clock),
            "autoscaler": _autoscaler(config, clock),
        },
        api_skew=lambda: clock.skew,
        server_version=lambda: version.said,
    )
    return api, [of_pods, of_node]


def _not_requested(why: str) -> Sources:
    def reader(name: str) -> Reader:
        return lambda _: NotRequested(name, why)

    return Sources({name: reader(name) for name in ("pods", "node", "watches", "attachments", "autoscaler")})


def _connector(config: Config, clock: "ServerClock") -> Callable[[], "Api"]:
    """Return what makes a connection with credentials read anew; those that cannot work are told at once."""
    from agent.sources.kube.client import Api, NoCredentials

    def connect() -> Api:
        return Api(config.kubeconfig, config.api_timeout.total_seconds(), clock)

    try:
        connect().close()
    except NoCredentials as error:
        where = f"{option('kubeconfig')} ({variable('kubeconfig')})"
        raise UsageError(f"{where}: {error}; {option('api')}=off does without the API server") from error
    return connect


def _listed(
    source: str,
    api: "Api",
    path: str,
    query: "Query",
    parse: Callable[[Mapping[str, Any]], T],
    seconds: float,
    on_connect: Callable[[], None],
) -> Callable[[], Reading[tuple[T, ...]]]:
    """Return what lists a resource; `on_connect` follows the first answer, so that no silence is waited for twice."""
    from agent.sources.deadline import Deadline
    from agent.sources.kube.list_watch import list_once

    within = Deadline("API server", seconds)

    def read() -> Reading[tuple[T, ...]]:
        try:
            listed = within(lambda: list_once(api, path, query, parse))
        except SourceError as error:
            return Unavailable(source, str(error))
        on_connect()
        return Known(listed)

    return read


def _named(read: Callable[[], Reading[tuple[Node, ...]]], name: str) -> Callable[[], Reading[Node | None]]:
    """Return what reads the Node of that name; None: the API server has none."""

    def one() -> Reading[Node | None]:
        reading = read()
        if not isinstance(reading, Known):
            return reading
        return Known(next((node for node in reading.value if node.name == name), None))

    return one


def _autoscaler(config: Config, clock: "ServerClock") -> Reader:
    """Return what asks for the autoscaler; it connects when there is a reason, which most nodes never have."""
    from agent.sources.deadline import Deadline
    from agent.sources.kube.autoscaler import AutoscalerClient
    from agent.sources.kube.client import Api

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

    client = AutoscalerClient(config.node, get, loop.clock)
    return lambda snapshot: client.read(snapshot.node, snapshot.registration)


def _attachments(config: Config, clock: "ServerClock") -> Reader:
    from agent.sources.deadline import Deadline
    from agent.sources.kube.attachments import AttachmentsSource

    # A few objects, each of which may take its time; a round does not wait for all of them at their slowest.
    within = Deadline("API server", config.api_timeout.total_seconds() * 1.2)
    source = AttachmentsSource(_connector(config, clock), config.node, within, loop.clock)

    def read(snapshot: Snapshot) -> Reading[Attachments]:
        asked = lost_volumes.question(snapshot)
        if asked is None:
            return NotRequested("attachments", "no pod waits for a volume that is missing")
        return source.read(asked.volumes, asked.pods)

    return read
