"""Clients and a system that misbehave end their own connection: never the server, never the agent."""

import errno
import http.client
import json
import os
import resource
import socket
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from subprocess import PIPE
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from agent.app.loop import clock
from agent.exporters.web.connections import Server as Listener
from tests.builders import node, reservation, scanned
from tests.cli.commands import running
from tests.exporters.served import Server, serving
from tests.exporters.web import attacks
from tests.network import BRIDGE4, network
from tests.wire import until

LEAKING = scanned(node(reservation("10.244.1.9")))
LIMIT = 1.0
"""Seconds that a connection may last in the short tests: also one that must be answered."""


@pytest.fixture(autouse=True)
def _no_thread_fails(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """In the daemon, each thread that fails ends the process."""
    failed: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", failed.append)
    yield
    assert [(args.thread.name, args.exc_value) for args in failed] == []


class Gate(Collector):
    """Metrics that are rendered when the gate is opened."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.opened = threading.Event()

    def collect(self) -> Iterable[Metric]:
        self.entered.set()
        self.opened.wait(30)
        return []


@contextmanager
def gated(tmp_path: Path, seconds: float = LIMIT) -> Iterator[tuple[Server, Gate]]:
    gate = Gate()
    gate.opened.set()  # the registry asks for the names of the metrics
    registry = CollectorRegistry()
    registry.register(gate)
    gate.opened.clear()
    gate.entered.clear()
    with serving(tmp_path, registry, seconds=seconds) as server:
        server.export(LEAKING, 0.1)
        try:
            yield server, gate
        finally:
            gate.opened.set()


def connection(server: Server) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=10)


def answers(server: Server) -> bool:
    try:
        return server.ask("/healthz").status == 200
    except (OSError, http.client.HTTPException):
        return False


def test_an_answer_that_takes_longer_than_the_limit_ends_its_connection_only(
    tmp_path: Path,
) -> None:
    with gated(tmp_path) as (server, gate):
        with connection(server) as slow:
            slow.sendall(attacks.REQUEST)
            gate.entered.wait(20)
            assert slow.recv(1) == b"", "the server has ended it"
            until(lambda: answers(server), "it answers")
        gate.opened.set()
        assert server.ask("/metrics").status == 200


def test_a_client_that_resets_while_its_answer_waits_ends_its_connection_only(
    tmp_path: Path,
) -> None:
    """A full request at the limit, then a reset: the time limit finds a socket that is dead."""
    with gated(tmp_path) as (server, gate):
        for _ in range(8):
            client = connection(server)
            client.sendall(attacks.REQUEST)
            gate.entered.wait(20)
            attacks.reset(client)
        with connection(server) as late:
            assert late.recv(1) == b"", "the limit has passed, and the loop goes on"
        until(lambda: answers(server), "it answers")
        gate.opened.set()
        assert server.ask("/metrics").status == 200


def test_requests_that_wait_for_a_document_give_up_and_the_others_go_on(tmp_path: Path) -> None:
    with gated(tmp_path, seconds=2.0) as (server, gate):
        first = connection(server)
        first.sendall(attacks.REQUEST)
        gate.entered.wait(20)
        second = connection(server)
        second.sendall(attacks.REQUEST)
        for path in ("/", "/api/v1/report", "/api/v1/status", "/healthz", "/readyz"):
            assert server.ask(path).status == 200
        for client in (first, second):
            received = client.recv(100)
            assert received == b"" or b" 503 " in received
            client.close()


def test_a_reset_at_each_point_of_request_and_answer_is_survived_and_leaves_nothing(
    tmp_path: Path,
) -> None:
    with serving(tmp_path, seconds=LIMIT) as server:
        server.export(LEAKING, 0.1)
        until(lambda: answers(server), "it answers")
        before = attacks.descriptors()
        length = len(server.ask("/metrics").text) + 500
        attacks.reset_everywhere(lambda: connection(server), length, step=3)
        for _ in range(8):
            attacks.half_closed(lambda: connection(server))
        idle = attacks.not_reading(lambda: connection(server), 8)
        until(lambda: answers(server), "it answers")
        for client in idle:
            client.close()
        until(lambda: attacks.descriptors() <= before, "every connection is closed")
        assert server.logged == []


def test_a_thousand_connections_are_refused_or_answered(tmp_path: Path) -> None:
    with serving(tmp_path, seconds=LIMIT) as server:
        assert attacks.many(lambda: connection(server), 1000) == 1000
        until(lambda: answers(server), "it answers again")
        assert server.logged == []


@contextmanager
def no_descriptors() -> Iterator[None]:
    """Leave no descriptor to this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, hard))
    taken: list[int] = []
    try:
        with suppress(OSError):
            while True:
                taken.append(os.dup(0))
        yield
    finally:
        for descriptor in taken:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_without_descriptors_the_loop_neither_ends_nor_spins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Listener.get_request
    failed: list[float] = []

    def timed(listener: Listener) -> tuple[socket.socket, Any]:
        try:
            return real(listener)
        except OSError:
            failed.append(clock())
            raise

    # More than one, because what other tests left may close, and then a descriptor is free.
    with serving(tmp_path) as server, ExitStack() as stack:
        clients = [stack.enter_context(socket.socket()) for _ in range(20)]
        assert answers(server)
        monkeypatch.setattr(Listener, "get_request", timed)
        with no_descriptors():
            for client in clients:
                client.connect(("127.0.0.1", server.port))
            until(lambda: server.events("http.refused"), "it is logged")
            until(lambda: len(failed) > 5, "it tries again")
            assert failed[5] - failed[0] >= 0.4, "a loop that spins needs microseconds"
        until(lambda: answers(server), "it answers again")
        (line,) = server.events("http.refused")
        assert line["why"] == "cannot accept: too many open files"


