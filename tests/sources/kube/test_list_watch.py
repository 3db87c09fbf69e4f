"""list + watch against a scripted fake server: requests, accepted answers, and deadlines."""

import itertools
import json
import random
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from agent.model.snapshot import Known, Reading, Unavailable
from agent.sources.kube import list_watch as reflectors
from agent.sources.kube.client import Api
from agent.sources.kube.list_watch import Reflector, RestartCause
from agent.sources.source_error import SourceError
from tests.sources.kube.connections import NODE, connect, things
from tests.wire import CHUNKED, HTML, LAST_CHUNK, Answer, FakeServer, Request, chunk, hang, http, kubeconfig, until

Script = Callable[[FakeServer], Answer]
BACKOFF = reflectors._BACKOFF  # noqa: SLF001 (the real one)
PODS = things(query=(("fieldSelector", "x=y"),))


def reflector_of(connect: Callable[[], Api], clock: Callable[[], float], stale_after: float = 120) -> Reflector[str]:
    return Reflector(PODS, connect, NODE, clock, stale_after)


@pytest.fixture(autouse=True)
def _in_a_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait as the reflector does, but fifty times as fast."""
    monkeypatch.setattr(reflectors, "_BACKOFF", (0.01, 0.05))
    monkeypatch.setattr(reflectors, "_SPREAD", 0.05)


def thing(uid: str, version: int, says: str = "") -> dict[str, Any]:
    return {"metadata": {"uid": uid, "resourceVersion": str(version)}, "says": says or uid}


def listed(version: int, *items: dict[str, Any]) -> Script:
    tree = {"metadata": {"resourceVersion": str(version)}, "items": items}
    return lambda _: [http(json.dumps(tree, separators=(",", ":")))]


def refused(status: str, code: int = 0, message: str = "no") -> Script:
    return lambda _: [http(json.dumps({"kind": "Status", "code": code, "message": message}), status)]


def event(kind: str, item: object) -> bytes:
    return chunk(json.dumps({"type": kind, "object": item}) + "\n")


def streamed(*pieces: bytes) -> Script:
    """End in due time."""
    return lambda _: [CHUNKED, *pieces, LAST_CHUNK]


def dropped(*pieces: bytes) -> Script:
    return lambda _: [CHUNKED, *pieces]


def bookmark(version: int) -> bytes:
    return event("BOOKMARK", {"metadata": {"resourceVersion": str(version)}})


@dataclass
class ScriptedServer:
    """A reflector, its script and its clock."""

    server: FakeServer
    reflector: Reflector[str]
    thread: threading.Thread
    stop: threading.Event
    clock: list[float] = field(default_factory=list)

    def questions(self) -> list[str]:
        """Return the requests that ask whether etcd was restored."""
        return self.server.requested("/api/v1/nodes")

    def requests(self) -> list[str]:
        """Return what else was asked: `list VERSION` or `watch VERSION`."""
        asked = []
        for request in list(self.server.requests):
            if request.path != PODS.path:
                continue
            query = parse_qs(urlsplit(request.target).query, keep_blank_values=True)
            asked.append(f"{'watch' if request.watches else 'list'} {query['resourceVersion'][0]}".strip())
        return asked

    def reading(self) -> Reading[tuple[str, ...]]:
        return self.reflector.reading()

    def until_requested(self, *expected: str) -> None:
        until(lambda: len(self.requests()) >= len(expected), f"{expected}, but only {self.requests()}")
        assert self.requests()[: len(expected)] == list(expected)

    def until_seen(self, *expected: str) -> None:
        until(lambda: self.reading() == Known(expected), f"{expected}, but only {self.reading()}")


@contextmanager
def playing(
    directory: Path,
    lists: Iterable[Script],
    watches: Iterable[Script],
    *,
    stale: float = 120,
    node: Script | None = None,
) -> Iterator[ScriptedServer]:
    """Run a reflector against a script; where it ends, the server hangs. `node`: the list of the own Node."""
    node = node or listed(10**6)
    to_list, to_watch = iter(lists), iter(watches)

    def answers(request: Request) -> Answer:
        if request.path != PODS.path:
            yield from node(server) if request.path == NODE.path else [http("{}")]
            return
        script = next(to_watch if request.watches else to_list, None)
        yield from hang(server) if script is None else script(server)

    server = FakeServer(answers)
    with server:
        path, clock, stop = kubeconfig(directory / "kubeconfig", server.url), [1000.0], threading.Event()
        reflector = reflector_of(lambda: connect(path), lambda: clock[0], stale)
        thread = threading.Thread(target=reflector.run, args=(stop,))
        thread.start()
        try:
            yield ScriptedServer(server, reflector, thread, stop, clock)
        finally:
            stop.set()
            server.__exit__(None, None, None)
            thread.join(5)
            assert not thread.is_alive()


def lasting(*pieces: bytes) -> Script:
    """Say something, and then nothing: a watch as it should be."""

    def script(server: FakeServer) -> Iterator[bytes]:
        yield CHUNKED
        yield from pieces
        yield from hang(server)

    return script


def test_before_the_first_answer_nothing_is_known(tmp_path: Path) -> None:
    with playing(tmp_path, [], []) as scripted:
        scripted.until_requested("list 0")
        assert scripted.reading() == Unavailable("pods", "the API server has not answered yet")
        assert not scripted.reflector.answered.is_set()


def test_one_list_and_one_watch_from_its_version(tmp_path: Path) -> None:
    with playing(tmp_path, [listed(40, thing("a", 7))], [lasting()]) as scripted:
        scripted.until_requested("list 0", "watch 40")
        scripted.until_seen("a")
        assert scripted.reflector.answered.is_set()
    query = parse_qs(urlsplit(scripted.server.requests[1].target).query)
    assert query["allowWatchBookmarks"] == ["true"]
    assert query["fieldSelector"] == ["x=y"]
    assert 48 <= int(query["timeoutSeconds"][0]) <= 72, "the server ends it before the idle timeout"


def test_after_watches_that_end_normally_nothing_is_listed_again(tmp_path: Path) -> None:
    watches = [streamed(event("ADDED", thing("b", 41))), streamed(bookmark(55)), streamed(), lasting()]
    with playing(tmp_path, [listed(40, thing("a", 7))], watches) as scripted:
        scripted.until_requested("list 0", "watch 40", "watch 41", "watch 55", "watch 55")
        scripted.until_seen("a", "b")
        assert +scripted.reflector.restarts == {RestartCause.ENDED: 3}


def test_a_dropped_watch_resumes_from_its_version(tmp_path: Path) -> None:
    half = chunk('{"type":"ADDED","object":{"meta')
    watches = [dropped(event("ADDED", thing("b", 41)), half), dropped(), streamed(half), lasting()]
    with playing(tmp_path, [listed(40)], watches) as scripted:
        scripted.until_requested("list 0", "watch 40", "watch 41", "watch 41", "watch 41")
        scripted.until_seen("b")
        assert +scripted.reflector.restarts == {RestartCause.BROKEN: 3}


def test_events_that_a_bookmark_was_ahead_of_are_applied_and_older_ones_are_not(tmp_path: Path) -> None:
    late = [event("ADDED", thing("b", 98)), event("MODIFIED", thing("a", 99, "A")), event("MODIFIED", thing("b", 97))]
    watches = [streamed(bookmark(100), *late), streamed(event("MODIFIED", thing("a", 99, "old"))), lasting()]
    with playing(tmp_path, [listed(90, thing("a", 7))], watches) as scripted:
        scripted.until_requested("list 0", "watch 90", "watch 99", "watch 99")
        scripted.until_seen("A", "b")


def test_a_watch_that_breaks_after_a_bookmark_that_was_ahead_resumes_from_its_last_event(tmp_path: Path) -> None:
    lost = event("MODIFIED", thing("a", 99, "A"))
    watches = [dropped(bookmark(100), event("ADDED", thing("b", 98))), streamed(lost, bookmark(100)), lasting()]
    with playing(tmp_path, [listed(90, thing("a", 7))], watches) as scripted:
        scripted.until_requested("list 0", "watch 90", "watch 98", "watch 100")
        scripted.until_seen("A", "b")


def test_after_an_expired_version_the_list_is_never_older(tmp_path: Path) -> None:
    for expired in (
        streamed(event("ERROR", {"kind": "Status", "code": 410, "message": "too old resource version"})),
        refused("410 Gone", 410),
        refused("504 Gateway Timeout", 504, "Too large resource version"),
    ):
        lists = [listed(40, thing("a", 7)), listed(90, thing("c", 85))]
        with playing(tmp_path, lists, [expired, lasting()]) as scripted:
            scripted.until_requested("list 0", "watch 40", "list 40", "watch 90")
            scripted.until_seen("c")
            assert +scripted.reflector.restarts == {RestartCause.EXPIRED: 1}


def test_a_list_that_fails_from_the_cache_is_read_from_etcd(tmp_path: Path) -> None:
    gone = streamed(event("ERROR", {"code": 410, "message": "gone"}))
    for answer in (refused("410 Gone", 410), refused("504 Gateway Timeout", 504), listed(39)):
        lists = [listed(40, thing("a", 7)), answer, listed(12, thing("z", 3))]
        with playing(tmp_path, lists, [gone, lasting()]) as scripted:
            # The last one is a restored etcd: its versions are lower, and true.
            scripted.until_requested("list 0", "watch 40", "list 40", "list", "watch 12")
            scripted.until_seen("z")


def test_an_expired_first_list_is_read_from_etcd(tmp_path: Path) -> None:
    with playing(tmp_path, [refused("410 Gone", 410), listed(40)], [lasting()]) as scripted:
        scripted.until_requested("list 0", "list", "watch 40")
        scripted.until_seen()


def test_a_failing_list_is_unavailable_and_retried(tmp_path: Path) -> None:
    for answer, text in (
        (refused("401 Unauthorized", 401, "Unauthorized"), "API server: 401 Unauthorized"),
        (refused("429 Too Many Requests", 429, "slow down"), "API server: 429 slow down"),
        (lambda _: [http(HTML, "502 Bad Gateway", "text/html")], "API server: 502 Bad Gateway"),
        (lambda _: [http(HTML, kind="text/html")], "expected a response in JSON, got text/html"),
        (listed(40, {"metadata": {"uid": "a", "resourceVersion": "7"}}), "incomplete object"),
        (lambda _: [http(b"{")[:-1]], "API server: "),
    ):
        again = threading.Event()

        def second(server: FakeServer, again: threading.Event = again) -> Iterator[bytes]:
            again.wait(5)
            yield from listed(40, thing("a", 7))(server)

        with playing(tmp_path, [answer, second], [lasting()]) as scripted:
            assert scripted.reflector.answered.wait(5)
            reading = scripted.reading()
            assert isinstance(reading, Unavailable)
            assert text in reading.why
            again.set()
            scripted.until_requested("list 0", "list 0", "watch 40")
            scripted.until_seen("a")


def test_a_failing_watch_restarts_from_the_known_version(tmp_path: Path) -> None:
    for answer in (
        refused("401 Unauthorized", 401),
        refused("500 Internal Server Error", 500),
        lambda _: [http(HTML, kind="text/html")],
        lambda _: [b"HTTP/1.1 200"],
        lambda _: [],
        streamed(event("ERROR", {"code": 500, "message": "etcd"})),
    ):
        with playing(tmp_path, [listed(40, thing("a", 7))], [answer, lasting()]) as scripted:
            scripted.until_requested("list 0", "watch 40", "watch 40")
            scripted.until_seen("a")


STRANGE = [
    event("ERROR", None),
    event("ADDED", {"metadata": {"resourceVersion": "41"}, "says": "x"}),
    event("ADDED", {"metadata": {"uid": "x", "resourceVersion": "41"}}),
    chunk("<html>\n"),
]


def test_after_an_invalid_event_the_list_is_read_again(tmp_path: Path) -> None:
    for message in STRANGE:
        lists = [listed(40, thing("a", 7)), listed(90, thing("c", 85))]
        with playing(tmp_path, lists, [streamed(message), lasting()]) as scripted:
            scripted.until_requested("list 0", "watch 40", "list 40", "watch 90")
            scripted.until_seen("c")


def test_a_silent_watch_becomes_unavailable_after_its_deadline(tmp_path: Path) -> None:
    with playing(tmp_path, [listed(40, thing("a", 7))], []) as scripted:
        scripted.until_requested("list 0", "watch 40")
        scripted.until_seen("a")
        scripted.clock[0] += 120
        assert scripted.reading() == Known(("a",))
        scripted.clock[0] += 1
        assert scripted.reading() == Unavailable("pods", "no event for 121 s: the watch is silent")


def test_an_unreachable_server_becomes_unavailable_despite_retries(tmp_path: Path) -> None:
    leaves, back = threading.Event(), threading.Event()

    def watched(server: FakeServer) -> Iterator[bytes]:
        leaves.wait(5)
        if back.is_set():
            yield from lasting()(server)
        yield from refused("503 Service Unavailable", 503, "away")(server)

    with playing(tmp_path, [listed(40, thing("a", 7))], [watched] * 500) as scripted:
        scripted.until_requested("list 0", "watch 40")
        scripted.until_seen("a")
        scripted.clock[0] += 121
        leaves.set()
        scripted.until_requested("list 0", *["watch 40"] * 5)
        assert scripted.reading() == Unavailable("pods", "no event for 121 s: API server: 503 away")
        back.set()
        scripted.until_seen("a")
        assert scripted.requests().count("list 0") == 1, "it is heard again, without a list"


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


def waits_between(directory: Path, watch: Script, seconds: float) -> list[float]:
    """Return how long a reflector waits between watches that all end like this, each after so many seconds."""
    random.seed(0)  # so that few waits are enough
    stop, ticks = Waits(100), itertools.count(1000.0, seconds)

    def answers(request: Request) -> Answer:
        # The list of the own Node shows that etcd was not restored.
        return (watch if request.watches else listed(40 if request.path == PODS.path else 99))(server)

    server = FakeServer(answers)
    with server:
        path = kubeconfig(directory / "kubeconfig", server.url)
        reflector_of(lambda: connect(path), ticks.__next__).run(stop)
    return stop.asked


def test_the_agents_of_all_nodes_do_not_come_back_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reflectors, "_BACKOFF", BACKOFF)
    for watch in (dropped(bookmark(41)), streamed(bookmark(41)), streamed(event("ERROR", {"code": 410}))):
        waits = waits_between(tmp_path, watch, seconds=0.001)
        assert min(waits) >= 0.5
        for first in (0, 5, 10):
            share = sum(first <= wait < first + 5 for wait in waits) / len(waits)
            assert 0.2 < share < 0.5, f"{share:.0%} come back between {first} s and {first + 5} s"


def test_a_watch_that_ended_in_due_time_goes_on_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reflectors, "_BACKOFF", BACKOFF)
    assert max(waits_between(tmp_path, streamed(bookmark(41)), seconds=60)) <= 0.5


def test_stop_interrupts_a_wait_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reflectors, "_BACKOFF", (60.0, 60.0))
    with playing(tmp_path, [refused("503 Service Unavailable", 503)], []) as scripted:
        assert scripted.reflector.answered.wait(5)
        scripted.stop.set()
        scripted.thread.join(1)
        assert not scripted.thread.is_alive()


@contextmanager
def running(connect: Callable[[], Api]) -> Iterator[Reflector[str]]:
    reflector, stop = reflector_of(connect, lambda: 0.0, stale_after=1), threading.Event()
    thread = threading.Thread(target=reflector.run, args=(stop,))
    thread.start()
    try:
        yield reflector
    finally:
        stop.set()
        thread.join(30)
        assert not thread.is_alive()


def test_credentials_that_are_missing_or_rotated_are_read_again(tmp_path: Path) -> None:
    token, path = tmp_path / "token", tmp_path / "kubeconfig"
    token.write_text("old")

    def answers(request: Request) -> Answer:
        if request.headers.get("authorization") != "Bearer new":
            token.write_text("new")
            return [http("{}", "401 Unauthorized")]
        if request.watches:
            return hang(server)
        return listed(40, thing("a", 7))(server)

    server = FakeServer(answers)
    with server, running(lambda: connect(path)) as reflector:
        until(lambda: reflector.restarts[RestartCause.BROKEN] >= 2, "it is tried again")
        reading = reflector.reading()
        assert isinstance(reading, Unavailable)
        assert str(path) in reading.why
        kubeconfig(tmp_path / "new", server.url, user=f"{{tokenFile: {token}}}").rename(path)
        until(lambda: reflector.reading() == Known(("a",)), "the new token is used")
        server.closing.set()
    assert [one.headers["authorization"] for one in server.requests[:2]] == ["Bearer old", "Bearer new"]


@pytest.mark.parametrize(
    ("stale_after", "least", "longest"), [(120, 0.5, 15), (600, 0.5, 15), (40, 0.5, 5), (2, 0.25, 0.25)]
)
def test_waits_between_tries_are_random_and_keep_data_fresh(
    monkeypatch: pytest.MonkeyPatch, stale_after: float, least: float, longest: float
) -> None:
    def refusing() -> Api:
        raise SourceError("API server: refused")

    monkeypatch.setattr(reflectors, "_BACKOFF", BACKOFF)
    stop = Waits(400)
    reflector_of(refusing, lambda: 0.0, stale_after).run(stop)
    waits, spread = stop.asked, longest - least
    assert (min(waits) >= least, max(waits) <= longest) == (True, True)
    assert (min(waits) <= least + spread / 10, max(waits) >= longest - spread / 10) == (True, True), "they are spread"


def test_after_a_failure_the_node_is_asked_for_once(tmp_path: Path) -> None:
    for failure in (
        dropped(),
        lambda _: [],
        refused("503 Service Unavailable", 503),
        lambda _: [http(HTML, "502 Bad Gateway", "text/html")],
    ):
        watches = [failure, failure, streamed(bookmark(41)), failure, lasting()]
        with playing(tmp_path, [listed(40, thing("a", 7))], watches) as scripted:
            scripted.until_requested("list 0", *["watch 40"] * 3, *["watch 41"] * 2)
            assert scripted.questions() == [
                "/api/v1/nodes?fieldSelector=metadata.name%3Dworker-1&resourceVersion=&limit=500"
            ]
            scripted.until_seen("a")


def test_progress_is_no_reason_to_ask(tmp_path: Path) -> None:
    watches = [streamed(bookmark(41)), streamed(event("ADDED", thing("a", 42))), lasting()]
    with playing(tmp_path, [listed(40, thing("a", 7))], watches) as scripted:
        scripted.until_requested("list 0", "watch 40", "watch 41", "watch 42")
        scripted.until_seen("a")
        assert scripted.questions() == []


def test_a_question_that_fails_ends_no_watch_and_is_not_repeated_at_once(tmp_path: Path) -> None:
    watches = [dropped(), *[streamed(event("ADDED", thing("b", version))) for version in (41, 42)], lasting()]
    with playing(tmp_path, [listed(40)], watches, node=refused("500 Internal Server Error", 500)) as scripted:
        scripted.until_requested("list 0", "watch 40", "watch 40", "watch 41", "watch 42")
        scripted.until_seen("b")
        assert len(scripted.questions()) == 1


def test_after_a_restore_the_list_is_as_new_as_etcd_was(tmp_path: Path) -> None:
    lists = [listed(40, thing("a", 7)), listed(13, thing("z", 3))]
    with playing(tmp_path, lists, [dropped(), lasting(), lasting()], node=listed(12)) as scripted:
        scripted.until_requested("list 0", "watch 40", "watch 40", "list 12", "watch 13")
        scripted.until_seen("z")
        assert +scripted.reflector.restarts == {RestartCause.BROKEN: 1, RestartCause.RESTORED: 1}


def test_a_cache_that_lags_behind_a_restored_etcd_is_not_used(tmp_path: Path) -> None:
    for answer in (refused("504 Gateway Timeout", 504), listed(11)):
        lists = [listed(40, thing("a", 7)), answer, listed(14, thing("z", 3))]
        with playing(tmp_path, lists, [dropped(), lasting(), lasting()], node=listed(12)) as scripted:
            scripted.until_requested("list 0", "watch 40", "watch 40", "list 12", "list", "watch 14")
            scripted.until_seen("z")


def test_another_etcd_for_nodes_costs_one_list_and_is_no_evidence(tmp_path: Path) -> None:
    lists = [listed(40, thing("a", 7)), listed(41, thing("a", 7))]
    with playing(tmp_path, lists, [dropped(), lasting(), lasting()], node=listed(12)) as scripted:
        scripted.until_requested("list 0", "watch 40", "watch 40", "list 12", "watch 41")
        scripted.until_seen("a")
        assert scripted.reflector.regressions == 0
