"""Restoration with real files: byte for byte, never over another owner, all or nothing."""

import errno
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from agent.cleanup.journal import RESERVATION, Entry, FileImage
from agent.model.release import Reason, Verdict
from tests.builders import GONE, NOW, WEB_ID, make_limits, node, scanned
from tests.cleanup import stores
from tests.cleanup.stores import (
    Store,
    another_process_locks,
    at,
    die,
    ends_by_itself,
    in_child,
    refuse,
    whole,
)
from tests.wire import NOBODY

IP, IP6 = "10.244.1.9", "fd00:10::9"


def half_released(store: Store) -> None:
    """Kill a release after the first of two files."""
    reserved = store.reserve(), store.reserve(IP6)
    assert not ends_by_itself(lambda: store.release_with(at("removed", die), *reserved))
    assert store.entry().unfinished


def half_restored(store: Store) -> None:
    """Kill a restoration after the first of two files."""
    store.release(store.reserve(), store.reserve(IP6))

    def act() -> None:
        stores.just_before("os.link", lambda arguments: die() if arguments[1] == IP6 else None)
        store.restore()

    assert not ends_by_itself(act)
    assert sorted(store.files()) == [f"kubenet/{IP}"]


@pytest.mark.parametrize(
    "named", [False, True], ids=["O_TMPFILE", "a file system without O_TMPFILE"]
)
def test_a_release_is_restored_byte_for_byte_with_any_umask(store: Store, named: bool) -> None:
    reserved = [
        store.reserve(mode=0o640, owner=NOBODY),
        store.reserve(IP6, ifname="", mode=0o000),
        store.reserve("10.9.0.9", network="net1", mode=0o4755),
        store.reserve("10.244.1.7", content=f" {GONE}\n".encode()),
    ]
    results = [
        store.keep_result(),
        store.keep_result(ip="10.9.0.9", network="net1", bare=True, at=1),
    ]
    results[0].chmod(0o600)
    before = store.files(), [whole(result) for result in results]
    assert store.release(*reserved).verdict is Verdict.RELEASED
    assert (store.files(), [result.exists() for result in results]) == ({}, [False, False])

    def act() -> list[object]:
        os.umask(0o777)
        return store.restore()

    assert in_child(act, named=named) == [True, ""]
    assert (store.files(), [whole(result) for result in results]) == before
    assert sorted(os.listdir(store.networks)) == ["kubenet", "net1"]
    assert (store.network() / IP).stat().st_nlink == 1
    assert store.entry().restored == NOW
    assert store.unlocked()


@pytest.mark.parametrize("content", [b"", bytes(70)])
def test_an_empty_file_is_restored_as_it_was_and_what_is_not_missing_is_not(
    store: Store, content: bytes
) -> None:
    store.reserve(content=content)
    before = store.files()
    store.release(store.find())
    tree = json.loads(store.journal_file.read_text())
    assert store.restore() == [True, ""]
    restored = store.journal_file.read_bytes()
    assert store.restore() == [False, "nothing is missing: all reservations are in place"]
    assert (store.files(), store.journal_file.read_bytes()) == (before, restored)
    store.journal_file.write_text(json.dumps(tree | {"files": []}))
    assert store.restore() == [False, "nothing is missing: all reservations are in place"]
    assert store.entry().restored is None


def test_if_the_second_file_cannot_be_put_back_that_is_said_and_the_next_start_does_it(
    store: Store,
) -> None:
    store.release(store.reserve(), store.reserve(IP6))

    def act() -> list[object]:
        refuse("os.link", errno.ENOSPC, when=lambda arguments: arguments[1] == IP6)
        return store.restore()

    unfinished = "the entry is unfinished; the next cleanup or restore recovers it"
    assert in_child(act) == [False, f"{IP6}: no space left on device: {unfinished}"]
    assert (store.entry().restoring, len(store.files())) == (NOW, 1)
    store.start()
    assert (store.entry().restored is not None, len(store.files())) == (True, 2)


def test_an_address_that_is_reserved_again_is_not_restored(tmp_path: Path) -> None:
    takers: tuple[Callable[[Path], object], ...] = (
        lambda path: path.write_text(WEB_ID),
        lambda path: path.symlink_to("nowhere"),
        *(Path.mkdir, Path.touch, os.mkfifo),
    )
    for number, take in enumerate(takers):
        store = Store(tmp_path / str(number))
        store.release(store.reserve(), store.reserve(IP6))
        take(store.network() / IP6)
        assert store.restore() == [False, f"{IP6} of network kubenet is reserved again"]
        assert not (store.network() / IP).exists(), "all of it, or nothing"
        assert store.entry().restored is None
    store = Store(tmp_path / "just before the lock")
    store.release(store.reserve(), store.reserve(IP6))
    files = store.file_ops(happens=at("locked", lambda: store.reserve(IP6, WEB_ID)))
    why = f"{IP6} of network kubenet is reserved again"
    assert store.restore(file_ops=files) == [False, why]
    assert sorted(store.files()) == [f"kubenet/{IP6}"]
    assert (store.entry().released, store.entry().why) == (True, f"not restored: {why}")


