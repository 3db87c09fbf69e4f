"""Connections with bounds: how many, for how long, how large a request.

A fault of one ends only that one.
"""

import errno
import os
import socket
import ssl
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPMessage
from io import StringIO
from ipaddress import ip_address
from socketserver import TCPServer, ThreadingMixIn
from threading import Event, Lock, Thread
from time import monotonic  # noqa: TID251 (the age of a connection, which is no data)
from typing import Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from agent.model.bug import Bug, bug_of

MAX_CONNECTIONS: Final = 64
"""Of other machines, at a time. Each costs a thread and at most `REQUEST_BYTES`."""

MAX_PER_CLIENT: Final = 8
"""Of one address. A browser opens six."""

MAX_OF_THIS_MACHINE: Final = 32
"""The kubelet's probe beside whatever else asks here. Other machines cannot take these."""

REQUEST_BYTES: Final = 8192
"""Request line and headers. Prometheus sends less than 1 KiB."""

CONNECTION_SECONDS: Final = 15.0
"""From the connection to the end of the answer: Prometheus waits for at most 10 s by default."""

CLIENT_CERTIFICATE: Final = "nodeleak.client_certificate"
"""In the environ of a request: whether the client has shown a certificate of the client CA."""

PATIENCE: Final = "nodeleak.patience"
"""In the environ of a request: how many seconds the connection may still last."""

_THIS_MACHINE: Final = "this machine"
_RESTART_SECONDS: Final = 1.0
"""Between a failure of the server's loop and the next loop."""

_ACCEPT_PAUSE_SECONDS: Final = 0.1
"""After a failed accept: the connection waits in the queue, so the next try would come at once."""

_CLOSE_SECONDS: Final = 1.0
"""For the client's part in the end of a TLS connection."""

_FAULT_OF_CLIENT: Final = frozenset({errno.ECONNABORTED, errno.EPROTO, errno.EAGAIN, errno.EINTR})
"""Errors of accept for a connection that has ended while it waited."""

Application = Callable[..., list[bytes]]
Warn = Callable[..., None]
"""Logs a warning: an event with its fields."""


class _Closed(Exception):
    """Ends the server's loop."""


@dataclass(slots=True)
class _Connection:
    client: str
    accepted: float
    ended: bool = False
    """By the time limit. It keeps its place until its thread is done."""


