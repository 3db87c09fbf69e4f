"""Unary gRPC calls, from a stand-in that breaks every rule; test_containerd.py calls a real server."""

import socket
import sys
import time
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path

import pytest

from agent.sources.runtime.grpc import UNIMPLEMENTED, GrpcConnection, GrpcError
from agent.sources.source_error import SourceError
from tests.fakes.grpc_server import OPENING, Answers, Call, FakeGrpcServer, framed
from tests.wire import as_nobody, open_directory, run

METHOD = "/test.Service/Method"
_16_MB = 16 * 1024 * 1024
INTERNAL_ERROR, ENHANCE_YOUR_CALM = 2, 11


@pytest.fixture
def path() -> Iterator[Path]:
    with open_directory() as directory:
        yield directory / "grpc.sock"


def connection(path: Path, timeout: float = 10.0) -> GrpcConnection:
    return GrpcConnection(path, timeout, time.perf_counter)


def ask(path: Path, timeout: float = 10.0, request: bytes = b"") -> bytes:
    with connection(path, timeout) as connected:
        return bytes(connected.call(METHOD, request))


def error_of(path: Path, timeout: float = 10.0) -> SourceError:
    with pytest.raises(SourceError) as raised:
        ask(path, timeout)
    text = str(raised.value)
    assert len(text) < 400, "an operator reads this in one line"
    assert "\n" not in text
    return raised.value


def error_from(path: Path, answers: Answers, timeout: float = 10.0) -> str:
    """Return the error of a call that failed without a status of the server."""
    with FakeGrpcServer(path, answers):
        error = error_of(path, timeout)
    assert not isinstance(error, GrpcError)
    assert str(error).startswith(f"{path}: Method: ")
    return str(error)


def test_requests_have_the_headers_of_grpc_and_follow_each_other_on_one_connection(
    path: Path,
) -> None:
    # More bytes than the windows of a connection have at first.
    requests = [bytes([number % 256]) * 1000 for number in range(200)]
    with (
        FakeGrpcServer(path, lambda call: call.answer(call.request)) as server,
        connection(path, 2.5) as connected,
    ):
        assert [
            connected.call(METHOD, one, {"containerd-namespace": "k8s.io"}) for one in requests
        ] == requests
    assert server.connections == 1
    assert server.calls[0].headers == {
        ":method": "POST",
        ":scheme": "http",
        ":path": METHOD,
        ":authority": "localhost",
        "te": "trailers",
        "content-type": "application/grpc",
        "grpc-timeout": "2500m",
        "containerd-namespace": "k8s.io",
    }


