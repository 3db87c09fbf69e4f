"""The daemon's list and watch of pods against a scripted server: requests, accepted answers, and deadlines."""

import itertools
import json
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from agent.app import loop
from agent.app.api_server import watched
from agent.config import load
from agent.model.snapshot import Known, Unavailable
from agent.model.watches import Evidence, Watch
from tests.sources.kube.connections import Hurry, running
from tests.sources.kube.old_server import listed, pod
from tests.sources.reading import read
from tests.wire import (
    CHUNKED,
    HTML,
    LAST_CHUNK,
    Answer,
    FakeServer,
    KeepAliveServer,
    Request,
    chunk,
    hang,
    http,
    kubeconfig,
    until,
)

Script = Callable[[FakeServer], Answer]
PODS = "/api/v1/pods"


def watch_of(config: Path, stale_after: str = "120s") -> Any:
    """Return what the daemon reads of the API server, and its watch of the pods."""
    given = {"node": "worker-1", "kubeconfig": str(config), "stale_after": stale_after}
    sources, watches = watched(load("run", given, {}))
    return sources.snapshot, watches[0]


def pods(version: int, *items: dict[str, Any]) -> Script:
    return lambda _: [http(listed("PodList", version, *items))]


SAME_ETCD = pods(10**6)  # The list of the own Node by an etcd that was not restored


def refused(status: str, code: int = 0, message: str = "no") -> Script:
    return lambda _: [
        http(json.dumps({"kind": "Status", "code": code, "message": message}), status)
    ]


def event(kind: str, item: object) -> bytes:
    return chunk(json.dumps({"type": kind, "object": item}) + "\n")


def bookmark(version: int) -> bytes:
    return event("BOOKMARK", {"metadata": {"resourceVersion": str(version)}})


def streamed(*pieces: bytes) -> Script:
    """End in due time."""
    return lambda _: [CHUNKED, *pieces, LAST_CHUNK]


def dropped(*pieces: bytes) -> Script:
    return lambda _: [CHUNKED, *pieces]


def lasting(*pieces: bytes) -> Script:
    """Say something, and then nothing: a watch as it should be."""
    return lambda server: itertools.chain([CHUNKED, *pieces], hang(server))


class Scripted:
    """A server that plays a script, and the watch that follows it."""

    def __init__(
        self,
        directory: Path,
        lists: Iterable[Script],
        watches: Iterable[Script],
        node: Script,
        stale_after: str = "120s",
        *,
        keep_alive: bool = False,
    ) -> None:
        self._lists, self._watches, self._node = iter(lists), iter(watches), node
        self.server = (KeepAliveServer if keep_alive else FakeServer)(self._answer)
        self.seconds = 1000.0
        self.step = 0.0
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(loop, "clock", self._clock)
            self.sources, self.watch = watch_of(
                kubeconfig(directory / "kubeconfig", self.server.url), stale_after
            )

    def _clock(self) -> float:
        self.seconds += self.step
        return self.seconds

    def _answer(self, request: Request) -> Answer:
        if request.path != PODS:
            version = http('{"gitVersion": "v1.9.2"}')
            return self._node(self.server) if request.path == "/api/v1/nodes" else [version]
        script = next(self._watches if request.watches else self._lists, None)
        return script(self.server) if script else hang(self.server)

    def reading(self) -> Any:
        return read(self.sources, "pods")

    def requests(self) -> list[str]:
        """Return what was asked about pods: `list VERSION` or `watch VERSION`."""
        queries = [
            (request, parse_qs(urlsplit(request.target).query, keep_blank_values=True))
            for request in list(self.server.requests)
            if request.path == PODS
        ]
        return [
            f"{'watch' if one.watches else 'list'} {query['resourceVersion'][0]}".strip()
            for one, query in queries
        ]

    def questions(self) -> list[str]:
        """Return the requests that ask whether etcd was restored."""
        return self.server.requested("/api/v1/nodes")

    def evidence(self) -> dict[Evidence, Watch]:
        """Return what shows that the server sends old versions."""
        return {one.evidence: one for one in read(self.sources, "watches").known()}

    def until_requested(self, expected: str) -> None:
        wanted = expected.split(", ")
        until(
            lambda: len(self.requests()) >= len(wanted), f"{expected}, but only {self.requests()}"
        )
        assert self.requests()[: len(wanted)] == wanted

    def until_seen(self, *expected: str) -> None:
        def seen() -> list[str] | None:
            reading = self.reading()
            return None if isinstance(reading, Unavailable) else [one.name for one in reading.value]

        until(
            lambda: seen() == [f"shop/{name}" for name in expected],
            f"{expected}, but only {self.reading()}",
        )


