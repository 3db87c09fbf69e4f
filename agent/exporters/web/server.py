"""HTTP: metrics and two probes; for this machine only, the report as a page and as JSON, and the status."""

import json
from collections.abc import Callable, Mapping
from functools import partial
from http import HTTPStatus
from ipaddress import ip_address
from threading import Lock
from time import monotonic  # noqa: TID251 (the age of a report, which is no data)
from typing import Any, Final, NamedTuple

from prometheus_client import CollectorRegistry, make_wsgi_app

from agent.exporters.json.scan import scan_document
from agent.exporters.web.page import Page
from agent.exporters.web.wsgi import Server, is_loopback
from agent.model.report import Report

LINKS: Final = ("/metrics", "/healthz", "/readyz", "/api/v1/report", "/api/v1/status")
_JSON, _HTML, _PLAIN = "application/json", "text/html; charset=utf-8", "text/plain; charset=utf-8"
_ALWAYS: Final = (("Server", "nodeleak"), ("Cache-Control", "no-store"), ("X-Content-Type-Options", "nosniff"))
_NO_SYNC: Final = "no sync yet"

StartResponse = Callable[[str, list[tuple[str, str]]], Any]
Document = Callable[[Report, float], dict[str, Any]]
"""Makes a document of a report and its age in seconds."""


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
        if method in {"GET", "HEAD"}:
            response = self._response(path, environ)
        else:
            response = _text(HTTPStatus.METHOD_NOT_ALLOWED, "only GET and HEAD are allowed")
        length = ("Content-Length", str(len(response.body)))
        headers = [("Content-Type", response.content_type), length, *_ALWAYS, *response.headers.items()]
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
                return self._private("page", environ, partial(self._view, self._page, environ["QUERY_STRING"]))
            case "/api/v1/report":
                return self._private("report", environ, partial(self._json, lambda report, _: scan_document(report)))
            case "/api/v1/status" if self._status is not None:
                return self._private("status", environ, partial(self._json, self._status))
            case _:
                return _text(HTTPStatus.NOT_FOUND, f"not found: {', '.join(LINKS)}")

    def _private(self, what: str, environ: dict[str, Any], render: Callable[[], Response]) -> Response:
        """Refuse other machines, and host names: anybody can point a name at this machine (DNS rebinding)."""
        names = f"the {what} names pods and addresses"
        if not is_loopback(environ["REMOTE_ADDR"]):
            return _text(HTTPStatus.FORBIDDEN, f"{names}: only this machine may read it")
        if not _is_ours(environ.get("HTTP_HOST", "")):
            return _text(HTTPStatus.FORBIDDEN, f"{names}: use localhost or an IP address as the host")
        with self._rendering:
            return render()

    def _view(self, page: Page, query: str) -> Response:
        report, refreshing = self._last[0] if self._last else None, "refresh=off" not in query.split("&")
        body, headers = page.render(report, alive=self._alive(), refreshing=refreshing)
        return Response(HTTPStatus.OK, _HTML, body, headers)

    def _json(self, document: Document) -> Response:
        if self._last is None:
            return _text(HTTPStatus.SERVICE_UNAVAILABLE, _NO_SYNC)
        report, begun = self._last
        return Response(HTTPStatus.OK, _JSON, json.dumps(document(report, monotonic() - begun)).encode())


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
