"""How the API server is asked: not at all, once for a command, or by watching it for as long as the daemon runs."""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Final, TypeVar

from agent.app import loop
from agent.config import Config, UsageError, option, variable
from agent.model.registration import Autoscaler, Registration
from agent.model.snapshot import Known, Node, NotRequested, Pod, Reading, Unavailable
from agent.model.volumes import Attachments
from agent.sources.error import SourceError
from agent.sources.live import ApiServer, left_alone

if TYPE_CHECKING:
    from agent.sources.kube.client import Api, Query
    from agent.sources.kube.list_watch import Reflector
    from agent.sources.kube.server_clock import ServerClock

T = TypeVar("T")

_OFF: Final = f"{option('api')}=off"


def asked_once(config: Config) -> ApiServer:
    """Wire it for one command: it is asked once, and nothing is watched."""
    if config.api == "off":
        return left_alone(_OFF)
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
    return ApiServer(
        pods=_listed("pods", api, pods.PATH, pods.query(config.node), pods.parse, seconds, on_connect),
        node=_listed("node", api, node.PATH, node.query(config.node), node.parse, seconds, on_connect),
        watches=lambda: NotRequested("watches", "one look watches nothing"),
        attachments=_attachments(config, clock),
        autoscaler=_autoscaler(config, clock),
        skew=lambda: clock.skew,
        version=lambda: version.said,
    )


def watched(config: Config) -> tuple[ApiServer, "list[Reflector[Any]]"]:
    """Wire it for the daemon, with the reflectors that have to be run for it."""
    if config.api == "off":
        return left_alone(_OFF), []
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
    api = ApiServer(
        pods=of_pods.reading,
        node=of_node.reading,
        watches=lambda: Known(tuple(watch for witness in witnesses for watch in witness.watches)),
        attachments=_attachments(config, clock),
        autoscaler=_autoscaler(config, clock),
        skew=lambda: clock.skew,
        version=lambda: version.said,
    )
    return api, [of_pods, of_node]


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
) -> Callable[[], Reading[T]]:
    """Return what lists a resource; `on_connect` follows the first answer, so that no silence is waited for twice."""
    from agent.sources.deadline import Deadline
    from agent.sources.kube.list_watch import list_once

    within = Deadline("API server", seconds)

    def read() -> Reading[T]:
        try:
            listed = within(lambda: list_once(api, path, query, parse))
        except SourceError as error:
            return Unavailable(source, str(error))
        on_connect()
        return Known(listed)

    return read


def _autoscaler(
    config: Config, clock: "ServerClock"
) -> Callable[[Reading[Node], Reading[Registration]], Reading[Autoscaler]]:
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

    return AutoscalerClient(config.node, get, loop.clock).read


def _attachments(
    config: Config, clock: "ServerClock"
) -> Callable[[Sequence[str], Sequence[Pod]], Reading[Attachments]]:
    from agent.sources.deadline import Deadline
    from agent.sources.kube.attachments import AttachmentsSource

    # A few objects, each of which may take its time; a round does not wait for all of them at their slowest.
    within = Deadline("API server", config.api_timeout.total_seconds() * 1.2)
    return AttachmentsSource(_connector(config, clock), config.node, within, loop.clock).read
