"""Messages over the real transport, to a fake API server that refuses, hangs, or forgets."""

import threading
from datetime import timedelta
from functools import partial
from http import HTTPStatus
from http.server import HTTPServer

from tenacity import RetryCallState, wait_fixed
from tenacity.wait import wait_base

from agent.sources.kube.retries import backoff
from tests.builders import node
from tests.fakes.serving import Handler, Threads, serving
from tests.kube_events.agent import Agent, Store, no, started
from tests.kube_events.syncs import leak
from tests.wire import (
    HTML,
    Answer,
    Answers,
    FakeServer,
    KeepAliveServer,
    Request,
    established,
    hang,
    http,
    kubeconfig,
    refusing_port,
    until,
)

EVENTS = "/api/v1/namespaces/default/events"
LATER = timedelta(minutes=5)


def test_an_event_is_created_then_patched_by_every_process_and_created_again_once_expired() -> None:
    store = Store()
    with FakeServer(store) as server:
        with started(server.url) as before:
            before.deliver(leak(2))
            assert before.sent() == 1
            before.deliver(leak(2), later=timedelta(minutes=1))
            before.deliver(leak(2), leak(3), later=LATER)
            assert before.sent() == 2
            assert server.requests[0].headers["user-agent"] == "nodeleak"
            ((name, event),) = store.events.items()
            assert name.startswith(f"{EVENTS}/worker-1.nodeleak.")
            assert (event["count"], event["message"]) == (
                2, "2 findings in kubenet: 10.244.1.2 leaked | 10.244.1.3 leaked"
            )  # fmt: skip
            assert (event["firstTimestamp"], event["lastTimestamp"]) == (
                "2026-03-26T20:00:00Z",
                "2026-03-26T20:05:00Z",
            )
        with started(server.url) as after:
            after.deliver(leak(3), later=LATER * 2)
            (event,) = store.events.values()
            assert (event["count"], event["message"]) == (2, "10.244.1.3 leaked")
            after.deliver(leak(3), later=LATER * 3)
            (event,) = store.events.values()
            assert (event["count"], event["lastTimestamp"]) == (3, "2026-03-26T20:15:00Z")
            store.events.clear()
            after.deliver(leak(3), later=LATER * 4)
            (event,) = store.events.values()
            assert (event["count"], event["firstTimestamp"]) == (1, "2026-03-26T20:20:00Z")
            assert after.sent() == 3
        assert [request.method for request in server.requests] == [
            "POST",
            "PATCH",
            "POST",
            *["PATCH"] * 3,
            "POST",
        ]
    assert before.dropped == after.dropped == {}


def test_a_refusal_is_logged_once_and_counted_each_time_and_credentials_are_read_again() -> None:
    store = Store()

    def for_the_new_token(request: Request) -> Answer:
        known = request.headers.get("authorization") == "Bearer new"
        return store(request) if known else [no("403 Forbidden", "not for you")]

    with FakeServer(for_the_new_token) as server, started(server.url) as agent:
        for number in range(3):
            agent.deliver(leak(2), later=LATER * number)
            assert agent.dropped == {"refused": number + 1}
        assert agent.warned == [("event", "refused", "API server: 403 not for you")]
        assert agent.sent() == 0
        kubeconfig(agent.credentials, server.url, user="{token: new}")
        agent.deliver(leak(2), later=LATER * 3)
        assert agent.sent() == 1


def test_a_failing_server_is_unreachable_until_it_recovers() -> None:
    store = Store()
    html, cut = http(HTML, kind="text/html"), http("{")[:-1]
    answers = [no("503 Service Unavailable"), html, http("[]"), http("[" * 100_000), cut, b""]
    with FakeServer(lambda _: [answers.pop()]) as server, started(server.url) as agent:
        for number in range(6):
            agent.deliver(leak(2), later=LATER * number)
            assert agent.dropped == {"unreachable": number + 1}
        server.answers = store
        agent.deliver(leak(2), later=LATER * 6)
        assert agent.sent() == len(store.events) == 1
    assert [words[:2] for words in agent.warned] == [
        ("event", "unreachable"),
        ("event", "recovered"),
    ]
    # Without a server or credentials it is unreachable too.
    with refusing_port() as port, started(f"http://127.0.0.1:{port}") as agent:
        agent.deliver(leak(2))
        assert agent.dropped == {"unreachable": 1}
        agent.credentials.unlink()
        agent.deliver(leak(2), later=LATER)
        assert agent.dropped == {"unreachable": 2}