@contextmanager
def playing(
    directory: Path, lists: Iterable[Script], watches: Iterable[Script], node: Script = SAME_ETCD
) -> Iterator[Scripted]:
    """Run the watch against a script; where it ends, the server hangs. `node`: the list of the own Node."""
    scripted, stop = Scripted(directory, lists, watches, node), Hurry()
    with running([scripted.watch], stop), scripted.server:
        yield scripted
        stop.set()


def check(
    directory: Path,
    lists: Iterable[Script],
    watches: Iterable[Script],
    requested: str,
    seen: str,
    restarts: dict[str, int] | None = None,
    node: Script = SAME_ETCD,
) -> Scripted:
    """Play a script: what is requested, which pods are seen then, and why the watch was started again."""
    with playing(directory, lists, watches, node) as scripted:
        scripted.until_requested(requested)
        scripted.until_seen(*seen.split())
        assert restarts is None or +scripted.watch.restarts == restarts
    return scripted


A, B, C = pod("a", 7), pod("b", 41), pod("c", 85)


def test_nothing_is_known_before_one_list_and_one_watch_from_its_version(tmp_path: Path) -> None:
    with playing(tmp_path, [], []) as scripted:
        scripted.until_requested("list 0")
        assert scripted.reading() == Unavailable("pods", "the API server has not answered yet")
        assert not scripted.watch.answered.is_set()
    scripted = check(tmp_path, [pods(40, A)], [lasting()], "list 0, watch 40", "a", {})
    listing, watching = (
        parse_qs(urlsplit(target).query) for target in scripted.server.requested(PODS)
    )
    assert listing == {
        "fieldSelector": ["spec.nodeName=worker-1"],
        "resourceVersion": ["0"],
        "limit": ["500"],
    }
    assert 48 <= int(watching.pop("timeoutSeconds")[0]) <= 72
    assert watching == {
        "fieldSelector": ["spec.nodeName=worker-1"], "watch": ["1"], "allowWatchBookmarks": ["true"],
        "resourceVersion": ["40"],
    }  # fmt: skip
    first = listed("PodList", 40, A).replace(b'"40"', b'"40","continue":"next"')
    pages: list[Script] = [lambda _: [http(first)], pods(41, B)]
    with playing(tmp_path, pages, [lasting()]) as scripted:
        scripted.until_seen("a", "b")
        assert scripted.server.requested("continue=next") == [
            f"{PODS}?fieldSelector=spec.nodeName%3Dworker-1&limit=500&continue=next"
        ]


def test_events_change_what_is_known_and_a_watch_that_ends_resumes_from_its_version(
    tmp_path: Path,
) -> None:
    events = [
        event("ADDED", B),
        event("MODIFIED", pod("a", 42, "A")),
        event("PAUSED", pod("z", 42)),
        bookmark(43),
    ]
    check(tmp_path, [pods(40, A)], [lasting(*events)], "list 0, watch 40", "A b")
    check(
        tmp_path,
        [pods(40, A, B)],
        [lasting(event("DELETED", pod("a", 41)))],
        "list 0, watch 40",
        "b",
    )
    watches = [streamed(event("ADDED", B)), streamed(bookmark(55)), streamed(), lasting()]
    check(
        tmp_path,
        [pods(40, A)],
        watches,
        "list 0, watch 40, watch 41, watch 55, watch 55",
        "a b",
        {"ended": 3},
    )
    half = chunk('{"type":"ADDED","object":{"meta')
    watches = [dropped(event("ADDED", B), half), dropped(), streamed(half), lasting()]
    check(
        tmp_path,
        [pods(40)],
        watches,
        "list 0, watch 40, watch 41, watch 41, watch 41",
        "b",
        {"broken": 3},
    )


