"""What clients can take of the server, over real sockets: connections, bytes, seconds, and turns."""

import http.client
import os
import socket
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from http import HTTPStatus
from pathlib import Path
from selectors import EVENT_READ

import pytest

from agent.app import loop
from agent.exporters.web import connections
from agent.exporters.web.connections import (
    MOST_CONNECTIONS,
    MOST_OF_THIS_MACHINE,
    MOST_PER_CLIENT,
    THIS_MACHINE,
    Connections,
    Request,
    Response,
    client_of,
    text_response,
)
from tests.network import Network, network
from tests.wire import until

OK = text_response(HTTPStatus.OK, "ok")
SHARED = Response(HTTPStatus.OK, "text/plain", b"y" * 20_000_000)


class Answerer:
    """Answers /slow when a test allows it, /large with more than the kernel buffers, and anything else at once."""

    def __init__(self) -> None:
        self.asked, self.allowed = threading.Event(), threading.Event()

    def at_once(self, request: Request) -> Response | None:
        if request.target == "/bug":
            raise ZeroDivisionError
        if request.target == "/large":
            return Response(HTTPStatus.OK, "text/plain", b"x" * 20_000_000)
        if request.target == "/shared":
            return SHARED
        return None if request.target == "/slow" else OK

    def answer(self, request: Request) -> Response:
        assert request.target == "/slow"
        self.asked.set()
        self.allowed.wait(30)
        return OK


@pytest.fixture
def answerer() -> Iterator[Answerer]:
    one = Answerer()
    yield one
    one.allowed.set()


@pytest.fixture
def server(answerer: Answerer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Connections]:
    monkeypatch.setattr(connections, "CPU_SHARE", 1.0)  # its own test has the real one
    one = Connections(("", 0), answerer, loop.clock)
    one.start()
    try:
        yield one
    finally:
        one.close()


