"""Restoration with real files: byte for byte, never over another owner, all or nothing."""

import errno
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent.cleanup.journal import RESERVATION, Entry, JournalStore
from agent.cleanup.restore import Restoration, RestoreError, missing_of, recover_and_restore, restore
from agent.cleanup.unlink import LockHeld
from agent.model.release import Verdict
from agent.model.snapshot import Reservation
from tests.builders import GONE, NOW, WEB_ID
from tests.cleanup.stores import (
    MADE_NS,
    Step,
    Store,
    another_process_locks,
    at,
    die,
    ends_by_itself,
    handles,
    immutable,
    in_child,
    may_mount,
    mount,
    refuse,
    whole,
    without_nameless_files,
)
from tests.wire import NOBODY

pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")

IP, IP6 = "10.244.1.9", "fd00:10::9"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path)


@pytest.fixture(autouse=True)
def _no_handle_is_left_open() -> Iterator[None]:
    before = handles()
    yield
    assert handles() == before


def put_back(store: Store, entry: Entry | None = None) -> Restoration:
    return restore(entry or store.entry(), store.file_ops(), store.journal_store, NOW)


def killed(store: Store, step: Step, *reserved: Reservation, nth: int = 1) -> Entry:
    """Kill a release after one of its steps."""
    assert not ends_by_itself(lambda: store.release_with(at(step, die, nth), *reserved))
    (entry,) = store.journal().unfinished()
    return entry


def half_restored(store: Store) -> Entry:
    """Kill a restoration after the first of two files."""
    store.release(store.reserve(), store.reserve(IP6))
    entry = store.entry()

    def kill(arguments: tuple[Any, ...]) -> bool:
        if arguments[1] == IP6:
            die()
        return False

    def act() -> None:
        refuse("os.link", errno.EIO, when=kill)
        put_back(store, entry)

    assert not ends_by_itself(act)
    assert sorted(store.files()) == [f"kubenet/{IP}"]
    return entry


@pytest.mark.parametrize("named", [False, True], ids=["O_TMPFILE", "a file system without O_TMPFILE"])
def test_a_release_is_restored_byte_for_byte(store: Store, named: bool) -> None:
    reserved = [
        store.reserve(mode=0o640, owner=NOBODY),
        store.reserve(IP6, ifname=""),
        store.reserve("10.9.0.9", network="net1"),
        store.reserve("10.244.1.7", content=f" {GONE}\n".encode()),
    ]
    results = [store.keep_result(), store.keep_result(ip="10.9.0.9", network="net1", bare=True, at=1)]
    results[0].chmod(0o600)
    before = store.files(), [whole(result) for result in results]
    assert store.release(*reserved).verdict is Verdict.RELEASED
    assert (store.files(), [result.exists() for result in results]) == ({}, [False, False])

    def act() -> list[object]:
        if named:
            without_nameless_files()
        done = put_back(store)
        return [done.done, done.why]

    assert in_child(act) == [True, ""]
    assert (store.files(), [whole(result) for result in results]) == before
    assert store.entry().restored == NOW
    assert store.unlocked()


def test_an_empty_file_is_restored_empty(store: Store) -> None:
    store.release(store.reserve(content=b""))
    assert put_back(store).done
    assert whole(store.network() / IP) == (b"", 0o600, 0, 0, MADE_NS)


def test_restoring_twice_is_refused_because_nothing_is_missing(store: Store) -> None:
    store.release(store.reserve())
    assert put_back(store).done
    before = store.files(), store.journal_file.read_bytes()
    second = put_back(store)
    assert (second.done, second.why) == (False, "nothing is missing: all reservations are in place")
    assert (store.files(), store.journal_file.read_bytes()) == before
    assert "nothing is missing" in put_back(store, replace(store.entry(), files=())).why


TAKEN = (
    lambda path: path.write_text(WEB_ID), Path.mkdir, Path.touch, os.mkfifo, lambda path: path.symlink_to("nowhere"),
)  # fmt: skip


