"""The daemon asked on loopback, where any process may answer anything."""

import json
import socket
from collections.abc import Iterable

from tests.cli.commands import nodeleak
from tests.exporters.test_status import GOOD
from tests.wire import CHUNKED, HTML, Answer, FakeServer, Request, chunk, http, needs


def port_of(server: FakeServer) -> int:
    return int(server.url.rpartition(":")[2])


def why_not(listen: object) -> str:
    """Return why a daemon that listens there has no status."""
    done = nodeleak("status", "-o", "json", f"--listen={listen}")
    document = json.loads(done.out)
    assert (done.code, document["state"], done.err) == (69, "no_report", "")
    return str(document["why"])


def why_no_status(*pieces: bytes) -> str:
    """Return why an answer is no status; the port of the server is left out."""
    with FakeServer(lambda _: pieces) as server:
        return why_not(f":{port_of(server)}").replace(str(port_of(server)), "PORT")


def test_every_address_is_asked_on_loopback_and_a_daemon_without_a_report_says_what_to_do() -> None:
    for listen, host in (("", "127.0.0.1"), ("0.0.0.0", "127.0.0.1"), ("localhost", "localhost")):  # noqa: S104
        with FakeServer(lambda _: [http(json.dumps(GOOD))]) as server:
            done = nodeleak("status", "-o", "json", f"--listen={listen}:{port_of(server)}")
        assert json.loads(done.out) == GOOD
        assert [(request.path, request.headers["host"]) for request in server.requests] == [
            ("/api/v1/status", f"{host}:{port_of(server)}")
        ]
    assert why_not("nowhere.invalid:9747").startswith("no daemon answers on nowhere.invalid:9747 (")
    needs(socket.has_ipv6, "IPv6")
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as closed:
        port = closed.getsockname()[1]
    assert why_not(f"[::]:{port}").startswith(f"no daemon answers on [::1]:{port} (")
    no_sync, refused = (
        http("no sync yet\n", "503 Service Unavailable"),
        http("only this machine", "403 Forbidden"),
    )
    assert why_no_status(no_sync) == "the daemon on 127.0.0.1:PORT has not finished its first sync"
    why = "the daemon on 127.0.0.1:PORT answers only loopback clients: set --listen=:PORT"
    assert why_no_status(refused) == why


NOT_OURS = "what answers on 127.0.0.1:PORT is not the daemon of this version of nodeleak"


def test_any_other_answer_is_not_the_daemons() -> None:
    for pieces in (
        [http(HTML, "502 Bad Gateway")], [http("not found", "404 Not Found")], [http(json.dumps(GOOD), "302 Found")],
        [http(HTML)], [http("{}")], [http("[" * 100_000)], [http('{"a": NaN}')], [http(b"\xff\xfe\x00")],
        [http(json.dumps({**GOOD, "schema": "nodeleak.scan/v1"}))],
        [b"SSH-2.0-OpenSSH_9.2\r\n"], [b"\x00" * 300], [b"HTTP/1.1 abc\r\n\r\n"], [b""],
        [b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n"], [b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 200],
        [CHUNKED, b"zz\r\n"], [b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\n{"],
        [b"HTTP/1.1 200 OK\r\n\xff\xfe: \xff\r\n\r\n"],
    ):  # fmt: skip
        why = why_no_status(*pieces)
        assert why == NOT_OURS or (why.startswith("no daemon answers") and len(why) < 200), pieces


def test_an_answer_is_read_up_to_a_limit_of_bytes_and_of_seconds() -> None:
    def endless(sent: list[int], pause: float) -> Iterable[bytes]:
        yield CHUNKED
        while len(sent) < 1000 and not server.closing.wait(pause):
            sent.append(1)
            yield chunk(b" " * (1 if pause else 65536))

    for pause, why in (
        (0, NOT_OURS),
        (0.05, "daemon on 127.0.0.1:PORT: no complete response within 4 s"),
    ):
        sent: list[int] = []

        def answer(_: Request, sent: list[int] = sent, pause: float = pause) -> Answer:
            return endless(sent, pause)

        with (server := FakeServer(answer)):
            assert why_not(f":{port_of(server)}").replace(str(port_of(server)), "PORT") == why
        assert len(sent) < 1000, "the connection was closed long before the end"
