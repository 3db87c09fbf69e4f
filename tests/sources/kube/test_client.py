"""The API server over the real transport: credentials, errors, and invalid answers."""

import contextlib
import itertools
import json
import os
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.sources.kube import client, node, pods
from agent.sources.kube.client import Api, ApiError, list_all, parse_list
from agent.sources.kube.credentials import NoCredentials
from agent.sources.kube.list_watch import list_once
from agent.sources.kube.server_clock import ServerClock
from agent.sources.source_error import SourceError
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


def listing(*items: object, version: str = "40", more: str = "") -> str:
    """Write a list as an API server does: no spaces, its metadata first."""
    metadata = {"resourceVersion": version, **({"continue": more} if more else {})}
    tree = {"kind": "PodList", "apiVersion": "v1", "metadata": metadata, "items": items}
    return json.dumps(tree, separators=(",", ":"))


@pytest.fixture
def api_of(tmp_path: Path) -> Iterator[Any]:
    """Return a function that connects to a fake server, and close the connections."""
    made: list[Api] = []

    def connect(server: FakeServer, timeout: float = 5.0, **given: str) -> Api:
        made.append(Api(kubeconfig(tmp_path / "kubeconfig", server.url, **given), timeout))
        return made[-1]

    yield connect
    for one in made:
        one.close()


def always(answer: bytes) -> Answers:
    return lambda _: [answer]


def error_of(api: Api) -> str:
    with pytest.raises(SourceError) as raised:
        list_once(api, pods.PODS_PATH, pods.pods_query("worker-1"), pods.parse_pod)
    text = str(raised.value)
    assert text.startswith(("API server: ", "cannot connect to the API server at "))
    assert len(text) < 300, "an operator reads this in one line"
    assert "\n" not in text
    return text


def test_only_pods_of_this_node_are_requested(api_of: Any) -> None:
    with FakeServer(always(http(listing(POD)))) as server:
        (pod,) = list_once(api_of(server), pods.PODS_PATH, pods.pods_query("worker-1"), pods.parse_pod)
    assert (pod.name, pod.uid, pod.phase, pod.ips) == ("shop/web-0", "u-1", "Running", ("10.244.1.7", "fd00::7"))
    (target,) = server.requested("")
    assert target == "/api/v1/pods?fieldSelector=spec.nodeName%3Dworker-1&limit=500"
    assert server.requests[0].headers["user-agent"] == "nodeleak"


def test_only_the_object_of_this_node_is_requested(api_of: Any) -> None:
    item = {
        "metadata": {"name": "worker-1", "uid": "n-1", "resourceVersion": "9"},
        "spec": {"podCIDR": "10.244.1.0/24", "podCIDRs": ["10.244.1.0/24", "fd00::/64"]},
        "status": {"allocatable": {"pods": "110"}},
    }
    with FakeServer(always(http(listing(item)))) as server:
        (found,) = list_once(api_of(server), node.NODES_PATH, node.node_query("worker-1"), node.parse_node)
    assert (found.name, found.pod_cidrs, found.max_pods) == ("worker-1", ("10.244.1.0/24", "fd00::/64"), 110)
    assert server.requested("")[0].startswith("/api/v1/nodes?fieldSelector=metadata.name%3Dworker-1")