def test_events_that_a_bookmark_was_ahead_of_are_applied_and_older_ones_are_not(
    tmp_path: Path,
) -> None:
    late = [
        event("DELETED", pod("c", 96)),
        event("ADDED", pod("b", 98)),
        event("MODIFIED", pod("a", 99, "A")),
    ]
    old = [event("MODIFIED", pod("b", 97, "old")), event("MODIFIED", pod("a", 99, "old"))]
    watches = [streamed(bookmark(100), bookmark(80), *late, old[0]), streamed(old[1]), lasting()]
    scripted = check(
        tmp_path, [pods(90, A, C)], watches, "list 0, watch 90, watch 99, watch 99", "A b"
    )
    assert [*scripted.evidence()] == [Evidence.REPLAYED], "a bookmark is none"
    lost = event("MODIFIED", pod("a", 99, "A"))
    watches = [
        dropped(bookmark(100), event("ADDED", pod("b", 98))),
        streamed(lost, bookmark(100)),
        lasting(),
    ]
    check(tmp_path, [pods(90, A)], watches, "list 0, watch 90, watch 98, watch 100", "A b")


def test_after_an_expired_version_the_list_is_never_older_has_no_pages_and_may_be_of_etcd(
    tmp_path: Path,
) -> None:
    for expired in (
        streamed(
            event("ERROR", {"kind": "Status", "code": 410, "message": "too old resource version"})
        ),
        streamed(
            event(
                "ERROR", {"code": 504, "reason": "Timeout", "message": "Too large resource version"}
            )
        ),
        refused("410 Gone", 410),
        refused("504 Gateway Timeout", 504, "Too large resource version"),
    ):
        lists, watches, requested = (
            [pods(40, A), pods(90, C)],
            [expired, lasting()],
            "list 0, watch 40, list 40, watch 90",
        )
        scripted = check(tmp_path, lists, watches, requested, "c", {"expired": 1})
        # With a limit "not older than" becomes "exactly this", and that version is what has just expired (KEP-2523).
        assert "limit" not in scripted.server.requested("resourceVersion=40")[1]
    gone = streamed(event("ERROR", {"code": 410, "message": "gone"}))
    for answer in (refused("410 Gone", 410), refused("504 Gateway Timeout", 504), pods(39)):
        # The last one is a restored etcd: its versions are lower, and true.
        requested = "list 0, watch 40, list 40, list, watch 12"
        check(
            tmp_path,
            [pods(40, A), answer, pods(12, pod("z", 3))],
            [gone, lasting()],
            requested,
            "z",
        )
    check(tmp_path, [refused("410 Gone", 410), pods(40)], [lasting()], "list 0, list, watch 40", "")
    # Far behind, and not older than the version that is known: it still has what was deleted.
    lists, watches = (
        [pods(40, A, B), pods(40, A, B), pods(41, B)],
        [streamed(event("DELETED", A)), gone, lasting()],
    )
    requested, restarts = (
        "list 0, watch 40, watch 40, list 40, list, watch 41",
        {"ended": 1, "expired": 1, "regressed": 1},
    )
    assert (
        Evidence.OLDER_LIST in check(tmp_path, lists, watches, requested, "b", restarts).evidence()
    )


