"""HTTP connections: one thread serves all, bounded in CPU time; each is bounded in bytes and seconds.

Clients take turns, so a busy one delays itself more than others. Where all connections are taken, the client with the
most gives one up, so no client shuts out another one. Reading and sending never block; what may take time, such as
rendering a page, is done by a second thread.
"""

import re
import socket
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from ipaddress import IPv6Address, ip_address
from queue import SimpleQueue
from selectors import EVENT_READ, EVENT_WRITE, DefaultSelector
from threading import Event, Thread
from time import thread_time
from typing import Any, Final, NamedTuple, Protocol

from agent.model.input_limit import InputLimit

CPU_SHARE: Final = 0.004
"""Of a core, for all requests together: with renderings and the kernel's part, the server takes about 1 %."""
ACCEPT_SHARE: Final = 0.02
"""Of a core, for accepting, apart from requests: a flood uses up none of theirs. Measured: 1.6 to 2.0 %.

With half of it, the kubelet's probe waited for seconds beside a flood from another machine.
"""
CPU_BURST: Final = 0.01
"""Seconds of CPU that may be used at once: a page with its scrapers and probes does not wait."""
MOST_CONNECTIONS: Final[InputLimit] = 64
"""At a time. An idle one costs a file descriptor and at most `REQUEST_BYTES`."""
MOST_PER_CLIENT: Final[InputLimit] = 8
"""A browser opens six."""
MOST_OF_THIS_MACHINE: Final[InputLimit] = 32
"""The kubelet's probe beside whatever else asks here, such as the browsers of a few people by port-forward."""
LOCAL_PER_TURN: Final = 2
"""Connections of this machine that are served in a turn: a probe behind 16 others waits for less than a second."""
BACKLOG: Final = 512
"""Connections that wait in the kernel, where nobody is preferred: few enough to be accepted in about a second."""
ACCEPTED_PER_TURN: Final = 64
_LONGEST_PAUSE: Final = 0.1
"""Seconds between two turns."""
REQUEST_BYTES: Final[InputLimit] = 8192
"""Request line and headers. Prometheus sends less than 1 KiB."""
REQUEST_SECONDS: Final = 5.0
"""Until the request is complete: it fits one packet."""
CONNECTION_SECONDS: Final = 15.0
"""Until the answer is sent: Prometheus waits for at most 10 s by default."""

_ESTABLISHED: Final = 1
"""TCP_ESTABLISHED of include/net/tcp_states.h."""

