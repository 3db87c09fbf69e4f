"""What is served over HTTP: metrics, two probes, and to this machine the report: as a page, and for programs."""

import json
import socket
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from socketserver import TCPServer
from threading import Lock, Thread, Timer
from typing import Any, Final

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from agent.exporters.json.scan import document
from agent.exporters.web.page import Page
from agent.model.report import Report

_SECONDS: Final = 5.0
"""How long a client may take to say something, or to hear it."""
_LONGEST: Final = 15.0
"""How long one request may take altogether."""
_CLIENTS: Final = 16
"""How many are served at a time; a probe, a scraper and a person or two."""
_CLIENTS_OF_ONE: Final = 6
"""How many of them may come from one address. So many are kept free for this machine, whose kubelet probes us."""
_TEXT, _JSON, _HTML = "text/plain; charset=utf-8", "application/json", "text/html; charset=utf-8"
_ALWAYS: Final = (("Cache-Control", "no-store"), ("X-Content-Type-Options", "nosniff"))
LINKS: Final = ("/metrics", "/healthz", "/readyz", "/api/v1/report")
"""What is served beside the page."""


@dataclass(frozen=True, slots=True)
class Answer:
    status: HTTPStatus
    content_type: str
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()
    """Those that only this answer has."""


class HttpExporter:
    """The server and the last report. `export` belongs to one thread, the rest to the server's."""

    def __init__(
        self,
        address: tuple[str, int],
        registry: CollectorRegistry,
        alive: Callable[[], bool],
        page: Page | None = None,
    ) -> None:
        """Listen at once, so that a port that is taken is known before anything else; raises OSError."""
        self._last: Report | None = None
        self._registry, self._alive, self._page = registry, alive, page
        self._server = _Server(address, self)
        self.port: int = self._server.server_address[1]

    def start(self) -> None:
        Thread(target=self._server.serve_forever, name="http", daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def export(self, report: Report, seconds: float) -> None:  # noqa: ARG002 (metrics tell of time)
        self._last = report

    def answer(self, target: str, client: str, host: str = "") -> Answer:
        """Answer one GET. `host`: what the client calls us."""
        path, _, query = target.partition("?")
        match path:
            case "/" if self._page is not None:
                return _refusal("page", client, host) or self._view(self._page, query)
            case "/metrics":
                return Answer(HTTPStatus.OK, CONTENT_TYPE_LATEST, generate_latest(self._registry))
            case "/healthz":
                # The loop's heartbeat and nothing else: restarting the agent mends neither docker nor the API server.
                alive = self._alive()
                return (
                    _plain(HTTPStatus.OK, "ok")
                    if alive
                    else _plain(HTTPStatus.SERVICE_UNAVAILABLE, "no round for too long")
                )
            case "/readyz":
                ready = self._last is not None
                return _plain(HTTPStatus.OK, "ok") if ready else _plain(HTTPStatus.SERVICE_UNAVAILABLE, "no round yet")
            case "/api/v1/report":
                return _refusal("report", client, host) or self._report()
            case _:
                return _plain(HTTPStatus.NOT_FOUND, f"not found: {', '.join(LINKS)}")

    def _view(self, page: Page, query: str) -> Answer:
        report, refreshing = self._last, "refresh=off" not in query.split("&")
        body = page.draw(report, alive=self._alive(), refreshing=refreshing)
        return Answer(HTTPStatus.OK, _HTML, body, page.headers(report, refreshing=refreshing))

    def _report(self) -> Answer:
        if self._last is None:
            return _plain(HTTPStatus.SERVICE_UNAVAILABLE, "no round yet")
        return Answer(HTTPStatus.OK, _JSON, json.dumps(document(self._last)).encode())


def _plain(status: HTTPStatus, text: str) -> Answer:
    return Answer(status, _TEXT, f"{text}\n".encode())


def _refusal(what: str, client: str, host: str) -> Answer | None:
    """Refuse what names pods to whoever is not of this machine, or came by a name that anybody may point at it."""
    if not _is_loopback(client):
        return _plain(HTTPStatus.FORBIDDEN, f"the {what} names pods and addresses: from this machine only")
    if not _is_ours(host):
        return _plain(HTTPStatus.FORBIDDEN, f"the {what} names pods and addresses: ask for localhost, or by address")
    return None


def _is_ours(host: str) -> bool:
    """Tell whether no name server had a say in it: a page in somebody's browser can have its name lead to us."""
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() else host
    try:
        ip_address(name.strip("[]"))
    except ValueError:
        return name.lower() in {"", "localhost"}
    return True


def _is_loopback(client: str) -> bool:
    address = ip_address(client.partition("%")[0])
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    # socketserver's 5 would make a probe wait a second behind a handful of others.
    request_queue_size = 64

    def __init__(self, address: tuple[str, int], exporter: HttpExporter) -> None:
        self.exporter = exporter
        self._lock, self._served = Lock(), Counter[str]()
        host, port = address
        # An empty host is every address of both families where there are two.
        self.address_family = _family(host)
        try:
            super().__init__((host, port), _Handler)
        except OSError:
            if host or self.address_family is socket.AF_INET:
                raise
            self.address_family = socket.AF_INET
            super().__init__((host, port), _Handler)

    def server_bind(self) -> None:
        if self.address_family is socket.AF_INET6 and not self.server_address[0]:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        # Not the parent's: it asks DNS for this machine's name, and can wait for it.
        TCPServer.server_bind(self)

    def process_request(self, request: Any, client_address: Any) -> None:
        # Who comes from the address that was asked is of this machine, as the kubelet is.
        room = _CLIENTS if client_address[0] == request.getsockname()[0] else _CLIENTS - _CLIENTS_OF_ONE
        with self._lock:
            welcome = self._served.total() < room and self._served[client_address[0]] < _CLIENTS_OF_ONE
            self._served[client_address[0]] += welcome
        if not welcome:
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # no thread can be had
            self._leave(client_address)
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        # The handler's timeout bounds one read; this, a client that says a byte at a time.
        deadline = Timer(_LONGEST, _hang_up, [request])
        deadline.daemon = True
        deadline.start()
        try:
            super().process_request_thread(request, client_address)
        finally:
            deadline.cancel()
            self._leave(client_address)

    def _leave(self, client_address: Any) -> None:
        with self._lock:
            self._served[client_address[0]] -= 1
            self._served += Counter()  # forget who is no longer served

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Pass over a client that went away; anything else is a bug, and loud."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


def _family(host: str) -> socket.AddressFamily:
    """Return the family to listen in; raises OSError for a name that nobody knows."""
    if not host:
        return socket.AF_INET6 if socket.has_ipv6 else socket.AF_INET
    return socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][0]


def _hang_up(request: socket.socket) -> None:
    with suppress(OSError):
        request.shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = _SECONDS
    server_version, sys_version = "nodeleak", ""

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def _refuse(self) -> None:
        self.send_response(HTTPStatus.METHOD_NOT_ALLOWED)
        self.send_header("Allow", "GET, HEAD")
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = _refuse  # noqa: N815 (the base class names them so)

    def _answer(self, *, with_body: bool) -> None:
        answer = self.server.exporter.answer(self.path, self.client_address[0], self.headers.get("Host", ""))
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.content_type)
        self.send_header("Content-Length", str(len(answer.body)))
        for name, value in (*_ALWAYS, *answer.headers):
            self.send_header(name, value)
        self.end_headers()
        if with_body:
            self.wfile.write(answer.body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 (the base class names it so)
        """Requests are not news."""