def ask(port: int, path: str = "/", source: str = "127.0.0.1", timeout: float = 20) -> int:
    """Return the status."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout, source_address=(source, 0))
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    finally:
        connection.close()


@contextmanager
def idle(port: int, sources: Iterable[str]) -> Iterator[list[socket.socket]]:
    """Hold connections that never complete a request."""
    with ExitStack() as stack:
        held = [
            stack.enter_context(socket.create_connection(("127.0.0.1", port), 20, source_address=(one, 0)))
            for one in sources
        ]
        for one in held:
            one.sendall(b"GET / HT")
        yield held


def is_closed(one: socket.socket) -> bool:
    one.setblocking(False)
    try:
        return one.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


def test_the_oldest_idle_connections_of_a_client_yield(server: Connections) -> None:
    with idle(server.port, ["127.0.0.1"] * 40) as held:
        assert ask(server.port) == 200
        too_many = 41 - MOST_OF_THIS_MACHINE
        until(lambda: sum(map(is_closed, held)) == too_many, "as many as are too many are closed")
        assert [is_closed(one) for one in held] == [True] * too_many + [False] * (40 - too_many)


def test_all_loopback_addresses_are_one_client(server: Connections) -> None:
    with idle(server.port, [f"127.0.0.{n}" for n in range(2, 42)]) as held:
        assert ask(server.port) == 200
        too_many = 41 - MOST_OF_THIS_MACHINE
        until(lambda: sum(map(is_closed, held)) == too_many, "as many as are too many are closed")


def test_a_connection_whose_answer_is_made_does_not_yield_to_an_idle_one(
    server: Connections, answerer: Answerer
) -> None:
    with socket.create_connection(("127.0.0.1", server.port), 20) as waiting:
        waiting.sendall(b"GET /slow HTTP/1.1\r\n\r\n")
        assert answerer.asked.wait(20)
        with idle(server.port, ["127.0.0.1"] * 40):
            assert ask(server.port) == 200
            answerer.allowed.set()
            assert waiting.recv(64).startswith(b"HTTP/1.0 200")


def test_an_answer_that_takes_time_delays_no_other(server: Connections, answerer: Answerer) -> None:
    with socket.create_connection(("127.0.0.1", server.port), 20) as waiting:
        waiting.sendall(b"GET /slow HTTP/1.1\r\n\r\n")
        assert [ask(server.port) for _ in range(20)] == [200] * 20
        assert not is_closed(waiting)
        answerer.allowed.set()
        waiting.settimeout(20)
        assert waiting.recv(64).startswith(b"HTTP/1.0 200")


def test_answers_that_take_too_long_are_given_up(
    server: Connections, answerer: Answerer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "CONNECTION_SECONDS", 0.3)
    before = threading.active_count()
    for _ in range(3):
        with pytest.raises(http.client.RemoteDisconnected):
            ask(server.port, "/slow")
    assert threading.active_count() == before
    answerer.allowed.set()
    monkeypatch.undo()
    assert ask(server.port, "/slow") == 200


def test_questions_of_clients_that_left_are_bounded(server: Connections) -> None:
    for _ in range(6 * MOST_CONNECTIONS):  # some are closed before they are read
        with socket.create_connection(("127.0.0.1", server.port), 20) as one:
            one.sendall(b"GET /slow HTTP/1.1\r\n\r\n")
            assert ask(server.port) == 200
    assert ask(server.port, "/slow") == 503


def test_a_silent_client_is_disconnected(server: Connections, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "REQUEST_SECONDS", 0.2)
    with idle(server.port, ["127.0.0.1"]) as (silent,):
        assert silent.recv(1) == b""


def test_a_client_that_sends_a_byte_at_a_time_is_disconnected(
    server: Connections, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "REQUEST_SECONDS", 0.3)
    pause, sent = threading.Event(), 0
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection, suppress(ConnectionError):
        while sent < connections.REQUEST_BYTES:
            sent += connection.send(b"G")
            pause.wait(0.02)
    assert 0 < sent < 1000


def test_a_client_that_does_not_read_is_disconnected(server: Connections, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "CONNECTION_SECONDS", 0.5)
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
        connection.sendall(b"GET /large HTTP/1.1\r\n\r\n")
        threading.Event().wait(1)
        received = 0
        with suppress(ConnectionError):
            while read := len(connection.recv(1 << 20)):
                received += read
    assert 0 < received < 20_000_000
    assert ask(server.port) == 200


def test_a_large_answer_arrives_whole(server: Connections) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    connection.request("GET", "/large")
    assert len(connection.getresponse().read()) == 20_000_000
    connection.close()


def test_clients_that_do_not_read_share_one_answer(server: Connections) -> None:
    tracemalloc.start()
    try:
        with ExitStack() as stack:
            for _ in range(MOST_PER_CLIENT):
                one = stack.enter_context(socket.create_connection(("127.0.0.1", server.port), 20))
                one.sendall(b"GET /shared HTTP/1.1\r\n\r\n")
                assert one.recv(15) == b"HTTP/1.0 200 OK"
        assert tracemalloc.get_traced_memory()[1] < len(SHARED.body) / 2, "nothing is copied"
    finally:
        tracemalloc.stop()


def test_an_answer_to_head_has_no_body(server: Connections) -> None:
    with socket.create_connection(("127.0.0.1", server.port), 20) as connection:
        connection.sendall(b"HEAD /shared HTTP/1.1\r\n\r\n")
        received = b"".join(iter(lambda: connection.recv(4096), b""))
    assert b"\r\nContent-Length: 20000000\r\n" in received
    assert received.endswith(b"\r\n\r\n")


@pytest.mark.parametrize("request_", [b"GET / HTTP/1.1\n\n", b"GET / HTTP/1.1\nHost: x\n\n", b"GET / HTTP/1.0\r\n\n"])
def test_lines_may_end_without_a_carriage_return(server: Connections, request_: bytes) -> None:
    with socket.create_connection(("127.0.0.1", server.port), 20) as connection:
        connection.sendall(request_)
        assert connection.recv(15) == b"HTTP/1.0 200 OK"


def test_a_request_is_bounded_in_bytes(server: Connections) -> None:
    for size, status in ((connections.REQUEST_BYTES - 100, b"200"), (connections.REQUEST_BYTES, b"431")):
        with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
            connection.sendall(b"GET / HTTP/1.1\r\nCookie: " + b"x" * size)
            if status == b"200":
                connection.sendall(b"\r\n\r\n")
            assert connection.recv(64).split()[1] == status


def test_a_request_in_pieces_is_understood(server: Connections) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
        for piece in (b"GET / HT", b"TP/1.1\r\nHost: x\r", b"\n\r", b"\n"):
            connection.sendall(piece)
            threading.Event().wait(0.05)
        assert connection.recv(64).startswith(b"HTTP/1.0 200")


def test_a_bug_is_printed_and_ends_one_connection(server: Connections, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(http.client.RemoteDisconnected):
        ask(server.port, "/bug")
    assert "ZeroDivisionError" in capfd.readouterr().err
    assert ask(server.port) == 200


def test_requests_stay_within_their_share_of_the_cpu(answerer: Answerer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time on the CPU is counted, so that a slow machine answers less often. Without a burst, it is exact."""
    spent: list[float] = []

    def counted() -> float:
        spent.append(time.thread_time())
        return spent[-1]

    monkeypatch.setattr(connections, "thread_time", counted)
    monkeypatch.setattr(connections, "CPU_BURST", 0.0)
    server = Connections(("127.0.0.1", 0), answerer, loop.clock)
    server.start()
    try:
        began = loop.clock()
        assert [ask(server.port) for _ in range(30)] == [200] * 30
        taken = loop.clock() - began
    finally:
        server.close()
    # The last turn is paid for after its answer.
    assert (spent[-2] - spent[0]) / taken <= 0.02, (
        "with what accepting costs, which is not limited; a busy machine is slower"
    )