def test_a_sandbox_with_another_address_gets_no_second_one(store: Store) -> None:
    store.release(store.reserve())
    store.reserve("10.9.0.9", network="net1")  # that is no obstacle
    others = "10.244.1.77", "10.244.1.78"
    for ip, ifname in zip(others, ("eth0", ""), strict=True):
        store.reserve(ip, ifname=ifname)
    assert store.restore() == [
        False,
        f"container {GONE[:12]} has another address now: {', '.join(others)}",
    ]
    assert store.entry().restored is None
    for ip in others:
        (store.network() / ip).unlink()
    assert store.restore() == [True, ""]


def test_while_a_lock_is_held_or_the_directory_is_missing_nothing_is_restored(store: Store) -> None:
    store.release(store.reserve())
    for locked in ("", "lock"):
        with another_process_locks(store.network() / locked):
            assert store.restore() == [False, "another process holds host-local's lock"]
        assert (store.files(), store.entry().released) == ({}, True)
    store.network().rename(store.networks / "old")
    assert store.restore() == [False, f"{store.network()}: no such file or directory"]


def test_a_cached_result_that_cannot_be_put_back_is_reported(store: Store) -> None:
    result = store.keep_result()
    store.release(store.reserve())
    result.write_text("another")
    assert store.restore() == [True, f"not restored to libcni's cache: {result.name}: file exists"]
    assert result.read_text() == "another"


def test_what_another_process_released_after_a_failed_release_is_not_restored(store: Store) -> None:
    reserved = store.reserve()
    with stores.immutable(store.network() / IP):
        assert store.release(reserved).verdict is Verdict.FAILED
    (store.network() / IP).unlink()  # the kubelet's own DEL
    for verdict in (Verdict.FAILED, Verdict.CHANGED, Verdict.GONE, Verdict.BUSY):
        store.journal_store.update(store.entry().ended(verdict, ""), NOW)
        assert store.restore() == [False, f"nothing was released: the outcome was {verdict}"]
        assert store.files() == {}


def test_a_changed_journal_cannot_write_elsewhere(store: Store) -> None:
    store.keep_result()
    store.release(store.reserve())
    tree = json.loads(store.journal_file.read_text())
    before = {*store.root.rglob("*")}
    for number, changed in ((0, {"name": "../../victim"}), (0, {"network": "../.."})):
        files = [
            file | changed if index == number else file for index, file in enumerate(tree["files"])
        ]
        store.journal_file.write_text(json.dumps(tree | {"files": files}))
        assert store.journal().entries == ()
    tree["files"][1] |= {"place": "/etc/cron.d", "name": "x"}
    store.journal_file.write_text(json.dumps(tree))
    done, why = store.restore()
    assert (done, "not a configured directory of libcni's cache" in str(why)) == (True, True)
    assert {*store.root.rglob("*")} - before == {store.network() / IP}


def test_of_what_was_interrupted_an_address_reserved_since_is_not_touched(tmp_path: Path) -> None:
    for interrupt, ip, what in (
        (half_released, IP, "release"),
        (half_restored, IP6, "restoration"),
    ):
        store = Store(tmp_path / what)
        interrupt(store)
        store.reserve(ip, WEB_ID)
        before = store.files()
        store.start()
        assert store.files() == before
        found = store.entry()
        assert (found.verdict, found.restored, found.unfinished) == (
            Verdict.IN_DOUBT,
            None,
            False,
        )
        assert found.why == f"this {what} was interrupted, and a removed address is reserved again"
        assert store.restore() == [False, f"{ip} of network kubenet is reserved again"]
        assert store.files() == before


def test_what_a_restoration_put_back_before_it_was_killed_is_released_only_by_name(
    store: Store,
) -> None:
    """Whoever restored it knows of somebody whom no source shows, however little is back."""
    half_restored(store)
    store.reserve(IP6, WEB_ID)
    left = store.find()
    for _ in range(2):  # a sync recovers the entry first
        cleaner = store.cleaner(make_limits())
        cleaner.before_snapshot()
        snapshot = node(left, store.find(IP6))
        (outcome,) = cleaner.after_snapshot((snapshot,), scanned(snapshot)).outcomes
        assert [refusal.reason for refusal in outcome.refusals] == [Reason.NOT_CONFIRMED]
    assert (store.entry().put_back, store.entry().needed) == (True, True)
    assert store.release(left).verdict is Verdict.RELEASED


def test_what_was_interrupted_in_a_network_that_was_removed_since_is_finished(
    tmp_path: Path,
) -> None:
    for interrupt, verdict, what in (
        (half_released, Verdict.IN_DOUBT, "release"),
        (half_restored, Verdict.RELEASED, "restoration"),
    ):
        store = Store(tmp_path / what)
        interrupt(store)
        shutil.rmtree(store.network())
        store.start()
        found = store.entry()
        assert (found.verdict, found.unfinished, found.restored) == (verdict, False, None)
        expected = f"this {what} was interrupted; no reservation is in place"
        assert found.why.startswith(expected), found.why
        assert list(store.networks.iterdir()) == []
    # Of a sandbox with another network, the address that is in place stays.
    store = Store(tmp_path / "two networks")
    reserved = store.reserve(), store.reserve("10.9.0.9", network="net1")
    assert not ends_by_itself(lambda: store.release_with(at("removed", die), *reserved))
    shutil.rmtree(store.network())
    before = store.files()
    store.start()
    assert (store.entry().verdict, store.files()) == (Verdict.IN_DOUBT, before)
    assert "kubenet does not exist any more" in store.entry().why


def test_an_entry_in_a_data_dir_that_nothing_names_is_refused_and_told(store: Store) -> None:
    """Whoever can write to the journal must not write elsewhere with this agent."""
    target = store.root / "elsewhere" / "cron.d"
    target.mkdir(parents=True)
    (target / "present").write_bytes(b"x")

    def file(name: str) -> FileImage:
        data_dir = str(target.parent)
        return FileImage(RESERVATION, target.name, name, b"x", 0o644, 0, 0, 1, 10**18, data_dir)

    crafted = Entry("1", NOW, "run", GONE, "", (file("present"), file("evil")))
    store.journal_store.begin(crafted, ["x"])
    why = f"{target}: neither the CNI configuration nor libcni's cache names this dataDir"
    for named in (False, True):
        files = replace(store.file_ops(), names_data_dir={str(target.parent): named}.__getitem__)
        cleaner = store.cleaner(make_limits(), file_ops=files)
        cleaner.before_snapshot()
        snapshot = node()
        warnings = cleaner.after_snapshot((snapshot,), scanned(snapshot)).warnings
        told = f"journal: entry 1 is unfinished, and cannot be recovered now: {why}"
        assert warnings == (() if named else (told,))
        assert (target / "evil").exists() is named
        assert store.entry().unfinished is not named
    # The same for one that was released, and is to be restored.
    (target / "evil").unlink()
    store.journal_store.update(crafted.ended(Verdict.RELEASED, ""), NOW)
    assert store.restore() == [False, why]
    assert not (target / "evil").exists()
    # A directory below that of the networks is none of a network either.
    inside = store.network() / "inside"
    inside.mkdir()
    deeper = replace(file("evil"), data_dir=str(store.network()), network="inside")
    store.journal_store.begin(replace(crafted, name="2", files=(deeper,)), ["x"])
    store.journal_store.update(
        replace(crafted, name="2", files=(deeper,)).ended(Verdict.RELEASED, ""), NOW
    )
    assert "names this dataDir" in str(store.restore("2")[1])
    assert list(inside.iterdir()) == []


def test_an_entry_that_cannot_be_locked_found_or_put_back_stays_unfinished(store: Store) -> None:
    half_released(store)
    with another_process_locks(store.network() / "lock"):
        store.start()
        assert store.entry().unfinished
        why = "the entry is unfinished, and cannot be recovered now: another process holds host-local's lock"
        assert store.restore() == [False, why]
    # What is not there at all may only not be mounted.
    store.networks.rename(store.root / "elsewhere")
    store.start()
    assert store.entry().unfinished
    (store.root / "elsewhere").rename(store.networks)

    def act() -> None:
        refuse("os.link", errno.EIO, when=lambda _: True)
        store.start()

    in_child(act)
    assert store.entry().unfinished
    store.start()
    assert not store.entry().unfinished
    assert len(store.files()) == 2


def test_the_journal_is_not_written_under_the_locks(tmp_path: Path) -> None:
    for recovers in (False, True):
        store = Store(tmp_path / str(recovers))
        if recovers:
            half_released(store)
        else:
            store.release(store.reserve(), store.reserve(IP6))

        found = stores.synced(store.start if recovers else store.restore, store.unlocked)
        assert [unlocked for path, unlocked in found if path.name == "journal"] == [True] * (
            1 if recovers else 2
        )


def test_a_later_release_of_the_sandbox_has_to_be_restored_instead(store: Store) -> None:
    store.release(store.reserve())
    assert store.restore() == [True, ""]
    store.release(store.find())
    first, second = store.journal().entries
    why = f"its sandbox was released again since: restore {second.name} instead"
    assert store.restore(first.name) == [False, why]
    assert store.restore(second.name) == [True, ""]
    (store.network() / IP).unlink()  # by host-local, as the pod ends
    assert "nodeleak did not remove what is missing now" in str(store.restore(second.name)[1])