class Server(ThreadingMixIn, WSGIServer):
    """Listens as soon as it exists, and answers once it is started."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(
        self,
        address: tuple[str, int],
        application: Application,
        report_bug: Callable[[Bug], None],
        warn: Warn,
        tls: Callable[[], ssl.SSLContext] | None = None,
        connection_seconds: float = CONNECTION_SECONDS,
    ) -> None:
        """Without a host, listen on all addresses, of both families where there are two.

        `tls`: returns the context of the next connection; None: plain HTTP. Raises OSError.
        """
        host, port = address
        self.address_family = _family(host)
        self._report_bug = report_bug
        self._warn = warn
        self._warned: set[str] = set()
        self._tls = tls
        self._seconds = connection_seconds
        self._closing = Event()
        self._thread: Thread | None = None
        self._lock = Lock()
        self._open: dict[socket.socket, _Connection] = {}
        """A connection is removed before its descriptor is closed, which another may then get."""

        super().__init__((host, port), _Handler)
        self.set_app(application)

    def start(self) -> None:
        self._thread = Thread(target=self._run, name="http", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening. An answer that is being made is not waited for."""
        self._closing.set()
        if self._thread:
            self._thread.join()
        self.server_close()

    def _run(self) -> None:
        """Serve until `close`: a bug, or a system without resources, begins the loop again."""
        while not self._closing.is_set():
            try:
                self.serve_forever()
            except _Closed:
                return
            except Exception as error:  # noqa: BLE001 (the port must never end the agent)
                self._bug("server", error)
                self._closing.wait(_RESTART_SECONDS)

    def server_bind(self) -> None:
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        # That of HTTPServer asks a name server for the name of this machine.
        TCPServer.server_bind(self)
        self.server_name = "nodeleak"
        self.server_port = self.server_address[1]
        self.setup_environ()

    def get_request(self) -> tuple[socket.socket, Any]:
        """Accept a connection; the TLS handshake is left to its own thread."""
        try:
            connection, address = super().get_request()
        except OSError as error:
            if error.errno not in _FAULT_OF_CLIENT:
                self._refused("cannot accept", error)
                self._closing.wait(_ACCEPT_PAUSE_SECONDS)
            raise

        if self._tls is None:
            return connection, address
        try:
            connection.getpeername()  # of a dead socket, wrap_socket would leave closing to the GC
            wrapped = self._tls().wrap_socket(
                connection, server_side=True, do_handshake_on_connect=False
            )
        except (OSError, ValueError) as error:  # the client has left already
            connection.close()
            raise ConnectionAbortedError(errno.ECONNABORTED, str(error)) from error
        return wrapped, address

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Return whether there is room; what is refused is closed."""
        try:
            client = _client(request, client_address[0])
        except OSError:  # the socket is dead
            return False
        except Exception as error:  # noqa: BLE001 (refuses this connection, and nothing else)
            self._bug("connection", error)
            return False

        with self._lock:
            taken = Counter(connection.client for connection in self._open.values())
            if client == _THIS_MACHINE:
                has_room = taken[client] < MAX_OF_THIS_MACHINE
            else:
                of_others = taken.total() - taken[_THIS_MACHINE]
                has_room = taken[client] < MAX_PER_CLIENT and of_others < MAX_CONNECTIONS
            if has_room:
                self._open[request] = _Connection(client, monotonic())
        return has_room

    def process_request(self, request: Any, client_address: Any) -> None:
        """Start the thread of a connection; refuse it if that is impossible."""
        try:
            super().process_request(request, client_address)
        except (RuntimeError, MemoryError) as error:
            self._refused("cannot start a thread", error)
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer a connection, and close it whatever happens."""
        try:
            self.finish_request(request, client_address)
            if isinstance(request, ssl.SSLSocket):
                _end_tls(request)
        except OSError:  # the client has left, or took too long
            pass
        except Exception as error:  # noqa: BLE001 (ends this connection, and nothing else)
            self._bug("connection", error)
        finally:
            with suppress(Exception):
                self.shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 (its type)
        """Report what `process_request` raised; the caller closes the connection."""
        if isinstance(error := sys.exception(), Exception):
            self._bug("connection", error)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection, and give its place to another one."""
        with self._lock:
            self._open.pop(request, None)
        with suppress(OSError, ValueError):
            # Not that of an SSLSocket, after which another thread could send in plain text.
            socket.socket.shutdown(request, socket.SHUT_WR)
        with suppress(OSError):
            self.close_request(request)

    def service_actions(self) -> None:
        """End connections that take too long; called twice a second, and after each accept."""
        if self._closing.is_set():
            raise _Closed
        with self._lock:
            for request, connection in self._open.items():
                if connection.ended or monotonic() - connection.accepted <= self._seconds:
                    continue
                connection.ended = True
                with suppress(OSError):  # the client has left
                    socket.socket.shutdown(request, socket.SHUT_RDWR)

    def patience(self, request: Any) -> float:
        """Return how many seconds a connection may still last; 0 if it has ended."""
        with self._lock:
            connection = self._open.get(request)
        if connection is None or connection.ended:
            return 0.0
        return max(0.0, self._seconds - (monotonic() - connection.accepted))

    def _refused(self, what: str, error: BaseException) -> None:
        """Log once for each kind that the system lacks something: clients could fill the log."""
        number = error.errno if isinstance(error, OSError) else None
        why = os.strerror(number) if number else str(error) or type(error).__name__
        kind = f"{what}: {why[:1].lower()}{why[1:]}"
        if kind in self._warned:
            return
        self._warned.add(kind)
        with suppress(Exception):
            self._warn("http.refused", why=kind)

    def _bug(self, name: str, error: Exception) -> None:
        with suppress(Exception):  # a log that cannot be written ends no thread
            self._report_bug(bug_of("http", name, error))


class _Handler(WSGIRequestHandler):
    """Logs nothing: clients could fill the log."""

    timeout = 5
    server: Server
    _has_certificate = False

    def setup(self) -> None:
        super().setup()
        self.rfile: Any = _Bounded(self.rfile)

    def handle(self) -> None:
        if isinstance(self.connection, ssl.SSLSocket):
            self.connection.do_handshake()
            self._has_certificate = bool(self.connection.getpeercert())
        super().handle()

    def get_environ(self) -> Any:
        # Of a request that has none, Python 3.14 makes a dict, which the method cannot use.
        self.headers = self.headers or HTTPMessage()
        return super().get_environ() | {
            CLIENT_CERTIFICATE: self._has_certificate,
            PATIENCE: self.server.patience(self.connection),
        }

    def get_stderr(self) -> Any:
        """Return where the traceback of a failed connection goes: nowhere, as bugs are reported."""
        return StringIO()

    def version_string(self) -> str:
        """Return what a refusal has in the header `Server`: not the version of Python."""
        return "nodeleak"

    def log_message(self, *_: Any) -> None:
        pass


class _Bounded:
    """Reads the lines of a request, at most `REQUEST_BYTES`."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._left = REQUEST_BYTES
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


def _client(request: socket.socket, peer: str) -> str:
    """Return whose connections are counted together. Raises OSError."""
    # The kubelet probes from the address that it connects to.
    ours = peer == request.getsockname()[0] or is_loopback(peer)
    return _THIS_MACHINE if ours else peer


def _end_tls(connection: ssl.SSLSocket) -> None:
    """Tell the client that the answer is complete. Raises OSError."""
    connection.settimeout(_CLOSE_SECONDS)
    with suppress(ValueError):  # the time limit has ended it
        connection.unwrap()


def _family(host: str) -> socket.AddressFamily:
    if host:
        return socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][0]
    return socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
