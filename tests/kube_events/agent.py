"""A running delivery queue with the exporters that fill it, and the part of an API server that keeps what they send."""

import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from prometheus_client import CollectorRegistry
from tenacity import wait_fixed

from agent.exporters.deliveries import DeliveryMetrics
from agent.kube_events.condition import ConditionExporter
from agent.kube_events.delivery import DeliveryQueue, Kind, Message
from agent.kube_events.events import EventExporter
from agent.kube_events.writer import Writer
from agent.model.finding import Finding
from agent.model.report import Report
from agent.model.snapshot import Snapshot
from agent.sources.kube.retries import Wait
from tests.kube_events.syncs import INTERVAL, Syncs, confirmed
from tests.wire import Answer, FakeServer, Request, http, kubeconfig


def no(status: str, text: str = "no") -> bytes:
    """Return an error as an API server does."""
    return http(json.dumps({"kind": "Status", "status": "Failure", "message": text}), status)


_SHORT = wait_fixed(0.05)


class Store:
    """Creates the Events that are not there, patches those that are, and keeps the conditions of the node."""

    def __init__(self) -> None:
        self.events: dict[str, dict[str, Any]] = {}
        self.sent: list[
            dict[str, Any]
        ] = []  # The Event that each request was about, as it was afterwards
        self.conditions: list[dict[str, Any]] = []

    def __call__(self, request: Request) -> Answer:
        body = json.loads(request.body)
        if request.method == "POST":
            assert request.headers["content-type"] == "application/json"
            path = f"{request.path}/{body['metadata']['name']}"
            if path in self.events:
                return [no("409 Conflict", "already exists")]
            return self._keep(path, body, "201 Created")
        assert request.method == "PATCH"
        assert request.headers["content-type"] == "application/strategic-merge-patch+json"
        if request.path == "/api/v1/nodes/worker-1/status":
            self.conditions += body["status"]["conditions"]
            return [http("{}")]
        if request.path not in self.events:
            return [no("404 Not Found", "not found")]
        return self._keep(request.path, self.events[request.path] | body, "200 OK")

    def _keep(self, path: str, event: dict[str, Any], status: str) -> Answer:
        self.events[path] = event
        self.sent.append(event)
        return [http(json.dumps(event), status)]


class Agent:
    """Exports reports, and says what became of the messages."""

    def __init__(self, credentials: Path, timeout: float, wait: Wait, store: Store) -> None:
        self.credentials, self.store = credentials, store
        self.registry = CollectorRegistry()
        self.warned: list[tuple[str, str, str]] = []
        self.delivery = DeliveryQueue(
            Writer(credentials, timeout),
            DeliveryMetrics(self.registry),
            lambda *words: self.warned.append(words),
            lambda what: self.warned.append((what, "recovered", "")),
            wait,
        )
        self._events, self._condition = (
            EventExporter(self.delivery),
            ConditionExporter(self.delivery),
        )
        self._syncs = Syncs()
        self.thread = threading.Thread(target=self.delivery.run)

    def export(self, *findings: Finding, later: timedelta = timedelta(0)) -> None:
        """Export these confirmed findings, and wait for nothing."""
        self._events.export(confirmed(*findings, later=later), 0.1)

    def deliver(self, *findings: Finding, later: timedelta = timedelta(0)) -> list[dict[str, Any]]:
        """Export these confirmed findings, and return the Events that the store creates or patches for them."""
        return self.events_of(confirmed(*findings, later=later))

    def events_of(self, report: Report) -> list[dict[str, Any]]:
        before = len(self.store.sent)
        self._events.export(report, 0.1)
        self._settle(Kind.CONDITION)
        return self.store.sent[before:]

    def sync(self, *snapshots: Snapshot, after: timedelta = INTERVAL) -> list[dict[str, Any]]:
        """Sync with each, and return the conditions that the store is sent."""
        before = len(self.store.conditions)
        for snapshot in snapshots:
            self._condition.export(self._syncs.report(snapshot, after), 0.1)
        self._settle(Kind.EVENT)
        return self.store.conditions[before:]

    def _settle(self, other: Kind) -> None:
        """Wait until everything was delivered, by a message of the kind that is not looked at."""
        delivered = threading.Event()
        self.delivery.put(Message(other, "Settled", lambda _: delivered.set()))
        assert delivered.wait(30)

    def sent(self, reason: str = "LeakedReservation") -> float:
        return self.registry.get_sample_value("nodeleak_events_sent_total", {"reason": reason}) or 0

    @property
    def dropped(self) -> dict[str, float]:
        found: Counter[str] = Counter()
        for family in self.registry.collect():
            for sample in family.samples:
                if sample.name == "nodeleak_events_dropped_total" and sample.value:
                    found[sample.labels["cause"]] += int(sample.value)
        return dict(found)

    def patches(self, result: str) -> float | None:
        return self.registry.get_sample_value(
            "nodeleak_node_condition_patches_total", {"result": result}
        )


@contextmanager
def started(
    url: str, timeout: float = 5.0, wait: Wait = _SHORT, store: Store | None = None
) -> Iterator[Agent]:
    with TemporaryDirectory() as directory:
        credentials = kubeconfig(Path(directory) / "kubeconfig", url)
        agent = Agent(credentials, timeout, wait, store or Store())
        agent.thread.start()
        try:
            yield agent
        finally:
            agent.delivery.stop()
            agent.thread.join(10)
            assert not agent.thread.is_alive()


@contextmanager
def stored() -> Iterator[Agent]:
    """An agent that sends to a store."""
    store = Store()
    with FakeServer(store) as server, started(server.url, store=store) as agent:
        yield agent
