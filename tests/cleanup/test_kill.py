"""SIGKILL at every system call: the locks are free, nothing is lost, and the next start recovers completely."""

import errno
import itertools
import json
import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from agent.cleanup.journal import Entry
from agent.cleanup.release import RESERVATION, release
from agent.cleanup.restore import recover_and_restore, restore
from agent.model.release import ReleaseRequest, Verdict
from agent.model.snapshot import Reservation
from tests.builders import NOW
from tests.cleanup.stores import (
    File,
    JournalWriter,
    NoOwners,
    Store,
    die,
    die_at,
    ends_by_itself,
    handles,
    immutable,
    in_child,
    refuse,
    without_nameless_files,
)
from tests.wire import NOBODY

pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")

IP, IP6, IP_NET1 = "10.244.1.9", "fd00:10::9", "10.9.0.9"
BOTH = {f"kubenet/{IP}", f"kubenet/{IP6}"}


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
    assert len(store.journal().damage) <= 1, "a torn line, at most"


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


def moments(tmp_path: Path) -> Iterator[tuple[int, Store]]:
    for moment in itertools.count(1):
        yield moment, Store(tmp_path / str(moment))


def test_killed_at_each_step_of_a_release(tmp_path: Path) -> None:
    for moment, store in moments(tmp_path):
        reserved = sandbox(store)
        before = store.files()

        def act(store: Store = store, moment: int = moment, reserved: tuple[Reservation, ...] = reserved) -> None:
            steps = release(ReleaseRequest(reserved), NoOwners(), store.file_ops(), JournalWriter(store.journal_store))
            for number, _ in enumerate(steps, 1):
                if number == moment:
                    die()

        done = ends_by_itself(act)
        is_sound(store, before)
        is_settled(store, before)
        if done:
            break
    assert moment == 12, "eleven steps, and to the end"


def test_killed_at_each_call_of_a_release(tmp_path: Path) -> None:
    verdicts = set()
    for moment, store in moments(tmp_path):
        reserved = sandbox(store)
        before = store.files()

        def act(store: Store = store, moment: int = moment, reserved: tuple[Reservation, ...] = reserved) -> None:
            die_at(moment)
            store.release(*reserved)

        done = ends_by_itself(act)
        is_sound(store, before)
        entry = is_settled(store, before)
        verdicts.add(entry and entry.verdict)
        if done:
            break
    assert moment > 40, "there are so many calls at least"
    assert verdicts == {None, Verdict.FAILED, Verdict.INTERRUPTED, Verdict.RELEASED}


def test_killed_at_each_call_of_a_release_in_two_networks(tmp_path: Path) -> None:
    for moment, store in moments(tmp_path):
        reserved = (store.reserve(), store.reserve(IP_NET1, network="net1"))
        before = store.files()

        def act(store: Store = store, moment: int = moment, reserved: tuple[Reservation, ...] = reserved) -> None:
            die_at(moment)
            store.release(*reserved)

        done = ends_by_itself(act)
        is_sound(store, before)
        is_settled(store, before)
        if done:
            break
    assert moment > 40


@pytest.mark.parametrize("named", [False, True], ids=["O_TMPFILE", "a file system without O_TMPFILE"])
def test_killed_at_each_call_of_a_release_that_is_undone(tmp_path: Path, named: bool) -> None:
    """The second file cannot be removed, and the first is put back."""
    for moment, store in moments(tmp_path):
        reserved = sandbox(store)
        before = store.files()

        def act(store: Store = store, moment: int = moment, reserved: tuple[Reservation, ...] = reserved) -> None:
            if named:
                without_nameless_files()
            refuse("os.remove", errno.EIO, when=lambda arguments: arguments[0] == IP6)
            die_at(moment)
            store.release(*reserved)

        done = ends_by_itself(act)
        is_sound(store, before)
        entry = is_settled(store, before)
        assert entry is None or entry.verdict is Verdict.FAILED
        assert store.files() == before
        if done:
            break
    assert moment > 40


@pytest.mark.parametrize("named", [False, True], ids=["O_TMPFILE", "a file system without O_TMPFILE"])
def test_killed_at_each_call_of_a_restoration(tmp_path: Path, named: bool) -> None:
    for moment, store in moments(tmp_path):
        before, entry = released(store)
        done = restore_and_die(store, entry, moment, named=named)
        is_sound(store, before)
        again = recover_and_restore(entry.name, store.file_ops(), store.journal_store, NOW)
        assert again.done or again.why == "nothing is missing: all reservations are in place"
        assert store.files() == before
        assert store.entry().restored == NOW
        assert len(list(store.caches[0].iterdir())) == 1
        if done:
            break
    assert moment > 20


def test_killed_at_each_call_of_a_restoration_the_next_cleanup_finishes_it_or_watches_for_it(tmp_path: Path) -> None:
    found = set()
    for moment, store in moments(tmp_path):
        before, entry = released(store)
        done = restore_and_die(store, entry, moment)
        is_sound(store, before)
        store.start()
        now = store.entry()
        assert not now.unfinished
        assert store.files() == (before if now.restored else {}), "whole, or not at all"
        assert now.released is (now.restored is None)
        found.add(now.released)
        if done:
            break
    assert moment > 20
    assert found == {False, True}