def test_no_sync_waits_for_a_hanging_server_and_excess_messages_are_dropped() -> None:
    with FakeServer(lambda _: hang(server)) as server, started(server.url, timeout=60) as agent:
        many = [leak(2, network=f"n{number}") for number in range(25)]
        for number in range(4):
            agent.export(*many, later=LATER * number)
        until(lambda: agent.dropped.get("queue_full", 0) >= 35, "100 are too many")
        assert agent.dropped.keys() == {"queue_full"}
        assert agent.warned == [("event", "queue_full", "64 messages are waiting")]
        assert len(server.requests) <= 1
        agent.delivery.stop()
        server.closing.set()


def test_a_throttled_request_is_made_once_more_and_then_dropped() -> None:
    for throttled in ("POST", "PATCH"):
        store, busy = Store(), [no("429 Too Many Requests", "slow down")]

        def answers(
            request: Request,
            store: Store = store,
            busy: list[bytes] = busy,
            method: str = throttled,
        ) -> Answer:
            return [busy.pop()] if busy and request.method == method else store(request)

        with FakeServer(answers) as server, started(server.url) as agent:
            for number in range(2):
                agent.deliver(leak(2), later=LATER * number)
            assert agent.sent() == 2
        assert [request.method for request in server.requests] == sorted(
            ["POST", "PATCH", throttled], reverse=True
        )
        assert (agent.dropped, agent.warned, len(store.events)) == ({}, [], 1)
    # One throttled twice is dropped, and stop interrupts the wait.
    always_busy = [no("429 Too Many Requests", "slow down")]
    with FakeServer(lambda _: always_busy) as server, started(server.url) as agent:
        agent.deliver(leak(2))
        assert agent.dropped == {"throttled": 1}
        assert len(server.requests) == 2
    assert agent.warned == [("event", "throttled", "API server: 429 slow down")]
    with (
        FakeServer(lambda _: always_busy) as server,
        started(server.url, wait=wait_fixed(3600.0)) as agent,
    ):
        agent.export(leak(2))
        until(lambda: server.requests, "it is asked")
        agent.delivery.stop()
        agent.thread.join(5)
        assert not agent.thread.is_alive()


def test_the_condition_is_patched_by_the_same_thread_and_counted() -> None:
    answers = [no("403 Forbidden", "not yours"), http("{}")]
    with FakeServer(lambda _: [answers.pop()]) as server, started(server.url) as agent:
        agent.sync(node())
        assert agent.patches("sent") == 1
        agent.sync(node(), after=LATER)
        assert agent.patches("refused") == 1
    assert agent.warned == [("condition", "refused", "API server: 403 not yours")]
    assert agent.dropped == {}


def test_a_failure_is_logged_again_when_it_returns_and_each_kind_recovers_for_itself() -> None:
    """`deliver` also delivers a message about the condition after each Event."""
    store = Store()
    refusal = no("403 Forbidden", "not for you")

    def refuse(_: Request) -> Answer:
        return [refusal]

    with FakeServer(store) as server, started(server.url) as agent:
        given: list[Answers] = [refuse, refuse, store, store, refuse, store]
        for number, answers in enumerate(given):
            server.answers = answers
            agent.deliver(leak(2), later=LATER * number)
    failed = ("event", "refused", "API server: 403 not for you")
    recovered = ("event", "recovered", "")
    assert agent.warned == [failed, recovered, failed, recovered]


class Waits(wait_base):
    """Does not wait, and remembers for how long it should have."""

    def __init__(self) -> None:
        self.asked: list[float] = []

    def __call__(self, retry_state: RetryCallState) -> float:
        self.asked.append(backoff()(retry_state))
        return 0.0


