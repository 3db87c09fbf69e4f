"""Messages over the real transport, to a fake API server that refuses, hangs, or forgets."""

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from http import HTTPStatus
from http.server import HTTPServer
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from agent.kube_events.condition import ConditionExporter
from agent.kube_events.delivery import DeliveryMetrics, DeliveryQueue
from agent.kube_events.events import EventExporter
from agent.kube_events.writer import Writer
from agent.model.finding import Finding
from tests.builders import node
from tests.fakes.serving import Handler, Threads, serving
from tests.kube_events.syncs import Syncs, confirmed, leak
from tests.wire import HTML, Answer, FakeServer, Request, established, hang, http, kubeconfig, refusing_port, until

EVENTS = "/api/v1/namespaces/default/events"
LATER = timedelta(minutes=5)


def no(status: str, text: str = "no") -> bytes:
    """Return an error as an API server does."""
    return http(json.dumps({"kind": "Status", "status": "Failure", "message": text}), status)


class Store:
    """The part of an API server that keeps Events: creates what is not there, patches what is."""

    def __init__(self) -> None:
        self.events: dict[str, dict[str, Any]] = {}

    def __call__(self, request: Request) -> Answer:
        body = json.loads(request.body)
        if request.method == "POST":
            assert request.headers["content-type"] == "application/json"
            name = f"{request.path}/{body['metadata']['name']}"
            if name in self.events:
                return [no("409 Conflict", "already exists")]
            self.events[name] = body
            return [http(json.dumps(body), "201 Created")]
        assert request.method == "PATCH"
        assert request.headers["content-type"] == "application/strategic-merge-patch+json"
        if request.path not in self.events:
            return [no("404 Not Found", "not found")]
        self.events[request.path] |= body
        return [http(json.dumps(self.events[request.path]))]


class Agent:
    """A running delivery queue, the exporters that fill it, and the results."""

    def __init__(self, credentials: Path, timeout: float, retry_after: float) -> None:
        self.registry = CollectorRegistry()
        self.warned: list[tuple[str, str, str]] = []
        self.delivery = DeliveryQueue(
            Writer(credentials, timeout),
            DeliveryMetrics(self.registry),
            lambda *words: self.warned.append(words),
            retry_after,
        )
        self.events = EventExporter(self.delivery)
        self.condition = ConditionExporter(self.delivery)
        self.thread = threading.Thread(target=self.delivery.run)

    def export(self, *findings: Finding, later: timedelta = timedelta(0)) -> None:
        self.events.export(confirmed(*findings, later=later), 0.1)

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
        return self.registry.get_sample_value("nodeleak_node_condition_patches_total", {"result": result})


Start = Callable[..., Any]


@pytest.fixture(name="start")
def fixture_start(tmp_path: Path) -> Start:
    @contextmanager
    def start(url: str, timeout: float = 5.0, retry_after: float = 0.1) -> Iterator[Agent]:
        agent = Agent(kubeconfig(tmp_path / "kubeconfig", url), timeout, retry_after)
        agent.thread.start()
        try:
            yield agent
        finally:
            agent.delivery.stop()
            agent.thread.join(10)
            assert not agent.thread.is_alive()

    return start


def methods(server: FakeServer) -> list[str]:
    return [request.method for request in server.requests]


def test_an_event_is_created_and_then_patched_and_there_is_one(start: Start) -> None:
    store = Store()
    with FakeServer(store) as server, start(server.url) as agent:
        agent.export(leak(2))
        until(lambda: agent.sent() == 1, "it is created")
        agent.export(leak(2), later=timedelta(minutes=1))
        agent.export(leak(2), leak(3), later=LATER)
        until(lambda: agent.sent() == 2, "it is patched")
        assert methods(server) == ["POST", "PATCH"]
        assert server.requests[0].headers["user-agent"] == "nodeleak"
    ((name, event),) = store.events.items()
    assert name.startswith(f"{EVENTS}/worker-1.nodeleak.")
    assert (event["count"], event["message"]) == (2, "2 findings in kubenet: 10.244.1.2 leaked | 10.244.1.3 leaked")
    assert (event["firstTimestamp"], event["lastTimestamp"]) == ("2026-03-26T20:00:00Z", "2026-03-26T20:05:00Z")
    assert agent.dropped == {}