THIS_MACHINE: Final = "this machine"
_TEXT: Final = "text/plain; charset=utf-8"
_ALWAYS: Final = (("Cache-Control", "no-store"), ("X-Content-Type-Options", "nosniff"))
_METHODS: Final = frozenset({"POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_LINE_END: Final = r"\r?\n"
"""People at a keyboard (nc, telnet) send no carriage return."""
_END: Final = re.compile((_LINE_END * 2).encode())


class Request(NamedTuple):
    """A complete request with the method GET or HEAD."""

    target: str
    client: str
    host: str = ""
    accept: str = ""
    accept_encoding: str = ""
    with_body: bool = True


@dataclass(frozen=True, slots=True)
class Response:
    status: HTTPStatus
    content_type: str
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()
    """In addition to those of every answer."""


class Answers(Protocol):
    def at_once(self, request: Request) -> Response | None:
        """Return the answer if it is there already: everybody waits meanwhile."""
        ...

    def answer(self, request: Request) -> Response:
        """Return the answer; it may take time."""
        ...


@dataclass(eq=False, slots=True)
class _Connection:
    socket: socket.socket
    peer: str
    client: str
    accepted: float
    received: bytearray = field(default_factory=bytearray)
    request: Request | None = None
    """None: it is not complete."""
    unsent: list[memoryview] = field(default_factory=list)
    """Empty: there is no answer yet. A body is that of the answer, which many connections may share."""
    closed: bool = False


class Connections:
    """`run` belongs to one thread, and ends with `close`."""

    def __init__(self, address: tuple[str, int], answers: Answers, clock: Callable[[], float]) -> None:
        """Listen at once; raises OSError. `clock`: seconds that never jump."""
        self._answers, self._clock = answers, clock
        self._listener = _listen(*address)
        self.port: int = self._listener.getsockname()[1]
        self._open: dict[_Connection, None] = {}
        """The oldest first."""
        self._questions: SimpleQueue[_Connection | None] = SimpleQueue()
        self._answered: SimpleQueue[tuple[_Connection, Response | None]] = SimpleQueue()
        self._threads: list[Thread] = []
        self._credit = CPU_BURST
        """Seconds of CPU that requests may use at once."""
        self._least = -CPU_SHARE
        """The most debt."""
        self._charged = self._accepting = 0.0
        self._closing, (self._woken, self._wake) = Event(), socket.socketpair()
        self._selector = DefaultSelector()
        for one in (self._listener, self._woken):
            one.setblocking(False)
            self._selector.register(one, EVENT_READ)

    def start(self) -> None:
        self._threads = [
            Thread(target=target, name=name, daemon=True)
            for name, target in (("http", self._run), ("http-answers", self._answer_questions))
        ]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Stop listening. An answer that is being made is not waited for."""
        self._closing.set()
        self._wake.send(b"\0")
        self._questions.put(None)
        for thread in self._threads[:1]:
            thread.join()
        for one in (*(connection.socket for connection in self._open), self._listener, self._woken, self._wake):
            one.close()
        self._selector.close()

    def _run(self) -> None:
        at = self._clock()
        while not self._closing.is_set():
            ready = [key.data for key, _ in self._selector.select(self._patience())]
            now = self._clock()
            self._credit, at = min(CPU_BURST, self._credit + (now - at) * CPU_SHARE), now
            self._turn(ready)
            self._closing.wait(min(_LONGEST_PAUSE, max(-self._credit / CPU_SHARE, self._accepting / ACCEPT_SHARE)))

    def _patience(self) -> float | None:
        """Return the seconds until the next connection is late."""
        return max(0.0, min(map(_deadline, self._open)) - self._clock()) if self._open else None

    def _turn(self, ready: Iterable[_Connection | None]) -> None:
        """Serve the oldest connection of each client, and some of this machine. None: others to accept, or answers."""
        in_debt, waiting = self._credit < 0, list(filter(None, ready))
        # In debt, less is charged than a pause earns: it ends, however often this machine asks meanwhile.
        self._least = max(-CPU_SHARE, self._credit - CPU_SHARE * _LONGEST_PAUSE / 2) if in_debt else -CPU_SHARE
        began = thread_time()
        if in_debt:
            waiting = [one for one in waiting if not self._is_given_up(one)]
        waiting += self._accept(in_debt=in_debt)
        self._charged = thread_time()
        self._accepting = self._charged - began
        self._take_answers()
        turns = Counter[str]()
        # The oldest first, or who asks without pause would go before the kubelet's probe.
        for connection in sorted(waiting, key=lambda one: one.accepted):
            if not connection.closed and turns[connection.client] < _turns_of(connection.client, in_debt=in_debt):
                turns[connection.client] += 1
                self._serve(connection)
                self._charge()
        now = self._clock()
        for connection in [one for one in self._open if _deadline(one) <= now]:
            self._close(connection)
        self._charge()

    def _charge(self) -> None:
        """Subtract the time since the last charge. The debt has a limit: a garbage collection may have taken it."""
        before, self._charged = self._charged, thread_time()
        self._credit = max(self._least, self._credit - (self._charged - before))

    def _is_given_up(self, connection: _Connection) -> bool:
        """Close a connection if its client has left before there is an answer: nobody would read it."""
        if left := not connection.unsent and has_left(connection.socket):
            self._close(connection)
        return left

    def _accept(self, *, in_debt: bool) -> Iterator[_Connection]:
        for _ in range(ACCEPTED_PER_TURN):
            try:
                accepted, peer = self._listener.accept()
            except OSError:  # nobody waits, or has left again, or there is no file descriptor
                return
            try:
                accepted.setblocking(False)
                if has_left(accepted) and (in_debt or not _has_data(accepted)):
                    accepted.close()
                    continue
                client = client_of(peer[0], accepted.getsockname()[0])
                self._make_room(client)
                connection = _Connection(accepted, peer[0], client, self._clock())
                self._selector.register(accepted, EVENT_READ, connection)
            except OSError:
                accepted.close()
                continue
            self._open[connection] = None
            yield connection

    def _make_room(self, client: str) -> None:
        """Close a connection where all are taken, of this client or of the one with the most.

        It is the oldest one whose client has left, or else that is idle.
        """
        taken = Counter(one.client for one in self._open)
        if taken[client] < _most_of(client):
            if len(self._open) < MOST_CONNECTIONS:
                return
            client = taken.most_common(1)[0][0]
        theirs = [one for one in self._open if one.client == client]
        left = (one for one in theirs if has_left(one.socket))
        self._close(next(left, None) or min(theirs, key=lambda one: one.request is not None))

    def _serve(self, connection: _Connection) -> None:
        try:
            if connection.unsent:
                self._send(connection)
            else:
                self._receive(connection)
        except BlockingIOError:
            return
        except OSError:  # the client has left
            self._close(connection)
        except Exception:  # noqa: BLE001 (a bug in one answer leaves the others)
            traceback.print_exc()
            self._close(connection)

    def _receive(self, connection: _Connection) -> None:
        read = connection.socket.recv(REQUEST_BYTES + 1 - len(connection.received))
        connection.received += read
        if end := _END.search(connection.received):
            request = parse(bytes(connection.received[: end.start()]), connection.peer)
            self._ask(connection, request) if isinstance(request, Request) else self._respond(connection, request)
        elif len(connection.received) > REQUEST_BYTES:
            self._respond(
                connection, text_response(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "the request is too large")
            )
        elif not read:
            self._close(connection)

    def _ask(self, connection: _Connection, request: Request) -> None:
        connection.request = request
        if answer := self._answers.at_once(request):
            self._respond(connection, answer)
        elif self._questions.qsize() >= MOST_CONNECTIONS:  # of clients that have left
            self._respond(connection, text_response(HTTPStatus.SERVICE_UNAVAILABLE, "busy with earlier requests"))
        else:
            self._selector.unregister(connection.socket)
            self._questions.put(connection)

    def _answer_questions(self) -> None:
        while (connection := self._questions.get()) is not None:
            answer = None
            try:
                if connection.request and not connection.closed:
                    answer = self._answers.answer(connection.request)
            except Exception:  # noqa: BLE001 (a bug in one answer leaves the others)
                traceback.print_exc()
            self._answered.put((connection, answer))
            with suppress(OSError):  # closed meanwhile
                self._wake.send(b"\0")

    def _take_answers(self) -> None:
        with suppress(BlockingIOError):
            self._woken.recv(MOST_CONNECTIONS)
        while not self._answered.empty():
            connection, answer = self._answered.get()
            if connection.closed:
                continue
            try:
                self._selector.register(connection.socket, EVENT_WRITE, connection)
                if answer is None:
                    self._close(connection)
                else:
                    self._respond(connection, answer)
            except OSError:  # the client has left
                self._close(connection)

    def _respond(self, connection: _Connection, answer: Response) -> None:
        request = connection.request
        connection.unsent = [memoryview(head_of(answer))]
        if answer.body and (request is None or request.with_body):
            connection.unsent.append(memoryview(answer.body))
        self._send(connection)
        if not connection.closed:
            self._selector.modify(connection.socket, EVENT_WRITE, connection)

    def _send(self, connection: _Connection) -> None:
        try:
            sent = connection.socket.sendmsg(connection.unsent)
        except BlockingIOError:
            return
        while connection.unsent and sent >= len(connection.unsent[0]):
            sent -= len(connection.unsent.pop(0))
        if connection.unsent:
            connection.unsent[0] = connection.unsent[0][sent:]
            return
        with suppress(OSError):
            connection.socket.shutdown(socket.SHUT_WR)
        self._close(connection)

    def _close(self, connection: _Connection) -> None:
        del self._open[connection]
        connection.closed = True
        with suppress(KeyError):  # its answer is being made
            self._selector.unregister(connection.socket)
        connection.socket.close()


def _deadline(connection: _Connection) -> float:
    return connection.accepted + (CONNECTION_SECONDS if connection.request else REQUEST_SECONDS)


def _most_of(client: str) -> int:
    return MOST_OF_THIS_MACHINE if client == THIS_MACHINE else MOST_PER_CLIENT


def _turns_of(client: str, *, in_debt: bool) -> int:
    """Return how many connections of a client are served in a turn. In debt, other machines wait: none probes."""
    return LOCAL_PER_TURN if client == THIS_MACHINE else int(not in_debt)


def has_left(one: socket.socket) -> bool:
    """Return whether the client has closed the connection (or its half of it, as few do); raises OSError."""
    return one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] != _ESTABLISHED


def _has_data(one: socket.socket) -> bool:
    return bool(one.recv(1, socket.MSG_PEEK))


def parse(head: bytes, peer: str) -> Request | Response:
    """Return the request, or the answer to one that is not understood."""
    line, *fields = re.split(_LINE_END, head.decode("latin-1"))
    words = line.split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1."):  # noqa: PLR2004 (method, target and version)
        return text_response(HTTPStatus.BAD_REQUEST, "expected a request of HTTP/1.0 or HTTP/1.1")
    method, target, _ = words
    if method in _METHODS:
        return text_response(HTTPStatus.METHOD_NOT_ALLOWED, "only GET and HEAD are allowed", ("Allow", "GET, HEAD"))
    if method not in {"GET", "HEAD"}:
        return text_response(HTTPStatus.NOT_IMPLEMENTED, "only GET and HEAD are implemented")
    headers = {name.lower(): value.strip() for name, _, value in (one.partition(":") for one in fields)}
    return Request(
        target,
        peer,
        headers.get("host", ""),
        headers.get("accept", ""),
        headers.get("accept-encoding", ""),
        with_body=method == "GET",
    )


def text_response(status: HTTPStatus, text: str, *headers: tuple[str, str]) -> Response:
    return Response(status, _TEXT, f"{text}\n".encode(), headers)


def head_of(answer: Response) -> bytes:
    headers = (
        ("Server", "nodeleak"),
        ("Connection", "close"),
        ("Content-Type", answer.content_type),
        ("Content-Length", str(len(answer.body))),
        *_ALWAYS,
        *answer.headers,
    )
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers)
    return f"HTTP/1.0 {answer.status.value} {answer.status.phrase}\r\n{lines}\r\n".encode("latin-1")


def client_of(peer: str, own: str) -> str:
    """Return what counts as one client: this machine, an IPv4 address, or an IPv6 network, which one machine may own.

    `own`: the address that the client connected to. The kubelet probes the node's address from the same one.
    """
    if peer == own or is_loopback(peer):
        return THIS_MACHINE
    address = _address(peer)
    return str(int(address) >> 64) if isinstance(address, IPv6Address) else str(address)


def is_loopback(client: str) -> bool:
    return bool(_address(client).is_loopback)


def _address(client: str) -> Any:
    address = ip_address(client.partition("%")[0])
    return getattr(address, "ipv4_mapped", None) or address


def _listen(host: str, port: int) -> socket.socket:
    """Listen on an address, or without a host on all, of both families where there are two; raises OSError."""
    if host:
        return _bound(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][0], host, port)
    if socket.has_ipv6:
        with suppress(OSError):  # the node may have no IPv6; a port in use fails again below
            return _bound(socket.AF_INET6, "", port)
    return _bound(socket.AF_INET, "", port)


def _bound(family: int, host: str, port: int) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener
