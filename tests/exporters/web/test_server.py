"""What is served, to whom, and what misbehaving clients cost, over real sockets."""

import gzip
import http.client
import json
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path
from urllib.request import Request, urlopen

import pytest
from prometheus_client import CollectorRegistry, Gauge
from prometheus_client import Counter as CounterOf
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from agent.app import daemon, loop
from agent.app.loop import Heartbeat
from agent.config import load
from agent.exporters.json.scan import scan_document
from agent.exporters.json.status import StatusExporter
from agent.exporters.web import server as served
from agent.exporters.web import wsgi
from agent.exporters.web.page import Page
from agent.exporters.web.server import HttpExporter
from agent.model.release import CleanupStatus
from agent.model.report import Report
from tests.builders import node, reservation, scanned
from tests.wire import needs, until

LOCAL = ("127.0.0.1", 0)


class Heart:
    """A heart that beats, until a test stops it."""

    beats = True


@pytest.fixture
def report() -> Report:
    return scanned(node(reservation("10.244.1.9")))


@contextmanager
def listening(address: tuple[str, int], heart: Heart | None = None, *, page: bool = False) -> Iterator[HttpExporter]:
    registry = CollectorRegistry()
    Gauge("nodeleak_example", "An example.", registry=registry).set(7)
    one = heart or Heart()
    shown = Page(lambda: ((), ()), served.LINKS) if page else None
    exporter = HttpExporter(address, registry, lambda: one.beats, shown)
    exporter.start()
    try:
        yield exporter
    finally:
        # It takes half a second, which no test has to wait for.
        threading.Thread(target=exporter.close).start()


@pytest.fixture(scope="module")
def exporter() -> Iterator[HttpExporter]:
    """One for most tests."""
    with listening(LOCAL) as one:
        yield one


@pytest.fixture
def fresh() -> Iterator[HttpExporter]:
    """A server without any report."""
    with listening(LOCAL) as one:
        yield one


def ask(exporter: HttpExporter, path: str, method: str = "GET", host: str = "127.0.0.1") -> tuple[int, str, str]:
    """Return status, content type and body."""
    connection = http.client.HTTPConnection(host, exporter.port, timeout=5)
    connection.request(method, path)
    answer = connection.getresponse()
    body = answer.read().decode()
    connection.close()
    return answer.status, answer.headers["Content-Type"], body


def raw(exporter: HttpExporter, body: bytes) -> bytes:
    """Say bytes, and return everything that comes back until the server hangs up."""
    with socket.create_connection(("127.0.0.1", exporter.port), timeout=5) as connection:
        connection.sendall(body)
        received = b""
        while more := connection.recv(65536):
            received += more
    return received


def test_metrics_are_what_the_registry_holds(exporter: HttpExporter) -> None:
    status, kind, body = ask(exporter, "/metrics")
    assert (status, body) == (
        200,
        "# HELP nodeleak_example An example.\n# TYPE nodeleak_example gauge\nnodeleak_example 7.0\n",
    )
    assert kind.startswith("text/plain; version=")


def test_a_query_is_ignored(exporter: HttpExporter) -> None:
    assert ask(exporter, "/healthz?verbose=1")[0] == 200


def test_health_is_the_heartbeat_and_nothing_else() -> None:
    # No source is wired here at all: neither docker nor the API server can have a say.
    heart = Heart()
    with listening(LOCAL, heart) as exporter:
        check_health(exporter, heart)


def check_health(exporter: HttpExporter, heart: Heart) -> None:
    assert ask(exporter, "/healthz") == (200, "text/plain; charset=utf-8", "ok\n")
    heart.beats = False
    assert ask(exporter, "/healthz") == (503, "text/plain; charset=utf-8", "no sync for too long\n")
    heart.beats = True
    assert ask(exporter, "/healthz")[0] == 200


def test_it_is_ready_after_one_sync(fresh: HttpExporter, report: Report) -> None:
    assert ask(fresh, "/readyz") == (503, "text/plain; charset=utf-8", "no sync yet\n")
    fresh.export(report, 0.1)
    assert ask(fresh, "/readyz") == (200, "text/plain; charset=utf-8", "ok\n")