def test_a_restarted_agent_patches_the_existing_event(start: Start) -> None:
    store = Store()
    with FakeServer(store) as server:
        with start(server.url) as before:
            before.export(leak(2))
            before.export(leak(2), later=LATER)
            until(lambda: before.sent() == 2, "it was sent twice")
        with start(server.url) as after:
            after.export(leak(3), later=LATER * 2)
            until(lambda: after.sent() == 1, "it was met")
            (event,) = store.events.values()
            assert (event["count"], event["message"]) == (2, "10.244.1.3 leaked")
            after.export(leak(3), later=LATER * 3)
            until(lambda: after.sent() == 2, "it was sent again")
        assert methods(server) == ["POST", "PATCH", "POST", "PATCH", "PATCH"]
    (event,) = store.events.values()
    assert (event["count"], event["lastTimestamp"]) == (3, "2026-03-26T20:15:00Z")


def test_an_expired_event_is_created_again(start: Start) -> None:
    store = Store()
    with FakeServer(store) as server, start(server.url) as agent:
        agent.export(leak(2))
        until(lambda: agent.sent() == 1, "it is created")
        store.events.clear()
        agent.export(leak(2), later=LATER)
        until(lambda: agent.sent() == 2, "it is created anew")
        assert methods(server) == ["POST", "PATCH", "POST"]
    (event,) = store.events.values()
    assert (event["count"], event["firstTimestamp"]) == (1, "2026-03-26T20:05:00Z")


def test_pods_have_events_in_their_namespaces(start: Start) -> None:
    store = Store()
    refused = Finding("unreserved_pod_ip", "10.244.1.2", "not reserved", identity=("uid of shop/web",))
    with FakeServer(store) as server, start(server.url) as agent:
        agent.export(refused)
        until(lambda: agent.sent("UnreservedPodIp") == 2, "both are sent")
    about = [event["involvedObject"] for event in store.events.values()]
    assert [(subject["kind"], subject.get("namespace")) for subject in about] == [("Node", None), ("Pod", "shop")]


def test_a_refusal_is_logged_once_and_counted_each_time(start: Start) -> None:
    with FakeServer(lambda _: [no("403 Forbidden", "not for you")]) as server, start(server.url) as agent:
        for number in range(3):
            agent.export(leak(2), later=LATER * number)
            expected = {"refused": number + 1}
            until(lambda: agent.dropped == expected, "it is counted")  # noqa: B023 (called at once)
    assert agent.warned == [("event", "refused", "API server: 403 not for you")]
    assert agent.sent() == 0


def test_a_failing_server_is_unreachable_until_it_recovers(start: Start) -> None:
    store = Store()
    html, cut = http(HTML, kind="text/html"), http("{")[:-1]
    answers = [no("503 Service Unavailable"), html, http("[]"), http("[" * 100_000), cut, b""]
    with FakeServer(lambda _: [answers.pop()]) as server, start(server.url) as agent:
        for number in range(6):
            agent.export(leak(2), later=LATER * number)
            until(lambda: agent.dropped == {"unreachable": number + 1}, "it is counted")  # noqa: B023 (called at once)
        server.answers = store
        agent.export(leak(2), later=LATER * 6)
        until(lambda: agent.sent() == 1, "it is sent")
    assert [words[:2] for words in agent.warned] == [("event", "unreachable")]
    assert len(store.events) == 1


def test_without_a_server_or_credentials_it_is_unreachable_too(tmp_path: Path, start: Start) -> None:
    with refusing_port() as port, start(f"http://127.0.0.1:{port}") as agent:
        agent.export(leak(2))
        until(lambda: agent.dropped == {"unreachable": 1}, "it is counted")
        (tmp_path / "kubeconfig").unlink()
        agent.export(leak(2), later=LATER)
        until(lambda: agent.dropped == {"unreachable": 2}, "it is counted")


def test_no_sync_waits_for_a_hanging_server_and_excess_messages_are_dropped(start: Start) -> None:
    with FakeServer(lambda _: hang(server)) as server, start(server.url, timeout=60) as agent:
        many = [leak(2, network=f"n{number}") for number in range(25)]
        started = time.perf_counter()
        for number in range(4):
            agent.export(*many, later=LATER * number)
        assert time.perf_counter() - started < 30
        until(lambda: agent.dropped.get("queue_full", 0) >= 35, "100 are too many")
        assert agent.dropped.keys() == {"queue_full"}
        assert agent.warned == [("event", "queue_full", "64 messages are waiting")]
        assert len(server.requests) <= 1
        agent.delivery.stop()
        server.closing.set()