def test_an_answer_is_complete_whatever_its_size_and_pieces_with_pings_within_and_a_reset_after_it(
    path: Path,
) -> None:
    content = bytes(range(256)) * (_16_MB // 256)
    for size, piece in ((3000, 1), (3000, 7), (0, 1 << 20), (65_536, 1 << 20), (_16_MB, 1 << 20)):
        server = FakeGrpcServer(path, lambda call, size=size: call.answer(content[:size]), piece)  # type: ignore[misc]
        with server, connection(path, 60) as connected:
            assert connected.call(METHOD) == content[:size]
            assert connected.call(METHOD) == content[:size], "the windows are open again"
        path.unlink()

    text = error_from(path, lambda call: call.answer(content + b"a"), timeout=60)
    assert text.endswith("the response is larger than 16,777,216 bytes")
    path.unlink()

    def answers(call: Call) -> None:
        call.ping()
        call.head(OPENING)
        call.ping()
        call.data(framed(call.request))
        call.head({"grpc-status": "0"}, end=True)
        # As a server does that wants no more of a request: the client has finished with this stream.
        call.raw(b"\0\0\4\3\0" + call.stream.to_bytes(4) + b"\0\0\0\0")

    with FakeGrpcServer(path, answers), connection(path) as connected:
        assert [connected.call(METHOD, one) for one in (b"1", b"2", b"3")] == [b"1", b"2", b"3"]


def test_a_status_that_is_not_ok_is_an_error_with_its_code_and_message(path: Path) -> None:
    messages = {
        "unknown service runtime.v1.RuntimeService": "unknown service runtime.v1.RuntimeService",
        "100%25 %E2%9C%93 %22x%22": '100% \u2713 "x"',
        "half %E2%9C": "half \ufffd",
        "no escape: 100%": "no escape: 100%",
        "": "",
        "x" * 2000 + "0123": "x" * 2000 + "0123",
    }

    def answers(call: Call) -> None:
        early, _, sent = call.request.decode().partition(" ")
        status = {"grpc-status": "12", "grpc-message": sent}
        if early == "trailers":
            call.head(OPENING)
            call.data(framed(b"what was known until then"))
        call.head({**OPENING, **status} if early == "only" else status, end=True)

    with FakeGrpcServer(path, answers) as server, connection(path) as connected:
        for (sent, message), early in product(messages.items(), ("only", "trailers")):
            with pytest.raises(GrpcError) as raised:
                connected.call(METHOD, f"{early} {sent}".encode())
            assert (raised.value.code, raised.value.message) == (UNIMPLEMENTED, message)
            assert str(raised.value).startswith(f"{path}: Method: {message[:20] or 'no message'}")
    assert server.connections == 1, "it can be used again"


def http_error(call: Call) -> None:
    call.head({":status": "503", "grpc-status": "0"})
    call.data(framed(b"answer"), end=True)


def http_1(call: Call) -> None:
    call.raw(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    call.hang_up()


def no_status(call: Call) -> None:
    call.head(OPENING)
    call.data(framed(b"answer"), end=True)


def content(sent: bytes, status: str = "0") -> Answers:
    """Answer with exactly these bytes as data, and this status."""

    def answers(call: Call) -> None:
        call.head(OPENING)
        call.data(sent)
        call.head({"grpc-status": status}, end=True)

    return answers


def half(then: Callable[[Call], None]) -> Answers:
    """Send half of an answer, and go on like this."""

    def answers(call: Call) -> None:
        call.head(OPENING)
        call.data(framed(b"answer")[:7])
        then(call)

    return answers


RECORDED = bytes.fromhex(
    "00000e010400000001885f8b1d75d0620d263d4c4d656400000b0000000000010000000006616e7377657200000c01050000000140889acac8b2"
    "1234da8f8107"
)
"""The headers, data and trailers of an answer by h2."""


def test_an_answer_that_breaks_the_rules_and_a_part_of_one_is_never_an_answer(path: Path) -> None:
    broken: list[tuple[Answers, str]] = [
        (http_error, "HTTP status 503"),
        (no_status, "no valid gRPC status ('')"),
        (content(framed(b"answer"), "OK"), "no valid gRPC status ('OK')"),
        (content(framed(b"answer"), "-1"), "no valid gRPC status ('-1')"),
        (content(framed(b"answer"), "9" * 5000), "no valid gRPC status"),
        (
            lambda call: call.head({**OPENING, "grpc-status": "0"}, end=True),
            "not one uncompressed message (0 bytes)",
        ),
        (content(b""), "not one uncompressed message (0 bytes)"),
        (content(b"\0\0\0\0"), "not one uncompressed message (4 bytes)"),
        (content(framed(b"answer")[:-1]), "not one uncompressed message (10 bytes)"),
        (content(framed(b"answer") + b"x"), "not one uncompressed message (12 bytes)"),
        (content(framed(b"one") + framed(b"two")), "not one uncompressed message (16 bytes)"),
        (content(b"\1" + framed(b"answer")[1:]), "not one uncompressed message (11 bytes)"),
        (content(b"\0\xff\xff\xff\xffshort"), "not one uncompressed message (10 bytes)"),
        (
            half(lambda call: call.reset(INTERNAL_ERROR)),
            "the server reset the call (INTERNAL_ERROR)",
        ),
        (lambda call: call.reset(0xABCD), "the server reset the call (43981)"),
        (half(lambda call: call.go_away(0)), "the server ends the connection (NO_ERROR)"),
        (
            lambda call: call.go_away(ENHANCE_YOUR_CALM),
            "the server ends the connection (ENHANCE_YOUR_CALM)",
        ),
        (lambda call: call.hang_up(), "the server closed the connection"),
        (half(lambda call: call.hang_up()), "the server closed the connection"),
        (http_1, "the server closed the connection"),
        (lambda call: call.raw(b"\0\0\4\7\0\0\0\0\0half"), "Frame data missing or invalid"),
        (lambda call: call.raw(b"\0\0\4\1\4\0\0\0\1half"), "Error decoding header block"),
    ]
    for answers, text in broken:
        assert text in error_from(path, answers)
        path.unlink()
    for end in range(0, len(RECORDED), 3):

        def broken_off(call: Call, end: int = end) -> None:
            call.raw(RECORDED[:end])
            call.hang_up()

        assert error_from(path, broken_off).endswith("the server closed the connection")
        path.unlink()
    with FakeGrpcServer(path, lambda call: call.raw(RECORDED)):
        assert ask(path) == b"answer"


def test_the_timeout_bounds_the_whole_call_and_a_server_that_accepts_nobody_is_late_too(
    path: Path,
) -> None:
    def drip(call: Call) -> None:
        while not call.closing.wait(0.05):
            call.data(b"\0")

    def ping(call: Call) -> None:
        while not call.closing.wait(0.05):
            call.ping()

    slow: list[Answers] = [
        lambda call: call.hang(),
        half(lambda call: call.hang()),
        half(drip),
        half(ping),
    ]
    for answers in slow:
        assert error_from(path, answers, timeout=0.3).endswith("no complete response within 0.3 s")
        path.unlink()
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen(1)
        assert "no complete response within 0.2 s" in str(error_of(path, 0.2))
        waiting = [socket.socket(socket.AF_UNIX) for _ in range(4)]
        for one in waiting:
            one.setblocking(False)
            one.connect_ex(str(path))
        assert (
            str(error_of(path, 0.2))
            == f"cannot connect to {path}: resource temporarily unavailable"
        )
        for one in waiting:
            one.close()


def test_where_nobody_listens_or_only_root_may_connect_the_error_names_the_socket_and_the_reason(
    path: Path,
) -> None:
    assert str(error_of(path)) == f"cannot connect to {path}: no such file or directory"
    with FakeGrpcServer(path, lambda call: call.answer(b"")):
        path.chmod(0o600)
        with as_nobody():
            assert (
                str(error_of(path)) == f"cannot connect to {path}: permission denied (run as root)"
            )
    assert str(error_of(path)) == f"cannot connect to {path}: connection refused"
    assert "AF_UNIX path too long" in str(error_of(path.with_name("x" * 200)))


def test_h2_is_imported_only_by_a_node_with_cri() -> None:
    program = (
        "import sys\n"
        "from agent.app import sources\n"
        "assert not {'h2', 'docker'} & set(sys.modules)\n"
        "from agent.sources.runtime import cri\n"
        "print('h2' in sys.modules, 'docker' in sys.modules)\n"
    )
    assert run(sys.executable, "-c", program) == "True False\n"