def test_the_report_is_the_scan_document_of_the_last_sync(fresh: HttpExporter, report: Report) -> None:
    assert ask(fresh, "/api/v1/report")[::2] == (503, "no sync yet\n")
    fresh.export(scanned(node()), 0.1)
    fresh.export(report, 0.1)
    status, kind, body = ask(fresh, "/api/v1/report")
    assert (status, kind) == (200, "application/json")
    assert json.loads(body) == json.loads(json.dumps(scan_document(report)))


@contextmanager
def with_status(host: str = "127.0.0.1") -> Iterator[tuple[HttpExporter, StatusExporter]]:
    cleanup = CleanupStatus(mode="off", networks=(), release_possible=True)
    status = StatusExporter("0.1.0", 15.0, lambda _: cleanup, lambda: True, loop.clock)
    exporter = HttpExporter((host, 0), CollectorRegistry(), lambda: True, status=status)
    exporter.start()
    try:
        yield exporter, status
    finally:
        threading.Thread(target=exporter.close).start()


def test_the_status_is_that_of_the_last_sync(report: Report) -> None:
    with with_status() as (exporter, status):
        assert ask(exporter, "/api/v1/status")[::2] == (503, "no sync yet\n")
        status.export(report, 0.1)
        code, kind, body = ask(exporter, "/api/v1/status")
    assert (code, kind) == (200, "application/json")
    assert json.loads(body)["headline"] == "Warning: 1 leaked pod address on worker-1"


def test_the_status_is_for_this_machine_only(report: Report) -> None:
    outside = outward_address()
    needs(bool(outside) and not outside.startswith("127."), "an address that is not loopback")
    with with_status("") as (exporter, status):
        status.export(report, 0.1)
        code, _, body = ask(exporter, "/api/v1/status", host=outside)
        assert (code, body) == (403, "the status names pods and addresses: only this machine may read it\n")
        assert ask(exporter, "/api/v1/status")[0] == 200
        assert b" 403 " in raw(exporter, b"GET /api/v1/status HTTP/1.1\r\nHost: evil.example\r\n\r\n")


