"""The API server over the real transport: credentials, errors, and invalid answers."""

import contextlib
import itertools
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.sources.collector import Moment
from agent.sources.kube import client, node, pods
from agent.sources.kube.client import Api, ApiError, ServerInfo, list_all, parse_list
from agent.sources.kube.credentials import NoCredentials
from agent.sources.kube.list_watch import list_once
from agent.sources.source_error import SourceError
from tests.builders import UPTIME
from tests.sources.kube.connections import connect
from tests.wire import (
    CHUNKED,
    HTML,
    LAST_CHUNK,
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
    "status": {"phase": "Running", "podIP": "10.244.1.7", "podIPs": [{"ip": "10.244.1.7"}, {"ip": "fd00::7"}]},
}
PODS = pods.pods_of("worker-1")


def listing(*items: object, version: str = "40", more: str = "") -> str:
    """Write a list as an API server does: no spaces, its metadata first."""
    metadata = {"resourceVersion": version, **({"continue": more} if more else {})}
    tree = {"kind": "PodList", "apiVersion": "v1", "metadata": metadata, "items": items}
    return json.dumps(tree, separators=(",", ":"))


Connect = Callable[..., Api]


@pytest.fixture
def api_of(tmp_path: Path) -> Iterator[Connect]:
    """Return a function that connects to a fake server, and close the connections."""
    made: list[Api] = []

    def connected(server: FakeServer, timeout: float = 5.0, info: ServerInfo | None = None, **given: str) -> Api:
        made.append(connect(kubeconfig(tmp_path / "kubeconfig", server.url, **given), timeout, info))
        return made[-1]

    yield connected
    for one in made:
        one.close()


def always(answer: bytes) -> Answers:
    return lambda _: [answer]


def error_of(api: Api) -> str:
    with pytest.raises(SourceError) as raised:
        list_once(api, PODS)
    text = str(raised.value)
    assert text.startswith(("API server: ", "cannot connect to the API server at "))
    assert len(text) < 300, "an operator reads this in one line"
    assert "\n" not in text
    return text


def test_only_objects_of_this_node_are_requested(api_of: Connect) -> None:
    item = {
        "metadata": {"name": "worker-1", "uid": "n-1", "resourceVersion": "9"},
        "spec": {"podCIDR": "10.244.1.0/24", "podCIDRs": ["10.244.1.0/24", "fd00::/64"]},
        "status": {"allocatable": {"pods": "110"}},
    }
    answers = {"/api/v1/pods": POD, "/api/v1/nodes": item}
    with FakeServer(lambda request: [http(listing(answers[request.path]))]) as server:
        api = api_of(server)
        (pod,) = list_once(api, PODS)
        (found,) = list_once(api, node.own_node("worker-1"))
    assert (pod.name, pod.uid, pod.phase, pod.ips) == ("shop/web-0", "u-1", "Running", ("10.244.1.7", "fd00::7"))
    assert (found.name, found.pod_cidrs, found.max_pods) == ("worker-1", ("10.244.1.0/24", "fd00::/64"), 110)
    assert server.requested("") == [
        "/api/v1/pods?fieldSelector=spec.nodeName%3Dworker-1&limit=500",
        "/api/v1/nodes?fieldSelector=metadata.name%3Dworker-1&limit=500",
    ]
    assert server.requests[0].headers["user-agent"] == "nodeleak"


# Errors

REASONS = {
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not Found",
    410: "Gone",
    429: "Too Many Requests",
    500: "Internal Server Error",
    503: "Service Unavailable",
}


@pytest.mark.parametrize("status", REASONS)
def test_an_error_has_the_message_of_the_server_and_its_code(api_of: Connect, status: int) -> None:
    body = json.dumps({"kind": "Status", "code": status, "message": 'pods is forbidden:\n  User "x" cannot list'})
    with FakeServer(always(http(body, f"{status} {REASONS[status]}"))) as server:
        assert error_of(api_of(server)) == f'API server: {status} pods is forbidden: User "x" cannot list'
        with pytest.raises(ApiError) as raised:
            api_of(server).get("/version")
    assert raised.value.status == status
    assert len(server.requests) == 2, "the next sync is the retry"
    with FakeServer(always(http(HTML, f"{status} {REASONS[status]}", "text/html"))) as server:
        assert error_of(api_of(server)) == f"API server: {status} {REASONS[status]}"


