"""What a command reads from an API server, byte for byte: credentials, lists, errors, and invalid answers."""

import itertools
import json
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from agent.app import loop
from agent.config import UsageError
from agent.model.clocks import Moment
from agent.model.snapshot import Known, Reading, Unavailable
from agent.sources.source import Sources
from agent.sources.source_error import SourceError
from tests.builders import DISK, UPTIME, node, node_using, waiting_pod
from tests.sources.kube.connections import connect, sources_of_command
from tests.sources.reading import fields_of, read
from tests.wire import (
    CHUNKED,
    HTML,
    LAST_CHUNK,
    Answer,
    Answers,
    FakeServer,
    Request,
    chunk,
    hang,
    http,
    kubeconfig,
    refusing_port,
    self_signed,
    until,
)

POD: dict[str, Any] = {
    "metadata": {"name": "web-0", "namespace": "shop", "uid": "u-1", "resourceVersion": "7"},
    "spec": {"nodeName": "worker-1"},
    "status": {
        "phase": "Running",
        "podIP": "10.244.1.7",
        "podIPs": [{"ip": "10.244.1.7"}, {"ip": "fd00::7"}],
    },
}
VERSION = http('{"major":"1","minor":"20","gitVersion":"v1.20.2"}')


def listing(*items: object, more: str = "") -> str:
    """Write a list as an API server does: no spaces, its metadata first."""
    metadata = {"resourceVersion": "40", **({"continue": more} if more else {})}
    tree = {"kind": "PodList", "apiVersion": "v1", "metadata": metadata, "items": items}
    return json.dumps(tree, separators=(",", ":"))


def answering(*answers: bytes | Sequence[bytes]) -> Answers:
    """Answer the lists one after the other, the last one for ever, and the question for the version."""
    left = list(answers)

    def answer(request: Request) -> Answer:
        if request.path == "/version":
            return [VERSION]
        found = left.pop(0) if len(left) > 1 else left[0]
        return [found] if isinstance(found, bytes) else found

    return answer


SourcesOf = Callable[..., Sources]


@pytest.fixture
def sources_of(tmp_path: Path) -> SourcesOf:
    """Return what a command reads from a server."""

    def wired(server: FakeServer, *, api_timeout: str = "5s", **given: str) -> Sources:
        return sources_of_command(
            kubeconfig(tmp_path / "config", server.url, **given), api_timeout=api_timeout
        )

    return wired


def names(reading: Reading[Any]) -> list[str]:
    return [pod.name for pod in reading.known()]


def error_of(sources: Sources) -> str:
    reading = read(sources, "pods")
    assert isinstance(reading, Unavailable)
    assert reading.why.startswith(("API server: ", "cannot connect to the API server at "))
    assert len(reading.why) < 300, "an operator reads this in one line"
    assert "\n" not in reading.why
    return reading.why


def test_only_objects_of_this_node_are_requested(sources_of: SourcesOf) -> None:
    worker = {"metadata": {"name": "worker-1", "uid": "n-1", "resourceVersion": "9"}}
    with FakeServer(answering(http(listing(POD)), http(listing(worker)))) as server:
        sources = sources_of(server)
        (pod,), found = read(sources, "pods").known(), read(sources, "node").known()
    assert (pod.name, pod.uid, pod.phase, pod.ips) == (
        "shop/web-0",
        "u-1",
        "Running",
        ("10.244.1.7", "fd00::7"),
    )
    assert found.name == "worker-1"
    assert server.requested("") == [
        "/api/v1/pods?fieldSelector=spec.nodeName%3Dworker-1&limit=500",
        "/version",
        "/api/v1/nodes?fieldSelector=metadata.name%3Dworker-1&limit=500",
    ]
    assert server.requests[0].headers["user-agent"] == "nodeleak"


# Errors


