"""SIGKILL at every system call: the locks are free, nothing is lost, and the next start recovers completely."""

import errno
import itertools
import json
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from agent.cleanup.journal import RESERVATION, Entry
from agent.cleanup.restore import recover_and_restore, restore
from agent.model.release import Verdict
from agent.model.snapshot import Reservation
from tests.builders import NOW
from tests.cleanup.stores import (
    File,
    Store,
    at,
    die,
    die_at,
    ends_by_itself,
    handles,
    refuse,
    without_nameless_files,
)
from tests.wire import NOBODY

pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")

IP, IP6, IP_NET1 = "10.244.1.9", "fd00:10::9", "10.9.0.9"
NAMED = pytest.mark.parametrize("named", [False, True], ids=["O_TMPFILE", "a file system without O_TMPFILE"])


@pytest.fixture(autouse=True)
def _no_handle_is_left_open() -> Iterator[None]:
    before = handles()
    yield
    assert handles() == before


def sandbox(store: Store) -> tuple[Reservation, ...]:
    """Reserve both addresses of one sandbox, with a cached result of libcni."""
    store.keep_result()
    return store.reserve(mode=0o640, owner=NOBODY), store.reserve(IP6)


def written_down(store: Store) -> dict[str, File]:
    """Return what the journal can restore."""
    return {
        f"{image.network}/{image.name}": (image.content, image.mode, image.uid, image.gid, image.mtime_ns)
        for entry in store.journal().entries
        for image in entry.files
        if image.place == RESERVATION
    }


def is_sound(store: Store, before: dict[str, File]) -> None:
    """After a kill no lock is held, and every file is in place or in the journal, unchanged."""
    assert store.unlocked()
    found, image = store.files(), written_down(store)
    for name, file in before.items():
        assert (found.get(name) or image[name]) == file
    assert set(found) <= set(before), "nothing else is there"
    assert store.journal().damage == ()


def is_settled(store: Store, before: dict[str, File]) -> Entry | None:
    """After the next start the sandbox is completely in place or completely released, and can be restored."""
    store.start()
    assert store.journal().unfinished() == ()
    found = store.files()
    assert found in (before, {})
    (entry,) = store.journal().entries or (None,)
    if not found:
        assert entry is not None
        assert entry.verdict in {Verdict.RELEASED, Verdict.INTERRUPTED}
        done = restore(entry, store.file_ops(), store.journal_store, NOW)
        assert done.done, done.why
        assert store.files() == before
    return entry


def kill_at_each_call(
    tmp_path: Path, prepare: Callable[[Store], object], act: Callable[[Store], object], check: Callable[[Store], object]
) -> int:
    """Do the same on a store for each system call, killed there, until it ends by itself. Return how many there are."""
    for moment in itertools.count(1):
        store = Store(tmp_path / str(moment))
        prepare(store)

        def dying(store: Store = store, moment: int = moment) -> None:
            die_at(moment)
            act(store)

        done = ends_by_itself(dying)
        check(store)
        if done:
            return moment
    raise AssertionError


def test_killed_at_each_call_of_a_release(tmp_path: Path) -> None:
    reserved: dict[Path, tuple[Reservation, ...]] = {}
    before: dict[Path, dict[str, File]] = {}
    verdicts = set()

    def prepare(store: Store) -> None:
        reserved[store.root] = (*sandbox(store), store.reserve(IP_NET1, network="net1"))
        before[store.root] = store.files()

    def check(store: Store) -> None:
        is_sound(store, before[store.root])
        entry = is_settled(store, before[store.root])
        verdicts.add(entry and entry.verdict)

    calls = kill_at_each_call(tmp_path, prepare, lambda store: store.release(*reserved[store.root]), check)
    assert calls > 40, "there are so many calls at least"
    assert verdicts == {None, Verdict.FAILED, Verdict.INTERRUPTED, Verdict.RELEASED}


@NAMED
def test_killed_at_each_call_of_a_release_that_is_undone(tmp_path: Path, named: bool) -> None:
    """The second file cannot be removed, and the first is put back."""
    reserved: dict[Path, tuple[Reservation, ...]] = {}
    before: dict[Path, dict[str, File]] = {}

    def prepare(store: Store) -> None:
        reserved[store.root] = sandbox(store)
        before[store.root] = store.files()

    def act(store: Store) -> None:
        if named:
            without_nameless_files()
        refuse("os.remove", errno.EIO, when=lambda arguments: arguments[0] == IP6)
        store.release(*reserved[store.root])

    def check(store: Store) -> None:
        is_sound(store, before[store.root])
        entry = is_settled(store, before[store.root])
        assert entry is None or entry.verdict is Verdict.FAILED
        assert store.files() == before[store.root]

    assert kill_at_each_call(tmp_path, prepare, act, check) > 40


