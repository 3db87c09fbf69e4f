"""Wires the readers of the API server: none, one list for a command, or watches for the daemon."""

from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any, Final, TypeVar

from agent.app import loop
from agent.checks.addresses.failing_plugin import waiting_pods
from agent.checks.volumes import lost_volumes
from agent.config import Config, UsageError, option, variable
from agent.model.snapshot import Known, Node, NotRequested, Pod, Reading, Snapshot, Unavailable
from agent.model.volumes import Attachments
from agent.model.watches import Watch
from agent.sources.collector import Reader, Sources
from agent.sources.deadline import Deadline
from agent.sources.source_error import SourceError

# The API client is most of a command's memory: it is imported only if the API server is asked.
if TYPE_CHECKING:
    from agent.sources.kube.client import Api, Query
    from agent.sources.kube.list_watch import Reflector

_T = TypeVar("_T")

_OFF: Final = f"{option('api')}=off"
_NAMES: Final = ("pods", "node", "watches", "attachments", "sandbox_failures", "autoscaler")


def asked_once(config: Config) -> Sources:
    """Wire the readers for one command, which lists and does not watch."""
    if config.api == "off":
        return _not_requested(_OFF)
    from agent.sources.kube import node, pods

    server = _ApiServer(config)
    try:
        api = server.first_connection()
    except SourceError as error:
        return _unavailable(str(error))
    # One for all requests: no other thread may use the connection before a late answer has ended.
    within = Deadline("API server", server.deadline)
    # Once for each command, and after the first answer, so that a silent server is waited for once.
    on_answer = cache(lambda: within(lambda: server.version.request(api)))

    def listed(
        source: str, path: str, query: "Query", parse: Callable[[Mapping[str, Any]], _T]
    ) -> Callable[[], Reading[tuple[_T, ...]]]:
        from agent.sources.kube.list_watch import list_once

        def read() -> Reading[tuple[_T, ...]]:
            try:
                items = within(lambda: list_once(api, path, query, parse))
            except SourceError as error:
                return Unavailable(source, str(error))
            with suppress(SourceError):
                on_answer()
            return Known(items)

        return read

    return server.sources(
        pods=listed("pods", pods.PODS_PATH, pods.pods_query(config.node), pods.parse_pod),
        nodes=listed("node", node.NODES_PATH, node.node_query(config.node), node.parse_node),
        watches=lambda: NotRequested("watches", "a single command watches nothing"),
    )


def watched(config: Config) -> tuple[Sources, "list[Reflector[Any]]"]:
    """Wire the readers for the daemon; it has to run the reflectors."""
    if config.api == "off":
        return _not_requested(_OFF), []
    from agent.sources.kube import node, pods
    from agent.sources.kube.etcd_restore import RestoreDetector
    from agent.sources.kube.list_watch import Reflector
    from agent.sources.kube.watch_monitor import WatchMonitor

    server = _ApiServer(config)
    with suppress(SourceError):  # what hangs is no wrong setting, and may end
        server.first_connection().close()
    monitors: list[WatchMonitor] = []
    restores = RestoreDetector(node.node_query(config.node), loop.clock)

    def reflector(source: str, path: str, query: "Query", parse: Callable[[Mapping[str, Any]], _T]) -> "Reflector[_T]":
        monitor = WatchMonitor(source, loop.now, lambda: server.version.value)
        monitors.append(monitor)
        return Reflector(
            source,
            server.connect,
            path,
            query,
            parse,
            clock=loop.clock,
            stale_after=config.stale_after.total_seconds(),
            restores=restores,
            on_evidence=monitor.record,
            on_connect=server.version.request,
        )

    of_pods = reflector("pods", pods.PODS_PATH, pods.pods_query(config.node), pods.parse_pod)
    latest = _Latest(node.parse_node)
    of_node = reflector("node", node.NODES_PATH, node.node_query(config.node), latest.parse)
    sources = server.sources(
        pods=of_pods.reading,
        nodes=of_node.reading,
        watches=lambda: Known(tuple(watch for monitor in monitors for watch in monitor.watches)),
    )
    return replace(sources, latest_node=lambda: latest.value), [of_pods, of_node]


