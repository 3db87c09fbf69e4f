"""HTTP: metrics and two probes; for this machine only, the report as a page and as JSON, and the status."""

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

from agent.exporters.json.scan import scan_document
from agent.exporters.json.status import StatusExporter
from agent.exporters.web.page import Page
from agent.model.report import Report

_READ_TIMEOUT: Final = 5.0
"""Seconds for one read or write."""
_REQUEST_TIMEOUT: Final = 15.0
"""Seconds for a whole request."""
_MOST_CLIENTS: Final = 16
"""Served at a time: probes, a scraper and a person or two."""
_MOST_PER_ADDRESS: Final = 6
"""Of one address; as many are reserved for this machine, whose kubelet probes the agent."""
_TEXT, _JSON, _HTML = "text/plain; charset=utf-8", "application/json", "text/html; charset=utf-8"
_ALWAYS: Final = (("Cache-Control", "no-store"), ("X-Content-Type-Options", "nosniff"))
LINKS: Final = ("/metrics", "/healthz", "/readyz", "/api/v1/report", "/api/v1/status")
"""The paths beside the page."""
_NO_SYNC: Final = "no sync yet"


@dataclass(frozen=True, slots=True)
class Answer:
    status: HTTPStatus
    content_type: str
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()
    """In addition to those of every answer."""


class HttpExporter:
    """The server and the last report. `export` belongs to one thread, the rest to the server's threads."""

    def __init__(
        self,
        address: tuple[str, int],
        registry: CollectorRegistry,
        alive: Callable[[], bool],
        page: Page | None = None,
        status: StatusExporter | None = None,
    ) -> None:
        """Listen at once, so that a port in use fails before anything else starts; raises OSError."""
        self._last: Report | None = None
        self._registry, self._alive, self._page, self._status = registry, alive, page, status
        self._server = _Server(address, self)
        self.port: int = self._server.server_address[1]

    def start(self) -> None:
        Thread(target=self._server.serve_forever, name="http", daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def export(self, report: Report, seconds: float) -> None:  # noqa: ARG002 (a metric)
        self._last = report

    def answer(self, target: str, client: str, host: str = "") -> Answer:
        """Answer one GET. `host`: the Host header."""
        path, _, query = target.partition("?")
        match path:
            case "/" if self._page is not None:
                return _refusal("page", client, host) or self._view(self._page, query)
            case "/metrics":
                return Answer(HTTPStatus.OK, CONTENT_TYPE_LATEST, generate_latest(self._registry))
            case "/healthz":
                # The loop's heartbeat only: a restart of the agent repairs neither docker nor the API server.
                return _probe("no sync for too long", ok=self._alive())
            case "/readyz":
                return _probe(_NO_SYNC, ok=self._last is not None)
            case "/api/v1/report":
                return _refusal("report", client, host) or _json(scan_document(self._last) if self._last else None)
            case "/api/v1/status" if self._status is not None:
                return _refusal("status", client, host) or _json(self._status.document())
            case _:
                return _plain(HTTPStatus.NOT_FOUND, f"not found: {', '.join(LINKS)}")

    def _view(self, page: Page, query: str) -> Answer:
        report, refreshing = self._last, "refresh=off" not in query.split("&")
        body = page.render(report, alive=self._alive(), refreshing=refreshing)
        return Answer(HTTPStatus.OK, _HTML, body, page.headers(report, refreshing=refreshing))


def _plain(status: HTTPStatus, text: str) -> Answer:
    return Answer(status, _TEXT, f"{text}\n".encode())


def _json(document: dict[str, Any] | None) -> Answer:
    """Answer with a document; None: there is no report yet."""
    if document is None:
        return _plain(HTTPStatus.SERVICE_UNAVAILABLE, _NO_SYNC)
    return Answer(HTTPStatus.OK, _JSON, json.dumps(document).encode())


def _probe(why_not: str, *, ok: bool) -> Answer:
    return _plain(HTTPStatus.OK, "ok") if ok else _plain(HTTPStatus.SERVICE_UNAVAILABLE, why_not)


def _refusal(what: str, client: str, host: str) -> Answer | None:
    """Refuse other machines, and host names: anybody can point a name at this machine (DNS rebinding)."""
    if not _is_loopback(client):
        return _plain(HTTPStatus.FORBIDDEN, f"the {what} names pods and addresses: only this machine may read it")
    if not _is_ours(host):
        return _plain(
            HTTPStatus.FORBIDDEN, f"the {what} names pods and addresses: use localhost or an IP address as the host"
        )
    return None


def _is_ours(host: str) -> bool:
    """Return whether the host is an address or localhost, which no name server resolves."""
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
    # With socketserver's 5, a probe waits a second behind a handful of others.
    request_queue_size = 64

    def __init__(self, address: tuple[str, int], exporter: HttpExporter) -> None:
        self.exporter = exporter
        self._lock, self._served = Lock(), Counter[str]()
        host, port = address
        # An empty host: every address, of both families where there are two.
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
        # Not the parent's: it waits for a DNS lookup of this machine's name.
        TCPServer.server_bind(self)

    def process_request(self, request: Any, client_address: Any) -> None:
        # A client with the address that it connects to is on this machine, like the kubelet.
        limit = _MOST_CLIENTS if client_address[0] == request.getsockname()[0] else _MOST_CLIENTS - _MOST_PER_ADDRESS
        with self._lock:
            accepted = self._served.total() < limit and self._served[client_address[0]] < _MOST_PER_ADDRESS
            self._served[client_address[0]] += accepted
        if not accepted:
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # no thread available
            self._leave(client_address)
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        # The handler's timeout is for one read; this one stops a client that sends a byte at a time.
        deadline = Timer(_REQUEST_TIMEOUT, _disconnect, [request])
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
            self._served += Counter()  # drop zeros

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a client that disconnected; print anything else, which is a bug."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


def _family(host: str) -> socket.AddressFamily:
    """Return the address family of a host; raises OSError for an unknown name."""
    if not host:
        return socket.AF_INET6 if socket.has_ipv6 else socket.AF_INET
    return socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][0]


def _disconnect(request: socket.socket) -> None:
    with suppress(OSError):
        request.shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = _READ_TIMEOUT
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

    do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = _refuse  # noqa: N815 (named by the base class)

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

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 (named by the base class)
        """Do not log requests."""
