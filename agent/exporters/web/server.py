"""HTTP: metrics and two probes; for this machine only, the report (page and JSON) and the status.

Every answer is rendered from memory, as of the last sync: no request waits for a file, or for
another document.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from ipaddress import ip_address
from threading import Lock
from time import monotonic  # noqa: TID251 (the age of a report, which is no data)
from typing import TYPE_CHECKING, Final, NamedTuple
from wsgiref.types import StartResponse, WSGIEnvironment

from prometheus_client import CollectorRegistry, make_wsgi_app

from agent.exporters.json import Document
from agent.exporters.json.scan import scan_document
from agent.exporters.web.connections import (
    CLIENT_CERTIFICATE,
    CONNECTION_SECONDS,
    PATIENCE,
    Server,
    Warn,
    is_loopback,
)
from agent.exporters.web.page import Page, Releases
from agent.exporters.web.tls import Certificates
from agent.model.bug import Bug, bug_of
from agent.model.report import Report
from agent.model.snapshot import Unavailable

if TYPE_CHECKING:
    from agent.cleanup.journal import Entry

LINKS: Final = ("/metrics", "/healthz", "/readyz", "/api/v1/report", "/api/v1/status")
"""What the page links, and what is listed for a path that does not exist."""

PROBES: Final = ("/healthz", "/readyz")
"""The kubelet asks them, and has no client certificate."""

_PRIVATE: Final = ("/", "/api/v1/report", "/api/v1/status")
"""They name pods and addresses: only this machine may read them."""

_JSON: Final = "application/json"
_HTML: Final = "text/html; charset=utf-8"
_PLAIN: Final = "text/plain; charset=utf-8"
_ALWAYS: Final = (
    ("Server", "nodeleak"),
    ("Cache-Control", "no-store"),
    ("X-Content-Type-Options", "nosniff"),
)
_NO_SYNC: Final = "no sync yet"


class CleanupFacts(NamedTuple):
    """What is shown besides the report. The sync reads it, because the disk may be slow."""

    status: Mapping[str, object]
    """What `nodeleak.status/v1` says of cleanup."""
    releases: "tuple[Entry, ...] | Unavailable"
    damage: tuple[str, ...]
    """The files of the journal that cannot be parsed."""


class _Sync(NamedTuple):
    report: Report
    begun: float
    """By the monotonic clock."""
    facts: CleanupFacts


class Response(NamedTuple):
    status: HTTPStatus
    content_type: str
    body: bytes
    headers: Mapping[str, str] = {}


class Documents(NamedTuple):
    """What the port shows, and how it is made."""

    alive: Callable[[], bool]
    """Whether the daemon still syncs."""
    facts: Callable[[Report], CleanupFacts]
    """Called in each sync, by the thread that exports."""
    status: Callable[[Report, Mapping[str, object], float], Document]
    """Makes `nodeleak.status/v1` of a report, what is said of cleanup, and the age in seconds."""
    page: Page | None
    """None: there is no page."""


class Transport(NamedTuple):
    """How clients are connected."""

    address: tuple[str, int]
    certificates: Certificates | None = None
    """None: plain HTTP."""
    needs_client_certificate: bool = False
    """Whether other machines must show a certificate of the client CA, except to the probes."""
    connection_seconds: float = CONNECTION_SECONDS


class HttpExporter:
    """The server and the last report. `export` belongs to one thread, all else to the server's."""

    def __init__(
        self,
        transport: Transport,
        registry: CollectorRegistry,
        documents: Documents,
        report_bug: Callable[[Bug], None],
        warn: Warn,
    ) -> None:
        """Listen at once: a port in use fails before anything else starts. Raises OSError."""
        self._last: _Sync | None = None
        """None: before the first sync."""

        self._documents = documents
        self._certificates = transport.certificates
        self._needs_certificate = transport.needs_client_certificate
        self._report_bug = report_bug
        self._metrics = make_wsgi_app(registry)
        self._rendering = {path: Lock() for path in ("/metrics", *_PRIVATE)}
        """Each document once at a time: many clients may not use many times the memory."""

        self._server = Server(
            transport.address,
            self._answer,
            report_bug,
            warn,
            transport.certificates.context if transport.certificates else None,
            transport.connection_seconds,
        )

        self.port: int = self._server.server_port
        self.start = self._server.start
        self.close = self._server.close

    def export(self, report: Report, seconds: float) -> None:
        """Answer with this report from now on. `seconds`: how long its sync took."""
        begun = monotonic() - seconds
        self._last = _Sync(report, begun, self._documents.facts(report))
        if self._certificates:  # last, so that a bug in it leaves no report behind
            self._certificates.reload()

    def _answer(self, environ: WSGIEnvironment, start: StartResponse) -> list[bytes]:
        path = environ["PATH_INFO"]
        try:
            response = self._response(path, environ)
        except Exception as error:  # noqa: BLE001 (a bug ends this answer, and nothing else)
            self._report_bug(bug_of("http", path, error))
            response = _text(HTTPStatus.INTERNAL_SERVER_ERROR, "a bug: the agent's log shows it")

        headers = [
            ("Content-Type", response.content_type),
            ("Content-Length", str(len(response.body))),
            *_ALWAYS,
            *response.headers.items(),
        ]
        start(f"{response.status.value} {response.status.phrase}", headers)
        return [] if environ["REQUEST_METHOD"] == "HEAD" else [response.body]

    def _response(self, path: str, environ: WSGIEnvironment) -> Response:
        if refusal := self._refusal(path, environ):
            return refusal

        match path:
            case "/healthz":
                # The loop's heartbeat only: a restart repairs neither docker nor the API server.
                return _probe("no sync for too long", ok=self._documents.alive())
            case "/readyz":
                return _probe(_NO_SYNC, ok=self._last is not None)
            case "/metrics" if environ["REQUEST_METHOD"] == "HEAD":
                return _text(HTTPStatus.OK, "")
            case "/" if self._documents.page is None:
                return _not_found()
            case _ if path in self._rendering:
                return self._rendered(path, environ)
            case _:
                return _not_found()

    def _refusal(self, path: str, environ: WSGIEnvironment) -> Response | None:
        """Return why a request is not answered; None: it is."""
        is_here = is_loopback(environ["REMOTE_ADDR"])
        has_certificate = is_here or environ[CLIENT_CERTIFICATE] or path in PROBES
        if self._needs_certificate and not has_certificate:
            return _text(HTTPStatus.FORBIDDEN, "show a client certificate (--tls-client-ca-file)")
        if environ["REQUEST_METHOD"] not in {"GET", "HEAD"}:
            return _text(HTTPStatus.METHOD_NOT_ALLOWED, "only GET and HEAD are allowed")
        return self._private(path, environ, is_here=is_here)

    def _private(self, path: str, environ: WSGIEnvironment, *, is_here: bool) -> Response | None:
        """Refuse other machines, and host names.

        Anybody can point a name at this machine (DNS rebinding).
        """
        if path not in _PRIVATE or (path == "/" and self._documents.page is None):
            return None

        names = f"the {path.rpartition('/')[2] or 'page'} names pods and addresses"
        if not is_here:
            return _text(HTTPStatus.FORBIDDEN, f"{names}: only this machine may read it")
        if not _is_ours(environ.get("HTTP_HOST", "")):
            text = f"{names}: use localhost or an IP address as the host"
            return _text(HTTPStatus.FORBIDDEN, text)
        return None

    def _rendered(self, path: str, environ: WSGIEnvironment) -> Response:
        """Render a document, unless others keep it busy for longer than the connection lasts."""
        with _turn(self._rendering[path], environ[PATIENCE]) as is_mine:
            if not is_mine:
                return _text(HTTPStatus.SERVICE_UNAVAILABLE, "too many requests wait for this")
            match path:
                case "/metrics":
                    return self._exposition(environ)
                case "/":
                    return self._view(environ["QUERY_STRING"])
                case _:
                    return self._json(path)

    def _exposition(self, environ: WSGIEnvironment) -> Response:
        """Return the metrics in the format that the client accepts."""
        headers: dict[str, str] = {}

        def start(_status: str, sent: list[tuple[str, str]]) -> None:
            headers.update(sent)

        try:
            body = b"".join(self._metrics(environ, start))
        except TypeError:  # the client accepts a version that is not a number
            body = b"".join(self._metrics(environ | {"HTTP_ACCEPT": ""}, start))
        return Response(HTTPStatus.OK, headers.pop("Content-Type"), body, headers)

    def _view(self, query: str) -> Response:
        assert self._documents.page is not None  # noqa: S101 (else it is not found)
        refreshing = "refresh=off" not in query.split("&")
        report = None
        releases: Releases = ((), ())
        if last := self._last:  # of one sync, although another may end meanwhile
            report = last.report
            releases = (last.facts.releases, last.facts.damage)

        body, headers = self._documents.page.render(
            report, releases, alive=self._documents.alive(), refreshing=refreshing
        )
        return Response(HTTPStatus.OK, _HTML, body, headers)

    def _json(self, path: str) -> Response:
        """Return a document of the last sync."""
        last = self._last
        if last is None:
            return _text(HTTPStatus.SERVICE_UNAVAILABLE, _NO_SYNC)

        if path == "/api/v1/report":
            document = scan_document(last.report)
        else:
            age = monotonic() - last.begun
            document = self._documents.status(last.report, last.facts.status, age)
        return Response(HTTPStatus.OK, _JSON, json.dumps(document).encode())


@contextmanager
def _turn(lock: Lock, seconds: float) -> Iterator[bool]:
    """Wait for a lock; False: not within the time that the connection has left."""
    if not lock.acquire(timeout=seconds):
        yield False
        return
    try:
        yield True
    finally:
        lock.release()


def _text(status: HTTPStatus, text: str) -> Response:
    return Response(status, _PLAIN, f"{text}\n".encode())


def _not_found() -> Response:
    return _text(HTTPStatus.NOT_FOUND, f"not found: {', '.join(LINKS)}")


def _probe(why_not: str, *, ok: bool) -> Response:
    return _text(HTTPStatus.OK, "ok") if ok else _text(HTTPStatus.SERVICE_UNAVAILABLE, why_not)


def _is_ours(host: str) -> bool:
    """Return whether the host is an address or localhost, which no name server resolves."""
    before, _, port = host.rpartition(":")
    name = before if port.isdecimal() else host
    try:
        ip_address(name.strip("[]"))
    except ValueError:
        return name.lower() in {"", "localhost"}
    return True