def test_excess_events_are_rate_limited_and_not_sent(start: Start) -> None:
    with FakeServer(Store()) as server, start(server.url) as agent:
        agent.export(*(leak(2, network=f"n{number}") for number in range(200)))
        until(lambda: agent.sent() == 25, "the burst is sent")
        assert agent.dropped == {"rate_limited": 175}
        agent.export(*(leak(2, network=f"n{number}") for number in range(200)), later=timedelta(minutes=1))
        until(lambda: agent.sent() == 30, "and five in the next minute")
        assert agent.dropped == {"rate_limited": 175}
    assert len(server.requests) == 30


@pytest.mark.parametrize("throttled", ["POST", "PATCH"])
def test_a_throttled_request_is_made_once_more(start: Start, throttled: str) -> None:
    store, busy = Store(), [no("429 Too Many Requests", "slow down")]
    with (
        FakeServer(lambda request: [busy.pop()] if busy and request.method == throttled else store(request)) as server,
        start(server.url) as agent,
    ):
        for number in range(2):
            agent.export(leak(2), later=LATER * number)
            until(lambda: agent.sent() == number + 1, "it is sent")  # noqa: B023 (called at once)
    assert methods(server) == sorted(["POST", "PATCH", throttled], reverse=True)
    assert (agent.dropped, agent.warned, len(store.events)) == ({}, [], 1)


def test_a_request_throttled_twice_is_dropped(start: Start) -> None:
    with FakeServer(lambda _: [no("429 Too Many Requests", "slow down")]) as server, start(server.url) as agent:
        agent.export(leak(2))
        until(lambda: agent.dropped == {"throttled": 1}, "it is counted")
    assert len(server.requests) == 2
    assert agent.warned == [("event", "throttled", "API server: 429 slow down")]


def test_stop_interrupts_the_wait_for_a_throttled_server(start: Start) -> None:
    with (
        FakeServer(lambda _: [no("429 Too Many Requests", "slow down")]) as server,
        start(server.url, retry_after=3600.0) as agent,
    ):
        agent.export(leak(2))
        until(lambda: server.requests, "it is asked")
        agent.delivery.stop()
        agent.thread.join(5)
        assert not agent.thread.is_alive()


def test_the_condition_is_patched_by_the_same_thread_and_counted(start: Start) -> None:
    answers = [no("403 Forbidden", "not yours"), http("{}")]
    with FakeServer(lambda _: [answers.pop()]) as server, start(server.url) as agent:
        syncs = Syncs()
        agent.condition.export(syncs.report(node()), 0.1)
        until(lambda: agent.patches("sent") == 1, "it is patched")
        agent.condition.export(syncs.report(node(), LATER), 0.1)
        until(lambda: agent.patches("refused") == 1, "it is refused")
        request, _ = server.requests
    assert (request.method, request.target) == ("PATCH", "/api/v1/nodes/worker-1/status")
    assert request.headers["content-type"] == "application/strategic-merge-patch+json"
    (condition,) = json.loads(request.body)["status"]["conditions"]
    assert (condition["type"], condition["status"]) == ("CNIAddressPressure", "False")
    assert agent.warned == [("condition", "refused", "API server: 403 not yours")]
    assert agent.dropped == {}


def test_credentials_are_read_again_after_a_refusal(tmp_path: Path, start: Start) -> None:
    store = Store()

    def for_the_new_token(request: Request) -> Answer:
        return store(request) if request.headers.get("authorization") == "Bearer new" else [no("401 Unauthorized")]

    with FakeServer(for_the_new_token) as server, start(server.url) as agent:
        agent.export(leak(2))
        until(lambda: agent.dropped == {"refused": 1}, "the old credentials are refused")
        kubeconfig(tmp_path / "kubeconfig", server.url, user="{token: new}")
        agent.export(leak(2), later=LATER)
        until(lambda: agent.sent() == 1, "it is sent with the new ones")


class KeepAlive(Handler):
    """Creates whatever it is given, and leaves the connection open, as an API server does."""

    def do_POST(self) -> None:
        self.send(self.rfile.read(int(self.headers["Content-Length"])), status=HTTPStatus.CREATED)


class KeepAliveServer(Threads, HTTPServer): ...


def test_one_connection_serves_a_burst_and_is_closed_afterwards(start: Start) -> None:
    server = KeepAliveServer(("127.0.0.1", 0), KeepAlive)
    port = server.server_address[1]
    with serving(server), start(f"http://127.0.0.1:{port}") as agent:
        agent.export(*(leak(2, network=f"n{number}") for number in range(20)))
        until(lambda: agent.sent() == 20, "the burst is sent")
        assert len(established(port)) <= 1
        until(lambda: not established(port), "the connection is closed")
        agent.export(leak(3), later=LATER)
        until(lambda: agent.sent() == 21, "the next one has a connection again")
