"""HTTP: metrics and two probes; for this machine only, the report as a page and as JSON, and the status."""

import json
from collections.abc import Callable
from http import HTTPStatus
from ipaddress import ip_address
from threading import Lock
from typing import Any, Final, NamedTuple

from prometheus_client import CollectorRegistry, make_wsgi_app

from agent.exporters.json.scan import scan_document
from agent.exporters.json.status import StatusExporter
from agent.exporters.web.page import Page
from agent.exporters.web.wsgi import Server, is_loopback
from agent.model.report import Report

LINKS: Final = ("/metrics", "/healthz", "/readyz", "/api/v1/report", "/api/v1/status")
"""The paths beside the page."""
_JSON, _HTML, _TEXT = "application/json", "text/html; charset=utf-8", "text/plain; charset=utf-8"
_ALWAYS: Final = (
    ("Server", "nodeleak"),
    ("Cache-Control", "no-store"),
    ("X-Content-Type-Options", "nosniff"),
)
_NO_SYNC: Final = "no sync yet"

StartResponse = Callable[[str, list[tuple[str, str]]], Any]


class Response(NamedTuple):
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
        self._alive, self._page, self._status = alive, page, status
        self._metrics = make_wsgi_app(registry)
        self._rendering = Lock()
        """One at a time: many clients may not use many times the memory. The probes do not wait for it."""
        self._server = Server(*address, self._answer)
        self.port: int = self._server.server_port
        self.start, self.close = self._server.start, self._server.close

    def export(self, report: Report, seconds: float) -> None:  # noqa: ARG002 (a metric)
        self._last = report

    def _answer(self, environ: dict[str, Any], start: StartResponse) -> list[bytes]:
        path, method = environ["PATH_INFO"], environ["REQUEST_METHOD"]
        if path == "/metrics" and method == "GET":
            return self._render_metrics(environ, start)
        response = self._response(path, environ)
        if method not in {"GET", "HEAD"}:
            response = text_response(HTTPStatus.METHOD_NOT_ALLOWED, "only GET and HEAD are allowed")
        length = ("Content-Length", str(len(response.body)))
        headers = [("Content-Type", response.content_type), length, *_ALWAYS, *response.headers]
        start(f"{response.status.value} {response.status.phrase}", headers)
        return [] if method == "HEAD" else [response.body]

    def _render_metrics(self, environ: dict[str, Any], start: StartResponse) -> list[bytes]:
        with self._rendering:
            try:
                return list(self._metrics(environ, start))
            except TypeError:  # the client accepts a version that is not a number
                return list(self._metrics(environ | {"HTTP_ACCEPT": ""}, start))

    def _response(self, path: str, environ: dict[str, Any]) -> Response:
        last, page, status = self._last, self._page, self._status
        match path:
            case "/metrics":
                return text_response(HTTPStatus.OK, "")
            case "/healthz":
                # The loop's heartbeat only: a restart of the agent repairs neither docker nor the API server.
                return _probe("no sync for too long", ok=self._alive())
            case "/readyz":
                return _probe(_NO_SYNC, ok=last is not None)
            case "/" if page:
                refreshing = "refresh=off" not in environ["QUERY_STRING"].split("&")
                return self._private("page", environ, lambda: self._view(page, refreshing=refreshing))
            case "/api/v1/report":
                return self._private("report", environ, lambda: _json(scan_document(last) if last else None))
            case "/api/v1/status" if status:
                return self._private("status", environ, lambda: _json(status.document()))
            case _:
                return text_response(HTTPStatus.NOT_FOUND, f"not found: {', '.join(LINKS)}")

    def _private(self, what: str, environ: dict[str, Any], render: Callable[[], Response]) -> Response:
        """Refuse other machines, and host names: anybody can point a name at this machine (DNS rebinding)."""
        names = f"the {what} names pods and addresses"
        if not is_loopback(environ["REMOTE_ADDR"]):
            return text_response(HTTPStatus.FORBIDDEN, f"{names}: only this machine may read it")
        if not _is_ours(environ.get("HTTP_HOST", "")):
            return text_response(HTTPStatus.FORBIDDEN, f"{names}: use localhost or an IP address as the host")
        with self._rendering:
            return render()

    def _view(self, page: Page, *, refreshing: bool) -> Response:
        report = self._last
        body = page.render(report, alive=self._alive(), refreshing=refreshing)
        return Response(HTTPStatus.OK, _HTML, body, page.headers(report, refreshing=refreshing))


def text_response(status: HTTPStatus, text: str) -> Response:
    return Response(status, _TEXT, f"{text}\n".encode())


def _json(document: dict[str, Any] | None) -> Response:
    """Answer with a document; None: there is no report yet."""
    if document is None:
        return text_response(HTTPStatus.SERVICE_UNAVAILABLE, _NO_SYNC)
    return Response(HTTPStatus.OK, _JSON, json.dumps(document).encode())


def _probe(why_not: str, *, ok: bool) -> Response:
    return text_response(HTTPStatus.OK, "ok") if ok else text_response(HTTPStatus.SERVICE_UNAVAILABLE, why_not)


def _is_ours(host: str) -> bool:
    """Return whether the host is an address or localhost, which no name server resolves."""
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() else host
    try:
        ip_address(name.strip("[]"))
    except ValueError:
        return name.lower() in {"", "localhost"}
    return True