class _Latest:
    """Keeps the last object that was sent: it may change and be deleted between two snapshots."""

    def __init__(self, parse: Callable[[Mapping[str, Any]], Node]) -> None:
        self.value: Node | None = None
        self._parse = parse

    def parse(self, item: Mapping[str, Any]) -> Node:
        self.value = self._parse(item)
        return self.value


def _unavailable(why: str) -> Sources:
    """A source without a reader is not requested: those that depend on pods and Node are not."""
    return Sources({"pods": lambda _: Unavailable("pods", why), "node": lambda _: Unavailable("node", why)})


def _not_requested(why: str) -> Sources:
    def reader(name: str) -> Reader:
        return lambda _: NotRequested(name, why)

    return Sources({name: reader(name) for name in _NAMES})


class _ApiServer:
    """One API server, with what its connections share."""

    def __init__(self, config: Config) -> None:
        from agent.sources.kube.server_clock import ServerClock
        from agent.sources.kube.server_version import ServerVersion

        self.clock, self.version = ServerClock(loop.wall), ServerVersion()
        self.timeout = config.api_timeout.total_seconds()
        self.deadline = self.timeout * 1.2
        """Seconds for a whole answer: more than the timeout of a single read, which has the better message."""
        self._config = config

    def first_connection(self) -> "Api":
        """Open a connection; raises UsageError if there are no credentials, and SourceError if they cannot be read."""
        from agent.sources.kube.credentials import NoCredentials

        try:
            return self.connect()
        except NoCredentials as error:
            where = f"{option('kubeconfig')} ({variable('kubeconfig')})"
            raise UsageError(f"{where}: {error}; use {option('api')}=off to run without the API server") from error

    def connect(self) -> "Api":
        """Open a connection. It reads the credentials again: they may have been rotated."""
        from agent.sources.kube.client import Api

        return Api(self._config.kubeconfig, self.timeout, self.clock)

    def sources(
        self,
        pods: Callable[[], Reading[tuple[Pod, ...]]],
        nodes: Callable[[], Reading[tuple[Node, ...]]],
        watches: Callable[[], Reading[tuple[Watch, ...]]],
    ) -> Sources:
        return Sources(
            {
                "pods": lambda _: pods(),
                "node": lambda _: _named(nodes(), self._config.node),
                "watches": lambda _: watches(),
                "attachments": self._attachments(),
                "sandbox_failures": self._sandbox_failures(),
                "autoscaler": self._autoscaler(),
            },
            api_skew=lambda: self.clock.skew,
            server_version=lambda: self.version.value,
        )

    def _autoscaler(self) -> Reader:
        from agent.sources.kube.autoscaler import AutoscalerClient

        within = Deadline("API server", self.deadline)

        def get(path: str, query: "Query") -> bytes:
            # It connects only for a request: most nodes never make one.
            with closing(self.connect()) as api:
                return api.get(path, query)

        client = AutoscalerClient(self._config.node, lambda path, query: within(lambda: get(path, query)), loop.clock)
        return lambda snapshot: client.read(snapshot.node, snapshot.registration)

    def _attachments(self) -> Reader:
        from agent.sources.kube.attachments import AttachmentsSource

        # One deadline for all objects: a sync does not wait for each of them.
        within = Deadline("API server", self.deadline)
        source = AttachmentsSource(self.connect, self._config.node, within, loop.clock)

        def read(snapshot: Snapshot) -> Reading[Attachments]:
            request = lost_volumes.request(snapshot)
            if request is None:
                return NotRequested("attachments", "no pod waits for a volume that is missing")
            return source.read(request.volumes, request.pods)

        return read

    def _sandbox_failures(self) -> Reader:
        from agent.sources.kube.sandbox_failures import SandboxFailuresSource

        source = SandboxFailuresSource(self.connect, Deadline("API server", self.deadline), loop.clock)
        return lambda snapshot: source.read(waiting_pods(snapshot))


def _named(nodes: Reading[tuple[Node, ...]], name: str) -> Reading[Node | None]:
    """Return the Node of that name; None: the API server has none."""
    if not isinstance(nodes, Known):
        return nodes
    return Known(next((node for node in nodes.value if node.name == name), None))