@pytest.mark.parametrize(
    ("pod", "expected"),
    [
        ({**POD, "status": {"podIP": "10.244.1.7"}}, ("", ("10.244.1.7",), False, False)),
        ({"metadata": POD["metadata"]}, ("", (), False, False)),
        ({**POD, "status": None, "spec": None}, ("", (), False, False)),
        ({**POD, "spec": {"hostNetwork": True}}, ("Running", ("10.244.1.7", "fd00::7"), True, False)),
        (
            {**POD, "metadata": {**POD["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}},
            ("Running", ("10.244.1.7", "fd00::7"), False, True),
        ),
        ({**POD, "status": {"phase": "Pending", "podIPs": [{}]}}, ("Pending", (), False, False)),
    ],
    ids=["before 1.16", "no spec, no status", "null", "host network", "deleting", "an address without one"],
)
def test_pods_of_every_api_version_are_parsed(pod: dict[str, Any], expected: tuple[object, ...]) -> None:
    parsed = pods.parse_pod(pod)
    assert (parsed.phase, parsed.ips, parsed.host_network, parsed.deleting) == expected


@pytest.mark.parametrize(
    "status", [{"phase": ["Running"]}, {"podIPs": [{"ip": ["x"]}]}, {"podIP": "10.0.0.256"}, {"podIPs": 7}, "Running"]
)
def test_a_pod_with_invalid_types_is_reported_and_rejected(api_of: Any, status: Any) -> None:
    item = {"metadata": {"name": "a", "namespace": "b", "uid": "c"}, "status": status}
    with FakeServer(always(http(listing(item)))) as server, pytest.raises(SourceError, match="incomplete object"):
        list_once(api_of(server), pods.PODS_PATH, pods.pods_query("worker-1"), pods.parse_pod)


@pytest.mark.parametrize(
    ("item", "cidrs", "most"),
    [
        ({"metadata": {"name": "n"}}, (), None),
        ({"metadata": {"name": "n"}, "spec": {"podCIDR": "10.0.0.0/24"}}, ("10.0.0.0/24",), None),
        ({"metadata": {"name": "n"}, "status": {"allocatable": {"pods": 30}}}, (), 30),
        ({"metadata": {"name": "n"}, "status": {"allocatable": {"pods": "1k"}}}, (), None),
        ({"metadata": {"name": "n"}, "spec": None, "status": None}, (), None),
    ],
    ids=["bare", "before 1.16", "a number", "a quantity", "null"],
)
def test_nodes_of_every_api_version_are_parsed(item: dict[str, Any], cidrs: tuple[str, ...], most: int | None) -> None:
    parsed = node.parse_node(item)
    assert (parsed.pod_cidrs, parsed.max_pods) == (cidrs, most)


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
def test_an_error_has_the_message_of_the_server(api_of: Any, status: int) -> None:
    body = json.dumps({"kind": "Status", "code": status, "message": 'pods is forbidden:\n  User "x" cannot list'})
    with FakeServer(always(http(body, f"{status} {REASONS[status]}"))) as server:
        assert error_of(api_of(server)) == f'API server: {status} pods is forbidden: User "x" cannot list'
    assert len(server.requests) == 1, "the next sync is the retry"


@pytest.mark.parametrize("status", REASONS)
def test_an_html_error_is_reported_by_its_code(api_of: Any, status: int) -> None:
    with FakeServer(always(http(HTML, f"{status} {REASONS[status]}", "text/html"))) as server:
        assert error_of(api_of(server)) == f"API server: {status} {REASONS[status]}"


@pytest.mark.parametrize("body", ["", "null", "[]", '"x"', "{}", '{"message": "' + "x" * 9000, "[" * 9000])
def test_an_error_without_a_message_is_reported_by_its_code(api_of: Any, body: str) -> None:
    with FakeServer(always(http(body, "500 Internal Server Error"))) as server:
        assert error_of(api_of(server)) == "API server: 500 Internal Server Error"


def test_an_error_has_its_status_code(api_of: Any) -> None:
    with FakeServer(always(http("{}", "410 Gone"))) as server, pytest.raises(ApiError) as raised:
        api_of(server).get(pods.PODS_PATH)
    assert raised.value.status == 410


def test_a_redirect_is_not_followed(api_of: Any) -> None:
    # A login page of a proxy, say: our token is not for it.
    away = b"HTTP/1.1 302 Found\r\nLocation: /login\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    with FakeServer(always(away)) as server:
        assert error_of(api_of(server)) == "API server: 302 Found"
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    "answer",
    [
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
        http('{"metadata":{"resourceVersion":"5"},"items":{}}'),
        http('{"metadata":{"resourceVersion":"5"},"items":""}'),
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
        http(listing({**POD, "status": []}) [:-5]),
    ],
)  # fmt: skip
def test_an_answer_that_is_no_pod_list_is_unavailable(api_of: Any, answer: bytes) -> None:
    with FakeServer(always(answer)) as server:
        assert error_of(api_of(server))


@pytest.mark.parametrize("answer", [
    listing(),
    '{"kind":"PodList","metadata":{"resourceVersion":"40"},"items":null}',
    '{"items":null,"metadata":{"resourceVersion":"40"}}',
    '{"items":[],"metadata":{"resourceVersion":"40"}}',
    '{ "metadata": { "resourceVersion": "40" }, "items": [ ] }',
])  # fmt: skip
def test_an_empty_list_is_empty_and_not_unavailable(api_of: Any, answer: str) -> None:
    with FakeServer(always(http(answer))) as server, list_all(api_of(server), pods.PODS_PATH, ()) as (version, items):
        assert (version, list(items)) == (40, [])


@pytest.mark.parametrize(
    "text",
    [
        listing(POD, POD),
        json.dumps(json.loads(listing(POD, POD)), indent=2),
        json.dumps({"items": [POD, POD], "metadata": {"resourceVersion": "40"}}, separators=(",", ":")),
        json.dumps(
            {"metadata": {"resourceVersion": "40", "x": "y" * 9000}, "items": [POD, POD]}, separators=(",", ":")
        ),
        json.dumps({"metadata": {"note": '"items":[', "resourceVersion": "40"}, "items": [POD, POD]}),
    ],
    ids=["as servers write it", "indented", "in another order", "with much before", "with a trap"],
)
def test_a_list_is_read_in_any_formatting(text: str) -> None:
    version, more, items = parse_list([text.encode()])
    assert (version, more, list(items)) == (40, "", [POD, POD])


def test_a_paged_list_is_read_to_its_end(api_of: Any) -> None:
    def pages(request: Request) -> list[bytes]:
        second = {**POD, "metadata": {**POD["metadata"], "uid": "u-2"}}
        return [http(listing(second) if "continue=next" in request.target else listing(POD, more="next"))]

    query = (("resourceVersion", "0"),)
    with FakeServer(pages) as server, list_all(api_of(server), pods.PODS_PATH, query) as (version, items):
        assert (version, [item["metadata"]["uid"] for item in items]) == (40, ["u-1", "u-2"])
    assert "resourceVersion" not in server.requested("continue=next")[0], "a page may not name a version"


def test_an_expired_page_is_an_error_and_no_shorter_list(api_of: Any) -> None:
    def pages(request: Request) -> list[bytes]:
        return [http("{}", "410 Gone") if "continue" in request.target else http(listing(POD, more="next"))]

    with FakeServer(pages) as server:
        assert error_of(api_of(server)) == "API server: 410 Gone"


def test_a_list_is_parsed_as_it_arrives(api_of: Any) -> None:
    def slowly(_: Request) -> Iterator[bytes]:
        text = listing(POD, POD)
        yield CHUNKED + chunk(text[:-100] + " " * 100_000)
        first_read.wait(10)
        yield chunk(text[-100:]) + LAST_CHUNK

    first_read = threading.Event()
    with (
        FakeServer(slowly) as server,
        list_all(api_of(server), pods.PODS_PATH, ()) as (version, items),
    ):
        assert (version, next(items)) == (40, POD)
        first_read.set()
        assert list(items) == [POD]


def test_a_list_with_too_many_objects_is_no_list(api_of: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "MOST_LISTED", 3)
    with FakeServer(lambda request: [http(listing(*[POD] * (3 + ("nodes" in request.target))))]) as server:
        with list_all(api_of(server), pods.PODS_PATH, ()) as (_, items):
            assert len(list(items)) == 3
        with (
            list_all(api_of(server), node.NODES_PATH, ()) as (_, items),
            pytest.raises(SourceError, match="the list has more than 3 objects"),
        ):
            list(items)


def test_a_list_without_end_is_no_list(api_of: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_MOST_PAGES", 5)
    page = json.dumps({"metadata": {"resourceVersion": "7", "continue": "more"}, "items": []})
    with (
        FakeServer(always(http(page))) as server,
        list_all(api_of(server), pods.PODS_PATH, ()) as (_, items),
        pytest.raises(SourceError, match="the list has more than 5 pages"),
    ):
        list(items)


def test_too_large_an_answer_is_refused(api_of: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "LARGEST_OBJECT", 1000)
    body = '{"a": "' + "x" * 2000 + '"}'
    with FakeServer(always(http(body))) as server, pytest.raises(SourceError, match="is larger than 1,000 bytes"):
        api_of(server).get("/version")
    events = CHUNKED + chunk("x" * 2000)
    with FakeServer(always(events)) as server, pytest.raises(SourceError, match="is larger than 1,000 bytes"):
        list(api_of(server).stream(pods.PODS_PATH, (), 5.0))


def test_the_rest_of_a_list_that_is_given_up_is_not_read_as_another_answer(api_of: Any) -> None:
    pages = iter([http(listing(POD, POD)), http(listing(POD, version="41"))])
    with FakeServer(lambda _: [next(pages)]) as server:
        api = api_of(server)
        with list_all(api, pods.PODS_PATH, ()) as (version, _):
            assert version == 40
        with list_all(api, pods.PODS_PATH, ()) as (version, items):
            assert (version, list(items)) == (41, [POD])


def test_with_a_version_no_pages_are_requested(api_of: Any) -> None:
    # With a limit "not older than" becomes "exactly this", and that version is what has just expired (KEP-2523).
    query = (("resourceVersion", "39"),)
    with FakeServer(always(http(listing()))) as server, list_all(api_of(server), pods.PODS_PATH, query) as (_, items):
        assert list(items) == []
    assert "limit" not in server.requested("")[0]


@given(cut=st.integers(0, len(listing(POD, POD)) - 3))
def test_a_truncated_list_is_no_list(cut: int) -> None:
    def whole() -> list[object]:
        _, _, items = parse_list([listing(POD, POD).encode()[:cut]])
        return list(items)

    with pytest.raises(SourceError):
        whole()


@given(body=st.binary(max_size=60) | st.text(max_size=60).map(lambda text: f'{{"items":[{text}'.encode()))
def test_any_answer_is_a_list_or_unavailable(body: bytes) -> None:
    try:
        _, _, items = parse_list([body])
        listed = list(items)
    except SourceError:
        return
    assert b"items" in body or listed == []


@pytest.mark.parametrize(
    "answer",
    [
        http(listing(POD))[:-30],
        CHUNKED + chunk(listing(POD)[:60]),
        b"HTTP/1.1 200 OK\r\nContent-Len",
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"",
    ],
    ids=["in the body", "in a chunk", "in the head", "not HTTP", "at once"],
)
def test_a_truncated_answer_is_reported(api_of: Any, answer: bytes) -> None:
    with FakeServer(always(answer)) as server:
        assert error_of(api_of(server))


def test_a_hanging_server_times_out(api_of: Any) -> None:
    server: FakeServer = FakeServer(lambda _: hang(server))
    with server:
        start = time.perf_counter()
        assert "timed out" in error_of(api_of(server, 0.3))
        assert time.perf_counter() - start < 1.5


def test_a_closed_port_is_reported(tmp_path: Path) -> None:
    with refusing_port() as port:
        api = Api(kubeconfig(tmp_path / "k", f"http://127.0.0.1:{port}"), 1)
        assert "connection refused" in error_of(api)
        api.close()


def test_an_untrusted_certificate_is_reported(api_of: Any, tmp_path: Path) -> None:
    context, _ = self_signed(tmp_path)
    with FakeServer(always(http(listing())), tls=context) as server:
        assert "certificate verify failed" in error_of(api_of(server))
    assert server.requests == []


def test_a_certificate_of_the_given_authority_is_trusted(api_of: Any, tmp_path: Path) -> None:
    context, certificate = self_signed(tmp_path)
    with FakeServer(always(http(listing(POD))), tls=context) as server:
        api = api_of(server, cluster=f"certificate-authority: {certificate}")
        assert len(list_once(api, pods.PODS_PATH, (), pods.parse_pod)) == 1


def test_http_to_an_https_port_is_reported(api_of: Any) -> None:
    with FakeServer(always(http(listing()))) as server:
        server.url = server.url.replace("http://", "https://")
        assert "SSL" in error_of(api_of(server))


def test_a_token_file_is_read_again_for_each_connection(api_of: Any, tmp_path: Path) -> None:
    token = tmp_path / "token"
    with FakeServer(always(http(listing()))) as server:
        for text in ("first", "rotated"):
            token.write_text(text)
            list_once(api_of(server, user=f"{{tokenFile: {token}}}"), pods.PODS_PATH, (), pods.parse_pod)
    assert [request.headers["authorization"] for request in server.requests] == ["Bearer first", "Bearer rotated"]


def test_a_token_is_never_printed(api_of: Any) -> None:
    with FakeServer(always(http(HTML, "502 Bad Gateway"))) as server:
        assert "s3cret" not in error_of(api_of(server, user="{token: s3cret}"))


@pytest.mark.parametrize(
    "text",
    ["", "not: [valid", "just words", "[]", "apiVersion: v1\nkind: Config\n", "clusters: 7\ncontexts: x\nusers: []\n",
     "current-context: gone\ncontexts: []\nclusters: []\nusers: []\n", "\x00\x01", "a: b: c"],
)  # fmt: skip
def test_an_invalid_kubeconfig_is_reported_by_its_path(tmp_path: Path, text: str) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(text)
    with pytest.raises(NoCredentials, match=f"^cannot read {path}: ."):
        Api(path, 1)


def test_a_missing_kubeconfig_is_reported_by_its_path(tmp_path: Path) -> None:
    with pytest.raises(NoCredentials, match=f"^cannot read {tmp_path}/kubeconfig: ."):
        Api(tmp_path / "kubeconfig", 1)
    with pytest.raises(NoCredentials, match=f"^cannot read {tmp_path}: ."):
        Api(tmp_path, 1)


def test_a_kubeconfig_with_a_missing_file_is_reported(tmp_path: Path) -> None:
    path = kubeconfig(tmp_path / "kubeconfig", "https://127.0.0.1:1", user=f"{{tokenFile: {tmp_path}/gone}}")
    with pytest.raises(NoCredentials, match="gone"):
        Api(path, 1)


def test_without_credentials_the_error_names_the_searched_paths(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("KUBERNETES_SERVICE_HOST", "KUBECONFIG"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(NoCredentials, match="no service account is mounted, and neither --kubeconfig nor KUBECONFIG"):
        Api(None, 1)


def test_a_connection_leaves_no_open_handle(tmp_path: Path) -> None:
    with FakeServer(always(http("{}", "403 Forbidden"))) as server:
        path = kubeconfig(tmp_path / "kubeconfig", server.url)
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(5):
            api = Api(path, 1)
            error_of(api)
            api.close()
        # The fake server's ends are in this process too, and close a moment later.
        until(lambda: len(os.listdir("/proc/self/fd")) == before, "everything is closed", seconds=2)


def test_a_watch_yields_lines_as_they_arrive(api_of: Any) -> None:
    pieces = [CHUNKED, chunk('{"a":1}\n{"b"'), chunk(":2}\n"), chunk('{"c":3}\n{"d":4}\n'), LAST_CHUNK]
    with FakeServer(lambda _: pieces) as server:
        lines = api_of(server).stream(pods.PODS_PATH, (("watch", "1"),), 5)
        assert list(lines) == [b'{"a":1}', b'{"b":2}', b'{"c":3}', b'{"d":4}']


def test_on_connect_is_called_when_a_watch_starts(api_of: Any) -> None:
    with FakeServer(always(http("{}", "503 Service Unavailable"))) as server, pytest.raises(ApiError):
        api_of(server).stream(pods.PODS_PATH, (), 5)


@pytest.mark.parametrize(
    ("pieces", "text"),
    [
        ([CHUNKED, chunk('{"a":1}\n{"b"')], "broke off"),
        ([CHUNKED, chunk('{"a":1}\n{"b"'), LAST_CHUNK], "broke off in the middle of a line"),
        ([CHUNKED, chunk('{"a":1}\n'), b"zzz\r\n"], "broke off"),
    ],
    ids=["dropped", "ended", "no chunk"],
)
def test_an_interrupted_watch_yields_only_complete_lines(api_of: Any, pieces: list[bytes], text: str) -> None:
    with FakeServer(lambda _: pieces) as server:
        lines = api_of(server).stream(pods.PODS_PATH, (), 5)
        assert next(lines) == b'{"a":1}'
        with pytest.raises(SourceError, match=text):
            next(lines)


def test_an_idle_watch_times_out(api_of: Any) -> None:
    def no_answer(_: Request) -> Iterator[bytes]:
        yield CHUNKED + chunk('{"a":1}\n')
        yield from hang(server)

    server = FakeServer(no_answer)
    with server:
        lines = api_of(server).stream(pods.PODS_PATH, (), 0.2)
        assert next(lines) == b'{"a":1}'
        with pytest.raises(SourceError, match="timed out"):
            next(lines)


def dated(date: str | None, body: str = listing(POD), status: str = "200 OK", kind: str = "application/json") -> bytes:
    """Write a whole answer with the server's own time in it."""
    head, _, rest = http(body, status, kind).partition(b"\r\n")
    return head + b"\r\n" + (f"Date: {date}\r\n".encode() if date is not None else b"") + rest


class NodeClock:
    """The node's wall clock; each reading advances it by a step."""

    def __init__(self, *steps: float) -> None:
        self._steps = iter(steps)

    def __call__(self) -> datetime:
        return datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC) + timedelta(seconds=next(self._steps))


def clocked(tmp_path: Path, server: FakeServer, clock: ServerClock) -> Api:
    return Api(kubeconfig(tmp_path / "clocked", server.url), 5, clock)


NOON, LATER = "Thu, 01 Jan 2026 12:00:00 GMT", "Thu, 01 Jan 2026 12:00:30 GMT"


@pytest.mark.parametrize(
    ("date", "asked", "received", "skew"),
    [
        (NOON, 0.5, 0.5, 0.0),
        (NOON, 0.25, 0.75, 0.0),
        (LATER, 0.5, 0.5, 30.0),
        (LATER, 59.5, 61.5, -30.0),
        (LATER, 58.5, 62.5, -30.0),
        ("Thu, 01 Jan 2026 14:00:30 +0200", 0.5, 0.5, 30.0),
    ],
    ids=["as one", "on its way", "ahead", "behind", "slow", "in another zone"],
)
def test_the_clock_skew_is_measured(tmp_path: Path, date: str, asked: float, received: float, skew: float) -> None:
    with FakeServer(always(dated(date))) as server:
        clock = ServerClock(NodeClock(asked, received))
        api = clocked(tmp_path, server, clock)
        assert clock.skew is None
        list_once(api, pods.PODS_PATH, (), pods.parse_pod)
        assert clock.skew == timedelta(seconds=skew)
        api.close()


@pytest.mark.parametrize(
    "answer",
    [
        dated(None),
        dated(""),
        dated("noon"),
        dated("Thu, 99 Jan 2026 12:00:00 GMT"),
        dated("Thu, 01 Jan 2026 12:00:00 -0000"),
        dated("Fri, 31 Dec 9999 23:59:59 GMT"),
        dated(NOON, HTML, kind="text/html"),
        dated(NOON, HTML, "502 Bad Gateway", "text/html"),
    ],
    ids=["none", "empty", "words", "no day", "no zone", "no such year", "a proxy's", "a gateway's"],
)
def test_an_answer_without_a_date_measures_no_skew(tmp_path: Path, answer: bytes) -> None:
    with FakeServer(always(answer)) as server:
        clock = ServerClock(NodeClock(0.5, 0.5))
        api = clocked(tmp_path, server, clock)
        with contextlib.suppress(SourceError):
            list_once(api, pods.PODS_PATH, (), pods.parse_pod)
        assert clock.skew is None
        api.close()


@pytest.mark.parametrize(
    ("asked", "received"), [(0.0, 4.1), (5.0, 4.0), (0.0, 3600.0)], ids=["slow", "back", "forward"]
)
def test_a_slow_answer_or_a_clock_step_measures_no_skew(tmp_path: Path, asked: float, received: float) -> None:
    with FakeServer(always(dated(LATER))) as server:
        clock = ServerClock(NodeClock(0.5, 0.5, asked, received))
        for _ in range(2):
            api = clocked(tmp_path, server, clock)
            list_once(api, pods.PODS_PATH, (), pods.parse_pod)
            api.close()
        assert clock.skew == timedelta(seconds=30)


def test_a_watch_measures_the_skew_before_its_first_line(tmp_path: Path) -> None:
    head = CHUNKED.replace(b"\r\n\r\n", f"\r\nDate: {LATER}\r\n\r\n".encode())
    server: FakeServer = FakeServer(lambda _: itertools.chain([head, chunk('{"a":1}\n')], hang(server)))
    with server:
        clock = ServerClock(NodeClock(0.5, 0.5))
        api = clocked(tmp_path, server, clock)
        lines = api.stream(pods.PODS_PATH, (("watch", "1"),), 5)
        assert clock.skew == timedelta(seconds=30)
        assert next(lines) == b'{"a":1}'


def test_the_skew_outlives_its_connection(tmp_path: Path) -> None:
    with FakeServer(always(dated(LATER))) as server:
        clock = ServerClock(NodeClock(0.5, 0.5))
        first = clocked(tmp_path, server, clock)
        list_once(first, pods.PODS_PATH, (), pods.parse_pod)
        first.close()
        second = clocked(tmp_path, server, clock)
        assert clock.skew == timedelta(seconds=30)
        second.close()
