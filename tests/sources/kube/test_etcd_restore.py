"""A restored etcd: when the agent asks for it, what that costs, and how many agents ask and list at once.

The reflector's own loop runs against an API server in memory; its waits and the server's advance a clock.
"""

import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from heapq import heappop, heappush
from threading import Condition, Event, Thread, current_thread

import pytest

from agent.model.snapshot import Known, Reading, Unavailable
from agent.sources.kube.client import Api, Query
from agent.sources.kube.etcd_restore import RestoreDetector
from agent.sources.kube.list_watch import Reflector, RestartCause
from agent.sources.kube.node import NODES_PATH, node_query
from agent.sources.kube.pods import PODS_PATH, pods_query
from agent.sources.source_error import SourceError
from tests.sources.kube.old_server import bookmark, line, listed, pod

MINUTE, HOUR, DAY = 60.0, 3600.0, 86_400.0


@pytest.fixture(autouse=True)
def _seeded() -> Iterator[None]:
    state = random.getstate()
    random.seed(7)
    yield
    random.setstate(state)


class Clock(Event):
    """A stop event whose waits take no time: when all threads wait, the clock advances to the next that is due.

    One thread runs at a time, so that the same seed gives the same course. It is set when the test's time is over.
    """

    def __init__(self, until: float) -> None:
        super().__init__()
        self.now, self._until = 0.0, until
        self._turn = Condition()
        self._waiting: list[tuple[float, str]] = []
        self._threads = 1

    def wait(self, timeout: float | None = None) -> bool:
        due = (self.now + (timeout or 0.0), current_thread().name)
        with self._turn:
            heappush(self._waiting, due)
            self._turn.notify_all()
            self._turn.wait_for(lambda: len(self._waiting) == self._threads and self._waiting[0] == due)
            heappop(self._waiting)
            self.now = due[0]
            if self.now >= self._until:
                self.set()
        return self.is_set()

    def run(self, *threads: Callable[[Event], None]) -> None:
        self._threads = len(threads)

        def body(thread: Callable[[Event], None]) -> None:
            self.wait(0)
            try:
                thread(self)
            finally:
                with self._turn:
                    self._threads -= 1
                    self._turn.notify_all()

        started = [Thread(target=body, args=(one,), name=f"thread {number}") for number, one in enumerate(threads)]
        for one in started:
            one.start()
        for one in started:
            one.join(60)
            assert not one.is_alive()


@dataclass
class Cluster(Api):
    """An API server whose etcd has a new version every second."""

    clock: Clock
    bookmarks: bool = True
    cut_after: float = 1e9
    """Seconds after which a balancer cuts a connection."""
    stopped: tuple[float, float] = (1e9, 1e9)
    """When the API servers are stopped, and when they are there again."""
    lost: int = 0
    """How many versions were lost by then: etcd was restored from a backup."""
    requests: list[tuple[float, str]] = field(default_factory=list)

    @property
    def revision(self) -> int:
        return 10_000_000 + int(self.clock.now) - (self.lost if self.clock.now >= self.stopped[1] else 0)

    @contextmanager
    def read(self, path: str, query: Query) -> Iterator[Iterator[bytes]]:
        yield iter([self._list(path, query)])

    def _list(self, path: str, query: Query) -> bytes:
        version = dict(query)["resourceVersion"]
        self._record(f"LIST {path} {'etcd' if version == '' else 'cache'}")
        assert int(version or 0) <= self.revision, "it would be refused"
        uid = "node-1" if path == NODES_PATH else "after" if self.clock.now >= self.stopped[1] else "before"
        return listed("List", self.revision, pod(uid, 7))

    def stream(self, path: str, query: Query, silence: float) -> Iterator[bytes]:
        self._record(f"WATCH {path}")
        given = dict(query)
        assert float(given["timeoutSeconds"]) < silence
        return self._watched(path, int(given["resourceVersion"]), float(given["timeoutSeconds"]))

    def close(self) -> None: ...

    def count(self, what: str) -> int:
        return sum(what in one for _, one in self.requests)

    def _record(self, what: str) -> None:
        began, ended = self.stopped
        if began <= self.clock.now < ended:
            raise SourceError("connection refused")
        self.requests.append((self.clock.now, what))

    def _watched(self, path: str, since: int, seconds: float) -> Iterator[bytes]:
        """As a watch cache does: a bookmark 2 s before the end, and nothing that is not newer than `since`."""
        end = self.clock.now + seconds
        failure = min(self.clock.now + self.cut_after, self.stopped[0] if self.clock.now < self.stopped[0] else 1e9)
        if failure < end:
            self.clock.wait(failure - self.clock.now)
            raise SourceError("the watch broke off")
        self.clock.wait(seconds - 2)
        if self.revision > since:
            # A kubelet updates the Node every five minutes.
            if path == NODES_PATH and int(self.clock.now / 300) != int((self.clock.now - seconds) / 300):
                yield line("MODIFIED", pod("node-1", self.revision))
            if self.bookmarks:
                yield bookmark(self.revision)
        self.clock.wait(end - self.clock.now)


