"""The brake: an object is on, an empty list is off, and anything else is unknown."""

import json
from pathlib import Path
from typing import Any

import pytest

from agent.app import loop
from agent.app.api_server import watched
from agent.app.sources import for_command
from agent.config import UsageError, load
from agent.model.brake import Brake
from agent.model.snapshot import Known, NotRequested, Reading, Unavailable
from agent.sources.kube import service_account
from agent.sources.kube.brake import BrakeSource
from agent.sources.source_error import SourceError
from tests.builders import NOW
from tests.sources.kube.connections import Hurry, running
from tests.sources.kube.old_server import listed
from tests.sources.reading import HEALTHY, read
from tests.wire import Answer, FakeServer, Request, http, kubeconfig, until

NAME = "kube-system/nodeleak-brake"
PATH = "/api/v1/namespaces/kube-system/configmaps"
OFF = Brake(NAME, on=False)


def configmap(data: Any = None, **metadata: Any) -> dict[str, Any]:
    names = {"name": "nodeleak-brake", "namespace": "kube-system", "uid": "u-1"}
    return {"metadata": names | metadata, "data": data}


def of_list(*items: dict[str, Any]) -> bytes:
    return http(listed("ConfigMapList", 9, *items))


def reading_of(tmp_path: Path, answer: bytes) -> Reading[Brake]:
    """Return what a command reads if the server answers so."""
    with FakeServer(lambda _: [answer]) as server:
        config = kubeconfig(tmp_path / "kubeconfig", server.url)
        given = {"node": "worker-1", "kubeconfig": str(config), "brake": NAME}
        sources = for_command(load("clean", given, {}))
        snapshot = read(sources.snapshot, "brake") if b"200 OK" in answer else None
        reading = sources.brake()
        assert snapshot in {None, reading}
        (request,) = (one for one in server.requests if one.path == PATH)
        assert "fieldSelector=metadata.name%3Dnodeleak-brake" in request.target
        assert "resourceVersion=" not in request.target, "it is read through to etcd"
        return reading


def test_an_object_is_on_whatever_it_says_and_an_empty_list_is_off(tmp_path: Path) -> None:
    created = "2026-03-26T20:00:00Z"
    cases: tuple[tuple[dict[str, Any], Brake], ...] = (
        (configmap(), Brake(NAME, on=True)),
        (configmap({"reason": None}), Brake(NAME, on=True)),
        (configmap({"reason": ["a"]}), Brake(NAME, on=True, reason="['a']")),
        (configmap("nonsense"), Brake(NAME, on=True)),
        (configmap({"state": "off"}), Brake(NAME, on=True)),
        (configmap(deletionTimestamp=created), Brake(NAME, on=True)),
        (
            configmap({"reason": "a\x1b[2J\nb"}, creationTimestamp=created),
            Brake(NAME, on=True, reason="a\\x1b[2J b", since=NOW),
        ),
    )
    for item, brake in cases:
        assert reading_of(tmp_path, of_list(item)) == Known(brake)
    assert reading_of(tmp_path, of_list()) == Known(OFF)


def test_no_other_answer_is_off(tmp_path: Path) -> None:
    for answer in (
        http(json.dumps({"message": "not found"}), "404 Not Found"),
        http(json.dumps({"message": "forbidden"}), "403 Forbidden"),
        http(json.dumps({"message": "broken"}), "500 Internal Server Error"),
        http("<html></html>", kind="text/html"),
        http(json.dumps({"kind": "ConfigMapList"})),
        http(json.dumps({"metadata": {"resourceVersion": "9"}})),
        of_list({"metadata": {"uid": "u-1"}}),
    ):
        assert isinstance(reading_of(tmp_path, answer), Unavailable), answer


class Timed:
    """A brake whose requests and time are written down."""

    def __init__(self, watched: Reading[tuple[Brake, ...]] | None = None) -> None:
        self.seconds, self.requests = 100.0, 0
        self.takes = 0.0
        self.answer: tuple[Brake, ...] | Exception = ()
        watch = None if watched is None else (lambda: watched)
        self.source = BrakeSource(NAME, self._request, lambda: self.seconds, watch)

    def _request(self) -> tuple[Brake, ...]:
        self.requests += 1
        self.seconds += self.takes
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


ON = Brake(NAME, on=True)