BUSY = """
import socket, sys, threading, time
port, request, leaves_after = int(sys.argv[1]), sys.argv[2].encode(), float(sys.argv[3])

def loop():
    while True:
        try:
            with socket.create_connection(("127.0.0.1", port), 5) as one:
                if request:
                    one.sendall(request + b"\\r\\n\\r\\n")
                if leaves_after < 0:
                    one.recv(1 << 20)
                time.sleep(max(0, leaves_after))
        except OSError:
            pass

for _ in range(16):
    threading.Thread(target=loop, daemon=True).start()
print("busy", flush=True)
sys.stdin.read()
"""


@contextmanager
def busy(port: int, request: str, leaves_after: float) -> Iterator[None]:
    """Have 16 threads of another process ask without pause; below 0 seconds, they wait for the answer."""
    command = (sys.executable, "-c", BUSY, str(port), request, str(leaves_after))
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:  # noqa: S603
        try:
            assert child.stdout
            assert child.stdout.readline() == "busy\n"
            yield
        finally:
            child.communicate()


@pytest.fixture
def bounded(answerer: Answerer) -> Iterator[Connections]:
    """Return a server with its real share of the CPU."""
    server = Connections(("127.0.0.1", 0), answerer, loop.clock)
    server.start()
    try:
        yield server
    finally:
        server.close()


@pytest.mark.parametrize(
    ("request_", "leaves_after"), [("GET /healthz HTTP/1.0", -1), ("GET /page HTTP/1.0", -1), ("GET / HTTP/1.0", 0.05)]
)
def test_a_probe_is_answered_whatever_this_machine_asks_without_pause(
    bounded: Connections, request_: str, leaves_after: float
) -> None:
    with busy(bounded.port, request_, leaves_after):
        threading.Event().wait(1)
        assert [ask(bounded.port, "/healthz") for _ in range(6)] == [200] * 6


def test_who_has_left_yields_before_an_idle_connection(bounded: Connections) -> None:
    def connection(*, left: bool) -> connections._Connection:
        ours, theirs = (stack.enter_context(one) for one in tcp_pair())
        bounded._selector.register(ours, EVENT_READ)  # noqa: SLF001
        if left:
            theirs.close()
            until(lambda: connections.has_left(ours), "its end has arrived")
        return connections._Connection(ours, "127.0.0.1", THIS_MACHINE, loop.clock())  # noqa: SLF001

    bounded._closing.set()  # its thread takes no turn  # noqa: SLF001
    bounded._wake.send(b"\0")  # noqa: SLF001
    bounded._threads[0].join()  # noqa: SLF001
    with ExitStack() as stack:
        held = [connection(left=number == 5) for number in range(MOST_OF_THIS_MACHINE)]
        bounded._open.update(dict.fromkeys(held))  # noqa: SLF001
        bounded._make_room(THIS_MACHINE)  # noqa: SLF001
        assert [one.closed for one in held].index(True) == 5
        bounded._make_room(THIS_MACHINE)  # noqa: SLF001
        assert sum(one.closed for one in held) == 1, "there is room"


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        theirs = socket.create_connection(listener.getsockname())
        return listener.accept()[0], theirs


def test_a_flood_of_connections_without_requests_is_accepted_within_its_share(bounded: Connections) -> None:
    """The time on the CPU is counted. Without a bound, it is 6 % of a core or more."""
    stat = Path(f"/proc/self/task/{bounded._threads[0].native_id}/stat")  # noqa: SLF001

    def cpu() -> float:
        fields = stat.read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    with busy(bounded.port, "", 0):
        before, began = cpu(), loop.clock()
        threading.Event().wait(4)
        used = (cpu() - before) / (loop.clock() - began)
    assert used < 0.045, "twice what it takes, with the kernel's part: a cold cache doubles it"


