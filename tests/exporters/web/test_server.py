"""What is served, to whom, and what misbehaving clients cost, over real sockets."""

import gzip
import http.client
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path
from urllib.request import Request, urlopen

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client import Counter as CounterOf
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from agent.app import daemon
from agent.app.loop import Heartbeat
from agent.config import load
from agent.exporters.json.scan import scan_document
from agent.exporters.web import server, wsgi
from agent.exporters.web.page import Page
from agent.exporters.web.server import HttpExporter
from agent.model.report import Report
from tests.builders import node, reservation, scanned
from tests.wire import needs, until

LOCAL = ("127.0.0.1", 0)
PRIVATE = {"/": "page", "/api/v1/report": "report", "/api/v1/status": "status"}


class Heart:
    """A heart that beats, until a test stops it."""

    beats = True


@pytest.fixture
def report() -> Report:
    return scanned(node(reservation("10.244.1.9")))


@contextmanager
def listening(address: tuple[str, int] = LOCAL, heart: Heart | None = None) -> Iterator[HttpExporter]:
    registry, alive = CollectorRegistry(), heart or Heart()
    CounterOf("nodeleak_example_total", "An example.", ["of"], registry=registry).labels("a").inc(7)
    exporter = HttpExporter(
        address, registry, lambda: alive.beats, Page(lambda: ((), ()), server.LINKS), lambda _, age: {"age": age}
    )
    exporter.start()
    try:
        yield exporter
    finally:
        # It takes half a second, which no test has to wait for.
        threading.Thread(target=exporter.close).start()


@pytest.fixture(scope="module")
def exporter() -> Iterator[HttpExporter]:
    """One for most tests, with a report."""
    with listening() as one:
        one.export(scanned(node(reservation("10.244.1.9"))), 0.1)
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


# What is served


def test_health_is_the_heartbeat_and_readiness_the_first_sync(report: Report) -> None:
    # No source is wired here at all: neither docker nor the API server can have a say.
    heart = Heart()
    with listening(heart=heart) as exporter:
        assert ask(exporter, "/healthz?verbose=1") == (200, "text/plain; charset=utf-8", "ok\n")
        heart.beats = False
        assert ask(exporter, "/healthz") == (503, "text/plain; charset=utf-8", "no sync for too long\n")
        for path in ("/readyz", "/api/v1/report", "/api/v1/status"):
            assert ask(exporter, path) == (503, "text/plain; charset=utf-8", "no sync yet\n")
        assert "Waiting for the first snapshot" in ask(exporter, "/")[2]
        exporter.export(report, 0.1)
        assert ask(exporter, "/readyz") == (200, "text/plain; charset=utf-8", "ok\n")
        assert "No sync has finished for too long" in ask(exporter, "/")[2]


def test_the_documents_are_those_of_the_last_report(report: Report) -> None:
    with listening() as exporter:
        exporter.export(scanned(node()), 0.1)
        exporter.export(report, 0.5)
        status, kind, body = ask(exporter, "/api/v1/report")
        assert (status, kind) == (200, "application/json")
        assert json.loads(body) == json.loads(json.dumps(scan_document(report)))
        assert "10.244.1.9" in ask(exporter, "/")[2]
        age = json.loads(ask(exporter, "/api/v1/status")[2])["age"]
        assert 0.5 <= age < 60, "from the beginning of its sync"


def test_answers_are_not_cached_and_head_is_get_without_a_body(exporter: HttpExporter) -> None:
    def headers(path: str, method: str) -> dict[str, str]:
        connection = http.client.HTTPConnection("127.0.0.1", exporter.port, timeout=5)
        connection.request(method, path)
        with connection.getresponse() as answer:
            assert not (method == "HEAD" and answer.read())
            return dict(answer.headers) | {"Date": ""}

    page = headers("/", "GET")
    assert (page["Cache-Control"], page["X-Content-Type-Options"], page["Refresh"]) == ("no-store", "nosniff", "30")
    assert page["Content-Security-Policy"].startswith("default-src 'none'; style-src 'sha256-")
    assert "Refresh" not in headers("/?a=b&refresh=off", "GET")
    assert headers("/", "HEAD") == page
    for path in (*server.LINKS, "/nowhere"):
        assert ask(exporter, path, "HEAD")[::2] == (ask(exporter, path)[0], "")
        assert headers(path, "HEAD")["Content-Length"]


def test_anything_else_is_not_found_and_no_other_method_is_allowed(exporter: HttpExporter) -> None:
    for path in ("/metrics/", "/healthz/../metrics", "/favicon.ico", "/api/v1/", "*"):
        text = "not found: /metrics, /healthz, /readyz, /api/v1/report, /api/v1/status\n"
        assert ask(exporter, path)[::2] == (404, text)
    for method in ("POST", "PUT", "DELETE", "PATCH", "TRACE", "BREW"):
        assert ask(exporter, "/metrics", method)[0] == 405


@pytest.mark.parametrize(("setting", "status"), [("on", 200), ("off", 404)])
def test_the_page_is_on_unless_it_is_turned_off(setting: str, status: int, report: Report, tmp_path: Path) -> None:
    given = {"page": setting, "listen": "127.0.0.1:0", "api": "off", "state_dir": str(tmp_path)}
    exporter = daemon.http_exporter(load("run", given, {}), CollectorRegistry(), Heartbeat(timedelta(hours=1)))
    exporter.start()
    try:
        exporter.export(report, 0.1)
        assert ask(exporter, "/")[0] == status
        assert ask(exporter, "/metrics")[0] == 200
    finally:
        exporter.close()