def test_a_failing_list_is_unavailable_and_retried(tmp_path: Path) -> None:
    for answer, text in (
        (refused("401 Unauthorized", 401, "Unauthorized"), "API server: 401 Unauthorized"),
        (refused("429 Too Many Requests", 429, "slow down"), "API server: 429 slow down"),
        (lambda _: [http(HTML, "502 Bad Gateway", "text/html")], "API server: 502 Bad Gateway"),
        (lambda _: [http(HTML, kind="text/html")], "expected a response in JSON, got text/html"),
        (pods(40, A, {"metadata": {"uid": "b", "resourceVersion": "7"}}), "incomplete object"),
        (pods(0, A), "it listed version 0, which cannot be watched from"),
        (lambda _: [http(b"{")[:-1]], "API server: "),
    ):
        with playing(tmp_path, [answer], []) as scripted:
            scripted.until_requested("list 0, list 0")
            reading = scripted.reading()
            assert isinstance(reading, Unavailable)
            assert text in reading.why
        check(tmp_path, [answer, pods(40, A)], [lasting()], "list 0, list 0, watch 40", "a")


def test_after_an_invalid_event_the_list_is_read_again(tmp_path: Path) -> None:
    versioned: dict[str, Any] = {"resourceVersion": "41"}
    lines = (b"", b"null", b"[]", b"7", b"{}", b'{"type": "ADDED"}', b"<html>", b"\xff", b"[" * 99999)  # fmt: skip
    objects: list[tuple[str, Any]] = [
        ("ADDED", None), ("ADDED", []), ("ERROR", "x"), ("ERROR", None), ("ADDED", {"metadata": None}),
        ("ADDED", {"metadata": {"uid": "a"}}), ("ADDED", {"metadata": {"uid": "a", "resourceVersion": "x"}}),
        ("ADDED", {"metadata": {"uid": "a", "resourceVersion": float("inf")}}), ("ADDED", {"metadata": versioned}),
        *(("DELETED", {"metadata": {"uid": "a", "resourceVersion": odd}}) for odd in ("", "-5", "9" * 30)),
        ("BOOKMARK", {"kind": "Pod"}), ("DELETED", {"metadata": versioned}),
        ("ADDED", {"metadata": {"uid": "a"} | versioned}),
    ]  # fmt: skip
    for message in (
        *(chunk(line + b"\n") for line in lines),
        *(event(kind, item) for kind, item in objects),
    ):
        lists, watches = [pods(40, A), pods(90, C)], [streamed(message), lasting()]
        scripted = check(
            tmp_path, lists, watches, "list 0, watch 40, list 40, watch 90", "c", {"broken": 1}
        )
        assert (scripted.watch.regressions, read(scripted.sources, "watches")) == (0, Known(()))


def test_a_live_pod_is_not_lost_to_an_old_server_that_shows_a_deletion_in_each_watch(
    tmp_path: Path,
) -> None:
    replayed, replaced = (
        event("DELETED", A),
        pod("b", 41, "web"),
    )  # with the versions of their last updates
    events = [
        event("ADDED", replaced),
        event("DELETED", replaced),
        event("ADDED", pod("c", 43, "web")),
        replayed,
    ]
    watches, requested = (
        [streamed(*events), *[streamed(replayed)] * 3, lasting()],
        "list 0, watch 40" + ", watch 43" * 4,
    )
    scripted = check(tmp_path, [pods(40, A, pod("z", 3))], watches, requested, "z web")
    ((kind, shown),) = scripted.evidence().items()
    assert (kind, shown.resource, shown.before, shown.version) == (
        Evidence.DELETED_BELOW,
        "pods",
        43,
        7,
    )
    assert (shown.count, shown.server_version, scripted.watch.regressions) == (4, "v1.9.2", 4)
    assert shown.first < shown.last
    assert len(scripted.server.requested("/version")) == 1, "once a connection"