def outward_address() -> str:
    """Return an address of this machine that is not loopback; no packet is sent for it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.99", 9))
        except OSError:
            return ""
        return str(probe.getsockname()[0])


@pytest.mark.parametrize("host", ["", "0.0.0.0"])  # noqa: S104 (to be reached from both sides)
def test_the_report_is_for_this_machine_only(host: str, report: Report) -> None:
    outside = outward_address()
    needs(bool(outside) and not outside.startswith("127."), "an address that is not loopback")
    with listening((host, 0)) as exporter:
        exporter.export(report, 0.1)
        status, _, body = ask(exporter, "/api/v1/report", host=outside)
        assert (status, body) == (403, "the report names pods and addresses: only this machine may read it\n")
        assert ask(exporter, "/metrics", host=outside)[0] == 200
        assert ask(exporter, "/api/v1/report")[0] == 200, "IPv4 loopback, mapped into IPv6 or not"


def headers(exporter: HttpExporter, path: str, method: str = "GET") -> dict[str, str]:
    connection = http.client.HTTPConnection("127.0.0.1", exporter.port, timeout=5)
    connection.request(method, path)
    answer = connection.getresponse()
    answer.read()
    connection.close()
    return dict(answer.headers)


def test_the_page_is_served_to_this_machine(report: Report) -> None:
    heart = Heart()
    with listening(LOCAL, heart, page=True) as exporter:
        check_page(exporter, heart, report)


def check_page(exporter: HttpExporter, heart: Heart, report: Report) -> None:
    status, kind, body = ask(exporter, "/")
    assert (status, kind) == (200, "text/html; charset=utf-8")
    assert "Waiting for the first snapshot" in body
    exporter.export(report, 0.1)
    assert "10.244.1.9" in ask(exporter, "/")[2]
    heart.beats = False
    assert "No sync has finished for too long" in ask(exporter, "/")[2]

    response_headers = headers(exporter, "/")
    assert response_headers["Cache-Control"] == "no-store"
    assert response_headers["X-Content-Type-Options"] == "nosniff"
    assert response_headers["Content-Security-Policy"].startswith("default-src 'none'; style-src 'sha256-")
    assert response_headers["Refresh"] == "30"
    still = headers(exporter, "/?a=b&refresh=off")
    assert "Refresh" not in still
    assert headers(exporter, "/", "HEAD") | {"Date": ""} == response_headers | {"Date": ""}
    assert ask(exporter, "/", "HEAD")[2] == ""


@pytest.mark.parametrize(("setting", "status"), [("on", 200), ("off", 404)])
def test_the_page_is_on_unless_it_is_turned_off(setting: str, status: int, report: Report, tmp_path: Path) -> None:
    given = {"page": setting, "listen": "127.0.0.1:0", "api": "off", "state_dir": str(tmp_path)}
    heartbeat = Heartbeat(timedelta(hours=1))
    exporter = daemon.http_exporter(load("run", given, {}), CollectorRegistry(), heartbeat)
    exporter.start()
    try:
        exporter.export(report, 0.1)
        assert ask(exporter, "/")[0] == status
        assert ask(exporter, "/metrics")[0] == 200
    finally:
        exporter.close()


def test_the_page_is_for_this_machine_only(report: Report) -> None:
    outside = outward_address()
    needs(bool(outside) and not outside.startswith("127."), "an address that is not loopback")
    with listening(("", 0), page=True) as exporter:
        exporter.export(report, 0.1)
        status, kind, body = ask(exporter, "/", host=outside)
        assert (status, kind) == (403, "text/plain; charset=utf-8")
        assert body == "the page names pods and addresses: only this machine may read it\n"
        assert ask(exporter, "/")[0] == 200


def test_answers_with_pod_names_are_not_cached(exporter: HttpExporter, report: Report) -> None:
    exporter.export(report, 0.1)
    assert headers(exporter, "/api/v1/report")["Cache-Control"] == "no-store"


def test_many_requests_at_once_all_get_the_page(report: Report) -> None:
    with listening(LOCAL, page=True) as exporter, ThreadPoolExecutor(4) as lookers:
        exporter.export(report, 0.1)
        assert {status for status, _, _ in lookers.map(lambda _: ask(exporter, "/"), range(20))} == {200}


def test_which_clients_are_on_this_machine() -> None:
    for client in ("127.0.0.1", "127.8.9.1", "::1", "::ffff:127.0.0.1"):
        assert wsgi.is_loopback(client), client
    for client in ("::ffff:10.0.0.1", "10.0.0.1", "fe80::1%eth0", "::"):
        assert not wsgi.is_loopback(client), client


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        ("", True),
        ("localhost", True),
        ("LOCALHOST:9747", True),
        ("127.0.0.1:9747", True),
        ("[::1]:9747", True),
        ("[::1]", True),
        ("10.0.0.7:9747", True),
        ("evil.example:9747", False),
        ("localhost.evil.example", False),
        ("127.0.0.1.evil.example:80", False),
    ],
)
def test_which_host_headers_are_accepted(exporter: HttpExporter, report: Report, host: str, allowed: bool) -> None:
    exporter.export(report, 0.1)
    body = raw(exporter, f"GET /api/v1/report HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
    assert (b" 200 OK" in body) == allowed


@pytest.mark.parametrize("path", ["/", "/metrics/", "/healthz/../metrics", "/favicon.ico", "/api/v1/", "*"])
def test_anything_else_is_not_found(exporter: HttpExporter, path: str) -> None:
    assert ask(exporter, path)[::2] == (404, "not found: /metrics, /healthz, /readyz, /api/v1/report, /api/v1/status\n")


@pytest.mark.parametrize("path", ["/metrics", "/healthz", "/readyz", "/nowhere"])
def test_head_is_get_without_a_body(exporter: HttpExporter, path: str) -> None:
    assert ask(exporter, path, "HEAD")[::2] == (ask(exporter, path)[0], "")
    assert b"Content-Length: " in raw(exporter, f"HEAD {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "TRACE", "BREW"])
def test_no_other_method_is_allowed(exporter: HttpExporter, method: str) -> None:
    assert ask(exporter, "/metrics", method)[0] == 405


@pytest.mark.parametrize(
    "body",
    [
        b"\r\n\r\n", b"GET\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n",
        b"GET /" + b"x" * 70000 + b" HTTP/1.1\r\n\r\n", b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 200 + b"\r\n",
        b"GET / HTTP/1.1\r\na: " + b"b" * 70000 + b"\r\n\r\n", b"\xff\xfe\r\n\r\n",
    ],
    ids=["nothing", "half", "TLS", "version", "long line", "many headers", "long header", "binary"],
)  # fmt: skip
def test_garbage_is_answered_or_dropped(exporter: HttpExporter, body: bytes, capfd: pytest.CaptureFixture[str]) -> None:
    try:
        received = raw(exporter, body)
    except ConnectionResetError:
        received = b""
    assert b" 200 " not in received
    assert b"Traceback" not in received
    assert ask(exporter, "/healthz")[0] == 200
    assert capfd.readouterr().err == ""


def test_a_client_that_disconnects_is_not_logged(
    exporter: HttpExporter, report: Report, capfd: pytest.CaptureFixture[str]
) -> None:
    exporter.export(report, 0.1)
    for _ in range(5):
        connection = socket.create_connection(("127.0.0.1", exporter.port))
        connection.sendall(b"GET /api/v1/report HTTP/1.1\r\n\r\n")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # leave with a reset
        connection.close()
    assert ask(exporter, "/healthz")[0] == 200
    assert capfd.readouterr().err == ""


def test_many_quick_clients_are_all_served(exporter: HttpExporter) -> None:
    assert {ask(exporter, "/metrics")[0] for _ in range(30)} == {200}


def test_a_port_in_use_fails_at_once() -> None:
    with listening(LOCAL) as exporter, pytest.raises(OSError, match="Address already in use"):
        HttpExporter(("127.0.0.1", exporter.port), CollectorRegistry(), lambda: True)


def test_a_port_in_use_in_one_family_fails() -> None:
    with listening(("", 0)) as exporter, pytest.raises(OSError, match="Address already in use"):
        HttpExporter(("", exporter.port), CollectorRegistry(), lambda: True)


def test_a_foreign_address_fails_at_once() -> None:
    with pytest.raises(OSError, match="Cannot assign requested address"):
        HttpExporter(("198.51.100.7", 0), CollectorRegistry(), lambda: True)


@pytest.mark.parametrize(("listen", "host"), [("::1", "::1"), ("", "::1"), ("", "127.0.0.1")])
def test_ipv6_is_served_too(listen: str, host: str, report: Report) -> None:
    needs(socket.has_ipv6, "IPv6")
    with listening((listen, 0)) as exporter:
        exporter.export(report, 0.1)
        assert ask(exporter, "/api/v1/report", host=host)[0] == 200


def test_a_bug_is_printed_and_does_not_end_the_server(
    exporter: HttpExporter, report: Report, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    exporter.export(report, 0.1)
    monkeypatch.setattr(served, "scan_document", lambda _: 1 / 0)
    assert b" 500 " in raw(exporter, b"GET /api/v1/report HTTP/1.1\r\n\r\n")
    until(lambda: "ZeroDivisionError" in capfd.readouterr().err, "the traceback is shown")
    assert ask(exporter, "/healthz")[0] == 200


def test_after_closing_nobody_listens() -> None:
    exporter = HttpExporter(LOCAL, CollectorRegistry(), lambda: True)
    exporter.start()
    port = exporter.port
    exporter.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=1)


PROMETHEUS_2 = "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,text/plain"
PROMETHEUS_3 = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,text/plain;version=0.0.4;q=0.5"
OLD_PROMETHEUS = "application/openmetrics-text; version=0.0.1,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"


@pytest.mark.parametrize(
    ("accept", "openmetrics"),
    [
        ("", False), ("*/*", False), ("text/plain", False), ("text/html", False), (OLD_PROMETHEUS, False),
        (PROMETHEUS_2, True), (PROMETHEUS_3, True), ("application/openmetrics-text", True),
        ("application/openmetrics-text; version=seven", False), ("application/openmetrics-text; version=1.0.77", True),
    ],
)  # fmt: skip
@pytest.mark.parametrize("encoding", ["", "gzip", "identity, gzip;q=0.5"])
def test_metrics_are_served_as_they_are_asked_for(accept: str, encoding: str, openmetrics: bool) -> None:
    registry = CollectorRegistry()
    CounterOf("nodeleak_example_total", "An example.", ["of"], registry=registry).labels("a").inc(7)
    exporter = HttpExporter(LOCAL, registry, lambda: True)
    exporter.start()
    try:
        asked = {"Accept": accept, "Accept-Encoding": encoding}
        with urlopen(Request(f"http://127.0.0.1:{exporter.port}/metrics", headers=asked), timeout=5) as answer:
            body, kind, compressed = answer.read(), answer.headers["Content-Type"], answer.headers["Content-Encoding"]
    finally:
        exporter.close()
    assert compressed == ("gzip" if "gzip" in encoding else None)
    assert kind.startswith("application/openmetrics-text" if openmetrics else "text/plain")
    families = (parse_openmetrics if openmetrics else parse_text)(
        (gzip.decompress(body) if compressed else body).decode()
    )
    samples = [sample[:3] for family in families for sample in family.samples]
    assert ("nodeleak_example_total", {"of": "a"}, 7.0) in samples


@contextmanager
def idle(exporter: HttpExporter, source: str, number: int) -> Iterator[list[socket.socket]]:
    """Hold connections that send nothing."""
    address = ("127.0.0.1", exporter.port)
    with ExitStack() as stack:
        yield [stack.enter_context(socket.create_connection(address, 5, (source, 0))) for _ in range(number)]


def is_refused(connection: socket.socket) -> bool:
    connection.settimeout(0.3)
    try:
        return connection.recv(1) == b""
    except TimeoutError:
        return False


def test_each_client_has_so_many_connections(exporter: HttpExporter, monkeypatch: pytest.MonkeyPatch) -> None:
    # All loopback addresses are one client, so in this test each counts as another machine, but for the first.
    monkeypatch.setattr(wsgi, "client_of", lambda peer, _: "this machine" if peer == "127.0.0.1" else peer)
    with idle(exporter, "127.0.0.2", wsgi.MOST_PER_CLIENT + 2) as connections:
        until(lambda: list(map(is_refused, connections)) == [False] * 8 + [True] * 2, "two are refused")
        assert ask(exporter, "/healthz")[0] == 200
        with ExitStack() as others:
            for n in range(3, 10):
                others.enter_context(idle(exporter, f"127.0.0.{n}", wsgi.MOST_PER_CLIENT))
            (late,) = others.enter_context(idle(exporter, "127.0.0.20", 1))
            assert is_refused(late), "64 of other machines"
            assert ask(exporter, "/healthz")[0] == 200, "the kubelet's probe has room"


def test_a_client_that_sends_a_byte_now_and_then_is_disconnected(
    exporter: HttpExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wsgi, "CONNECTION_SECONDS", 0.5)
    with socket.create_connection(("127.0.0.1", exporter.port), timeout=5) as connection:

        def is_closed() -> bool:
            try:
                connection.sendall(b"G")
            except OSError:
                return True
            return False

        until(is_closed, "the server hangs up")


@pytest.mark.parametrize(
    ("peer", "own", "client"),
    [
        ("10.0.0.1", "10.0.0.2", "10.0.0.1"),
        ("10.0.0.1", "10.0.0.1", "this machine"),
        ("::ffff:127.0.0.1", "::ffff:127.0.0.1", "this machine"),
        ("::ffff:10.0.0.1", "::ffff:10.0.0.2", "10.0.0.1"),
    ],
)
def test_which_addresses_are_one_client(peer: str, own: str, client: str) -> None:
    assert wsgi.client_of(peer, own) == client


def test_an_ipv6_network_is_one_client() -> None:
    one, same, other = (wsgi.client_of(peer, "2001:db8::1") for peer in ("fd00::1", "fd00::2", "fd00:0:0:1::1"))
    assert one == same != other
