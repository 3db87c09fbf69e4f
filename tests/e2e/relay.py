"""A relay between the agent and the API server: it records requests and can cut connections.

The API server's own counters cannot tell our requests from the kubelet's. `kubectl proxy` takes TLS off on its way.
"""

import re
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from socketserver import BaseRequestHandler, ThreadingTCPServer
from threading import Lock, Thread
from urllib.parse import parse_qs, urlsplit

from tests.processes import environment
from tests.wire import kubeconfig

from .node import Cluster

_REQUEST = re.compile(rb"GET (\S+) HTTP/1\.1\r\n")


class Relay(ThreadingTCPServer):
    """Forwards bytes in both directions."""

    daemon_threads = True

    def __init__(self, upstream: tuple[str, int]) -> None:
        super().__init__(("127.0.0.1", 0), _Line)
        self.upstream = upstream
        self._asked: list[str] = []
        self._lines: set[socket.socket] = set()
        self._lock = Lock()

    def opened(self, *ends: socket.socket) -> None:
        with self._lock:
            self._lines.update(ends)

    def record(self, sent: bytes) -> None:
        with self._lock:
            self._asked += [target.decode() for target in _REQUEST.findall(sent)]

    def cut(self) -> int:
        """Close every connection and return their number."""
        with self._lock:
            ends, self._lines = self._lines, set()
        for end in ends:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        return len(ends) // 2

    def requests(self, path: str) -> tuple[list[dict[str, str]], list[dict[str, str]]]:
        """Return the queries of the LISTs and of the WATCHes of a path."""
        with self._lock:
            split = [urlsplit(target) for target in self._asked]
        queries = [
            {name: values[0] for name, values in parse_qs(one.query).items()} for one in split if one.path == path
        ]
        return [one for one in queries if "watch" not in one], [one for one in queries if "watch" in one]


class _Line(BaseRequestHandler):
    server: Relay

    def handle(self) -> None:
        with socket.create_connection(self.server.upstream) as upstream:
            self.server.opened(self.request, upstream)
            back = Thread(target=_pass_on, args=(upstream, self.request, None), daemon=True)
            back.start()
            _pass_on(self.request, upstream, self.server)
            back.join()


def _pass_on(source: socket.socket, sink: socket.socket, listener: Relay | None) -> None:
    with suppress(OSError):
        while sent := source.recv(65536):
            if listener is not None:
                listener.record(sent)
            sink.sendall(sent)
    for end in (source, sink):
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


@contextmanager
def relay_to_the_api_server(cluster: Cluster, config: Path) -> Iterator[Relay]:
    """Start a relay and write a kubeconfig that uses it."""
    command = ["kubectl", f"--kubeconfig={cluster.kubelet}", "proxy", "--port=0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment()) as proxy:  # noqa: S603 (spelled out above)
        try:
            assert proxy.stdout is not None
            port = int(proxy.stdout.readline().decode().strip().rpartition(":")[2])
            with Relay(("127.0.0.1", port)) as relay:
                Thread(target=relay.serve_forever, daemon=True).start()
                kubeconfig(config, f"http://127.0.0.1:{relay.server_address[1]}")
                yield relay
                relay.shutdown()
                relay.cut()
        finally:
            proxy.terminate()