@pytest.mark.parametrize("take", TAKEN)
def test_an_address_that_is_reserved_again_is_not_restored(store: Store, take: Callable[[Path], object]) -> None:
    store.release(store.reserve(), store.reserve(IP6))
    take(store.network() / IP6)
    done = put_back(store)
    assert (done.done, done.why) == (False, f"{IP6} of network kubenet is reserved again")
    assert not (store.network() / IP).exists(), "all of it, or nothing"
    assert store.entry().restored is None


def test_an_address_that_is_reserved_just_before_the_lock_is_not_restored(store: Store) -> None:
    store.release(store.reserve(), store.reserve(IP6))
    files = store.file_ops(happens=at("locked", lambda: store.reserve(IP6, WEB_ID)))
    done = restore(store.entry(), files, store.journal_store, NOW)
    assert (done.done, done.why) == (False, f"{IP6} of network kubenet is reserved again")
    assert sorted(store.files()) == [f"kubenet/{IP6}"]
    assert (store.entry().released, store.entry().why) == (True, f"not restored: {done.why}")


def test_a_sandbox_with_another_address_gets_no_second_one(store: Store) -> None:
    store.release(store.reserve())
    store.reserve("10.9.0.9", network="net1")  # that is no obstacle
    store.reserve("10.244.1.77")
    store.reserve("10.244.1.78", ifname="")
    done = put_back(store)
    assert done.why == f"container {GONE[:12]} has another address now: 10.244.1.77, 10.244.1.78"
    assert store.entry().restored is None
    for name in ("10.244.1.77", "10.244.1.78"):
        (store.network() / name).unlink()
    assert put_back(store).done


@pytest.mark.parametrize("locked", ["", "lock"])
def test_while_a_lock_is_held_nothing_is_restored(store: Store, locked: str) -> None:
    store.release(store.reserve())
    with another_process_locks(store.network() / locked):
        done = put_back(store)
    assert (done.done, done.why) == (False, "another process holds host-local's lock")
    assert (store.files(), store.entry().released) == ({}, True)


def test_a_cached_result_that_cannot_be_put_back_is_reported(store: Store) -> None:
    result = store.keep_result()
    store.release(store.reserve())
    result.write_text("another")
    done = put_back(store)
    assert (done.done, done.why) == (True, f"not restored to libcni's cache: {result.name}: file exists")
    assert result.read_text() == "another"


@pytest.mark.parametrize("verdict", [Verdict.CHANGED, Verdict.GONE, Verdict.BUSY, Verdict.FAILED])
def test_an_entry_without_a_release_restores_nothing(store: Store, verdict: Verdict) -> None:
    store.release(store.reserve())
    with pytest.raises(RestoreError, match=f"nothing was released: the outcome was {verdict}"):
        missing_of(replace(store.entry(), verdict=verdict), {})


def test_an_unfinished_entry_is_left_for_recovery(store: Store) -> None:
    entry = killed(store, "removed", store.reserve(), store.reserve(IP6))
    assert put_back(store, entry).why == "the entry is unfinished; the next cleanup or restore recovers it"


def test_what_another_process_released_after_a_failed_release_is_not_restored(store: Store) -> None:
    reserved = store.reserve()
    with immutable(store.network() / reserved.ip):
        assert store.release(reserved).verdict is Verdict.FAILED
    (store.network() / reserved.ip).unlink()  # the kubelet's own DEL
    done = put_back(store)
    assert (done.done, done.why) == (False, "nothing was released: the outcome was failed")
    assert store.files() == {}


def test_if_the_second_file_cannot_be_restored_that_is_said_and_the_next_recovery_does_it(store: Store) -> None:
    store.release(store.reserve(), store.reserve(IP6))

    def act() -> list[object]:
        refuse("os.link", 28, when=lambda arguments: arguments[1] == IP6)
        done = put_back(store)
        return [done.done, done.why]

    unfinished = "the entry is unfinished; the next cleanup or restore recovers it"
    assert in_child(act) == [False, f"{IP6}: no space left on device: {unfinished}"]
    assert (store.entry().restoring, store.entry().released) == (NOW, False)
    store.start()
    assert len(store.files()) == 2
    assert store.entry().restored is not None