PROMETHEUS_2 = "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,text/plain"
PROMETHEUS_3 = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,text/plain;version=0.0.4;q=0.5"
OLD_PROMETHEUS = "application/openmetrics-text; version=0.0.1,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
ACCEPTED = {
    "": False, "*/*": False, "text/html": False, OLD_PROMETHEUS: False, PROMETHEUS_2: True, PROMETHEUS_3: True,
    "application/openmetrics-text; version=seven": False, "application/openmetrics-text; version=1.0.77": True,
}  # fmt: skip


def test_metrics_are_served_as_they_are_asked_for(exporter: HttpExporter) -> None:
    for accept, openmetrics in ACCEPTED.items():
        for encoding in ("", "identity, gzip;q=0.5"):
            asked = {"Accept": accept, "Accept-Encoding": encoding}
            with urlopen(Request(f"http://127.0.0.1:{exporter.port}/metrics", headers=asked), timeout=5) as answer:
                body, kind, compressed = (
                    answer.read(),
                    answer.headers["Content-Type"],
                    answer.headers["Content-Encoding"],
                )
            assert compressed == ("gzip" if encoding else None)
            assert kind.startswith("application/openmetrics-text" if openmetrics else "text/plain")
            text = (gzip.decompress(body) if compressed else body).decode()
            families = (parse_openmetrics if openmetrics else parse_text)(text)
            samples = [sample[:3] for family in families for sample in family.samples]
            assert ("nodeleak_example_total", {"of": "a"}, 7.0) in samples


# To whom


def outward_address() -> str:
    """Return an address of this machine that is not loopback; no packet is sent for it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.99", 9))
        except OSError:
            return ""
        return str(probe.getsockname()[0])


@pytest.mark.parametrize("host", ["", "0.0.0.0"])  # noqa: S104 (to be reached from both sides)
def test_what_names_pods_is_for_this_machine_only(host: str, report: Report) -> None:
    outside = outward_address()
    needs(bool(outside) and not outside.startswith("127."), "an address that is not loopback")
    with listening((host, 0)) as exporter:
        exporter.export(report, 0.1)
        for path, name in PRIVATE.items():
            status, _, body = ask(exporter, path, host=outside)
            assert (status, body) == (403, f"the {name} names pods and addresses: only this machine may read it\n")
            assert ask(exporter, path)[0] == 200, "IPv4 loopback, mapped into IPv6 or not"
        assert ask(exporter, "/metrics", host=outside)[0] == 200
    for client in ("127.0.0.1", "127.8.9.1", "::1", "::ffff:127.0.0.1"):
        assert wsgi.is_loopback(client), client
    for client in ("::ffff:10.0.0.1", "10.0.0.1", "fe80::1%eth0", "::"):
        assert not wsgi.is_loopback(client), client


def test_a_host_name_that_anybody_can_point_here_is_refused(exporter: HttpExporter) -> None:
    ours = ("", "localhost", "LOCALHOST:9747", "127.0.0.1:9747", "[::1]:9747", "[::1]", "10.0.0.7:9747")
    foreign = ("evil.example:9747", "localhost.evil.example", "127.0.0.1.evil.example:80")
    for path in PRIVATE:
        for host in (*ours, *foreign):
            answer = raw(exporter, f"GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
            assert (b" 200 OK" in answer) == (host in ours), host


@pytest.mark.parametrize(("listen", "host"), [("::1", "::1"), ("", "::1"), ("", "127.0.0.1")])
def test_ipv6_is_served_too(listen: str, host: str, report: Report) -> None:
    needs(socket.has_ipv6, "IPv6")
    with listening((listen, 0)) as exporter:
        exporter.export(report, 0.1)
        assert ask(exporter, "/api/v1/report", host=host)[0] == 200


def test_a_port_in_use_or_a_foreign_address_fails_at_once() -> None:
    for host in ("127.0.0.1", ""):
        with listening((host, 0)) as exporter, pytest.raises(OSError, match="Address already in use"):
            HttpExporter((host, exporter.port), CollectorRegistry(), lambda: True)
    with pytest.raises(OSError, match="Cannot assign requested address"):
        HttpExporter(("198.51.100.7", 0), CollectorRegistry(), lambda: True)


# Misbehaving clients


@pytest.mark.parametrize(
    "body",
    [
        b"\r\n\r\n", b"GET\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n",
        b"GET /" + b"x" * 70000 + b" HTTP/1.1\r\n\r\n", b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 2000 + b"\r\n",
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


def test_a_client_that_disconnects_is_not_logged(exporter: HttpExporter, capfd: pytest.CaptureFixture[str]) -> None:
    for _ in range(5):
        connection = socket.create_connection(("127.0.0.1", exporter.port))
        connection.sendall(b"GET /api/v1/report HTTP/1.1\r\n\r\n")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # leave with a reset
        connection.close()
    assert ask(exporter, "/healthz")[0] == 200
    assert capfd.readouterr().err == ""


def test_a_bug_is_printed_and_does_not_end_the_server(
    exporter: HttpExporter, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "scan_document", lambda _: 1 / 0)
    assert b" 500 " in raw(exporter, b"GET /api/v1/report HTTP/1.1\r\n\r\n")
    until(lambda: "ZeroDivisionError" in capfd.readouterr().err, "the traceback is shown")
    assert ask(exporter, "/healthz")[0] == 200


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
    assert wsgi.client_of("10.0.0.1", "10.0.0.1") == wsgi.client_of("::1", "::2") == "this machine"
    assert wsgi.client_of("10.0.0.1", "10.0.0.2") == "10.0.0.1"
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