@pytest.mark.parametrize(
    ("peer", "own", "client"),
    [
        ("127.0.0.1", "127.0.0.1", THIS_MACHINE),
        ("127.8.9.1", "127.0.0.1", THIS_MACHINE),
        ("::1", "::1", THIS_MACHINE),
        ("::ffff:127.0.0.9", "::ffff:127.0.0.1", THIS_MACHINE),
        ("::ffff:10.0.0.7", "::ffff:10.0.0.7", THIS_MACHINE),
        ("10.0.0.7", "10.0.0.7", THIS_MACHINE),
        ("10.0.0.8", "10.0.0.7", "10.0.0.8"),
        ("::ffff:10.0.0.8", "::ffff:10.0.0.7", "10.0.0.8"),
    ],
)
def test_which_addresses_are_one_client(peer: str, own: str, client: str) -> None:
    assert client_of(peer, own) == client


def test_an_ipv6_network_is_one_client() -> None:
    first, second, other = ("fd00:1::2", "fd00:1::ffff:3", "fd00:2::2")
    assert client_of(first, "fd00:9::1") == client_of(second, "fd00:9::1") != client_of(other, "fd00:9::1")
    assert client_of("fe80::1%eth0", "fe80::2%eth0") == client_of("fe80::7%eth0", "fe80::2%eth0")


SERVER = """
import sys, threading
from prometheus_client import CollectorRegistry
from agent.app import loop
from agent.exporters.web.server import HttpExporter
server = HttpExporter(("", 9747), CollectorRegistry(), lambda: True, clock=loop.clock)
server.start()
print("ready", flush=True)
sys.stdin.read()
"""

SLOW = """
import socket, sys
held = []
for each in range(7):
    for last in range(11, 23):
        try:
            one = socket.create_connection(("10.244.1.1", 9747), 20, source_address=(f"10.244.1.{last}", 0))
            one.sendall(b"GET /metr")
        except OSError:  # another one took its place already
            continue
        held.append(one)
print(len(held), flush=True)
sys.stdin.read()
"""

FLOOD = """
import itertools, select, socket, sys
waiting = select.poll()
waiting.register(sys.stdin)
for number in itertools.count():
    if number == 500:
        print("flooding", flush=True)
    if number % 10 == 0 and waiting.poll(0):
        break
    try:
        with socket.create_connection(("10.244.1.1", 9747), 20, source_address=("10.244.1.11", 0)) as one:
            one.sendall(b"GET /metrics HTTP/1.1\\r\\n\\r\\n")
    except OSError:  # it was closed already
        pass
print(number, flush=True)
"""

ASK = """
import http.client, sys
connection = http.client.HTTPConnection("10.244.1.1", 9747, timeout=60)
connection.request("GET", sys.argv[1])
print(connection.getresponse().status)
"""


@contextmanager
def program(within: Network, *command: str) -> Iterator[str]:
    """Run a program in the network during the block; yield its first line."""
    root = str(Path(__file__).parents[3])
    with subprocess.Popen(  # noqa: S603 (a command of ours)
        within.enter(*command), cwd=root, env={"PYTHONPATH": root, "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as child:  # fmt: skip
        try:
            assert child.stdout
            yield child.stdout.readline().strip()
        finally:
            child.communicate()


def test_slow_clients_with_many_addresses_shut_out_neither_a_scraper_nor_the_kubelet() -> None:
    """Twelve real addresses take all connections; the scraper has one more, and the kubelet has that of the node."""
    assert MOST_CONNECTIONS < 12 * 7
    within_pod = ("ip", "netns", "exec", "pod")
    with network() as node:
        node.pod("pod", 10)
        node.ip(*(f"-n pod addr add 10.244.1.{last}/24 dev eth0" for last in range(11, 23)))
        with (
            program(node, sys.executable, "-c", SERVER) as ready,
            program(node, *within_pod, sys.executable, "-c", SLOW) as held,
        ):
            assert (ready, int(held) > MOST_CONNECTIONS) == ("ready", True)
            assert node.python(ASK, "/metrics", within=within_pod) == "200\n", "a scraper: 10.244.1.10"
            assert node.python(ASK, "/healthz") == "200\n", "the kubelet: 10.244.1.1, as the agent itself"


def test_a_flood_of_short_connections_shuts_out_neither_a_scraper_nor_the_kubelet() -> None:
    within_pod = ("ip", "netns", "exec", "pod")
    with network() as node:
        node.pod("pod", 10)
        node.ip("-n pod addr add 10.244.1.11/24 dev eth0")
        with (
            program(node, sys.executable, "-c", SERVER) as ready,
            program(node, *within_pod, sys.executable, "-c", FLOOD) as flooding,
        ):
            assert (ready, flooding) == ("ready", "flooding"), "it goes on until the block ends"
            for _ in range(3):
                assert node.python(ASK, "/metrics", within=within_pod) == "200\n", "a scraper: 10.244.1.10"
                assert node.python(ASK, "/healthz") == "200\n", "the kubelet: 10.244.1.1, as the agent itself"