@NAMED
@pytest.mark.parametrize("repeated", [True, False], ids=["it is repeated", "the next cleanup finishes it"])
def test_killed_at_each_call_of_a_restoration(tmp_path: Path, named: bool, repeated: bool) -> None:
    before: dict[Path, dict[str, File]] = {}
    found = set()

    def prepare(store: Store) -> None:
        reserved = sandbox(store)
        before[store.root] = store.files()
        store.release(*reserved)

    def act(store: Store) -> None:
        if named:
            without_nameless_files()
        restore(store.entry(), store.file_ops(), store.journal_store, NOW)

    def check(store: Store) -> None:
        is_sound(store, before[store.root])
        if repeated:
            again = recover_and_restore(store.entry().name, store.file_ops(), store.journal_store, NOW)
            assert again.done or again.why == "nothing is missing: all reservations are in place"
            assert (store.files(), store.entry().restored) == (before[store.root], NOW)
            assert len(list(store.caches[0].iterdir())) == 1
        store.start()
        now = store.entry()
        assert not now.unfinished
        assert store.files() == (before[store.root] if now.restored else {}), "whole, or not at all"
        assert now.released is (now.restored is None), "it is watched for"
        found.add(now.released)

    assert kill_at_each_call(tmp_path, prepare, act, check) > 20
    assert found == ({False} if repeated else {False, True})


@NAMED
def test_killed_at_each_call_of_a_recovery(tmp_path: Path, named: bool) -> None:
    before: dict[Path, dict[str, File]] = {}

    def prepare(store: Store) -> None:
        reserved = sandbox(store)
        before[store.root] = store.files()
        assert not ends_by_itself(lambda: store.release_with(at("removed", die), *reserved))
        assert set(store.files()) == {f"kubenet/{IP6}"}

    def act(store: Store) -> None:
        if named:
            without_nameless_files()
        store.start()

    def check(store: Store) -> None:
        is_sound(store, before[store.root])
        is_settled(store, before[store.root])
        assert store.files() == before[store.root]
        assert store.entry().why == "this release was interrupted; all reservations are in place"

    assert kill_at_each_call(tmp_path, prepare, act, check) > 20


def test_a_killed_cleaner_leaves_no_lock(tmp_path: Path) -> None:
    store = Store(tmp_path)
    reserved = sandbox(store)

    def act() -> None:
        with store.journal_store.exclusive(0), store.file_ops().locked(["kubenet"]):
            assert not store.unlocked()
            die()

    assert not ends_by_itself(act)
    assert store.unlocked()
    assert store.release(*reserved).verdict is Verdict.RELEASED


# Two at once.


def clean(store: Store, reserved: list[Reservation], start: int, *, alone: bool) -> list[str]:
    """Release in this process, as soon as the other one is ready."""
    os.read(start, 1)
    verdicts = []
    for reservation in reserved:
        with ExitStack() as stack:
            if alone:
                stack.enter_context(store.journal_store.exclusive(30))
            verdicts.append(store.release(reservation, file_ops=store.file_ops(5)).verdict.value)
    return verdicts


@pytest.mark.parametrize("alone", [True, False], ids=["one at a time", "in spite of all"])
def test_two_cleaners_release_each_address_once_and_lose_no_journal_entry(tmp_path: Path, alone: bool) -> None:
    store = Store(tmp_path)
    reserved = [store.reserve(f"10.244.1.{number}", f"{number:02x}" * 32) for number in range(10, 50)]
    waiting, start = os.pipe()
    children = []
    for number, order in enumerate((reserved, reserved[::-1])):
        children.append(os.fork())
        if children[-1] == 0:
            code = 1
            try:
                verdicts = clean(store, order, waiting, alone=alone)
                (tmp_path / f"answer{number}").write_text(json.dumps(verdicts))
                code = 0
            finally:
                os._exit(code)
    os.write(start, b"go")
    journals: list[list[str]] = []
    for number, child in enumerate(children):
        assert os.waitpid(child, 0)[1] == 0
        journals.append(json.loads((tmp_path / f"answer{number}").read_text()))
    os.close(waiting)
    os.close(start)
    assert store.files() == {}
    for mine, other in zip(journals[0], journals[1][::-1], strict=True):
        assert (mine == "released") != (other == "released"), "each once, and by one of them"
        assert {mine, other} <= {"released", "gone"}
    journal = store.journal()
    assert (journal.damage, journal.unfinished()) == ((), ())
    released = [entry.ips for entry in journal.entries if entry.verdict is Verdict.RELEASED]
    assert sorted(released) == sorted((reservation.ip,) for reservation in reserved)
    assert store.unlocked()