def test_a_deleted_pod_stays_deleted_as_far_as_memory_goes(tmp_path: Path) -> None:
    deleted = [event("DELETED", pod(f"uid-{number}", 41 + number)) for number in range(1100)]
    again = [
        event("ADDED", pod("uid-0", 41)),
        event("ADDED", pod("uid-1", 2000)),
        event("ADDED", pod("uid-1099", 2001)),
    ]
    lists, watches = [pods(40), pods(2001, C)], [lasting(*deleted, *again), lasting()]
    with playing(tmp_path, lists, watches) as scripted:
        scripted.until_requested("list 0, watch 40, list 2000, watch 2001")
        assert +scripted.watch.restarts == {"regressed": 1}, "only the last 1000 are remembered"


def test_a_watch_without_news_becomes_unavailable_after_its_deadline_despite_retries(
    tmp_path: Path,
) -> None:
    leaves, back = threading.Event(), threading.Event()

    def watch(server: FakeServer) -> Iterator[bytes]:
        leaves.wait(5)
        if back.is_set():
            yield from lasting()(server)
        yield from refused("503 Service Unavailable", 503, "away")(server)

    with playing(tmp_path, [pods(40, A)], [watch] * 500) as scripted:
        scripted.until_requested("list 0, watch 40")
        scripted.until_seen("a")
        scripted.seconds += 120
        scripted.until_seen("a")
        scripted.seconds += 1
        assert scripted.reading() == Unavailable("pods", "no event for 121 s: the watch is silent")
        leaves.set()
        scripted.until_requested("list 0" + ", watch 40" * 5)
        assert scripted.reading() == Unavailable("pods", "no event for 121 s: API server: 503 away")
        back.set()
        scripted.until_seen("a")
        assert scripted.requests().count("list 0") == 1, "it is heard again, without a list"


def test_credentials_that_are_missing_or_rotated_are_read_again(tmp_path: Path) -> None:
    token, path, stop = tmp_path / "token", tmp_path / "kubeconfig", Hurry()

    def answers(request: Request) -> Answer:
        if request.headers.get("authorization") != "Bearer new":
            token.write_text("new")
            return [http("{}", "401 Unauthorized")]
        return hang(server) if request.watches else pods(40, A)(server)

    server = FakeServer(answers)
    token.write_text("old")
    sources, watch = watch_of(kubeconfig(path, server.url, user=f"{{tokenFile: {token}}}"))
    path.rename(tmp_path / "other")
    with running([watch], stop), server:
        until(lambda: watch.restarts["broken"] >= 2, "it is tried again")
        assert str(path) in read(sources, "pods").why  # type: ignore[union-attr]
        (tmp_path / "other").rename(path)
        until(lambda: not isinstance(read(sources, "pods"), Unavailable), "the new token is used")
        stop.set()
    assert [one.headers["authorization"] for one in server.requests[:2]] == [
        "Bearer old",
        "Bearer new",
    ]


# Waiting