def released(store: Store) -> tuple[dict[str, File], Entry]:
    """Release a sandbox. Return its files, and the entry."""
    reserved = sandbox(store)
    before = store.files()
    store.release(*reserved)
    return before, store.entry()


def restore_and_die(store: Store, entry: Entry, moment: int, *, named: bool = False) -> bool:
    def act() -> None:
        if named:
            without_nameless_files()
        die_at(moment)
        restore(entry, store.file_ops(), store.journal_store, NOW)

    return ends_by_itself(act)


@pytest.mark.parametrize("named", [False, True], ids=["O_TMPFILE", "a file system without O_TMPFILE"])
def test_killed_at_each_call_of_a_recovery(tmp_path: Path, named: bool) -> None:
    for moment, store in moments(tmp_path):
        reserved = sandbox(store)
        before = store.files()

        def die_between(store: Store = store, reserved: tuple[Reservation, ...] = reserved) -> None:
            steps = release(ReleaseRequest(reserved), NoOwners(), store.file_ops(), JournalWriter(store.journal_store))
            for number, _ in enumerate(steps, 1):
                if number == 8:
                    die()

        def act(store: Store = store, moment: int = moment) -> None:
            if named:
                without_nameless_files()
            die_at(moment)
            store.start()

        assert not ends_by_itself(die_between)
        assert set(store.files()) == {f"kubenet/{IP6}"}
        done = ends_by_itself(act)
        is_sound(store, before)
        is_settled(store, before)
        assert store.files() == before
        assert store.entry().why == "this release was interrupted; all reservations are in place"
        if done:
            break
    assert moment > 20


def test_a_killed_cleaner_leaves_no_lock(tmp_path: Path) -> None:
    """A cleaner that is stopped, not dead, is waited for no longer than the timeout."""
    store = Store(tmp_path)
    reserved = sandbox(store)

    def act() -> None:
        with store.journal_store.exclusive(0):
            locked = store.file_ops().lock(["kubenet"])
            assert locked is not None
            assert not store.unlocked()
            die()

    assert not ends_by_itself(act)
    assert store.unlocked()
    assert store.release(*reserved).verdict is Verdict.RELEASED


# Two at once.


def clean(store: Store, reserved: list[Reservation], writer: JournalWriter, start: int, *, alone: bool) -> list[str]:
    """Release in this process, as soon as the other one is ready."""
    os.read(start, 1)
    verdicts = []
    for one in reserved:
        with ExitStack() as stack:
            if alone:
                stack.enter_context(store.journal_store.exclusive(30))
            verdicts.append(store.release(one, file_ops=store.file_ops(5), writer=writer).verdict.value)
    return verdicts


@pytest.mark.parametrize("alone", [True, False], ids=["one at a time", "in spite of all"])
def test_two_cleaners_release_each_address_once_and_lose_no_journal_line(tmp_path: Path, alone: bool) -> None:
    store = Store(tmp_path)
    reserved = [store.reserve(f"10.244.1.{number}", f"{number:02x}" * 32) for number in range(10, 50)]
    waiting, start = os.pipe()
    journals: list[list[str]] = []
    children = []
    for number, order in enumerate((reserved, reserved[::-1])):
        answer = tmp_path / f"answer{number}"

        writer = JournalWriter(store.journal_store, 1000 * number)

        def act(order: list[Reservation] = order, answer: Path = answer, writer: JournalWriter = writer) -> None:
            answer.write_text(json.dumps(clean(store, order, writer, waiting, alone=alone)))

        children.append(os.fork())
        if children[-1] == 0:
            code = 1
            try:
                act()
                code = 0
            finally:
                os._exit(code)
    os.write(start, b"go")
    for number, child in enumerate(children):
        assert os.waitpid(child, 0)[1] == 0
        journals.append(json.loads((tmp_path / f"answer{number}").read_text()))
    os.close(waiting)
    os.close(start)
    assert store.files() == {}
    for one, other in zip(journals[0], journals[1][::-1], strict=True):
        assert (one == "released") != (other == "released"), "each once, and by one of them"
        assert {one, other} <= {"released", "gone"}
    image = store.journal()
    assert (image.damage, image.unfinished()) == ((), ()), store.journal_file.read_text(errors="backslashreplace")
    released = [entry.ips for entry in image.entries if entry.verdict is Verdict.RELEASED]
    assert sorted(released) == sorted((one.ip,) for one in reserved)
    assert store.unlocked()


def test_an_immutable_file_does_not_stop_the_next_start(tmp_path: Path) -> None:
    """An entry that cannot be recovered stays unfinished, is retried, and affects no other."""
    store = Store(tmp_path)
    reserved = sandbox(store)

    def act() -> None:
        refuse("os.link", errno.EIO, when=lambda _: True)
        store.start()

    def die_between() -> None:
        steps = release(ReleaseRequest(reserved), NoOwners(), store.file_ops(), JournalWriter(store.journal_store))
        for number, _ in enumerate(steps, 1):
            if number == 8:
                die()

    with immutable(store.network() / IP6):
        assert not ends_by_itself(die_between)
        in_child(act)
        assert len(store.journal().unfinished()) == 1
        store.start()
    assert store.journal().unfinished() == ()
    assert set(store.files()) == BOTH