def test_with_an_unwritable_journal_nothing_is_restored(store: Store) -> None:
    store.release(store.reserve())
    with immutable(store.journal_file.parent):
        done = put_back(store)
    assert (done.done, done.why) == (False, f"{store.journal_file}: operation not permitted")
    assert store.files() == {}
    assert store.unlocked()


def test_where_nothing_can_be_linked_nothing_is_restored(store: Store) -> None:
    may_mount()
    store.release(store.reserve())

    def act() -> list[object]:
        mount("--bind", "-o", "ro", store.networks, store.networks)
        done = put_back(store)
        return [done.done, done.why]

    done, why = in_child(act)
    assert not done
    assert "read-only mount" in why
    store.start()
    assert store.entry().released
    store.network().rename(store.networks / "old")
    assert put_back(store).why == f"{store.network()}: no such file or directory"


@pytest.mark.parametrize(
    "tampered", [{"name": "../../victim"}, {"network": "../.."}, {"place": "/etc/cron.d", "name": "x"}]
)
def test_a_changed_journal_cannot_write_elsewhere(store: Store, tampered: dict[str, str]) -> None:
    result = store.keep_result()
    store.release(store.reserve())
    tree = json.loads(store.journal_file.read_text())
    tree["files"][1 if "place" in tampered else 0] |= tampered
    store.journal_file.write_text(json.dumps(tree))
    before = {path for path in store.root.rglob("*") if path != store.network() / IP}
    for entry in JournalStore(store.state).read().entries:
        assert "not a configured directory of libcni's cache" in put_back(store, entry).why
    assert {path for path in store.root.rglob("*") if path != store.network() / IP} == before
    assert not result.exists()


# Recovery.


def test_killed_before_the_first_removal_all_files_are_in_place(store: Store) -> None:
    reserved = [store.reserve(), store.reserve(IP6)]
    killed(store, "journaled", *reserved)
    store.start()
    entry = store.entry()
    assert (entry.verdict, entry.why) == (
        Verdict.FAILED, "this release was interrupted; all reservations are in place",
    )  # fmt: skip
    assert [store.find(IP), store.find(IP6)] == reserved


def test_killed_between_two_removals_the_first_file_is_restored(store: Store) -> None:
    reserved = [store.reserve(), store.reserve(IP6)]
    before = store.files()
    killed(store, "removed", *reserved)
    assert list(store.files()) == [f"kubenet/{IP6}"]
    store.start()
    assert store.files() == before
    assert store.entry().verdict is Verdict.FAILED


def test_killed_after_the_last_removal_it_claims_no_release_and_can_be_restored(store: Store) -> None:
    reserved = [store.reserve(), store.reserve(IP6)]
    before = store.files()
    killed(store, "removed", *reserved, nth=2)
    store.start()
    assert store.files() == {}
    assert store.entry().verdict is Verdict.INTERRUPTED
    assert "it is not known whether this release or another process removed them" in store.entry().why
    assert put_back(store).done
    assert store.files() == before


def test_killed_between_two_removals_an_address_reserved_since_is_not_touched(store: Store) -> None:
    killed(store, "removed", store.reserve(), store.reserve(IP6))
    store.reserve(container_id=WEB_ID)
    before = store.files()
    store.start()
    assert store.files() == before
    assert store.entry().why == "this release was interrupted, and a removed address is reserved again"


