"""HTTP: metrics and two probes; for this machine only, the report as a page and as JSON, and the status."""

import gzip
import json
from collections.abc import Callable
from http import HTTPStatus
from ipaddress import ip_address
from math import inf
from typing import Any, Final, NamedTuple

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder, gzip_accepted

from agent.exporters.json.scan import scan_document
from agent.exporters.json.status import StatusExporter
from agent.exporters.web.connections import Connections, Request, Response, is_loopback, text_response
from agent.exporters.web.page import Page
from agent.model.report import Report

METRICS_SECONDS: Final = 5.0
"""How old an answer of /metrics may be between two syncs: only the counters of the process and of threads change."""
STATUS_SECONDS: Final = 1.0
"""How old an answer of /api/v1/status may be: it says how old the report is."""
_JSON, _HTML = "application/json", "text/html; charset=utf-8"
_ENCODERS: Final = tuple(map(choose_encoder, ("text/plain", "application/openmetrics-text; version=1.0.0")))
"""A closed list: the client names a version, and each would be rendered."""
LINKS: Final = ("/metrics", "/healthz", "/readyz", "/api/v1/report", "/api/v1/status")
"""The paths beside the page."""
_PRIVATE: Final = {"/": "page", "/api/v1/report": "report", "/api/v1/status": "status"}
"""What only this machine may read."""
_NO_SYNC: Final = "no sync yet"


class _Question(NamedTuple):
    """What an answer depends on, beside the sync: a few values, whatever clients ask."""

    path: str
    openmetrics: bool = False
    compressed: bool = False
    alive: bool = True
    refreshing: bool = True


class HttpExporter:
    """The server and the last report. `export` belongs to one thread, the rest to the server's threads."""

    def __init__(
        self,
        address: tuple[str, int],
        registry: CollectorRegistry,
        alive: Callable[[], bool],
        page: Page | None = None,
        status: StatusExporter | None = None,
        *,
        clock: Callable[[], float],
    ) -> None:
        """Listen at once, so that a port in use fails before anything else starts; raises OSError."""
        self._last: Report | None = None
        self._registry, self._alive, self._page, self._status = registry, alive, page, status
        self._clock = clock
        self._kept: dict[_Question, tuple[float, Response]] = {}
        """The answers since the last sync, and until when they hold."""
        self._connections = Connections(address, self, clock)
        self.port: int = self._connections.port

    def start(self) -> None:
        self._connections.start()

    def close(self) -> None:
        self._connections.close()

    def export(self, report: Report, seconds: float) -> None:  # noqa: ARG002 (a metric)
        # Another dictionary: what is being rendered from the last report is kept in the old one.
        self._last, self._kept = report, {}

    def at_once(self, request: Request) -> Response | None:
        """Return the answer unless it has to be rendered."""
        question = self._question(request)
        return question if isinstance(question, Response) else self._find(question)

    def answer(self, request: Request) -> Response:
        """Return the answer. After a sync, the first who asks has it rendered."""
        question = self._question(request)
        if isinstance(question, Response):
            return question
        return self._find(question) or self._render(question)

    def _question(self, request: Request) -> _Question | Response:
        path, _, query = request.target.partition("?")
        if (what := _PRIVATE.get(path)) and self._serves(path) and (refused := _refusal(what, request)):
            return refused
        match path:
            case "/metrics":
                compressed = gzip_accepted(request.accept_encoding)
                return _Question(path, openmetrics=_wants_openmetrics(request.accept), compressed=compressed)
            case "/healthz":
                # The loop's heartbeat only: a restart of the agent repairs neither docker nor the API server.
                return _probe("no sync for too long", ok=self._alive())
            case "/readyz":
                return _probe(_NO_SYNC, ok=self._last is not None)
            case "/" if self._serves(path):
                return _Question(path, alive=self._alive(), refreshing="refresh=off" not in query.split("&"))
            case "/api/v1/report" | "/api/v1/status" if self._serves(path):
                return _Question(path)
            case _:
                return text_response(HTTPStatus.NOT_FOUND, f"not found: {', '.join(LINKS)}")

    def _serves(self, path: str) -> bool:
        return {"/": self._page, "/api/v1/status": self._status}.get(path, True) is not None

    def _find(self, question: _Question) -> Response | None:
        until, answer = self._kept.get(question, (-inf, None))
        return answer if self._clock() < until else None

    def _render(self, question: _Question) -> Response:
        kept = self._kept
        answer, seconds = self._rendered(question)
        if answer.status is HTTPStatus.OK:
            kept[question] = self._clock() + seconds, answer
        return answer

    def _rendered(self, question: _Question) -> tuple[Response, float]:
        """Return an answer, and for how many seconds it holds without a sync."""
        if question.path == "/metrics":
            return self._metrics(question), METRICS_SECONDS
        if question.path == "/api/v1/status" and self._status:
            return _json(self._status.document()), STATUS_SECONDS
        if question.path == "/" and self._page:
            return self._view(self._page, question), inf
        return _json(scan_document(self._last) if self._last else None), inf

    def _metrics(self, question: _Question) -> Response:
        encode, content_type = _ENCODERS[question.openmetrics]
        body = encode(self._registry)
        if not question.compressed:
            return Response(HTTPStatus.OK, content_type, body)
        return Response(HTTPStatus.OK, content_type, gzip.compress(body), (("Content-Encoding", "gzip"),))

    def _view(self, page: Page, question: _Question) -> Response:
        report, refreshing = self._last, question.refreshing
        body = page.render(report, alive=question.alive, refreshing=refreshing)
        return Response(HTTPStatus.OK, _HTML, body, page.headers(report, refreshing=refreshing))


def _wants_openmetrics(accept: str) -> bool:
    try:
        return "openmetrics" in choose_encoder(accept)[1]
    except (TypeError, ValueError):  # a version that is not a number
        return False


def _json(document: dict[str, Any] | None) -> Response:
    """Answer with a document; None: there is no report yet."""
    if document is None:
        return text_response(HTTPStatus.SERVICE_UNAVAILABLE, _NO_SYNC)
    return Response(HTTPStatus.OK, _JSON, json.dumps(document).encode())


def _probe(why_not: str, *, ok: bool) -> Response:
    return text_response(HTTPStatus.OK, "ok") if ok else text_response(HTTPStatus.SERVICE_UNAVAILABLE, why_not)


def _refusal(what: str, request: Request) -> Response | None:
    """Refuse other machines, and host names: anybody can point a name at this machine (DNS rebinding)."""
    if not is_loopback(request.client):
        return text_response(
            HTTPStatus.FORBIDDEN, f"the {what} names pods and addresses: only this machine may read it"
        )
    if not _is_ours(request.host):
        return text_response(
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