@dataclass
class Agent:
    cluster: Cluster
    restores: RestoreDetector
    pods: Reflector[str]
    node: Reflector[str]

    @classmethod
    def of(cls, cluster: Cluster) -> "Agent":
        restores = RestoreDetector(node_query("worker-1"), lambda: cluster.clock.now)

        def reflector(source: str, path: str, query: Query) -> Reflector[str]:
            return Reflector(
                source, lambda: cluster, path, query, lambda item: str(item["metadata"]["uid"]),
                clock=lambda: cluster.clock.now, stale_after=120, restores=restores,
            )  # fmt: skip

        pods = reflector("pods", PODS_PATH, pods_query("worker-1"))
        return cls(cluster, restores, pods, reflector("node", NODES_PATH, node_query("worker-1")))

    def run(self) -> "Agent":
        self.cluster.clock.run(self.pods.run, self.node.run)
        return self

    def run_only_pods(self) -> "Agent":
        self.pods.run(self.cluster.clock)
        return self


QUESTION = f"LIST {NODES_PATH} etcd"
LISTS = (f"LIST {PODS_PATH} cache", f"LIST {NODES_PATH} cache")


def test_a_healthy_agent_asks_every_ten_minutes_and_lists_once() -> None:
    cluster = Agent.of(Cluster(Clock(2 * DAY))).run().cluster
    kinds = Counter(what for _, what in cluster.requests)
    assert [kinds.pop(one) for one in LISTS] == [1, 1]
    assert 250 < kinds.pop(QUESTION) < 350
    assert kinds.keys() == {f"WATCH {PODS_PATH}", f"WATCH {NODES_PATH}"}
    assert all(2_700 < count < 3_000 for count in kinds.values()), "a watch a minute, for two days"


def test_a_balancer_that_cuts_every_watch_causes_few_questions() -> None:
    cluster = Cluster(Clock(DAY), cut_after=30)
    Agent.of(cluster).run()
    assert 100 < cluster.count(QUESTION) <= 24 * 60, "one a minute at most"
    assert [cluster.count(one) for one in LISTS] == [1, 1]


def test_restarted_api_servers_cost_one_question_and_no_list() -> None:
    cluster = Cluster(Clock(HOUR), stopped=(100, 200))
    agent = Agent.of(cluster).run()
    assert sum(what == QUESTION and at < 450 for at, what in cluster.requests) == 1, "one serves both watches"
    assert [cluster.count(one) for one in LISTS] == [1, 1]
    assert agent.pods.restarts[RestartCause.RESTORED] == agent.node.restarts[RestartCause.RESTORED] == 0


