"""The incident of 2018 over real sockets: how the agent handles an old server's watch.

The server is a fake (`old_server.py`), because servers of that age cannot run here.
"""

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest

from agent.app import loop
from agent.app.api_server import watched
from agent.config import load
from agent.model.snapshot import Known
from agent.model.watches import Evidence, Watch
from agent.sources.collector import Moment
from tests.builders import NOW, UPTIME
from tests.sources.kube.connections import Hurry, read, running
from tests.sources.kube.old_server import FIRST, Etcd, Server, bookmark, line, pod
from tests.wire import Answer, FakeServer, Request, kubeconfig, until

Answering = Callable[[Request], Answer]


class Ours:
    """The watch of the pods, as in the daemon."""

    def __init__(self, directory: Path, url: str) -> None:
        moments, ticks = itertools.count(1), itertools.count(0.0, 1000.0)
        given = {"node": "worker-1", "kubeconfig": str(kubeconfig(directory / "kubeconfig", url)), "stale_after": "1d"}

        def now() -> Moment:
            span = timedelta(seconds=next(moments))
            return Moment(NOW + span, UPTIME + span)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(loop, "now", now)
            patch.setattr(loop, "clock", ticks.__next__)  # there is always enough time between two questions
            self.sources, watches = watched(load("run", given, {}))
        self.watch: Any = watches[0]

    @property
    def pods(self) -> set[str] | None:
        reading = read(self.sources, "pods")
        return {one.uid for one in reading.value} if isinstance(reading, Known) else None

    @property
    def shown(self) -> dict[Evidence, Watch]:
        return {one.evidence: one for one in read(self.sources, "watches").known()}


@contextmanager
def following(directory: Path, answering: Answering) -> Iterator[tuple[Ours, FakeServer]]:
    """Run the daemon's watch against a server."""
    server, stop = FakeServer(answering), Hurry()
    ours = Ours(directory, server.url)
    # The server stops first: a connection that it never accepted would last until the idle timeout.
    with running([ours.watch], stop), server:
        yield ours, server
        stop.set()


def incident() -> Etcd:
    """Two pods that have been there for long."""
    etcd = Etcd()
    etcd.create("oldest")
    etcd.create("old")
    return etcd


def play(etcd: Etcd) -> str:
    """Replace a pod by another of its name, and delete the oldest last: its event ends what a watch shows."""
    replaced = etcd.create("web-0")
    etcd.delete(replaced)
    live = etcd.create("web-0")
    etcd.delete("uid-0")
    return live


def watched_from(server: FakeServer) -> list[int]:
    """Return the versions from which the agent's client started watches."""
    return [int(parse_qs(one)["resourceVersion"][0]) for one in server.requested("allowWatchBookmarks")]


def test_a_live_pod_is_not_lost_to_a_replay(tmp_path: Path) -> None:
    etcd = incident()
    old = Server(etcd, old=True)
    with following(tmp_path, old.answer) as (ours, server):
        until(lambda: ours.pods == {"uid-0", "uid-1"}, "ours has listed")
        live = play(etcd)
        until(lambda: ours.pods == {"uid-1", live}, "ours follows")
        known = ours.shown[Evidence.DELETED_BELOW].count

        def shown_on() -> bool:
            assert ours.pods == {"uid-1", live}, "through replay after replay"
            return ours.shown[Evidence.DELETED_BELOW].count >= known + 3

        until(shown_on, "each watch shows it again")
        shown = ours.shown[Evidence.DELETED_BELOW]
        assert (shown.before, shown.version, shown.server_version) == (FIRST + 5, FIRST + 1, "v1.9.2")
        assert shown.first < shown.last
        assert shown.resource == "pods"
        assert watched_from(server) == sorted(watched_from(server)), "no lower version is adopted"
        assert ours.watch.regressions >= shown.count


def test_a_fixed_server_never_gives_evidence_of_a_replay(tmp_path: Path) -> None:
    etcd = incident()
    with following(tmp_path, Server(etcd).answer) as (ours, server):
        until(lambda: ours.pods == {"uid-0", "uid-1"}, "ours has listed")
        for _ in range(5):
            one, other = etcd.create(), etcd.create()
            etcd.update(one)
            etcd.delete(other)
            etcd.delete(one)
            etcd.elsewhere()
        etcd.delete("uid-0")
        until(lambda: ours.pods == {"uid-1"}, "ours follows")
        assert (ours.shown, ours.watch.regressions) == ({}, 0)
        assert ours.sources.server_version() == "v1.20.2"
        assert len(server.requested("/version")) == 1, "once a connection"


def test_bookmarks_are_no_evidence(tmp_path: Path) -> None:
    # One ahead of events that are still to come, as some servers sent them, and one that is behind.
    etcd = incident()
    repaired = Server(etcd)

    def answering(request: Request) -> Answer:
        answer = repaired.answer(request, bookmark(FIRST + 50), bookmark(FIRST + 1), line("DELETED", pod("uid-0", 140)))
        etcd.revision = FIRST + 50  # other objects have changed
        return answer

    with following(tmp_path, answering) as (ours, server):
        until(lambda: FIRST + 50 in watched_from(server), "the bookmark is adopted")
        assert ours.pods == {"uid-1"}
        assert {one.before for one in ours.shown.values()} <= {FIRST + 50}, "a watch was started from it"


def test_after_410_during_a_watch_deleted_objects_stay_deleted(tmp_path: Path) -> None:
    etcd = incident()
    old = Server(etcd, old=True)
    with following(tmp_path, old.answer) as (ours, server):
        until(lambda: ours.pods == {"uid-0", "uid-1"}, "ours has listed")
        etcd.delete("uid-0")
        until(lambda: ours.pods == {"uid-1"}, "ours follows")
        assert ours.watch.restarts["expired"] == 0
        # Far behind: its cache still has the pod, and is not older than the version we know.
        old.behind, old.compacted = 1, FIRST + 100
        until(lambda: ours.watch.restarts["regressed"] >= 1, "the list has what was deleted")
        old.behind, old.compacted = 0, 0
        until(lambda: len(watched_from(server)) > 1 and watched_from(server)[-1] == FIRST + 3, "etcd itself was asked")
        assert ours.pods == {"uid-1"}
        assert Evidence.OLDER_LIST in ours.shown


def test_a_restored_etcd_is_recognized_and_accepted(tmp_path: Path) -> None:
    etcd = incident()
    with following(tmp_path, Server(etcd).answer) as (ours, _):
        until(lambda: ours.pods == {"uid-0", "uid-1"}, "ours has listed")
        etcd.delete("uid-0")
        for _ in range(5):
            etcd.create()
        until(lambda: ours.pods == set(etcd.at(etcd.revision)), "ours follows")
        etcd.restore(FIRST + 2)
        until(lambda: ours.pods == {"uid-0", "uid-1"}, "a deleted object is there again, and that is true")
        assert set(ours.shown) == {Evidence.RV_RESET}
        shown = ours.shown[Evidence.RV_RESET]
        assert (shown.before, shown.version, shown.count) == (FIRST + 8, FIRST + 2, 1)
        etcd.delete("uid-1")
        until(lambda: ours.pods == {"uid-0"}, "ours follows the new history")
        assert set(ours.shown) == {Evidence.RV_RESET}