def test_an_error_has_the_message_of_the_server_and_its_code(sources_of: SourcesOf) -> None:
    for status in (
        "401 Unauthorized", "403 Forbidden", "404 Not Found", "410 Gone", "429 Too Many Requests",
        "500 Internal Server Error", "503 Service Unavailable",
    ):  # fmt: skip
        body = json.dumps(
            {"kind": "Status", "code": 0, "message": 'pods is forbidden:\n  User "x" cannot list'}
        )
        with FakeServer(answering(http(body, status), http(HTML, status, "text/html"))) as server:
            sources = sources_of(server)
            assert (
                error_of(sources)
                == f'API server: {status[:3]} pods is forbidden: User "x" cannot list'
            )
            assert len(server.requests) == 1, "the next sync is the retry"
            assert error_of(sources) == f"API server: {status}"
    for body in ("", "null", "[]", '"x"', "{}", '{"message": "' + "x" * 9000, "[" * 9000):
        with FakeServer(answering(http(body, "500 Internal Server Error"))) as server:
            assert error_of(sources_of(server)) == "API server: 500 Internal Server Error"
    # Such as the login page of a proxy: our token is not for it.
    away = (
        b"HTTP/1.1 302 Found\r\nLocation: /login\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    )
    with FakeServer(answering(away)) as server:
        assert error_of(sources_of(server)) == "API server: 302 Found"
    assert len(server.requests) == 1


def test_an_answer_that_is_no_pod_list_is_unavailable_until_there_is_one(
    sources_of: SourcesOf,
) -> None:
    for answer in (
        http(HTML, kind="text/html"), http(""), http("null"), http("[]"), http('"pods"'), http("{}"),
        http('{"kind":"PodList"}'),
        http('{"metadata":{},"items":[]}'),
        http('{"metadata":{"resourceVersion":"x"},"items":[]}'),
        http('{"metadata":{"resourceVersion":""},"items":[]}'),
        http('{"kind":"Status","metadata":{"resourceVersion":"5"},"status":"Failure"}'),
        http('{"kind":"Pod","metadata":{"resourceVersion":"5","uid":"u"}}'),
        http('{"metadata":{"resourceVersion":"5"},"items":{"a":1}}'),
        http('{"metadata":{"resourceVersion":"5"},"items":7}'),
        http("\xff\xfe".encode("latin-1")),
        http("[" * 100_000),
        http('{"metadata":{"resourceVersion":"5"},"items":[' + "[" * 100_000),
        http('{"metadata":{"resourceVersion":1e999},"items":[]}'),
        http(listing("pod", POD)), http(listing(POD, None)), http(listing({})),
        http(listing({"metadata": {"uid": "u"}})),
        http(listing({"metadata": {"uid": "u", "name": "web"}})),
        http(listing(POD, {"a": "x" * 5_000_000})),
        http(listing(POD))[:-30],
        CHUNKED + chunk(listing(POD)[:60]),
        b"HTTP/1.1 200 OK\r\nContent-Len", b"SSH-2.0-OpenSSH_9.2\r\n", b"",
        *(http(listing(POD, POD)[:cut]) for cut in range(1, len(listing(POD, POD)), 9)),
    ):  # fmt: skip
        with FakeServer(answering(answer, http(listing(POD)))) as server:
            sources = sources_of(server)
            error_of(sources)
            assert names(read(sources, "pods")) == ["shop/web-0"]


# Lists


def test_a_list_is_read_in_any_pieces_and_in_pages_to_its_end_or_not_at_all(
    sources_of: SourcesOf,
) -> None:
    for empty in (
        listing(),
        '{"kind":"PodList","metadata":{"resourceVersion":"40"},"items":null}',
        '{ "metadata": { "resourceVersion": "40" }, "items": [ ] }',
    ):
        with FakeServer(answering(http(empty))) as server:
            assert read(sources_of(server), "pods") == Known(())
    name = 'Gr\u00fc\u00dfe \U0001f600 ],{"'
    text = listing(POD, POD | {"metadata": POD["metadata"] | {"uid": "u-2", "name": name}})
    for encoded in (
        text.encode(),
        json.dumps(json.loads(text), indent=2, ensure_ascii=False).encode(),
    ):
        for piece in (1, 7, 1 << 20):
            pieces = [chunk(encoded[at : at + piece]) for at in range(0, len(encoded), piece)]
            with FakeServer(answering([CHUNKED, *pieces, LAST_CHUNK])) as server:
                assert names(read(sources_of(server), "pods")) == ["shop/web-0", f"shop/{name}"]
    second = POD | {"metadata": POD["metadata"] | {"uid": "u-2", "name": "web-1"}}
    first = http(listing(POD, more="next"))
    with FakeServer(
        answering(first, http(listing(second)), first, http("{}", "410 Gone"))
    ) as server:
        sources = sources_of(server)
        assert names(read(sources, "pods")) == ["shop/web-0", "shop/web-1"]
        assert error_of(sources) == "API server: 410 Gone"
    assert server.requested("pods")[1].endswith("&limit=500&continue=next")


def test_a_list_is_parsed_as_it_arrives(sources_of: SourcesOf) -> None:
    def slowly(_: Request) -> Iterator[bytes]:
        yield CHUNKED + chunk(listing("no pod", POD)[:-100] + " " * 100_000)
        asked.wait(10)

    asked = threading.Event()
    with FakeServer(slowly) as server:
        assert "is not a list of objects (ValueError(" in error_of(sources_of(server))
        asked.set()


# The connection


def test_a_server_that_hangs_or_drips_times_out(sources_of: SourcesOf) -> None:
    def answers(request: Request) -> Iterator[bytes]:
        if request.path != "/api/v1/pods":
            yield from hang(server)
        yield CHUNKED + chunk(listing(POD)[:60])
        while not server.closing.wait(0.05):
            yield chunk(" ")

    server: FakeServer = FakeServer(answers)
    with server:
        sources = sources_of(server, api_timeout="300ms")
        reading = read(sources, "node")
        assert isinstance(reading, Unavailable)
        assert "timed out" in reading.why
        assert "no complete response within 0.9 s" in error_of(sources)


def test_a_server_that_sends_a_byte_now_and_then_times_out(sources_of: SourcesOf) -> None:
    """Wherever it does, and whatever the connection: each byte is in time."""
    for start in (
        b"",
        b"HTTP/1.1 200 OK\r\nX-Slow: ",
        http(listing(POD))[:-20],
        http("{}", "500 Internal Server Error").replace(b": 2\r\n", b": 60000\r\n"),
        CHUNKED + b"f",
        CHUNKED + chunk(listing(POD)[:60]),
    ):
        over = threading.Event()
        with FakeServer(partial(dripping, over, start)) as server:
            sources = sources_of(server, api_timeout="200ms")
            for name in ("pods", "attachments"):
                until_unavailable(sources, name)
            over.set()


def dripping(over: threading.Event, start: bytes, _: Request) -> Iterator[bytes]:
    """Begin an answer, and send a byte now and then until it is over."""
    yield start
    while not over.wait(0.05):
        yield b"1"


def until_unavailable(sources: Sources, name: str) -> None:
    """Read a source in another thread, which may hang."""
    readings: list[Reading[Any]] = []
    waits = node(node=[node_using(DISK)], pods=(waiting_pod(),))

    def ask() -> None:
        readings.append(read(sources, name, waits))

    threading.Thread(target=ask, daemon=True).start()
    until(lambda: readings, f"{name} is read")
    assert isinstance(readings[0], Unavailable)


def test_only_a_certificate_of_the_given_authority_is_trusted(
    sources_of: SourcesOf, tmp_path: Path
) -> None:
    context, certificate = self_signed(tmp_path)
    with FakeServer(answering(http(listing(POD))), tls=context) as server:
        assert "certificate verify failed" in error_of(sources_of(server))
        assert server.requests == []
        sources = sources_of(server, cluster=f"certificate-authority: {certificate}")
        assert names(read(sources, "pods")) == ["shop/web-0"]
    with FakeServer(answering(http(listing()))) as server:
        server.url = server.url.replace("http://", "https://")
        assert "SSL" in error_of(sources_of(server))
    with refusing_port() as port:
        server.url = f"http://127.0.0.1:{port}"
        assert (
            error_of(sources_of(server))
            == f"cannot connect to the API server at {server.url}: connection refused"
        )


def test_a_request_leaves_no_open_handle(sources_of: SourcesOf) -> None:
    with FakeServer(answering(http("{}", "403 Forbidden"), http(listing(POD)))) as server:
        before = len(os.listdir("/proc/self/fd"))
        sources = sources_of(server)
        for _ in range(5):
            read(sources, "pods")
        # The fake server's ends are in this process too, and close a moment later.
        until(lambda: len(os.listdir("/proc/self/fd")) == before, "everything is closed")


# Credentials


def test_a_token_is_read_again_by_each_command_and_never_printed(
    sources_of: SourcesOf, tmp_path: Path
) -> None:
    version, token, plugin = (
        "client.authentication.k8s.io/v1beta1",
        tmp_path / "token",
        tmp_path / "plugin",
    )
    users = (
        f"{{tokenFile: {token}}}",
        f"{{exec: {{apiVersion: {version}, command: {plugin}, interactiveMode: Never}}}}",
    )
    with FakeServer(answering(http(HTML, "502 Bad Gateway"))) as server:
        for user, text in itertools.product(users, ("first", "rotated")):
            token.write_text(text)
            credential = {
                "apiVersion": version,
                "kind": "ExecCredential",
                "status": {"token": text},
            }
            plugin.write_text(f"#!/bin/sh\necho '{json.dumps(credential)}'\n")
            plugin.chmod(0o755)
            assert text not in error_of(sources_of(server, user=user))
    assert [request.headers["authorization"] for request in server.requests] == [
        "Bearer first",
        "Bearer rotated",
    ] * 2


def test_an_invalid_kubeconfig_is_wrong_usage_and_reported_by_its_path(tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    for text in (
        "", "not: [valid", "just words", "[]", "apiVersion: v1\nkind: Config\n", "\x00\x01", "a: b: c",
        "clusters: 7\ncontexts: x\nusers: []\n", "current-context: gone\ncontexts: []\nclusters: []\nusers: []\n",
    ):  # fmt: skip
        path.write_text(text)
        with pytest.raises(
            UsageError, match=rf"^--kubeconfig \(NODELEAK_KUBECONFIG\): cannot read {path}: ."
        ):
            sources_of_command(path)
    for missing in (tmp_path / "gone", tmp_path):
        with pytest.raises(UsageError, match=f": cannot read {missing}: ."):
            sources_of_command(missing)
    kubeconfig(path, "https://127.0.0.1:1", user=f"{{tokenFile: {tmp_path}/gone}}")
    with pytest.raises(UsageError, match=f"cannot read {path}: .*gone"):
        sources_of_command(path)


# Watches


def test_a_watch_yields_whole_lines_as_they_arrive(tmp_path: Path) -> None:
    begun = [CHUNKED, chunk('{"a":1}\n{"b"'), chunk(":2}\n"), chunk('{"c":3}\n{"d":4}\n')]
    ends: list[Answer] = [[LAST_CHUNK], [chunk('{"e"')], [chunk('{"e"'), LAST_CHUNK], [b"zzz\r\n"]]
    with FakeServer(lambda _: itertools.chain(begun, ends.pop(0))) as server:
        api = connect(kubeconfig(tmp_path / "config", server.url))
        ends.append(hang(server))
        for why in (
            "^$",
            "broke off",
            "broke off in the middle of a line",
            "broke off",
            "timed out",
        ):
            with api.stream("/api/v1/pods", (("watch", "1"),), 0.3) as lines:
                assert [next(lines) for _ in range(4)] == [
                    b'{"a":1}',
                    b'{"b":2}',
                    b'{"c":3}',
                    b'{"d":4}',
                ]
                with pytest.raises(StopIteration if why == "^$" else SourceError, match=why):
                    next(lines)
        api.close()


# The server's clock and version


NOON, LATER = "Thu, 01 Jan 2026 12:00:00 GMT", "Thu, 01 Jan 2026 12:00:30 GMT"


def dated(
    date: str | None,
    body: str = listing(POD),
    status: str = "200 OK",
    kind: str = "application/json",
) -> bytes:
    """Write a whole answer with the server's own time in it."""
    head, _, rest = http(body, status, kind).partition(b"\r\n")
    return head + b"\r\n" + (f"Date: {date}\r\n".encode() if date is not None else b"") + rest


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> Callable[[float, float], None]:
    """Return what sets the node's clock: seconds after noon when a request is sent, and when its answer is received."""
    left = [0.5]

    def now() -> Moment:
        wall = left.pop(0) if len(left) > 1 else left[0]
        return Moment(datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC) + timedelta(seconds=wall), UPTIME)

    def show(sent: float, received: float) -> None:
        left[:] = [sent, sent, received]

    monkeypatch.setattr(loop, "now", now)
    return show


def test_the_clock_skew_is_measured_and_stays_without_a_date_or_after_a_clock_step(
    sources_of: SourcesOf, clocks: Callable[[float, float], None]
) -> None:
    for answer, sent, received, skew in (
        (dated(NOON), 0.5, 0.5, 0.0),
        (dated(NOON), 0.25, 0.75, 0.0),
        (dated(LATER), 59.5, 61.5, -30.0),
        (dated(LATER), 58.5, 62.5, -30.0),
        (dated("Thu, 01 Jan 2026 14:00:20 +0200"), 0.5, 0.5, 20.0),
        *((dated(date), 0.5, 0.5, 30.0) for date in (
            None, "", "noon", "Thu, 99 Jan 2026 12:00:00 GMT", "Thu, 01 Jan 2026 12:00:00 -0000",
            "Fri, 31 Dec 9999 23:59:59 GMT",
        )),
        (dated(NOON, HTML, kind="text/html"), 0.5, 0.5, 30.0),
        (dated(NOON, HTML, "502 Bad Gateway", "text/html"), 0.5, 0.5, 30.0),
        (dated(NOON), 0.0, 4.1, 30.0),
        (dated(NOON), 5.0, 4.0, 30.0),
        (dated(NOON), 0.0, 3600.0, 30.0),
    ):  # fmt: skip
        with FakeServer(answering(dated(LATER), answer)) as server:
            sources = sources_of(server)
            clocks(0.5, 0.5)
            read(sources, "pods")
            assert fields_of(sources, "watches")["api_skew"] == timedelta(seconds=30)
            clocks(sent, received)
            read(sources, "pods")
        assert fields_of(sources, "watches")["api_skew"] == timedelta(seconds=skew)


def test_the_version_of_the_server_is_known_if_it_is_one(sources_of: SourcesOf) -> None:
    def answer(version: object) -> bytes:
        return http(json.dumps({"major": "1", "minor": "20", "gitVersion": version}))

    odd: list[object] = [
        "", "1.20.2", "v1.20", "v1.20.2\n", "v1.20.2\x1b[31m", "v1.20.2 rm -rf", "v1.20.2-" + "x" * 99, "v\u0663.1.2",
        None, 7, ["v1.20.2"], {},
    ]  # fmt: skip
    right = (
        "v1.20.2",
        "v1.18.9-eks-d1db3c",
        "v1.9.2+coreos.0",
        "v1.21.5-gke.1302",
        "v1.10.0-beta.4.1+abc_def",
    )
    failures = (
        http("{}", "403 Forbidden"),
        http(HTML, kind="text/html"),
        http(HTML),
        b"",
        answer("v1.20.2")[:-3],
    )
    cases = [
        *((answer(one), one) for one in right),
        *((answer(one), "") for one in odd),
        *((f, "") for f in failures),
    ]
    for answered, version in cases:
        with FakeServer(
            lambda request: [http(listing()) if "pods" in request.path else answered]  # noqa: B023
        ) as server:
            sources = sources_of(server)
            assert [read(sources, "pods") for _ in range(2)] == [Known(())] * 2
        assert fields_of(sources, "watches")["server_version"] == version
        assert len(server.requested("/version")) == 1