def test_an_error_without_a_message_is_reported_by_its_code(api_of: Connect) -> None:
    for body in ("", "null", "[]", '"x"', "{}", '{"message": "' + "x" * 9000, "[" * 9000):
        with FakeServer(always(http(body, "500 Internal Server Error"))) as server:
            assert error_of(api_of(server)) == "API server: 500 Internal Server Error"


def test_a_redirect_is_not_followed(api_of: Connect) -> None:
    # A login page of a proxy, say: our token is not for it.
    away = b"HTTP/1.1 302 Found\r\nLocation: /login\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    with FakeServer(always(away)) as server:
        assert error_of(api_of(server)) == "API server: 302 Found"
    assert len(server.requests) == 1


def test_an_answer_that_is_no_pod_list_is_unavailable(api_of: Connect) -> None:
    for answer in (
        http(HTML, kind="text/html"),
        http(""),
        http("null"),
        http("[]"),
        http('"pods"'),
        http("{}"),
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
        http(listing("pod")),
        http(listing(None)),
        http(listing({})),
        http(listing({"metadata": {"uid": "u"}})),
        http(listing({"metadata": {"uid": "u", "name": "web"}})),
        http(listing({**POD, "status": {"podIPs": ["10.0.0.1"]}})),
        http(listing(POD)[:-5]),
        http(listing(POD)[:-30]),
        http(listing(POD))[:-30],
        CHUNKED + chunk(listing(POD)[:60]),
        b"HTTP/1.1 200 OK\r\nContent-Len",
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"",
    ):
        with FakeServer(always(answer)) as server:
            assert error_of(api_of(server))


# Lists


def test_an_empty_list_is_empty_and_not_unavailable(api_of: Connect) -> None:
    for answer in (
        listing(),
        '{"kind":"PodList","metadata":{"resourceVersion":"40"},"items":null}',
        '{ "metadata": { "resourceVersion": "40" }, "items": [ ] }',
    ):
        with FakeServer(always(http(answer))) as server, list_all(api_of(server), PODS.path, ()) as (version, items):
            assert (version, list(items)) == (40, [])


@pytest.mark.parametrize("piece", [1, 7, 1 << 20])
def test_a_list_is_read_in_any_pieces(piece: int) -> None:
    unicode_pod = POD | {"note": 'Gr\u00fc\u00dfe \U0001f600 ],{"'}
    for text in (listing(POD, unicode_pod), json.dumps(json.loads(listing(POD, unicode_pod)), indent=2)):
        encoded = text.encode()
        pieces = [encoded[at : at + piece] for at in range(0, len(encoded), piece)]
        version, more, items = parse_list(pieces)
        assert (version, more, list(items)) == (40, "", [POD, unicode_pod])


def test_a_paged_list_is_read_to_its_end(api_of: Connect) -> None:
    def pages(request: Request) -> list[bytes]:
        second = {**POD, "metadata": {**POD["metadata"], "uid": "u-2"}}
        return [http(listing(second) if "continue=next" in request.target else listing(POD, more="next"))]

    query = (("resourceVersion", "0"),)
    with FakeServer(pages) as server, list_all(api_of(server), PODS.path, query) as (version, items):
        assert (version, [item["metadata"]["uid"] for item in items]) == (40, ["u-1", "u-2"])
    assert "resourceVersion" not in server.requested("continue=next")[0], "a page may not name a version"


def test_an_expired_page_is_an_error_and_no_shorter_list(api_of: Connect) -> None:
    def pages(request: Request) -> list[bytes]:
        return [http("{}", "410 Gone") if "continue" in request.target else http(listing(POD, more="next"))]

    with FakeServer(pages) as server:
        assert error_of(api_of(server)) == "API server: 410 Gone"


def test_a_list_is_parsed_as_it_arrives(api_of: Connect) -> None:
    def slowly(_: Request) -> Iterator[bytes]:
        text = listing(POD, POD)
        yield CHUNKED + chunk(text[:-100] + " " * 100_000)
        first_read.wait(10)
        yield chunk(text[-100:]) + LAST_CHUNK

    first_read = threading.Event()
    with FakeServer(slowly) as server, list_all(api_of(server), PODS.path, ()) as (version, items):
        assert (version, next(items)) == (40, POD)
        first_read.set()
        assert list(items) == [POD]