class Waits(threading.Event):
    """Does not wait, remembers for how long it should have, and ends after so many waits."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self.asked: list[float] = []
        self._limit = limit

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.asked.append(timeout)
        if len(self.asked) == self._limit:
            self.set()
        return self.is_set()


def ending(
    directory: Path, watch: Script, step: float, node: Script = SAME_ETCD
) -> tuple[Scripted, list[float]]:
    """Run a hundred watches that all end like this, and return how long the daemon waits between them, too.

    `step`: seconds of each reading of the clock.
    """
    scripted, stop = (
        Scripted(directory, itertools.repeat(pods(40)), itertools.repeat(watch), node),
        Waits(100),
    )
    scripted.step = step
    with scripted.server:
        scripted.watch.run(stop)
    return scripted, stop.asked


def share(waits: list[float], first: float, last: float) -> float:
    return sum(first <= wait < last for wait in waits) / len(waits)


def test_the_agents_of_all_nodes_do_not_come_back_at_once(tmp_path: Path) -> None:
    for watch in (dropped(bookmark(41)), streamed(bookmark(41))):
        _, waits = ending(tmp_path, watch, 0.001)
        assert min(waits) >= 0.5
        for first in (0, 5, 10):
            assert 0.2 < share(waits, first, first + 5) < 0.5
    assert max(ending(tmp_path, streamed(bookmark(41)), 60)[1]) <= 0.5, "it ended in due time"


def with_header(answer: bytes, *lines: str) -> bytes:
    head, _, rest = answer.partition(b"\r\n")
    return head + "".join(f"\r\n{line}" for line in lines).encode() + b"\r\n" + rest


def failing_for_ever(config: Path, stale_after: str = "120s", waits: int = 20) -> list[float]:
    """Return how long the daemon waits where its first list fails, and all that follow."""
    stop = Waits(waits)
    _, watch = watch_of(config, stale_after)
    watch.run(stop)
    return stop.asked


def test_the_waits_for_a_server_that_fails_grow_and_stay_random(tmp_path: Path) -> None:
    """Whatever its failure is, also if it starts each watch, and ends it at once."""
    for answer in (
        *(refused(status) for status in ("401 Unauthorized", "403 Forbidden", "410 Gone")),
        *(refused(status) for status in ("429 Too Many Requests", "500 no", "503 no", "302 Found")),
        streamed(),
        dropped(),
        streamed(event("ERROR", {"code": 410})),
        streamed(event("ERROR", {"code": 500})),
        lambda _: [http(HTML, kind="text/html")],
        lambda _: [],
    ):
        lists = itertools.chain([pods(40), answer], itertools.repeat(pods(41)))
        scripted = Scripted(tmp_path, lists, itertools.repeat(answer), SAME_ETCD)
        stop = Waits(40)
        with scripted.server:
            scripted.watch.run(stop)
        assert 0.5 <= stop.asked[0] <= 15.5
        for number, wait in enumerate(stop.asked[:5]):
            assert 0.5 * 2**number <= wait <= 0.5 * 2**number + 15
        # The data are valid, so the waits end at a quarter of their validity.
        assert all(15 <= wait <= 30 for wait in stop.asked[5:])
        assert max(stop.asked[5:]) - min(stop.asked[5:]) > 5, "the agents of all nodes do not meet"


def test_the_waits_make_no_valid_data_unavailable_and_grow_where_there_are_none(
    tmp_path: Path,
) -> None:
    port_of_nobody = "http://127.0.0.1:1"
    for stale_after in ("120s", "600s", "40s", "2s"):
        config = kubeconfig(tmp_path / "kubeconfig", port_of_nobody)
        waits = failing_for_ever(config, stale_after, waits=60)
        assert all(30 <= wait <= 45 for wait in waits[6:]), "there is nothing to lose"
        assert min(waits[6:]) < 33
        assert max(waits[6:]) > 42
    for stale_after, longest in (("600s", 30), ("120s", 30), ("40s", 10), ("2s", 0.5)):
        answers = iter([pods(40, A)])
        away = itertools.repeat(refused("503 away"))
        fresh = Scripted(tmp_path, answers, away, SAME_ETCD, stale_after)
        stop = Waits(100)
        with fresh.server:
            fresh.watch.run(stop)
        spread = longest / 2
        assert max(stop.asked) <= longest
        assert all(wait >= spread for wait in stop.asked[6:])


def test_a_watch_that_worked_begins_the_waits_anew(tmp_path: Path) -> None:
    refusal = refused("503 Service Unavailable", 503)
    for worked in (dropped(bookmark(41)), streamed(bookmark(41))):
        watches = [*[refusal] * 10, worked, *[refusal] * 3]
        scripted = Scripted(tmp_path, [pods(40)], watches, SAME_ETCD)
        stop = Waits(len(watches))
        with scripted.server:
            scripted.watch.run(stop)
        assert all(wait >= 15 for wait in stop.asked[6:10])
        assert all(wait <= 15.5 for wait in stop.asked[10:12])


def test_a_server_is_not_asked_again_before_it_wants_to_be(tmp_path: Path) -> None:
    date = "Date: Thu, 01 Jan 2026 12:00:00 GMT"
    for lines, seconds in (
        (["Retry-After: 40"], 40),
        (["Retry-After:  7 "], 7),
        ([date, "Retry-After: Thu, 01 Jan 2026 12:00:50 GMT"], 50),
        (["Retry-After: 3600"], 120),
        ([date, "Retry-After: Fri, 02 Jan 2026 12:00:50 GMT"], 120),
        ([date, "Retry-After: Thu, 01 Jan 2026 11:00:00 GMT"], 0),
        *(([f"Retry-After: {odd}"], 0) for odd in (
            "", "soon", "-5", "1e9", "\u0663", "9" * 5000, "Thu, 99 Jan 2026 12:00:00 GMT", "1.5",
            "Thu, 01 Jan 1970 00:00:00 -0000", "Fri, 31 Dec 9999 23:59:59",
        )),
    ):  # fmt: skip
        for status in ("429 Too Many Requests", "503 Service Unavailable"):
            answer = with_header(http('{"message": "slow down"}', status), *lines)
            with FakeServer(lambda _, answer=answer: [answer]) as server:  # type: ignore[misc]
                config = kubeconfig(tmp_path / "kubeconfig", server.url)
                waits = failing_for_ever(config)
            assert all(seconds <= wait <= seconds + 45 for wait in waits)
            assert min(waits) < seconds + 15.5
            assert max(waits) - min(waits) > 5, "the agents of all nodes do not meet"


# The connection


def test_a_list_and_its_watch_share_a_connection_and_a_refusal_keeps_it(tmp_path: Path) -> None:
    watches = [
        *[refused("429 Too Many Requests"), refused("403 Forbidden"), refused("410 Gone")],
        *[streamed(bookmark(41)), lasting()],
    ]
    scripted = Scripted(tmp_path, [pods(40, A), pods(41, A)], watches, SAME_ETCD, keep_alive=True)
    stop = Hurry()
    with running([scripted.watch], stop), scripted.server:
        scripted.until_requested(
            "list 0, watch 40, watch 40, watch 40, list 40, watch 41, watch 41"
        )
        scripted.until_seen("a")
        stop.set()
    assert isinstance(scripted.server, KeepAliveServer)
    main, beside = scripted.server.connections
    assert len(main) == 7
    # In the second watch, because connections failed before it.
    assert [one.path for one in beside] == ["/version", "/api/v1/nodes"]


def test_a_refusal_that_lasts_reads_the_credentials_again_with_a_new_connection(
    tmp_path: Path,
) -> None:
    token = tmp_path / "token"
    token.write_text("other")

    def answers(request: Request) -> Answer:
        if request.headers["authorization"] == "Bearer other":
            token.write_text("right")
            return [http('{"message": "not for you"}', "403 Forbidden")]
        return [http(listed("PodList", 40))] if not request.watches else hang(server)

    server = KeepAliveServer(answers)
    config = kubeconfig(tmp_path / "kubeconfig", server.url, user=f"{{tokenFile: {token}}}")
    _, watch = watch_of(config)
    stop = Hurry()
    with running([watch], stop), server:
        until(lambda: any(one.watches for one in server.requests), "it is let in")
        stop.set()
        server.closing.set()
    assert len(server.connections[0]) == 10
    for status in ("401 Unauthorized", "500 Internal Server Error", "503 Service Unavailable"):
        other = KeepAliveServer(lambda _, status=status: [http("{}", status)])  # type: ignore[misc]
        with other:
            failing_for_ever(kubeconfig(tmp_path / "config", other.url), waits=5)
        assert len(other.connections) == 5, "another server may be well, or other credentials good"


def test_a_watch_asks_whether_etcd_was_restored_every_ten_minutes_or_once_a_minute_after_failures(
    tmp_path: Path,
) -> None:
    restored, failing = pods(12), refused("500 Internal Server Error", 500)
    for watch, step, shortest, longest, node in (
        (streamed(bookmark(41)), 24, 480, 850, SAME_ETCD),
        (dropped(bookmark(41)), 8, 60, 100, SAME_ETCD),
        (streamed(bookmark(41)), 8, 60, 120, failing),
        (
            streamed(bookmark(41)),
            24,
            480,
            850,
            restored,
        ),  # as behind a balancer, where no connection fails
        (dropped(bookmark(41)), 8, 60, 100, restored),
    ):
        scripted, waits = ending(tmp_path, watch, step, node)
        questions, lists = (
            len(scripted.questions()),
            sum(one.startswith("list") for one in scripted.requests()),
        )
        assert shortest < (scripted.seconds - 1000) / questions < longest
        times = questions if node is restored else 0
        assert scripted.watch.restarts["restored"] == times
        assert times <= lists <= times + 1, "nothing is listed without a reason"
    assert 0.3 < sum(wait > 15 for wait in waits) / questions < 0.7, (
        "the lists of all agents are spread over 30 s"
    )
    assert max(waits) <= 30


def test_the_first_failure_is_told_before_the_wait(tmp_path: Path) -> None:
    class Dawdle(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            return super().wait(timeout and timeout * 100)

    path, dawdle = kubeconfig(tmp_path / "kubeconfig", "http://127.0.0.1:1"), Dawdle()
    _, watch = watch_of(path)
    path.unlink()
    with running([watch], dawdle):
        assert watch.answered.wait(5)


# A restored etcd


def test_after_a_failure_the_watch_restarts_from_its_version_and_the_node_is_asked_for_once(
    tmp_path: Path,
) -> None:
    for failure in (
        dropped(),
        lambda _: [],
        lambda _: [b"HTTP/1.1 200"],
        refused("401 Unauthorized", 401),
        refused("500 Internal Server Error", 500),
        lambda _: [http(HTML, "502 Bad Gateway", "text/html")],
        lambda _: [http(HTML, kind="text/html")],
        *(
            streamed(event("ERROR", status))
            for status in ({"code": 500, "message": "etcd"}, {"code": 401}, {})
        ),
    ):
        watches = [failure, failure, streamed(bookmark(41)), failure, lasting()]
        requested = "list 0, watch 40, watch 40, watch 40, watch 41, watch 41"
        scripted = check(tmp_path, [pods(40, A)], watches, requested, "a")
        assert scripted.questions() == [
            "/api/v1/nodes?fieldSelector=metadata.name%3Dworker-1&resourceVersion=&limit=500"
        ]


def test_after_a_restore_the_list_is_as_new_as_etcd_was(tmp_path: Path) -> None:
    z, watches, begin = (
        pod("z", 3),
        [dropped(), lasting(), lasting()],
        "list 0, watch 40, watch 40, list 12",
    )
    restarts = {"broken": 1, "restored": 1}
    deleted, requested = (
        [dropped(event("DELETED", pod("z", 41))), *watches[1:]],
        "list 0, watch 40, watch 41, list 12",
    )
    lists = [pods(40, A, z), pods(13, z)]
    scripted = check(
        tmp_path, lists, deleted, f"{requested}, watch 13", "z", restarts, node=pods(12)
    )
    ((kind, shown),) = scripted.evidence().items()
    assert (kind, shown.before, shown.version, shown.count) == (Evidence.RV_RESET, 41, 13, 1)
    for lagging in (refused("504 Gateway Timeout", 504), pods(11)):
        lists = [pods(40, A), lagging, pods(14, z)]
        check(tmp_path, lists, watches, f"{begin}, list, watch 14", "z", node=pods(12))
    with playing(tmp_path, [pods(40, A)], watches, node=pods(12)) as scripted:
        scripted.until_requested(begin)
        why = "API server: versions went back: etcd was restored from a backup; listing again"
        assert scripted.reading() == Unavailable("pods", why), (
            "until it is listed, nothing is known"
        )
    # Another etcd for Nodes costs one list, and is no evidence.
    scripted = check(
        tmp_path, [pods(40, A), pods(41, A)], watches, f"{begin}, watch 41", "a", node=pods(12)
    )
    assert scripted.watch.regressions == 0