@pytest.mark.parametrize(
    ("lost", "bookmarks"), [(250, True), (86_400, True), (86_400, False)], ids=["minutes", "a day", "no bookmarks"]
)
def test_after_a_restore_everything_is_listed_within_a_minute(lost: int, bookmarks: bool) -> None:
    cluster = Cluster(Clock(HOUR), bookmarks=bookmarks, stopped=(600, 700), lost=lost)
    agent = Agent.of(cluster).run()
    assert agent.pods.reading() == Known(("after",))
    assert [cluster.count(one) for one in LISTS] == [2, 2]
    assert max(at for at, what in cluster.requests if what in LISTS) < 700 + MINUTE
    assert agent.pods.restarts[RestartCause.RESTORED] + agent.node.restarts[RestartCause.RESTORED] >= 1
    assert agent.restores.last.revision < 10_000_700


def test_a_restore_that_a_balancer_hides_is_noticed_too() -> None:
    cluster = Cluster(Clock(HOUR), stopped=(1e9, 600), lost=86_400)
    agent = Agent.of(cluster).run()
    assert max(at for at, what in cluster.requests if what in LISTS) < 600 + 900 + 72 + 31
    assert agent.pods.reading() == Known(("after",))
    assert [cluster.count(one) for one in LISTS] == [2, 2]


def test_from_the_answer_to_the_list_nothing_is_known() -> None:
    cluster = Cluster(Clock(HOUR), stopped=(600, 650), lost=86_400)
    agent = Agent.of(cluster)
    seen: list[tuple[float, Reading[tuple[str, ...]]]] = []

    def look(stop: Event) -> None:
        while not stop.wait(0.1):
            seen.append((cluster.clock.now, agent.pods.reading()))

    cluster.clock.run(agent.pods.run, agent.node.run, look)
    asked = next(at for at, what in cluster.requests if what == QUESTION and at > 600)
    (listed_at,) = (at for at, what in cluster.requests if what == LISTS[0] and at > 600)
    why = "API server: versions went back: etcd was restored from a backup; listing again"
    assert {one for at, one in seen if asked < at < listed_at} == {Unavailable("pods", why)}
    assert {one for at, one in seen if listed_at < at} == {Known(("after",))}


def test_the_agents_of_many_nodes_neither_ask_nor_list_at_once() -> None:
    questions, lists = Counter[int](), Counter[int]()
    agents = 400
    for _ in range(agents):
        cluster = Agent.of(Cluster(Clock(900), stopped=(600, 700), lost=86_400)).run_only_pods().cluster
        questions.update([next(int(at) for at, what in cluster.requests if what == QUESTION and at >= 700)])
        lists.update(int(at) for at, what in cluster.requests if what == LISTS[0] and at > 600)
    assert questions.total() == lists.total() == agents
    assert max(questions.values()) < agents * 0.2, "they come back within 15 s, more of them at first"
    assert max(lists.values()) < agents * 0.06, "30 s come on top"
    assert max(lists) - min(lists) > 30


@pytest.mark.parametrize(("revision", "restored", "highest"), [(100, 0, 120), (80, 80, 80)])
def test_while_a_server_is_slow_to_list_the_node_other_watches_go_on(
    revision: int, restored: int, highest: int
) -> None:
    asked, answer = Event(), Event()

    class Slow(Api):
        def __init__(self) -> None: ...

        @contextmanager
        def read(self, path: str, query: Query) -> Iterator[Iterator[bytes]]:  # noqa: ARG002 (there is one list)
            asked.set()
            answer.wait(30)
            yield iter([listed("NodeList", revision, pod("node-1", 7))])

    detector = RestoreDetector(node_query("worker-1"), lambda: 0.0)
    detector.received(90, detector.last)
    detector.suspect()
    asking = Thread(target=detector.check, args=(Slow(),))
    other = Thread(target=detector.received, args=(120, detector.last))
    asking.start()
    try:
        assert asked.wait(5)
        other.start()
        other.join(5)
        assert not other.is_alive()
    finally:
        answer.set()
        asking.join(5)
    assert detector.last.revision == restored
    assert detector._highest == highest  # noqa: SLF001 (what the next answer is compared with)