def test_too_large_an_answer_is_refused(api_of: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "LARGEST_OBJECT", 1000)
    too_large = pytest.raises(SourceError, match="is larger than 1,000 bytes")
    with FakeServer(always(http('{"a": "' + "x" * 2000 + '"}'))) as server, too_large:
        api_of(server).get("/version")
    with FakeServer(always(CHUNKED + chunk("x" * 2000))) as server, too_large:
        list(api_of(server).stream(PODS.path, (), 5.0))
    with FakeServer(always(http(listing({"a": "x" * 200_000})))) as server:
        assert "one part of it is longer than 1,000 characters" in error_of(api_of(server))


def test_the_rest_of_a_list_that_is_given_up_is_not_read_as_another_answer(api_of: Connect) -> None:
    pages = iter([http(listing(POD, POD)), http(listing(POD, version="41"))])
    with FakeServer(lambda _: [next(pages)]) as server:
        api = api_of(server)
        with list_all(api, PODS.path, ()) as (version, _):
            assert version == 40
        with list_all(api, PODS.path, ()) as (version, items):
            assert (version, list(items)) == (41, [POD])


def test_with_a_version_no_pages_are_requested(api_of: Connect) -> None:
    # With a limit "not older than" becomes "exactly this", and that version is what has just expired (KEP-2523).
    query = (("resourceVersion", "39"),)
    with FakeServer(always(http(listing()))) as server, list_all(api_of(server), PODS.path, query) as (_, items):
        assert list(items) == []
    assert "limit" not in server.requested("")[0]


@given(cut=st.integers(0, len(listing(POD, POD)) - 1))
def test_a_truncated_list_is_no_list(cut: int) -> None:
    def whole() -> list[object]:
        _, _, items = parse_list([listing(POD, POD).encode()[:cut]])
        return list(items)

    with pytest.raises(SourceError):
        whole()


# The connection


def test_a_server_that_hangs_or_drips_times_out(api_of: Connect) -> None:
    def answers(request: Request) -> Iterator[bytes]:
        if request.path != PODS.path:
            yield from hang(server)
        yield CHUNKED + chunk(listing(POD)[:60])
        while not server.closing.wait(0.05):
            yield chunk(" ")

    server: FakeServer = FakeServer(answers)
    with server:
        start = time.perf_counter()
        with pytest.raises(SourceError, match="timed out"):
            api_of(server, 0.3).get("/version")
        assert "no complete response within 0.9 s" in error_of(api_of(server, 0.3))
        assert time.perf_counter() - start < 30


def test_a_closed_port_is_reported(tmp_path: Path) -> None:
    with refusing_port() as port:
        api = connect(kubeconfig(tmp_path / "k", f"http://127.0.0.1:{port}"), 1)
        assert "connection refused" in error_of(api)
        api.close()


def test_only_a_certificate_of_the_given_authority_is_trusted(api_of: Connect, tmp_path: Path) -> None:
    context, certificate = self_signed(tmp_path)
    with FakeServer(always(http(listing(POD))), tls=context) as server:
        assert "certificate verify failed" in error_of(api_of(server))
        assert server.requests == []
        assert len(list_once(api_of(server, cluster=f"certificate-authority: {certificate}"), PODS)) == 1
    with FakeServer(always(http(listing()))) as server:
        server.url = server.url.replace("http://", "https://")
        assert "SSL" in error_of(api_of(server))


def test_a_connection_leaves_no_open_handle(tmp_path: Path) -> None:
    with FakeServer(always(http("{}", "403 Forbidden"))) as server:
        path = kubeconfig(tmp_path / "kubeconfig", server.url)
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(5):
            api = connect(path, 1)
            error_of(api)
            api.close()
        # The fake server's ends are in this process too, and close a moment later.
        until(lambda: len(os.listdir("/proc/self/fd")) == before, "everything is closed", seconds=2)


# Credentials


def test_a_token_file_is_read_again_for_each_connection(api_of: Connect, tmp_path: Path) -> None:
    token = tmp_path / "token"
    with FakeServer(always(http(listing()))) as server:
        for text in ("first", "rotated"):
            token.write_text(text)
            list_once(api_of(server, user=f"{{tokenFile: {token}}}"), PODS)
    assert [request.headers["authorization"] for request in server.requests] == ["Bearer first", "Bearer rotated"]


def test_a_token_is_never_printed(api_of: Connect) -> None:
    with FakeServer(always(http(HTML, "502 Bad Gateway"))) as server:
        assert "s3cret" not in error_of(api_of(server, user="{token: s3cret}"))


