"""A threaded WSGI server with bounds: connections in all and for each client, bytes and seconds of a request."""

import socket
import sys
from collections import Counter
from collections.abc import Callable
from ipaddress import ip_address
from socketserver import TCPServer
from threading import Thread
from time import monotonic  # noqa: TID251 (how long a connection lasts, which is no data)
from typing import Any, Final
from wsgiref.simple_server import WSGIRequestHandler

from prometheus_client.exposition import ThreadingWSGIServer

MOST_CONNECTIONS: Final = 64
"""Of other machines, at a time. Each costs a thread and at most `REQUEST_BYTES`."""
MOST_PER_CLIENT: Final = 8
"""Of one address. A browser opens six."""
MOST_OF_THIS_MACHINE: Final = 32
"""The kubelet's probe beside whatever else asks here. Other machines cannot take these."""
REQUEST_BYTES: Final = 8192
"""Request line and headers. Prometheus sends less than 1 KiB."""
CONNECTION_SECONDS: Final = 15.0
"""From the connection to the end of the answer: Prometheus waits for at most 10 s by default."""
_THIS_MACHINE: Final = "this machine"

Application = Callable[[dict[str, Any], Callable[..., Any]], list[bytes]]


class Server(ThreadingWSGIServer):
    request_queue_size = 128

    def __init__(self, host: str, port: int, application: Application) -> None:
        """Listen at once, without a host on all addresses, of both families where there are two; raises OSError."""
        self.address_family = _family(host)
        self._open: dict[socket.socket, tuple[str, float]] = {}
        """The client of each connection, and when it was accepted."""
        super().__init__((host, port), _Handler)
        self.set_app(application)

    def start(self) -> None:
        Thread(target=self.serve_forever, name="http", daemon=True).start()

    def close(self) -> None:
        """Stop listening. An answer that is being made is not waited for."""
        self.shutdown()
        self.server_close()

    def server_bind(self) -> None:
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        TCPServer.server_bind(self)  # that of HTTPServer asks a name server for the name of this machine
        self.server_name, self.server_port = "nodeleak", self.server_address[1]
        self.setup_environ()

    def verify_request(self, request: Any, client_address: Any) -> bool:
        peer = client_address[0]
        # The kubelet probes from the address that it connects to.
        client = _THIS_MACHINE if peer == request.getsockname()[0] or is_loopback(peer) else peer
        taken = Counter(other for other, _ in list(self._open.values()))
        if client == _THIS_MACHINE:
            room = taken[client] < MOST_OF_THIS_MACHINE
        else:
            room = taken[client] < MOST_PER_CLIENT and taken.total() - taken[_THIS_MACHINE] < MOST_CONNECTIONS
        if room:
            self._open[request] = client, monotonic()
        return room

    def shutdown_request(self, request: Any) -> None:
        self._open.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """End connections that take too long; called twice a second."""
        for connection, (_, accepted) in list(self._open.items()):
            if monotonic() - accepted > CONNECTION_SECONDS:
                connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), OSError):  # the client has left, or took too long
            super().handle_error(request, client_address)


class _Handler(WSGIRequestHandler):
    """Logs nothing: clients could fill the log."""

    timeout = 5

    def setup(self) -> None:
        super().setup()
        self.rfile: Any = _Bounded(self.rfile)

    def log_message(self, *_: Any) -> None:
        pass


class _Bounded:
    """Reads the lines of a request, at most `REQUEST_BYTES`."""

    def __init__(self, stream: Any) -> None:
        self._stream, self._left = stream, REQUEST_BYTES
        self.close = stream.close

    def readline(self, limit: int = -1) -> bytes:
        line: bytes = self._stream.readline(min(limit, self._left) if limit >= 0 else self._left)
        self._left -= len(line)
        if self._left <= 0:
            raise ConnectionAbortedError("the request is too large")
        return line


def is_loopback(client: str) -> bool:
    address = ip_address(client.partition("%")[0])
    return bool((getattr(address, "ipv4_mapped", None) or address).is_loopback)


def _family(host: str) -> socket.AddressFamily:
    if host:
        return socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][0]
    return socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