def test_the_waits_after_failures_grow_until_a_message_is_delivered() -> None:
    store, waits = Store(), Waits()
    with FakeServer(lambda _: []) as server, started(server.url, wait=waits) as agent:
        for number in range(9):
            agent.export(leak(2), later=LATER * number)
        until(lambda: agent.dropped == {"unreachable": 9}, "all are dropped")
        server.answers = store
        agent.export(leak(2), later=LATER * 9)
        until(lambda: agent.sent() == 1, "it is delivered")
        server.answers = lambda _: []
        agent.export(leak(2), later=LATER * 10)
        until(lambda: agent.dropped == {"unreachable": 10}, "it is dropped")
    for number, wait in enumerate(waits.asked[:9]):
        shortest = min(0.5 * 2**number, 30)
        assert shortest <= wait <= shortest + 15
    assert waits.asked[9] <= 15.5


def test_a_server_says_when_it_is_to_be_asked_again() -> None:
    for written, seconds in (("1", 1), ("40", 40), ("3600", 120), ("soon", 0)):
        waits = Waits()
        slow = no("429 Too Many Requests", "slow down")
        slow = slow.replace(b"\r\n", f"\r\nRetry-After: {written}\r\n".encode(), 1)
        with FakeServer(always([slow])) as server, started(server.url, wait=waits) as agent:
            agent.deliver(leak(2))
            assert agent.dropped == {"throttled": 1}
        assert all(seconds <= wait <= seconds + 16 for wait in waits.asked)


def always(answer: list[bytes]) -> Answers:
    """Return what gives every request this answer."""
    return lambda _: answer


def test_a_refusal_keeps_the_connection_for_the_other_messages() -> None:
    for status in ("403 Forbidden", "404 Not Found", "422 Unprocessable Entity", "429 no"):
        answers = always([no(status)])
        with KeepAliveServer(answers) as server, started(server.url) as agent:
            agent.export(*(leak(2, network=f"n{number}") for number in range(10)))
            until(partial(all_are_dropped, agent, 10), "all are refused")
        assert len(server.connections) == 1


def all_are_dropped(agent: Agent, count: int) -> bool:
    return sum(agent.dropped.values()) == count


def is_settled(agent: Agent, count: int) -> bool:
    return agent.sent() + sum(agent.dropped.values()) == count


class Dripping:
    """Answers the first request without end, and the others as a store."""

    def __init__(self, start: bytes) -> None:
        self.store = Store()
        self.over = threading.Event()
        self._start = start
        self._begun = threading.Event()

    def __call__(self, request: Request) -> Answer:
        if self._begun.is_set():
            yield from self.store(request)
            return
        self._begun.set()
        yield self._start
        while not self.over.wait(0.05):
            yield b"1"


def test_an_answer_that_never_ends_holds_up_no_other_message() -> None:
    for start in (
        b"HTTP/1.1 201 Created\r\nX-Slow: ",
        http("[" * 999, "500 no")[:-900],
        http("[" * 999)[:-900],
    ):
        answers = Dripping(start)
        with FakeServer(answers) as server, started(server.url, timeout=0.2) as agent:
            agent.export(leak(2))
            until(partial(all_are_dropped, agent, 1), "it is given up")
            answers.over.set()
            agent.export(leak(3), later=LATER)
            until(partial(is_settled, agent, 2), "it goes on")


class KeepAlive(Handler):
    """Creates whatever it is given, and leaves the connection open, as an API server does."""

    def do_POST(self) -> None:
        self.send(self.rfile.read(int(self.headers["Content-Length"])), status=HTTPStatus.CREATED)


class CreatingServer(Threads, HTTPServer): ...


def test_one_connection_serves_a_burst_and_is_closed_afterwards() -> None:
    server = CreatingServer(("127.0.0.1", 0), KeepAlive)
    port = server.server_address[1]
    with serving(server), started(f"http://127.0.0.1:{port}") as agent:
        agent.deliver(*(leak(2, network=f"n{number}") for number in range(20)))
        assert agent.sent() == 20
        assert len(established(port)) <= 1
        until(lambda: not established(port), "the connection is closed")
        agent.deliver(leak(3), later=LATER)
        assert agent.sent() == 21