def test_a_credential_plugin_is_run_for_each_connection(api_of: Connect, tmp_path: Path) -> None:
    plugin, version = tmp_path / "plugin", "client.authentication.k8s.io/v1beta1"
    user = f"{{exec: {{apiVersion: {version}, command: {plugin}, interactiveMode: Never}}}}"
    with FakeServer(always(http(listing()))) as server:
        for token in ("first", "rotated"):
            credential = {"apiVersion": version, "kind": "ExecCredential", "status": {"token": token}}
            plugin.write_text(f"#!/bin/sh\necho '{json.dumps(credential)}'\n")
            plugin.chmod(0o755)
            list_once(api_of(server, user=user), PODS)
    assert [request.headers["authorization"] for request in server.requests] == ["Bearer first", "Bearer rotated"]


def test_an_invalid_kubeconfig_is_reported_by_its_path(tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    for text in (
        "", "not: [valid", "just words", "[]", "apiVersion: v1\nkind: Config\n", "\x00\x01", "a: b: c",
        "clusters: 7\ncontexts: x\nusers: []\n", "current-context: gone\ncontexts: []\nclusters: []\nusers: []\n",
    ):  # fmt: skip
        path.write_text(text)
        with pytest.raises(NoCredentials, match=f"^cannot read {path}: ."):
            connect(path)
    for missing in (tmp_path / "gone", tmp_path):
        with pytest.raises(NoCredentials, match=f"^cannot read {missing}: ."):
            connect(missing)
    kubeconfig(path, "https://127.0.0.1:1", user=f"{{tokenFile: {tmp_path}/gone}}")
    with pytest.raises(NoCredentials, match="gone"):
        connect(path)


def test_a_kubeconfig_may_be_several_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("KUBERNETES_SERVICE_HOST", "KUBECONFIG"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(NoCredentials, match="no service account is mounted, and neither --kubeconfig nor KUBECONFIG"):
        connect(None)
    with FakeServer(always(http(listing()))) as server:
        first, second = tmp_path / "a", kubeconfig(tmp_path / "b", server.url)
        monkeypatch.setenv("KUBECONFIG", f"{first}:{second}")
        api = connect(None)
        assert list_once(api, PODS) == ()
        api.close()
        first.write_text("not: [valid")
        with pytest.raises(NoCredentials, match="while parsing"):
            connect(None)


# Watches


def test_a_watch_yields_lines_as_they_arrive(api_of: Connect) -> None:
    pieces = [CHUNKED, chunk('{"a":1}\n{"b"'), chunk(":2}\n"), chunk('{"c":3}\n{"d":4}\n'), LAST_CHUNK]
    with FakeServer(lambda _: pieces) as server:
        lines = api_of(server).stream(PODS.path, (("watch", "1"),), 5)
        assert list(lines) == [b'{"a":1}', b'{"b":2}', b'{"c":3}', b'{"d":4}']


def test_an_interrupted_watch_yields_only_complete_lines(api_of: Connect) -> None:
    for pieces, text in (
        ([CHUNKED, chunk('{"a":1}\n{"b"')], "broke off"),
        ([CHUNKED, chunk('{"a":1}\n{"b"'), LAST_CHUNK], "broke off in the middle of a line"),
        ([CHUNKED, chunk('{"a":1}\n'), b"zzz\r\n"], "broke off"),
    ):
        with FakeServer(lambda _, pieces=pieces: pieces) as server:  # type: ignore[misc]
            lines = api_of(server).stream(PODS.path, (), 5)
            assert next(lines) == b'{"a":1}'
            with pytest.raises(SourceError, match=text):
                next(lines)


def test_an_idle_watch_times_out(api_of: Connect) -> None:
    server: FakeServer = FakeServer(lambda _: itertools.chain([CHUNKED, chunk('{"a":1}\n')], hang(server)))
    with server:
        lines = api_of(server).stream(PODS.path, (), 0.2)
        assert next(lines) == b'{"a":1}'
        with pytest.raises(SourceError, match="timed out"):
            next(lines)


# The server's clock and version


def dated(date: str | None, body: str = listing(POD), status: str = "200 OK", kind: str = "application/json") -> bytes:
    """Write a whole answer with the server's own time in it."""
    head, _, rest = http(body, status, kind).partition(b"\r\n")
    return head + b"\r\n" + (f"Date: {date}\r\n".encode() if date is not None else b"") + rest


def clocked(sent: float, received: float) -> ServerInfo:
    """Measure with a wall clock that shows these seconds after noon."""
    noon = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)
    walls = iter([sent, sent, *[received] * 9])
    return ServerInfo(lambda: Moment(noon + timedelta(seconds=next(walls)), UPTIME))


NOON, LATER = "Thu, 01 Jan 2026 12:00:00 GMT", "Thu, 01 Jan 2026 12:00:30 GMT"


def test_the_clock_skew_is_measured(api_of: Connect) -> None:
    for date, sent, received, skew in (
        (NOON, 0.5, 0.5, 0.0),
        (NOON, 0.25, 0.75, 0.0),
        (LATER, 0.5, 0.5, 30.0),
        (LATER, 59.5, 61.5, -30.0),
        (LATER, 58.5, 62.5, -30.0),
        ("Thu, 01 Jan 2026 14:00:30 +0200", 0.5, 0.5, 30.0),
    ):
        info = clocked(sent, received)
        with FakeServer(always(dated(date))) as server:
            list_once(api_of(server, info=info), PODS)
        assert info.skew == timedelta(seconds=skew)


def test_without_a_date_or_after_a_clock_step_the_last_skew_stays(api_of: Connect) -> None:
    for answer, sent, received in (
        (dated(None), 0.5, 0.5),
        (dated(""), 0.5, 0.5),
        (dated("noon"), 0.5, 0.5),
        (dated("Thu, 99 Jan 2026 12:00:00 GMT"), 0.5, 0.5),
        (dated("Thu, 01 Jan 2026 12:00:00 -0000"), 0.5, 0.5),
        (dated("Fri, 31 Dec 9999 23:59:59 GMT"), 0.5, 0.5),
        (dated(NOON, HTML, kind="text/html"), 0.5, 0.5),
        (dated(NOON, HTML, "502 Bad Gateway", "text/html"), 0.5, 0.5),
        (dated(NOON), 0.0, 4.1),
        (dated(NOON), 5.0, 4.0),
        (dated(NOON), 0.0, 3600.0),
    ):
        info = clocked(sent, received)
        info.skew = timedelta(seconds=30)
        with FakeServer(always(answer)) as server, contextlib.suppress(SourceError):
            list_once(api_of(server, info=info), PODS)
        assert info.skew == timedelta(seconds=30)


def test_a_watch_measures_the_skew_before_its_first_line(api_of: Connect) -> None:
    head, info = CHUNKED.replace(b"\r\n\r\n", f"\r\nDate: {LATER}\r\n\r\n".encode()), clocked(0.5, 0.5)
    server: FakeServer = FakeServer(lambda _: itertools.chain([head, chunk('{"a":1}\n')], hang(server)))
    with server:
        lines = api_of(server, info=info).stream(PODS.path, (("watch", "1"),), 5)
        assert info.skew == timedelta(seconds=30)
        assert next(lines) == b'{"a":1}'


def version_of(api: Api, info: ServerInfo) -> str:
    info.version = "v1.9.2"
    api.request_version()
    return info.version


def test_the_version_of_the_server_is_known_if_it_is_one(api_of: Connect) -> None:
    def answer(version: object) -> bytes:
        return http(json.dumps({"major": "1", "minor": "20", "gitVersion": version}))

    odd: list[object] = [
        "", "1.20.2", "v1.20", "v1.20.2\n", "v1.20.2\x1b[31m", "v1.20.2 rm -rf", "v1.20.2-" + "x" * 99, "v\u0663.1.2",
        None, 7, ["v1.20.2"], {},
    ]  # fmt: skip
    right = ("v1.20.2", "v1.18.9-eks-d1db3c", "v1.9.2+coreos.0", "v1.21.5-gke.1302", "v1.10.0-beta.4.1+abc_def")
    failures = (http("{}", "403 Forbidden"), http(HTML, kind="text/html"), http(HTML), b"", answer("v1.20.2")[:-3])
    cases = [*((answer(one), one) for one in right), *((answer(one), "") for one in odd), *((f, "") for f in failures)]
    for answered, version in cases:
        info = clocked(0, 0)
        with FakeServer(always(answered)) as server:
            assert version_of(api_of(server, info=info), info) == version
            assert server.requested("") == ["/version"]
