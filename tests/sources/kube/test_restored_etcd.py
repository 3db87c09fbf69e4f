"""A restored etcd: when a watch asks for it, what that costs, and how many agents ask and list at once.

The reflector's own loop runs against an API server in memory; its waits and the server's advance a clock.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Event
from typing import Any

from agent.model.snapshot import Known, Unavailable
from agent.sources.kube.client import Api, Query
from agent.sources.source_error import SourceError
from tests.sources.kube.connections import read, watching_in_memory
from tests.sources.kube.old_server import bookmark, line, listed, pod

HOUR, DAY = 3600.0, 86_400.0
QUESTION, LIST, WATCH = "LIST /api/v1/nodes etcd", "LIST /api/v1/pods cache", "WATCH /api/v1/pods"


class Clock(Event):
    """A stop event whose waits take no time. It is set when the test's time is over."""

    def __init__(self, until: float) -> None:
        super().__init__()
        self.now, self._until = 0.0, until

    def wait(self, timeout: float | None = None) -> bool:
        self.now += timeout or 0.0
        if self.now >= self._until:
            self.set()
        return self.is_set()


@dataclass
class Cluster(Api):
    """An API server whose etcd has a new version every second, and the watch of an agent."""

    clock: Clock
    bookmarks: bool = True
    cut_after: float = 1e9
    """Seconds after which a balancer cuts a connection."""
    stopped: tuple[float, float] = (1e9, 1e9)
    """When the API servers are stopped, and when they are there again."""
    lost: int = 0
    """How many versions were lost by then: etcd was restored from a backup."""
    requests: list[tuple[float, str]] = field(default_factory=list)
    unknown: list[tuple[float, str]] = field(default_factory=list)
    """When the pods were unavailable before a request, and why."""

    def run(self) -> "Cluster":
        with watching_in_memory(self, lambda: self.clock.now) as (self.sources, self.watch):
            self.watch.run(self.clock)
        return self

    @property
    def revision(self) -> int:
        return 10_000_000 + int(self.clock.now) - (self.lost if self.clock.now >= self.stopped[1] else 0)

    @contextmanager
    def read(self, path: str, query: Query, limit: int = 0) -> Iterator[Iterator[bytes]]:  # noqa: ARG002 (as Api)
        version = dict(query)["resourceVersion"]
        self._record(f"LIST {path} {'etcd' if version == '' else 'cache'}")
        assert int(version or 0) <= self.revision, "it would be refused"
        uid = "after" if self.clock.now >= self.stopped[1] else "before"
        yield iter([listed("List", self.revision, pod(uid, 7))])

    def stream(self, path: str, query: Query, silence: float) -> Iterator[bytes]:
        self._record(f"WATCH {path}")
        given = dict(query)
        assert float(given["timeoutSeconds"]) < silence
        return self._watched(int(given["resourceVersion"]), float(given["timeoutSeconds"]))

    def reading(self) -> Any:
        """Return the uids of the pods, or why they are not known."""
        found = read(self.sources, "pods")
        return {one.uid for one in found.value} if isinstance(found, Known) else found

    def request_version(self) -> None: ...
    def close(self) -> None: ...

    def times(self, what: str) -> list[float]:
        return [at for at, requested in self.requests if requested == what]

    def _record(self, what: str) -> None:
        began, ended = self.stopped
        if began <= self.clock.now < ended:
            raise SourceError("connection refused")
        if isinstance(reading := self.reading(), Unavailable):
            self.unknown.append((self.clock.now, reading.why))
        self.requests.append((self.clock.now, what))

    def _watched(self, since: int, seconds: float) -> Iterator[bytes]:
        """As a watch cache does: a bookmark 2 s before the end, and nothing that is not newer than `since`."""
        end = self.clock.now + seconds
        failure = min(self.clock.now + self.cut_after, self.stopped[0] if self.clock.now < self.stopped[0] else 1e9)
        if failure < end:
            self.clock.wait(failure - self.clock.now)
            raise SourceError("the watch broke off")
        self.clock.wait(seconds - 2)
        if self.revision > since and int(self.clock.now / 300) != int((self.clock.now - seconds) / 300):
            yield line("MODIFIED", pod("after" if self.clock.now >= self.stopped[1] else "before", self.revision))
        if self.revision > since and self.bookmarks:
            yield bookmark(self.revision)
        self.clock.wait(end - self.clock.now)


def test_a_healthy_watch_asks_every_ten_minutes_and_lists_once() -> None:
    cluster = Cluster(Clock(2 * DAY)).run()
    kinds = Counter(what for _, what in cluster.requests)
    assert kinds.pop(LIST) == 1
    assert 250 < kinds.pop(QUESTION) < 350
    assert 2_700 < kinds.pop(WATCH) < 3_000, "a watch a minute, for two days"
    assert not kinds


def test_connections_that_break_cause_few_questions_and_no_list() -> None:
    cluster = Cluster(Clock(DAY), cut_after=30).run()
    assert 100 < len(cluster.times(QUESTION)) <= 24 * 60, "one a minute at most"
    assert len(cluster.times(LIST)) == 1
    restarted = Cluster(Clock(HOUR), stopped=(100, 200)).run()
    assert sum(at < 450 for at in restarted.times(QUESTION)) == 1
    assert len(restarted.times(LIST)) == 1
    assert restarted.watch.restarts["restored"] == 0


def test_after_a_restore_everything_is_listed_within_a_minute() -> None:
    for lost, bookmarks in ((250, True), (86_400, True), (86_400, False)):
        cluster = Cluster(Clock(HOUR), bookmarks=bookmarks, stopped=(600, 700), lost=lost).run()
        assert cluster.reading() == {"after"}
        (_, listed_at) = cluster.times(LIST)
        assert listed_at < 700 + 60
        assert cluster.watch.restarts["restored"] == 1
        (asked_at,) = [at for at in cluster.times(QUESTION) if 600 < at <= listed_at]
        why = "API server: versions went back: etcd was restored from a backup; listing again"
        assert cluster.unknown[-1] == (listed_at, why), "until then nothing is known"
        assert 700 <= asked_at < 716
    hidden = Cluster(Clock(HOUR), stopped=(1e9, 600), lost=86_400).run()  # by a balancer
    assert hidden.times(LIST)[1] < 600 + 900 + 72 + 31
    assert hidden.reading() == {"after"}


def test_the_agents_of_many_nodes_neither_ask_nor_list_at_once() -> None:
    questions, lists = Counter[int](), Counter[int]()
    agents = 400
    for _ in range(agents):
        cluster = Cluster(Clock(900), stopped=(600, 700), lost=86_400).run()
        questions.update([next(int(at) for at in cluster.times(QUESTION) if at >= 700)])
        lists.update(int(at) for at in cluster.times(LIST) if at > 600)
    assert questions.total() == lists.total() == agents
    assert max(questions.values()) < agents * 0.2, "they come back within 15 s, more of them at first"
    assert max(lists.values()) < agents * 0.06, "30 s come on top"
    assert max(lists) - min(lists) > 30
