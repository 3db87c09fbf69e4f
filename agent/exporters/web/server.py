"""HTTP, with bounds: metrics and two probes; for this machine only, the report as a page and as JSON, and status."""

import json
import socket
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from http import HTTPStatus
from ipaddress import ip_address
from socketserver import TCPServer
from threading import Lock, Thread
from time import monotonic  # noqa: TID251 (the age of a report or a connection, which is no data)
from typing import Any, Final, NamedTuple
from wsgiref.simple_server import WSGIRequestHandler

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.exposition import ThreadingWSGIServer

from agent.exporters.json.scan import scan_document
from agent.exporters.web.page import Page
from agent.model.report import Report

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
LINKS: Final = ("/metrics", "/healthz", "/readyz", "/api/v1/report", "/api/v1/status")
_JSON, _HTML, _PLAIN = "application/json", "text/html; charset=utf-8", "text/plain; charset=utf-8"
_ALWAYS: Final = (
    ("Server", "nodeleak"),
    ("Cache-Control", "no-store"),
    ("X-Content-Type-Options", "nosniff"),
)
_NO_SYNC: Final = "no sync yet"
StartResponse = Callable[[str, list[tuple[str, str]]], Any]
Document = Callable[[Report, float], dict[str, Any]]
"""Makes a document of a report and its age in seconds."""


class Server(ThreadingWSGIServer):
    request_queue_size = 128

    def __init__(self, host: str, port: int, application: Callable[..., list[bytes]]) -> None:
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
        TCPServer.server_bind(
            self
        )  # that of HTTPServer asks a name server for the name of this machine
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
            room = (
                taken[client] < MOST_PER_CLIENT
                and taken.total() - taken[_THIS_MACHINE] < MOST_CONNECTIONS
            )
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


class Response(NamedTuple):
    status: HTTPStatus
    content_type: str
    body: bytes
    headers: Mapping[str, str] = {}


class HttpExporter:
    """The server and the last report. `export` belongs to one thread, the rest to the server's threads."""

    def __init__(
        self,
        address: tuple[str, int],
        registry: CollectorRegistry,
        alive: Callable[[], bool],
        page: Page | None = None,
        status: Document | None = None,
    ) -> None:
        """Listen at once, so that a port in use fails before anything else starts; raises OSError."""
        self._last: tuple[Report, float] | None = None
        """With the time of the monotonic clock at which it was begun."""
        self._alive, self._page, self._status = alive, page, status
        self._metrics = make_wsgi_app(registry)
        self._rendering = Lock()
        """One at a time: many clients may not use many times the memory. The probes do not wait for it."""
        self._server = Server(*address, self._answer)
        self.port: int = self._server.server_port
        self.start, self.close = self._server.start, self._server.close

    def export(self, report: Report, seconds: float) -> None:
        self._last = report, monotonic() - seconds

    def _answer(self, environ: dict[str, Any], start: StartResponse) -> list[bytes]:
        path, method = environ["PATH_INFO"], environ["REQUEST_METHOD"]
        if path == "/metrics" and method == "GET":
            return self._render_metrics(environ, start)
        refusal = _text(HTTPStatus.METHOD_NOT_ALLOWED, "only GET and HEAD are allowed")
        response = self._response(path, environ) if method in {"GET", "HEAD"} else refusal
        length = ("Content-Length", str(len(response.body)))
        headers = [
            ("Content-Type", response.content_type),
            length,
            *_ALWAYS,
            *response.headers.items(),
        ]
        start(f"{response.status.value} {response.status.phrase}", headers)
        return [] if method == "HEAD" else [response.body]

    def _render_metrics(self, environ: dict[str, Any], start: StartResponse) -> list[bytes]:
        with self._rendering:
            try:
                return list(self._metrics(environ, start))
            except TypeError:  # the client accepts a version that is not a number
                return list(self._metrics(environ | {"HTTP_ACCEPT": ""}, start))

    def _response(self, path: str, environ: dict[str, Any]) -> Response:
        match path:
            case "/metrics":
                return _text(HTTPStatus.OK, "")
            case "/healthz":
                # The loop's heartbeat only: a restart of the agent repairs neither docker nor the API server.
                return _probe("no sync for too long", ok=self._alive())
            case "/readyz":
                return _probe(_NO_SYNC, ok=self._last is not None)
            case "/" if self._page is not None:
                return self._private(
                    "page", environ, partial(self._view, self._page, environ["QUERY_STRING"])
                )
            case "/api/v1/report":
                return self._private(
                    "report", environ, partial(self._json, lambda report, _: scan_document(report))
                )
            case "/api/v1/status" if self._status is not None:
                return self._private("status", environ, partial(self._json, self._status))
            case _:
                return _text(HTTPStatus.NOT_FOUND, f"not found: {', '.join(LINKS)}")

    def _private(
        self, what: str, environ: dict[str, Any], render: Callable[[], Response]
    ) -> Response:
        """Refuse other machines, and host names: anybody can point a name at this machine (DNS rebinding)."""
        names = f"the {what} names pods and addresses"
        if not is_loopback(environ["REMOTE_ADDR"]):
            return _text(HTTPStatus.FORBIDDEN, f"{names}: only this machine may read it")
        if not _is_ours(environ.get("HTTP_HOST", "")):
            return _text(
                HTTPStatus.FORBIDDEN, f"{names}: use localhost or an IP address as the host"
            )
        with self._rendering:
            return render()

    def _view(self, page: Page, query: str) -> Response:
        report, refreshing = (
            self._last[0] if self._last else None,
            "refresh=off" not in query.split("&"),
        )
        body, headers = page.render(report, alive=self._alive(), refreshing=refreshing)
        return Response(HTTPStatus.OK, _HTML, body, headers)

    def _json(self, document: Document) -> Response:
        if self._last is None:
            return _text(HTTPStatus.SERVICE_UNAVAILABLE, _NO_SYNC)
        report, begun = self._last
        return Response(
            HTTPStatus.OK, _JSON, json.dumps(document(report, monotonic() - begun)).encode()
        )


def _text(status: HTTPStatus, text: str) -> Response:
    return Response(status, _PLAIN, f"{text}\n".encode())


def _probe(why_not: str, *, ok: bool) -> Response:
    return _text(HTTPStatus.OK, "ok") if ok else _text(HTTPStatus.SERVICE_UNAVAILABLE, why_not)


def _is_ours(host: str) -> bool:
    """Return whether the host is an address or localhost, which no name server resolves."""
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() else host
    try:
        ip_address(name.strip("[]"))
    except ValueError:
        return name.lower() in {"", "localhost"}
    return True