def test_a_reading_is_used_for_three_seconds_from_its_request() -> None:
    timed = Timed()
    assert timed.source.read_now() == Known(OFF)
    timed.answer = (ON,)
    timed.seconds += 3
    assert (timed.source.read_now(), timed.requests) == (Known(OFF), 1)
    timed.seconds += 0.1
    assert (timed.source.read_now(), timed.requests) == (Known(ON), 2)
    timed.answer = SourceError("it is away")
    timed.seconds += 3.1
    assert timed.source.read_now() == Unavailable("brake", "it is away")


def test_an_answer_that_took_longer_permits_no_release() -> None:
    timed = Timed()
    timed.takes = 3
    assert timed.source.read_now() == Known(OFF)
    timed.takes = 3.1
    timed.seconds += 0.1
    late = timed.source.read_now()
    assert isinstance(late, Unavailable)
    assert late.why.startswith("the API server took 3.1 s to answer")
    assert timed.source.read(HEALTHY) == Known(OFF), "a snapshot permits nothing"
    timed.answer = (ON,)
    assert timed.source.read_now() == Known(ON), "on is on, however old"
    timed.answer = ()
    timed.takes = 0
    timed.seconds += 3.1
    assert timed.source.read_now() == Known(OFF)


def test_a_request_that_ends_in_a_bug_leaves_no_earlier_reading() -> None:
    timed = Timed()
    assert timed.source.read_now() == Known(OFF)
    timed.seconds += 60
    timed.answer = OSError("a bug: this is no SourceError")
    for _ in range(2):
        with pytest.raises(OSError, match="a bug"):
            timed.source.read_now()
    assert timed.requests == 3


def test_a_watch_shows_the_brake_and_never_serves_a_release() -> None:
    for listed_, shown in (
        (Known(()), Known(OFF)),
        (Known((ON,)), Known(ON)),
        (Unavailable("brake", "no event for 121 s"), Unavailable("brake", "no event for 121 s")),
    ):
        timed = Timed(listed_)
        timed.answer = (ON,)
        assert timed.source.read(HEALTHY) == shown
        assert timed.requests == 0
        assert timed.source.read_now() == Known(ON)


def test_the_daemon_watches_it_and_sees_a_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    items: list[dict[str, Any]] = []
    clock, ahead = loop.clock, 0.0
    monkeypatch.setattr(loop, "clock", lambda: clock() + ahead)

    def answer(request: Request) -> Answer:
        if request.path == PATH and "watch=1" not in request.target:
            return [of_list(*items)]
        # Every watch fails: the next attempt lists again after 410.
        if request.path == PATH:
            return [http(json.dumps({"message": "expired"}), "410 Gone")]
        return [http(json.dumps({"message": "not asked for here"}), "404 Not Found")]

    with FakeServer(answer) as server:
        config = kubeconfig(tmp_path / "kubeconfig", server.url)
        given = {"node": "worker-1", "kubeconfig": str(config), "brake": NAME}
        sources, watches = watched(load("run", given, {}))
        assert [watch.source for watch in watches] == ["pods", "node", "brake"]
        assert isinstance(read(sources.snapshot, "brake"), Unavailable), "nothing was read yet"
        with running(watches[2:], Hurry()):
            until(lambda: read(sources.snapshot, "brake") == Known(OFF), "the watch has the list")
            items.append(configmap())
            until(lambda: read(sources.snapshot, "brake") == Known(ON), "the watch has the object")
            assert sources.brake() == Known(ON)
    ahead = 10_000.0
    stale = read(sources.snapshot, "brake")
    assert isinstance(stale, Unavailable), "a stale watch is not off"
    assert "no event for" in stale.why


def test_without_a_namespace_it_is_that_of_the_pod_and_without_a_setting_there_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_account, "DIRECTORY", tmp_path)
    given = {
        "node": "worker-1",
        "kubeconfig": str(kubeconfig(tmp_path / "k", "http://127.0.0.1:1")),
    }
    named = load("clean", given | {"brake": "nodeleak-brake"}, {})
    with pytest.raises(UsageError, match="outside of a pod, add the namespace"):
        for_command(named)
    (tmp_path / "namespace").write_text("monitoring\n")
    assert isinstance(for_command(named).brake(), Unavailable)
    none = for_command(load("clean", given, {}))
    assert read(none.snapshot, "brake") == NotRequested("brake", "--brake=off")
    assert none.brake() == NotRequested("brake", "--brake=off")