def test_an_entry_that_cannot_be_locked_found_or_put_back_stays_unfinished(store: Store) -> None:
    killed(store, "removed", store.reserve(), store.reserve(IP6))
    with another_process_locks(store.network() / "lock"):
        store.start()
    assert len(store.journal().unfinished()) == 1
    store.network().rename(store.networks / "old")
    store.start()
    assert len(store.journal().unfinished()) == 1
    (store.networks / "old").rename(store.network())

    def act() -> None:
        refuse("os.link", errno.EIO, when=lambda _: True)
        store.start()

    in_child(act)
    assert len(store.journal().unfinished()) == 1
    store.start()
    assert store.journal().unfinished() == ()
    assert len(store.files()) == 2


def test_an_interrupted_restoration_can_be_finished(store: Store) -> None:
    entry = half_restored(store)
    done = recover_and_restore(entry.name, store.file_ops(), store.journal_store, NOW)
    assert (done.done, done.why) == (True, "it was interrupted, and all its reservations are in place now")
    assert sorted(store.files()) == [f"kubenet/{IP}", f"kubenet/{IP6}"]
    assert [image.place for image in entry.reservations] == [RESERVATION] * 2
    assert store.entry().restored == NOW


def test_of_an_interrupted_restoration_an_address_reserved_since_is_not_touched(store: Store) -> None:
    entry = half_restored(store)
    store.reserve(IP6, WEB_ID)
    before = store.files()
    store.start()
    assert store.files() == before
    found = store.entry()
    assert (found.verdict, found.restored, found.unfinished) == (Verdict.INTERRUPTED, None, False)
    assert found.why == "this restoration was interrupted, and a removed address is reserved again"
    done = recover_and_restore(entry.name, store.file_ops(), store.journal_store, NOW)
    assert (done.done, done.why) == (False, f"{IP6} of network kubenet is reserved again")


def test_a_restoration_whose_end_cannot_be_recorded_says_so_and_is_recovered(store: Store) -> None:
    store.release(store.reserve())

    def act() -> list[object]:
        replace_path = Path.replace

        def once(path: Path, target: Path) -> Path:
            Path.replace = broken  # type: ignore[assignment,method-assign]
            return replace_path(path, target)

        def broken(_: Path, __: Path) -> Path:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        Path.replace = once  # type: ignore[assignment,method-assign]
        done = put_back(store)
        return [done.done, done.why]

    assert in_child(act) == [
        True, f"the journal does not record the outcome: {store.journal_file}: no space left on device",
    ]  # fmt: skip
    assert (store.entry().restoring, store.entry().released) == (NOW, False)
    store.start()
    assert store.entry().restored is not None


@pytest.mark.parametrize("recovers", [False, True])
def test_the_journal_is_not_written_under_the_locks(store: Store, recovers: bool) -> None:
    if recovers:
        killed(store, "removed", store.reserve(), store.reserve(IP6))
    else:
        store.release(store.reserve(), store.reserve(IP6))

    def watched() -> list[bool]:
        free: list[bool] = []
        fsync = os.fsync

        def slow(handle: int) -> None:
            fsync(handle)
            if Path(f"/proc/self/fd/{handle}").readlink().name == "journal":
                os.fsync = fsync
                try:
                    with store.file_ops(0).locked(["kubenet"]):
                        free.append(True)
                except LockHeld:
                    free.append(False)
                os.fsync = slow  # type: ignore[assignment]

        os.fsync = slow  # type: ignore[assignment]
        store.start() if recovers else put_back(store)
        os.fsync = fsync
        return free

    assert in_child(watched) == ([True] if recovers else [True, True])


def test_a_later_release_of_the_sandbox_has_to_be_restored_instead(store: Store) -> None:
    store.release(store.reserve())
    first = store.entry()
    assert recover_and_restore(first.name, store.file_ops(), store.journal_store, NOW).done
    store.release(store.find(IP))
    second: Any = store.journal().entries[-1]
    with pytest.raises(RestoreError, match=f"restore {second.name} instead"):
        recover_and_restore(first.name, store.file_ops(), store.journal_store, NOW)
    assert recover_and_restore(second.name, store.file_ops(), store.journal_store, NOW).done
