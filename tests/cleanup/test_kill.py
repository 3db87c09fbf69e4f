"""SIGKILL at every system call: the locks are free, nothing is lost, and the next start recovers completely."""

import errno
import fcntl
import itertools
import json
import os
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import pytest

from agent.cleanup.journal import RESERVATION, Entry
from agent.model.release import Verdict
from agent.model.snapshot import Reservation
from tests.cleanup.stores import File, Store, at, die, die_at, ends_by_itself, refuse, start
from tests.wire import NOBODY

pytestmark = pytest.mark.proof
IP6, IP_NET1 = "fd00:10::9", "10.9.0.9"
NAMED = pytest.mark.parametrize(
    "named", [False, True], ids=["O_TMPFILE", "a file system without O_TMPFILE"]
)
Files = dict[str, File]


def reserve(store: Store) -> None:
    """Reserve three addresses of one sandbox, with a cached result of libcni."""
    store.keep_result()
    store.reserve(mode=0o640, owner=NOBODY)
    store.reserve(IP6)
    store.reserve(IP_NET1, network="net1")


def reserved(store: Store) -> list[Reservation]:
    return [store.find(), store.find(IP6), store.find(IP_NET1, "net1")]


def release(store: Store) -> None:
    store.release(*reserved(store))


def is_sound(store: Store, before: Files) -> None:
    """After a kill no lock is held, and every file is in place or in the journal, unchanged."""
    lock = store.state / "cleaner.lock"
    with lock.open() if lock.exists() else nullcontext() as cleaner:
        if cleaner is not None:
            fcntl.flock(cleaner, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert store.unlocked()
    journal, found = store.journal(), store.files()
    images = [
        image for entry in journal.entries for image in entry.files if image.place == RESERVATION
    ]
    written = {
        f"{image.network}/{image.name}": (
            image.content,
            image.mode,
            image.uid,
            image.gid,
            image.mtime_ns,
        )
        for image in images
    }
    for name, file in before.items():
        assert (found.get(name) or written[name]) == file
    assert set(found) <= set(before), "nothing else is there"
    assert journal.damage == ()


def is_settled(store: Store, before: Files) -> Entry | None:
    """After the next start the sandbox is completely in place or completely released, and can be restored."""
    store.start()
    assert store.journal().unfinished() == ()
    found = store.files()
    assert found in (before, {})
    (entry,) = store.journal().entries or (None,)
    if not found:
        assert entry is not None
        assert entry.verdict in {Verdict.RELEASED, Verdict.IN_DOUBT}
        assert [*store.caches[0].iterdir()] == [], (
            "CRI-O would run DEL with it while another pod has the address"
        )
        assert store.restore()[0]
        assert store.files() == before
    return entry


def kill_at_each_call(
    tmp_path: Path,
    prepare: Callable[[Store], object],
    act: Callable[[Store], object],
    check: Callable[[Store, Files], object],
    *,
    named: bool = False,
) -> int:
    """Do the same on a store for each system call, killed there, until it ends by itself. Return how many there are.

    The reservations are those of `reserve`, and `check` has their files.
    """
    for moment in itertools.count(1):
        store = Store(tmp_path / str(moment))
        reserve(store)
        before = store.files()
        prepare(store)

        def dying(store: Store = store, moment: int = moment) -> None:
            die_at(moment)
            act(store)

        done = ends_by_itself(dying, named=named)
        is_sound(store, before)
        check(store, before)
        if done:
            return moment
    raise AssertionError


def test_killed_at_each_call_of_a_release(tmp_path: Path) -> None:
    verdicts = set()

    def check(store: Store, before: Files) -> None:
        entry = is_settled(store, before)
        verdicts.add(entry and entry.verdict)

    assert kill_at_each_call(tmp_path, lambda _: None, release, check) > 40
    assert verdicts == {None, Verdict.FAILED, Verdict.IN_DOUBT, Verdict.RELEASED}


@NAMED
def test_killed_at_each_call_of_a_release_that_is_undone(tmp_path: Path, named: bool) -> None:
    """The second file cannot be removed, and the first is put back."""

    def act(store: Store) -> None:
        refuse("os.remove", errno.EIO, when=lambda arguments: arguments[0] == IP6)
        release(store)

    def check(store: Store, before: Files) -> None:
        entry = is_settled(store, before)
        assert entry is None or entry.verdict is Verdict.FAILED
        assert store.files() == before

    assert kill_at_each_call(tmp_path, lambda _: None, act, check, named=named) > 40


@NAMED
@pytest.mark.parametrize(
    "repeated", [True, False], ids=["it is repeated", "the next cleanup finishes it"]
)
def test_killed_at_each_call_of_a_restoration(tmp_path: Path, named: bool, repeated: bool) -> None:
    found = set()

    def check(store: Store, before: Files) -> None:
        if repeated:
            done, why = store.restore()
            assert done or why == "nothing is missing: all reservations are in place"
            assert store.files() == before
            assert len(list(store.caches[0].iterdir())) == 1
        store.start()
        now = store.entry()
        assert not now.unfinished
        assert store.files() == (before if now.restored else {}), "whole, or not at all"
        assert now.released is (now.restored is None), "it is watched for"
        found.add(now.released)

    assert kill_at_each_call(tmp_path, release, Store.restore, check, named=named) > 20
    assert found == ({False} if repeated else {False, True})


@NAMED
def test_killed_at_each_call_of_a_recovery(tmp_path: Path, named: bool) -> None:
    def prepare(store: Store) -> None:
        assert not ends_by_itself(lambda: store.release_with(at("removed", die), *reserved(store)))
        assert set(store.files()) == {f"kubenet/{IP6}", f"net1/{IP_NET1}"}

    def check(store: Store, before: Files) -> None:
        is_settled(store, before)
        assert store.files() == before
        assert store.entry().why == "this release was interrupted; all reservations are in place"

    assert kill_at_each_call(tmp_path, prepare, Store.start, check, named=named) > 20


def test_two_cleaners_release_each_address_once_and_lose_no_journal_entry(tmp_path: Path) -> None:
    store = Store(tmp_path)
    leaks = [store.reserve(f"10.244.1.{number}", f"{number:04}" * 16) for number in range(10, 50)]
    waiting, begin = os.pipe()

    def clean(answer: Path, order: list[Reservation]) -> None:
        os.read(waiting, 1)
        answer.write_text(
            json.dumps([store.release(leak, file_ops=store.file_ops(5)).verdict for leak in order])
        )

    answers = tmp_path / "answer", tmp_path / "other answer"
    children = [
        start(partial(clean, answer, order))
        for answer, order in zip(answers, (leaks, leaks[::-1]), strict=True)
    ]
    os.write(begin, b"go")
    assert [os.waitpid(child, 0)[1] for child in children] == [0, 0]
    os.close(waiting)
    os.close(begin)
    assert store.files() == {}
    one, other = (json.loads(answer.read_text()) for answer in answers)
    for verdicts in zip(one, other[::-1], strict=True):
        assert verdicts.count("released") == 1, "each once, and by one of them"
        assert {*verdicts} <= {"released", "gone", "changed"}
    journal = store.journal()
    assert (journal.damage, journal.unfinished()) == ((), ())
    released = [entry.ips for entry in journal.entries if entry.verdict is Verdict.RELEASED]
    assert sorted(released) == sorted((reservation.ip,) for reservation in leaks)
    assert store.unlocked()
