"""Wires the readers of the API server.

They load its client, so this module is imported only where the API server is used.
"""

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from functools import cache
from typing import TYPE_CHECKING, Any, Final, TypeVar

from agent.app import loop
from agent.app.api_sources import ApiSources, no_brake
from agent.config import OFF, Config, UsageError, both_names, option, variable
from agent.model.snapshot import Known, Node, NotRequested, Reading, Snapshot
from agent.model.watches import Watch
from agent.sources.deadline import Deadline
from agent.sources.kube.api import Api, Resource, ServerInfo
from agent.sources.kube.attachments import AttachmentsSource
from agent.sources.kube.autoscaler import AutoscalerClient
from agent.sources.kube.brake import BrakeSource, brake_object
from agent.sources.kube.cached_request import Get
from agent.sources.kube.connection import WHOLE_RESPONSE, Query
from agent.sources.kube.credentials import NoCredentials
from agent.sources.kube.loader import loader
from agent.sources.kube.node_object import own_node
from agent.sources.kube.pods import pods_of
from agent.sources.kube.sandbox_failures import SandboxFailuresSource
from agent.sources.kube.service_account import read_namespace
from agent.sources.kube.streamed_list import list_once
from agent.sources.source import Disabled, ReadBy, WithFields
from agent.sources.source_error import SourceError

if TYPE_CHECKING:  # a command watches nothing
    from agent.sources.kube.list_watch import Reflector

_T = TypeVar("_T")

_WHOLE_LIST: Final = 6
"""Times the timeout of a read, for a list with all its pages."""


def for_command(config: Config) -> ApiSources:
    """Wire the readers for one command, which lists and does not watch."""
    server = ApiServer(config)
    api: Api | SourceError
    try:
        api = server.first_connection()
    except SourceError as error:
        api = error  # so that what hangs is waited for once
    in_time = Deadline("API server", config.api_timeout.total_seconds() * _WHOLE_LIST)

    @cache
    def request_version(connected: Api) -> None:
        # After the first response, so that a silent server is waited for once.
        with suppress(SourceError):
            in_time(connected.request_version)

    def listed(resource: Resource[_T]) -> Reading[tuple[_T, ...]]:
        if isinstance(api, SourceError):
            raise api
        items = in_time(lambda: list_once(api, resource))
        request_version(api)
        return Known(items)

    brake = None
    if name := _brake_name(config):
        listing = brake_object(name)
        brake = BrakeSource(name, lambda: listed(listing).known(), _boot_clock)

    return server.sources(
        pods=lambda _: listed(pods_of(config.node)),
        node=lambda _: _with_name(config.node, listed(own_node(config.node))),
        watches=lambda: NotRequested("watches", "a single command watches nothing"),
        brake=brake,
    )


def watched(config: Config) -> "tuple[ApiSources, list[Reflector[Any]]]":
    """Wire the readers for the daemon, which has to run the reflectors: of pods and Node first."""
    from agent.sources.kube.list_watch import Reflector

    server = ApiServer(config)
    # Where they merely cannot be had now, the watches go on trying: a cloud that fails must not end
    # the agent.
    with suppress(SourceError):
        server.first_connection().close()

    node = own_node(config.node, config.cleanup_node_label)
    stale_after = config.stale_after.total_seconds()

    def reflector(resource: Resource[_T]) -> Reflector[_T]:
        return Reflector(resource, server.connect, node, loop.clock, stale_after, server.info)

    pods = reflector(pods_of(config.node))
    nodes = reflector(node)
    reflectors: list[Reflector[Any]] = [pods, nodes]

    brake = None
    if name := _brake_name(config):
        listing = brake_object(name)
        watch = reflector(listing)
        reflectors.append(watch)
        brake = BrakeSource(name, lambda: server.list_now(listing), _boot_clock, watch.reading)

    sources = server.sources(
        pods=lambda _: pods.reading(),
        node=lambda _: _with_name(config.node, nodes.reading()),
        watches=lambda: Known((*pods.watches, *nodes.watches)),
        brake=brake,
    )
    return sources, reflectors


def _boot_clock() -> float:
    """Return seconds that go on while the node is suspended, unlike those of `loop.clock`."""
    return loop.uptime().total_seconds()


def _brake_name(config: Config) -> str | None:
    """Return `namespace/name`; None: there is no brake. Raises UsageError."""
    if config.brake == OFF:
        return None
    if "/" in config.brake:
        return config.brake
    try:
        return f"{read_namespace()}/{config.brake}"
    except SourceError as error:
        setting = f"{option('brake')}={config.brake} ({variable('brake')})"
        hint = f"outside of a pod, add the namespace, such as kube-system/{config.brake}"
        raise UsageError(f"{setting}: {error}; {hint}") from error


class ApiServer:
    """One API server, with what its connections share."""

    def __init__(self, config: Config) -> None:
        self.info = ServerInfo(loop.now)
        self._config = config
        self._seconds = config.api_timeout.total_seconds()
        self._in_time = Deadline("API server", self._seconds * WHOLE_RESPONSE)

    def first_connection(self) -> Api:
        """Open a connection; raises UsageError without credentials, SourceError if late."""
        try:
            return self.connect()
        except NoCredentials as error:
            hint = f"use {option('api')}=off to run without the API server"
            raise UsageError(f"{both_names('kubeconfig')}: {error}; {hint}") from error

    def connect(self) -> Api:
        """Open a connection. It reads the credentials again: they may have been rotated."""
        credentials = loader(self._config.kubeconfig, self._seconds).load()
        return Api(credentials, self._seconds, self.info)

    @contextmanager
    def open_session(self) -> Iterator[Get]:
        """Open a connection for what one source requests in a snapshot.

        No request begins after the time that one response has.
        """
        seconds = self._seconds
        end = loop.clock() + seconds

        with closing(self.connect()) as api:

            def get(path: str, query: Query) -> bytes:
                if loop.clock() > end:
                    raise SourceError(f"API server: no complete response within {seconds:g} s")
                return self._in_time(lambda: api.get(path, query))

            yield get

    def list_now(self, resource: Resource[_T]) -> tuple[_T, ...]:
        """List a resource on a connection of its own, read through to etcd; raises SourceError."""
        with closing(self.connect()) as api:
            return self._in_time(lambda: list_once(api, resource))

    def sources(
        self,
        *,
        pods: Callable[[Snapshot], Any],
        node: Callable[[Snapshot], Any],
        watches: Callable[[], Reading[tuple[Watch, ...]]],
        brake: BrakeSource | None,
    ) -> ApiSources:
        """Return every source of the API server. Its clock and version come with the watches.

        `brake`: None if no setting names one.
        """

        def with_server_info(_: Snapshot) -> WithFields:
            fields = {"api_skew": self.info.skew, "server_version": self.info.version}
            return WithFields(watches(), fields)

        sources = (
            ReadBy("pods", pods),
            ReadBy("node", node),
            ReadBy("watches", with_server_info),
            brake or Disabled("brake", f"{option('brake')}=off"),
            AttachmentsSource(self.open_session, self._config.node, loop.clock),
            SandboxFailuresSource(self.open_session, loop.clock),
            AutoscalerClient(self._config.node, self.open_session, loop.clock),
        )
        return ApiSources(sources, brake.read_now if brake else no_brake)


def _with_name(name: str, nodes: Reading[tuple[Node, ...]]) -> Reading[Node | None]:
    """Return the Node of that name; None: the API server has none."""
    if not isinstance(nodes, Known):
        return nodes
    named = (node for node in nodes.value if node.name == name)
    return Known(next(named, None))
