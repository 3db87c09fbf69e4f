"""The daemon's own HTTP server, with the reports of a test."""

import http.client
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import structlog
from prometheus_client import CollectorRegistry

from agent.app.loop import Heartbeat
from agent.app.port import documents, http_exporter
from agent.config import load
from agent.exporters.bugs import BugReporter
from agent.exporters.json.scan import status_document
from agent.exporters.web.connections import CONNECTION_SECONDS
from agent.exporters.web.server import CleanupFacts
from agent.model.report import Report

CLEANUP = {
    "mode": "auto",
    "networks": ["kubenet"],
    "release_possible": None,
    "why_not": ["it is not known"],
    "brake": "off",
}


@dataclass(frozen=True)
class Response:
    status: int
    headers: dict[str, str]
    text: str


@dataclass(frozen=True)
class Server:
    port: int
    export: Callable[[Report, float], None]
    logged: list[Any]
    """The log lines of the server."""

    def events(self, event: str) -> list[dict[str, Any]]:
        return [line for line in self.logged if line["event"] == event]

    def ask(self, path: str, method: str = "GET", host: str = "127.0.0.1") -> Response:
        connection = http.client.HTTPConnection(host, self.port, timeout=5)
        connection.request(method, path)
        with connection.getresponse() as answer:
            response = Response(answer.status, dict(answer.headers), answer.read().decode())
        connection.close()
        return response

    def page(self, report: Report) -> str:
        self.export(report, 0.1)
        return self.ask("/").text


def status(report: Report, *, alive: bool = True) -> dict[str, Any]:
    """Return the status of a daemon that syncs every 15 s, and did so 2.5 s ago."""
    return status_document(report, CLEANUP, "0.1.0", age=2.5, interval=15.0, alive=alive)


@contextmanager
def serving(
    state: Path,
    registry: CollectorRegistry | None = None,
    heart: Any = None,
    listen: str = "127.0.0.1:0",
    seconds: float = CONNECTION_SECONDS,
    facts: Callable[[Report], CleanupFacts] | None = None,
    **more: Any,
) -> Iterator[Server]:
    """Serve as the daemon does with this state directory.

    `heart`: one that need not beat. `facts`: what is read in a sync, instead of the journal.
    """
    given = {"listen": listen, "api": "off", "state_dir": str(state), **more}
    registry = registry or CollectorRegistry()
    capture = structlog.testing.LogCapture()
    log = structlog.wrap_logger(None, processors=[capture])
    config = load("run", given, {})
    heart = heart or Heartbeat(timedelta(hours=1))
    bugs = BugReporter(registry, log)
    shown = documents(config, heart, bugs)._replace(
        status=lambda report, _, age: {**status(report, alive=heart.alive), "age": age}
    )
    shown = shown._replace(facts=facts or shown.facts)
    exporter = http_exporter(config, registry, shown, bugs, log, seconds)
    exporter.start()
    try:
        yield Server(exporter.port, exporter.export, capture.entries)
    finally:
        # It takes half a second, which no test has to wait for.
        threading.Thread(target=exporter.close).start()
