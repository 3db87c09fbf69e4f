"""What is served, to whom, and what misbehaving clients cost, over real sockets."""

import gzip
import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from subprocess import PIPE
from types import SimpleNamespace
from urllib.request import Request, urlopen

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client import Counter as CounterOf
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from agent.cleanup.journal_store import JournalStore
from agent.config import UsageError
from agent.exporters.web.server import CleanupFacts
from agent.model.report import Report
from tests.builders import NOW, node, reservation, scanned
from tests.cli.commands import running
from tests.exporters.built import RELEASED, write_journal
from tests.exporters.served import Server, serving
from tests.network import BRIDGE4, network
from tests.wire import needs, until

PLAIN = "text/plain; charset=utf-8"
PATHS = ("/metrics", "/healthz", "/readyz", "/api/v1/report", "/api/v1/status")
PRIVATE = {"/": "page", "/api/v1/report": "report", "/api/v1/status": "status"}


@pytest.fixture(scope="module")
def report() -> Report:
    return scanned(node(reservation("10.244.1.9")))


@pytest.fixture(scope="module")
def server(report: Report, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One for most tests, with a report and a metric."""
    registry = CollectorRegistry()
    CounterOf("nodeleak_example_total", "An example.", ["of"], registry=registry).labels("a").inc(7)
    with serving(tmp_path_factory.mktemp("state"), registry) as served:
        served.export(report, 0.1)
        yield served


def raw(server: Server, body: bytes) -> bytes:
    """Say bytes, and return everything that comes back until the server hangs up."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=5) as connection:
        connection.sendall(body)
        received = b""
        while more := connection.recv(65536):
            received += more
    return received


def test_health_is_the_heartbeat_and_readiness_the_first_sync(
    report: Report, tmp_path: Path
) -> None:
    # No source is wired here at all: neither docker nor the API server can have a say.
    heart = SimpleNamespace(alive=True)

    with serving(tmp_path, heart=heart) as silent:

        def answer(path: str) -> tuple[int, str, str]:
            response = silent.ask(path)
            return response.status, response.headers["Content-Type"], response.text

        assert answer("/healthz?verbose=1") == (200, PLAIN, "ok\n")
        heart.alive = False
        assert answer("/healthz") == (503, PLAIN, "no sync for too long\n")
        for path in ("/readyz", "/api/v1/report", "/api/v1/status"):
            assert answer(path) == (503, PLAIN, "no sync yet\n")
        silent.export(report, 0.1)
        assert answer("/readyz") == (200, PLAIN, "ok\n")


def test_the_documents_are_those_of_the_last_report(report: Report, tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        server.export(scanned(node()), 0.1)
        server.export(report, 0.5)
        answer = server.ask("/api/v1/report")
        assert (answer.status, answer.headers["Content-Type"]) == (200, "application/json")
        assert [one["subject"] for one in json.loads(answer.text)["findings"]] == [
            "kubenet/10.244.1.9"
        ]
        assert 0.5 <= json.loads(server.ask("/api/v1/status").text)["age"] < 60, (
            "from the beginning of its sync"
        )


def test_what_is_answered_to_each_path_and_method(server: Server, tmp_path: Path) -> None:
    page, head = server.ask("/"), server.ask("/", "HEAD")
    assert (page.headers["Cache-Control"], page.headers["X-Content-Type-Options"]) == (
        "no-store",
        "nosniff",
    )
    assert head.headers | {"Date": ""} == page.headers | {"Date": ""}
    for path in (*PATHS, "/", "/nowhere"):
        head = server.ask(path, "HEAD")
        assert (head.status, head.text) == (server.ask(path).status, "")
        assert head.headers["Content-Length"]
    # Anything else is not found, and no other method is allowed.
    for path in ("/metrics/", "/healthz/../metrics", "/favicon.ico", "/api/v1/", "*"):
        answer = server.ask(path)
        assert (answer.status, answer.text) == (404, f"not found: {', '.join(PATHS)}\n")
    for method in ("POST", "PUT", "DELETE", "PATCH", "TRACE", "BREW"):
        assert server.ask("/metrics", method).status == 405
    with serving(tmp_path, page="off") as without_page:
        assert without_page.ask("/").status == 404
        assert without_page.ask("/metrics").status == 200


def test_no_request_waits_for_a_slow_disk(report: Report, tmp_path: Path) -> None:
    opened, reading = threading.Event(), threading.Event()
    opened.set()

    def facts(_: Report) -> CleanupFacts:
        reading.set()
        opened.wait(30)
        return CleanupFacts({"mode": "off"}, (), ())

    with serving(tmp_path, facts=facts) as server:
        server.export(report, 0.1)
        opened.clear()
        reading.clear()
        sync = threading.Thread(target=server.export, args=(report, 0.1))
        sync.start()
        reading.wait(20)
        for path in (*PATHS, "/"):
            assert server.ask(path).status == 200, path
        opened.set()
        sync.join()


def test_what_is_served_is_as_of_the_last_sync_without_any_file(
    report: Report, tmp_path: Path
) -> None:
    state = tmp_path / "state"
    write_journal(state)
    with serving(state) as server:
        server.export(report, 0.1)
        page = server.ask("/").text
        assert RELEASED.name in page or "shop/cart" in page
        state.rename(tmp_path / "away")
        assert server.ask("/").text == page
        server.export(report, 0.1)
        assert server.ask("/").text != page


def test_a_release_is_shown_from_the_next_sync_on(report: Report, tmp_path: Path) -> None:
    state = tmp_path / "state"
    store = JournalStore(state)
    with serving(state) as server:
        for number in range(1, 4):
            name = f"2026032{number}T190000.000000Z-999999999999"
            store.begin(replace(RELEASED, name=name), [])
            store.update(replace(RELEASED, name=name), NOW)
            for _ in range(3):
                server.export(report, 0.1)
                assert server.ask("/").text.count("shop/cart") == number
        for file in (state / "journal").iterdir():
            file.unlink()
        server.export(report, 0.1)
        assert "shop/cart" not in server.ask("/").text


PROMETHEUS_2 = "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,text/plain"
PROMETHEUS_3 = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,text/plain;version=0.0.4;q=0.5"
OLD_PROMETHEUS = (
    "application/openmetrics-text; version=0.0.1,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)
ACCEPTED = {
    "": False, "*/*": False, "text/html": False, OLD_PROMETHEUS: False, PROMETHEUS_2: True, PROMETHEUS_3: True,
    "application/openmetrics-text; version=seven": False, "application/openmetrics-text; version=1.0.77": True,
}  # fmt: skip


def test_metrics_are_served_as_they_are_asked_for(server: Server) -> None:
    for accept, openmetrics in ACCEPTED.items():
        for encoding in ("", "identity, gzip;q=0.5"):
            request = Request(
                f"http://127.0.0.1:{server.port}/metrics",
                headers={"Accept": accept, "Accept-Encoding": encoding},
            )
            with urlopen(request, timeout=5) as answer:  # noqa: S310 (ours)
                body, headers = answer.read(), answer.headers
            assert headers["Content-Encoding"] == ("gzip" if encoding else None)
            assert headers["Content-Type"].startswith(
                "application/openmetrics-text" if openmetrics else "text/plain"
            )
            text = (gzip.decompress(body) if encoding else body).decode()
            families = (parse_openmetrics if openmetrics else parse_text)(text)
            samples = [sample[:3] for family in families for sample in family.samples]
            assert ("nodeleak_example_total", {"of": "a"}, 7.0) in samples


ANOTHER_MACHINE = """
import http.client, json, select, socket, sys, time
host, port, sources = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
first, *others, late = sources

def ask(path):
    # From an address of which few are open: the server learns a moment later that one has ended.
    connection = http.client.HTTPConnection(host, port, timeout=5, source_address=(late, 0))
    connection.request("GET", path)
    answer = connection.getresponse()
    return [answer.status, answer.read().decode()]

def idle(source, number):
    return [socket.create_connection((host, port), 5, (source, 0)) for _ in range(number)]

def refused(connections, count):
    for _ in range(40):
        ended = select.select(connections, [], [], 0)[0]
        if len(ended) >= count:
            break
        time.sleep(0.1)
    return [connection in ended for connection in connections]

answers = {path: ask(path) for path in ("/", "/api/v1/report", "/api/v1/status", "/metrics")}
held = idle(first, 10)
first_refused = refused(held, 2)
held += [connection for source in others for connection in idle(source, 8)]
print(json.dumps([answers, first_refused, refused(idle(late, 1), 1)]), flush=True)
sys.stdin.read()
"""
HERE = "import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1], timeout=5).status)"


def test_what_names_pods_is_for_this_machine_only_and_other_machines_have_few_connections(
    tmp_path: Path,
) -> None:
    elsewhere = [
        f"--{name}={tmp_path}/{name}"
        for name in ("cni-networks-dir", "cni-cache-dir", "state-dir", "proc")
    ]
    with (
        network() as net,
        running("--api=off", "--listen=:9747", *elsewhere, prefix=net.enter()) as agent,
    ):
        net.pod("other", 2)
        sources = [f"10.244.1.{number}" for number in range(2, 11)]
        net.ip(*(f"-n other addr add {source}/24 dev eth0" for source in sources[1:]))
        agent.log_event("agent.started")
        command = net.enter(
            "ip", "netns", "exec", "other", sys.executable, "-c", ANOTHER_MACHINE, BRIDGE4, "9747"
        )
        with subprocess.Popen([*command, *sources], stdin=PIPE, stdout=PIPE, text=True) as client:  # noqa: S603 (ours)
            assert client.stdout
            answers, refused, late_is_refused = json.loads(client.stdout.readline())
            assert net.python(HERE, f"http://{BRIDGE4}:9747/healthz") == "200\n", (
                "the kubelet's probe has room"
            )
            assert net.python(HERE, "http://127.0.0.1:9747/") == "200\n"
            client.communicate()
    for path, name in PRIVATE.items():
        assert answers[path] == [
            403,
            f"the {name} names pods and addresses: only this machine may read it\n",
        ]
    assert answers["/metrics"][0] == 200
    assert refused == [False] * 8 + [True] * 2
    assert late_is_refused == [True], "64 of other machines are open"


def test_a_host_name_that_anybody_can_point_here_is_refused(server: Server) -> None:
    ours = (
        "",
        "localhost",
        "LOCALHOST:9747",
        "127.0.0.1:9747",
        "[::1]:9747",
        "[::1]",
        "10.0.0.7:9747",
    )
    foreign = ("evil.example:9747", "localhost.evil.example", "127.0.0.1.evil.example:80")
    for path in PRIVATE:
        for host in (*ours, *foreign):
            answer = raw(server, f"GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
            assert (b" 200 OK" in answer) == (host in ours), host


def test_ipv4_and_ipv6_are_served_if_the_address_is_ours_and_free(
    report: Report, tmp_path: Path
) -> None:
    needs(socket.has_ipv6, "IPv6")
    for listen, host in (("[::1]:0", "::1"), (":0", "::1"), (":0", "127.0.0.1")):
        with serving(tmp_path, listen=listen) as server:
            server.export(report, 0.1)
            assert server.ask("/api/v1/report", host=host).status == 200
    # A port in use or a foreign address fails at once.
    for host in ("127.0.0.1", ""):
        with (
            serving(tmp_path, listen=f"{host}:0") as server,
            pytest.raises(UsageError, match="Address already in use"),
        ):
            serving(tmp_path, listen=f"{host}:{server.port}").__enter__()
    with pytest.raises(UsageError, match="Cannot assign requested address"):
        serving(tmp_path, listen="198.51.100.7:0").__enter__()


def test_no_garbage_and_no_early_end_of_a_client_is_logged(
    server: Server, capfd: pytest.CaptureFixture[str]
) -> None:
    for body in (
        b"\r\n\r\n", b"GET\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n",
        b"GET /" + b"x" * 70000 + b" HTTP/1.1\r\n\r\n", b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 2000 + b"\r\n",
        b"GET / HTTP/1.1\r\na: " + b"b" * 70000 + b"\r\n\r\n", b"\xff\xfe\r\n\r\n",
    ):  # fmt: skip
        try:
            received = raw(server, body)
        except ConnectionResetError:
            received = b""
        assert b" 200 " not in received
        assert b"Traceback" not in received
        assert server.ask("/healthz").status == 200
    for _ in range(5):
        connection = socket.create_connection(("127.0.0.1", server.port))
        connection.sendall(b"GET /api/v1/report HTTP/1.1\r\n")
        connection.setsockopt(
            socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0"
        )  # leave with a reset
        connection.close()
    assert server.ask("/healthz").status == 200
    assert capfd.readouterr().err == ""
    assert server.logged == []


def test_the_refusal_of_garbage_does_not_tell_the_version_of_python(server: Server) -> None:
    for request in (b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 101, b"GET / HTTP/2.0 x\r\n"):
        with socket.create_connection(("127.0.0.1", server.port), timeout=5) as client:
            client.sendall(request + b"\r\n")
            received = b""
            while part := client.recv(1000):
                received += part
        assert b"Error response" in received
        assert b"Python" not in received


def test_a_bug_is_reported_and_does_not_end_the_server(
    capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    class Broken:
        @property
        def alive(self) -> bool:
            raise KeyError("a bug")

    with serving(tmp_path, heart=Broken()) as server:
        for _ in range(2):
            assert b" 500 " in raw(server, b"GET /healthz HTTP/1.1\r\n\r\n")
        (line,) = server.events("internal_error")
        assert (line["part"], line["name"], line["error"]) == (
            "http",
            "/healthz",
            "KeyError: 'a bug'",
        )
        assert "in alive" in line["traceback"]
        counted = 'nodeleak_internal_errors_total{part="http"} 2.0'
        assert counted in server.ask("/metrics").text
        assert server.ask("/readyz").status == 503
    assert capfd.readouterr().err == ""


def test_a_client_that_sends_a_byte_now_and_then_is_disconnected(server: Server) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=1) as connection:
        with pytest.raises(TimeoutError):
            connection.recv(1)
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            until(lambda: connection.sendall(b"G"), "the server hangs up", 60)