@pytest.mark.parametrize("method", ["service_actions", "get_request"])
def test_a_fault_of_the_loop_is_reported_and_the_loop_begins_again(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors = [ValueError("a bug"), ValueError("a bug")]
    real = getattr(Listener, method)
    with serving(tmp_path) as server:

        def fail_twice(listener: Listener) -> Any:
            if errors and listener.server_port == server.port:
                raise errors.pop()
            return real(listener)

        monkeypatch.setattr(Listener, method, fail_twice)
        with connection(server), connection(server):
            until(lambda: not errors, "the loop has failed twice")
        counted = 'nodeleak_internal_errors_total{part="http"} 2.0'
        until(lambda: counted in server.ask("/metrics").text, "both are counted")
        (line,) = server.events("internal_error")
        described = (line["part"], line["name"], line["error"])
        assert described == ("http", "server", "ValueError: a bug")


def test_threads_that_cannot_start_refuse_connections(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(tmp_path) as server:
        assert answers(server)
        start = threading.Thread.start

        def fail(_: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        monkeypatch.setattr(threading.Thread, "start", fail)
        for _ in range(40):  # more than have a place
            with connection(server) as refused:
                assert refused.recv(1) == b""
        monkeypatch.setattr(threading.Thread, "start", start)
        assert answers(server)
        (line,) = server.events("http.refused")
        assert line["why"] == "cannot start a thread: can't start new thread"


def test_a_socket_that_is_dead_when_it_is_accepted_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Listener.get_request

    class Dead(socket.socket):
        def getsockname(self) -> Any:
            raise OSError(errno.ENOTCONN, os.strerror(errno.ENOTCONN))

    def get_request(self: Listener) -> tuple[socket.socket, Any]:
        accepted, address = real(self)
        return Dead(fileno=accepted.detach()), address

    with serving(tmp_path) as server:
        monkeypatch.setattr(Listener, "get_request", get_request)
        with connection(server) as refused:
            assert refused.recv(1) == b""
        monkeypatch.setattr(Listener, "get_request", real)
        assert answers(server)
        assert server.logged == []


STRESS = Path(__file__).parents[2] / "stress"


@pytest.mark.proof
def test_a_daemon_survives_another_machine_for_a_minute(tmp_path: Path) -> None:
    """The real limit of 15 s; meanwhile, another client reads the metrics."""
    elsewhere = [
        f"--{name}={tmp_path}/{name}"
        for name in ("cni-networks-dir", "cni-cache-dir", "state-dir", "proc")
    ]
    with (
        network() as net,
        running("--api=off", "--listen=:9747", *elsewhere, prefix=net.enter()) as agent,
    ):
        net.pod("attacker", 2)
        net.pod("prometheus", 3)
        agent.log_event("agent.started")

        def run_in(pod: str, program: str, *arguments: str) -> subprocess.Popen[str]:
            python = (sys.executable, str(STRESS / program), BRIDGE4, "9747", *arguments)
            command = net.enter("ip", "netns", "exec", pod, *python)
            return subprocess.Popen(command, stdin=PIPE, stdout=PIPE, text=True)  # noqa: S603

        with (
            run_in("attacker", "attack.py", "60", "10.244.1.2") as attack,
            run_in("prometheus", "scrapes.py") as scrapes,
        ):
            made, _ = attack.communicate()
            out, _ = scrapes.communicate("\n")
        assert int(made) > 100
        scraped = json.loads(out)
        assert scraped["failed"] == []
        assert scraped["answered"] > 20
        assert agent.process.poll() is None
        assert agent.end() == 0
        assert [line for line in agent.events if line["event"] == "internal_error"] == []
