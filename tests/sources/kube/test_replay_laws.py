"""Properties of the reflector, whatever the API server does: changes, lags, replays, forgets, or is restored.

The server is a fake in memory (`old_server.py`); the reflector's own loop runs against it, without waiting.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from agent.model.snapshot import Known
from agent.model.watches import Evidence
from agent.sources.kube.api import Api
from agent.sources.kube.connection import Query
from agent.sources.kube.errors import ApiError
from agent.sources.source_error import SourceError
from tests.sources.kube.connections import watching_in_memory
from tests.sources.kube.old_server import Etcd, Server, bookmark, line, listed
from tests.sources.reading import read

STEPS = (
    *("create", "create", "oldest", "delete", "update", "elsewhere", "bookmark", "end", "end"),
    *("break", "gone", "lag", "restore", "old"),
)
"""What happens next: to etcd, to the watch, to the server that answers next."""


class Hurry(Event):
    """A stop event that never waits."""

    def wait(self, timeout: float | None = None) -> bool:  # noqa: ARG002 (nobody waits)
        return self.is_set()


class World(Api):
    """An API server in memory, its etcd, and what has to be true of whoever follows it."""

    def __init__(self, steps: list[tuple[str, int]]) -> None:
        self.etcd = Etcd()
        self.server = Server(self.etcd, old=True)
        self.etcd.create()
        self.stop = Hurry()
        self.now = 0.0
        self.checked = 0
        self._steps = iter(steps)
        self._told_dead: set[str] = set()
        self._highest = 0
        self._ended = False

    def run(self) -> None:
        with watching_in_memory(self, lambda: self.now) as (self.sources, watch):
            watch.run(self.stop)

    @contextmanager
    def read(self, path: str, query: Query, limit: int = 0) -> Iterator[Iterator[bytes]]:  # noqa: ARG002 (as Api)
        version = dict(query)["resourceVersion"]
        assert (path, version == "") == ("/api/v1/nodes", True) or path == "/api/v1/pods"
        status, body = self.server.list(version)
        self._never_raises_the_dead()
        if status != 200:
            raise ApiError(status, "Too large resource version")
        if path == "/api/v1/nodes":
            body = listed("NodeList", self.etcd.revision)
            if self.etcd.revision < self._highest:
                self._highest = self.etcd.revision
                self._told_dead.clear()
        elif version == "":
            # Read from etcd: current, whatever was sent before.
            self._highest = self.etcd.revision
            self._told_dead -= set(self.etcd.at(self.etcd.revision))
        yield iter([body])

    @contextmanager
    def stream(self, path: str, query: Query, silence: float) -> Iterator[Iterator[bytes]]:
        assert (path, silence > 0) == ("/api/v1/pods", True)
        version = int(dict(query)["resourceVersion"])
        assert version >= self._highest, "a version was lowered"
        self._highest = version
        yield self._shown(version)

    @contextmanager
    def second_connection(self) -> Iterator[Api]:
        yield self

    @property
    def has_expired(self) -> bool:
        return False

    def request_version(self) -> None: ...
    def close(self) -> None: ...

    def _shown(self, since: int) -> Iterator[bytes]:
        shown = 0
        while True:
            events = list(self.server.events(since))
            for one in events[shown:]:
                yield self._told(one)
            shown = len(events)
            self._check()
            step = next(self._steps, None)
            if step is None:
                if self._ended:
                    self.stop.set()
                    return
                self._ended, self.server.behind = True, 0  # at the end it catches up
                continue
            match step:
                case "bookmark", _:
                    yield self._told(bookmark(self.server.position))
                case (("end" | "lag" | "old"), number):
                    self._turn(step[0], number)
                    return
                case (("break" | "restore"), number):
                    self._turn(step[0], number)
                    self.now += 1000  # as long as a server needs to restart
                    raise SourceError("it broke")
                case "gone", number:
                    self._turn("lag", number)
                    yield line("ERROR", {"code": 410, "message": "too old resource version"})
                case what, number:
                    self._change(what, number)

    def _turn(self, what: str, number: int) -> None:
        """Have another server answer next, or another etcd; only for that do the servers stop."""
        if what == "restore" and self.server.behind == 0:
            # To a state before the known version: going back to a later one could not be detected.
            self.etcd.restore(max(2, min(self.etcd.revision, self._highest) - 1 - number))
        elif what == "lag":
            self.server = Server(self.etcd, old=self.server.old, behind=number)
        elif what == "old":
            self.server = Server(self.etcd, old=number % 2 == 0)

    def _change(self, what: str, number: int) -> None:
        alive = list(self.etcd.at(self.etcd.revision))
        match what:
            case "elsewhere":
                self.etcd.elsewhere()
            case "update" if alive:
                self.etcd.update(alive[number % len(alive)])
            case "delete" if alive:
                self.etcd.delete(alive[number % len(alive)])
            case "oldest" if alive:
                self.etcd.delete(alive[0])
            case _:
                self.etcd.create()

    def _told(self, one: bytes) -> bytes:
        event = json.loads(one)
        metadata: dict[str, Any] = event["object"]["metadata"]
        self._highest = max(self._highest, int(metadata["resourceVersion"]))
        if event["type"] == "DELETED":
            self._told_dead.add(metadata["uid"])
        return one

    def _check(self) -> None:
        """What was yielded is applied by now: all of it, and nothing else, is known."""
        self._never_raises_the_dead()
        if self.server.behind == 0:
            assert self._known() == set(self.etcd.at(self.etcd.revision))
            self.checked += 1

    def _never_raises_the_dead(self) -> None:
        assert not self._told_dead & (self._known() or set())

    def _known(self) -> set[str] | None:
        reading = read(self.sources, "pods")
        return {one.uid for one in reading.value} if isinstance(reading, Known) else None


steps = st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 5)), min_size=12, max_size=50)


@settings(max_examples=settings.get_profile(settings.get_current_profile_name()).max_examples * 8)
@given(steps)
def test_known_objects_exist_deleted_ones_stay_deleted_and_no_version_decreases(
    steps: list[tuple[str, int]],
) -> None:
    world = World(steps)
    world.run()
    assert world.checked


@given(steps)
def test_a_fixed_server_is_never_evidence_of_a_replay(steps: list[tuple[str, int]]) -> None:
    world = World([one for one in steps if one[0] not in {"old", "restore"}])
    world.server.old = False
    world.run()
    assert {one.evidence for one in read(world.sources, "watches").known()} <= {Evidence.OLDER_LIST}
