"""The daemon asked on loopback, where any process may answer anything."""

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from agent.sources import daemon
from agent.sources.daemon import DaemonClient
from agent.sources.source_error import SourceError
from tests.model.test_status import GOOD
from tests.wire import CHUNKED, HTML, Answer, FakeServer, Request, chunk, hang, http, needs, refusing_port

NOT_OURS = "is not the daemon of this version of nodeleak"


@contextmanager
def answering(*pieces: bytes) -> Iterator[tuple[DaemonClient, FakeServer]]:
    with FakeServer(lambda _: pieces) as server:
        yield DaemonClient(("", port_of(server))), server


def port_of(server: FakeServer) -> int:
    return int(server.url.rpartition(":")[2])


def why_not(client: DaemonClient) -> str:
    with pytest.raises(SourceError) as caught:
        client.status()
    return str(caught.value)


def test_the_status_is_asked_for_and_returned() -> None:
    with answering(http(json.dumps(GOOD))) as (client, server):
        assert client.status() == GOOD
        assert client.status() == GOOD
    assert server.requested("") == ["/api/v1/status"] * 2


@pytest.mark.parametrize(("listen", "host"), [("", "127.0.0.1"), ("0.0.0.0", "127.0.0.1"), ("localhost", "localhost")])  # noqa: S104
def test_every_address_is_asked_on_loopback(listen: str, host: str) -> None:
    with FakeServer(lambda _: [http(json.dumps(GOOD))]) as server:
        assert DaemonClient((listen, port_of(server))).status() == GOOD
        assert server.requests[0].headers["host"] == f"{host}:{port_of(server)}"


def test_a_port_on_which_nobody_listens_is_named() -> None:
    with refusing_port() as port:
        assert why_not(DaemonClient(("", port))) == f"no daemon answers on 127.0.0.1:{port} (connection refused)"


def test_an_ipv6_address_is_in_brackets() -> None:
    needs(socket.has_ipv6, "IPv6")
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as closed:
        port = closed.getsockname()[1]
    assert f"no daemon answers on [::1]:{port} (" in why_not(DaemonClient(("::", port)))


def test_a_host_without_an_address_is_reported() -> None:
    assert "no daemon answers on nowhere.invalid:9747 (" in why_not(DaemonClient(("nowhere.invalid", 9747)))


def test_a_daemon_that_has_no_report_or_refuses_says_what_to_do() -> None:
    with answering(http("no sync yet\n", "503 Service Unavailable")) as (client, _):
        assert why_not(client).endswith(" has not finished its first sync")
    with answering(http("only this machine", "403 Forbidden")) as (client, server):
        assert why_not(client).endswith(f" answers only loopback clients: set --listen=:{port_of(server)}")


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
        with answering(*pieces) as (client, _):
            why = why_not(client)
        assert NOT_OURS in why or "no daemon answers" in why
        assert "\n" not in why
        assert len(why) < 200


def test_an_answer_is_read_up_to_a_limit() -> None:
    sent: list[int] = []

    def endless(_: Request) -> Answer:
        yield CHUNKED
        while len(sent) < 1000:
            sent.append(1)
            yield chunk(b" " * 65536)

    with FakeServer(endless) as server:
        assert NOT_OURS in why_not(DaemonClient(("", port_of(server))))
    assert len(sent) < 1000, "the connection was closed long before the end"


def test_a_process_that_hangs_or_drips_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daemon, "_READ_TIMEOUT", 0.2)
    monkeypatch.setattr(daemon, "_WHOLE_TIMEOUT", 0.5)
    server: FakeServer = FakeServer(lambda _: hang(server))
    with server:
        assert why_not(DaemonClient(("", port_of(server)))).endswith(" (timed out)")

    def drips(_: Request) -> Answer:
        yield CHUNKED
        while not server.closing.wait(0.05):
            yield chunk(b" ")

    with (server := FakeServer(drips)):
        client = DaemonClient(("", port_of(server)))
        assert "no complete response within 0.5 s" in why_not(client)
        assert "still waiting for an earlier response" in why_not(client)


# Names


def names(tree: Any) -> dict[str, str]:
    with answering(http(json.dumps(tree))) as (client, server):
        found = client.pods()
    assert server.requested("") == ["/api/v1/report"]
    return found


def test_pods_are_known_by_container_id() -> None:
    reservations = [{"container_id": "9" * 64, "pod": "shop/cart-0", "state": "leaked"}]
    assert names({"reservations": reservations, "findings": []}) == {"9" * 64: "shop/cart-0"}


def test_what_is_no_name_is_left_out() -> None:
    entries: list[Any] = [
        None, 7, "x", [], {}, {"container_id": None, "pod": "a/b"}, {"container_id": "9", "pod": None},
        {"container_id": "9", "pod": "\x1b[2J/x"}, {"container_id": "9", "pod": "a/b\n"},
        {"container_id": "9", "pod": "a"}, {"container_id": "9", "pod": f"a/{'b' * 300}"},
        {"container_id": ["9"], "pod": "a/b"},
    ]  # fmt: skip
    assert names({"reservations": entries}) == {}


def test_another_document_has_no_names() -> None:
    with pytest.raises(SourceError, match=NOT_OURS):
        names({"reservations": {}})
