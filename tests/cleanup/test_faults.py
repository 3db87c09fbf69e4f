"""Faults of real nodes between any two steps of a release: nothing is touched that was not assessed."""

import errno
import itertools
import os
import resource
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from agent.cleanup.journal_store import MOST_ENTRIES
from agent.cleanup.release import RESERVATION, Step, release
from agent.model.release import Outcome, Reason, ReleaseRequest, Verdict
from agent.model.snapshot import Reservation
from tests.builders import GONE, WEB_ID
from tests.cleanup.stores import (
    MADE_NS,
    JournalWriter,
    NoOwners,
    Store,
    handles,
    immutable,
    in_child,
    may_mount,
    mount,
    refuse,
    whole,
)
from tests.wire import NOBODY, as_nobody, needs, open_directory

pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")

IP, IP6 = "10.244.1.9", "fd00:10::9"
BEFORE_REMOVING = [
    Step.ASKED_RUNTIME, Step.ASKED_KUBELET, Step.ASKED_KERNEL, Step.READ, Step.JOURNALED, Step.LOCKED,
]  # fmt: skip


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path)


@pytest.fixture(autouse=True)
def _no_handle_is_left_open() -> Iterator[None]:
    before = handles()
    yield
    assert handles() == before


def release_with(
    store: Store, happens: Callable[[], object], after: Step, *reserved: Reservation
) -> tuple[Outcome, list[Step]]:
    """Run a release; something happens after one of its steps."""
    steps = release(ReleaseRequest(reserved), NoOwners(), store.file_ops(), JournalWriter(store.journal_store))
    taken: list[Step] = []
    while True:
        try:
            taken.append(next(steps))
        except StopIteration as done:
            return done.value, taken
        if taken[-1] is after:
            happens()


# The reservation has changed.


def another_id(path: Path) -> None:
    path.write_text(f"{WEB_ID}\r\neth0")
    os.utime(path, ns=(MADE_NS, MADE_NS))


def another_file_of_the_same_bytes(path: Path) -> None:
    content = path.read_bytes()
    path.with_name("new").write_bytes(content)
    os.utime(path.with_name("new"), ns=(MADE_NS, MADE_NS))
    path.with_name("new").rename(path)


def another_interface(path: Path) -> None:
    path.write_text(f"{GONE}\r\neth1")
    os.utime(path, ns=(MADE_NS, MADE_NS))


def another_time(path: Path) -> None:
    os.utime(path, ns=(MADE_NS, MADE_NS + 1))


def a_link(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


def a_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def a_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def state_of(directory: Path) -> dict[str, tuple[int, int, int, int]]:
    """Return everything in a directory but the lock, without opening it."""
    found = {file.name: file.lstat() for file in directory.iterdir() if file.name != "lock"}
    return {name: (at.st_ino, at.st_mode, at.st_size, at.st_mtime_ns) for name, at in found.items()}


@pytest.mark.parametrize("step", BEFORE_REMOVING)
@pytest.mark.parametrize(
    "change",
    [
        another_id,
        another_file_of_the_same_bytes,
        another_interface,
        another_time,
        a_link,
        a_directory,
        a_fifo,
        emptied,
    ],
)
def test_a_reservation_replaced_meanwhile_is_not_touched(
    store: Store, step: Step, change: Callable[[Path], None]
) -> None:
    path = store.network() / IP
    reserved = store.reserve()
    result = store.keep_result()
    after: list[dict[str, tuple[int, int, int, int]]] = []

    def happens() -> None:
        change(path)
        after.append(state_of(path.parent))

    outcome, _ = release_with(store, happens, step, reserved)
    assert outcome.verdict is Verdict.CHANGED
    assert [state_of(path.parent)] == after
    assert result.exists()
    assert store.unlocked()
    assert [entry.verdict for entry in store.journal().entries] in ([], [Verdict.CHANGED])


@pytest.mark.parametrize("step", BEFORE_REMOVING)
@pytest.mark.parametrize("ips", [(IP,), (IP, IP6)], ids=["its only address", "one address of two"])
def test_a_reservation_removed_meanwhile_is_gone_and_its_sandbox_is_not_touched(
    store: Store, step: Step, ips: tuple[str, ...]
) -> None:
    reserved = [store.reserve(ip) for ip in ips]
    outcome, _ = release_with(store, (store.network() / ips[-1]).unlink, step, *reserved)
    assert outcome.verdict is Verdict.GONE
    assert sorted(store.files()) == [f"kubenet/{ip}" for ip in ips[:-1]]
    assert store.unlocked()


@pytest.mark.parametrize("change", [another_id, another_time, a_link, a_directory, emptied])
def test_one_changed_address_protects_its_whole_sandbox(store: Store, change: Callable[[Path], None]) -> None:
    reserved = [store.reserve(), store.reserve(IP6), store.reserve("10.9.0.9", network="net1")]
    before = whole(store.network() / IP)
    outcome, _ = release_with(store, lambda: change(store.network() / IP6), Step.LOCKED, *reserved)
    assert outcome.verdict is Verdict.CHANGED
    assert whole(store.network() / IP) == before
    assert (store.network("net1") / "10.9.0.9").exists()


@pytest.mark.parametrize("attribute", ["mode", "owner"])
def test_a_file_that_differs_from_the_journal_is_not_removed(store: Store, attribute: str) -> None:
    path, reserved = store.network() / IP, store.reserve()

    def happens() -> None:
        if attribute == "mode":
            path.chmod(0o640)
        else:
            os.chown(path, NOBODY, NOBODY)

    outcome, _ = release_with(store, happens, Step.JOURNALED, reserved)
    assert outcome.verdict is Verdict.CHANGED
    assert path.exists()


def test_a_file_removed_by_others_after_the_comparison_counts_as_released(store: Store) -> None:
    reserved = store.reserve()
    outcome, _ = release_with(store, (store.network() / IP).unlink, Step.COMPARED, reserved)
    assert outcome.verdict is Verdict.GONE
    assert store.unlocked()


def test_the_steps_of_a_release_have_this_order(store: Store) -> None:
    store.keep_result()
    outcome, taken = release_with(store, lambda: None, Step.READ, store.reserve(), store.reserve(IP6))
    assert outcome.verdict is Verdict.RELEASED
    assert taken == [
        *BEFORE_REMOVING, Step.COMPARED, Step.REMOVED, Step.REMOVED, Step.UNLOCKED, Step.CACHE_REMOVED,
    ]  # fmt: skip


# The recheck finds an owner, or gives no answer.


@pytest.mark.parametrize("silent", ["docker", "kubelet", "kernel"])
def test_a_recheck_without_an_answer_refuses_the_release(store: Store, silent: str) -> None:
    reserved = store.reserve()
    outcome = store.release(reserved, recheck=NoOwners(silent=silent))
    assert (outcome.verdict, outcome.why) == (Verdict.FAILED, f"{silent} is gone")
    assert store.find(IP) == reserved
    assert store.journal().entries == ()
    assert not (store.network() / "lock").exists(), "no lock was tried for"


@pytest.mark.parametrize(
    ("again", "reason"),
    [
        (NoOwners(container=True), Reason.CONTAINER_EXISTS),
        (NoOwners(checkpoint=True), Reason.TEARDOWN_PENDING),
        (NoOwners(holder="process 7 (nginx)"), Reason.ADDRESS_IN_USE),
    ],
)
def test_an_owner_found_by_the_recheck_keeps_the_address(store: Store, again: NoOwners, reason: Reason) -> None:
    reserved = store.reserve()
    outcome = store.release(reserved, recheck=again)
    assert outcome.verdict is Verdict.REFUSED
    assert [refusal.reason for refusal in outcome.refusals] == [reason]
    assert store.find(IP) == reserved
    assert store.journal().entries == ()


# System errors.


def test_a_read_only_mount_is_reported_as_observe_mode_without_a_journal_entry(store: Store) -> None:
    may_mount()
    reserved = store.reserve()

    def observed() -> list[object]:
        mount("--bind", "-o", "ro", store.networks, store.networks)
        before = handles()
        outcome = store.release(reserved)
        return [outcome.verdict, outcome.why, handles() - before, os.statvfs(store.networks).f_flag & os.ST_RDONLY]

    verdict, why, leaked, read_only = in_child(observed)
    assert read_only, "it was mounted as it should be"
    assert (verdict, leaked) == ("failed", 0)
    remedy = (
        "to release, create a Job (kubectl nodeleak clean-job, or deploy/clean-one-node.yaml), "
        "or apply deploy/overlays/cleanup-exec with your image"
    )
    assert why == f"{store.network()}: read-only mount: {remedy}"
    assert store.find(IP) == reserved
    assert not store.state.exists()


def test_a_mount_that_becomes_read_only_during_a_release_fails_and_changes_nothing(store: Store) -> None:
    """A file system does so by itself after an error of its disk."""
    may_mount()
    store.reserve()

    def turned() -> list[object]:
        mount("--bind", store.networks, store.networks)
        reserved = store.find(IP)

        def turn() -> None:
            mount("-o", "remount,bind,ro", store.networks)

        outcome, _ = release_with(store, turn, Step.READ, reserved)
        return [outcome.verdict, outcome.why]

    verdict, why = in_child(turned)
    assert verdict == "failed"
    assert why.startswith(f"{store.network()}: read-only mount")
    assert sorted(store.files()) == [f"kubenet/{IP}"]
    assert store.journal().entries == ()


def test_a_full_disk_under_the_journal_refuses_the_release(store: Store) -> None:
    may_mount()
    reserved = store.reserve()

    def full() -> list[object]:
        store.state.mkdir()
        mount("-t", "tmpfs", "-o", "size=16k", "none", store.state)
        first = store.release(store.reserve("10.244.1.8", WEB_ID))
        with suppress(OSError), (store.state / "other").open("wb", buffering=0) as filler:
            while filler.write(b"x" * 4096):
                pass
        outcomes = [store.release(reserved) for _ in range(5)]
        journal = store.journal()
        return [
            first.verdict,
            [outcome.verdict for outcome in outcomes],
            [[refusal.reason, refusal.why] for outcome in outcomes for refusal in outcome.refusals],
            list(journal.damage),
            [entry.verdict for entry in journal.entries],
            sorted(path.name for path in store.journal_file.parent.iterdir()),
            store.journal_file.name,
            store.find(IP) == reserved,
        ]

    first, verdicts, reasons, damage, entries, files, file, in_place = in_child(full)
    assert (first, entries) == ("released", ["released"])
    assert verdicts == ["refused"] * 5
    assert {reason for reason, _ in reasons} == {"journal_unwritable"}
    assert all(why.endswith(": no space left on device") for _, why in reasons)
    assert (damage, files) == ([], [file]), "nothing is left of the others"
    assert in_place


@pytest.mark.parametrize("room", [0, 1, 300])
def test_a_partly_written_entry_is_none(store: Store, room: int) -> None:
    store.release(store.reserve("10.244.1.8", WEB_ID))
    before = store.journal_file.read_bytes()
    reserved = store.reserve()

    def bounded() -> list[object]:
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, resource.RLIM_INFINITY))
        outcome = store.release(reserved)
        return [outcome.verdict, outcome.refusals[0].reason, outcome.refusals[0].why.endswith(": file too large")]

    assert in_child(bounded) == ["refused", "journal_unwritable", True]
    assert store.journal_file.read_bytes() == before
    assert store.find(IP) == reserved
    assert store.release(reserved).verdict is Verdict.RELEASED


def test_a_disk_that_fills_up_during_a_release_leaves_an_unfinished_entry_and_reports_it(store: Store) -> None:
    reserved = store.reserve()

    def filling() -> str:
        def fill() -> None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (10, resource.RLIM_INFINITY))

        return release_with(store, fill, Step.JOURNALED, reserved)[0].why

    assert in_child(filling) == f"the journal does not record the outcome: {store.journal_file}: file too large"
    (unfinished,) = store.journal().unfinished()
    store.start()
    assert [entry.verdict for entry in store.journal().entries] == [Verdict.INTERRUPTED]
    assert store.entry().name == unfinished.name


def test_an_unwritable_store_fails_before_the_journal_is_written() -> None:
    needs(os.geteuid() == 0, "root, to be somebody else")
    with open_directory() as directory:
        store = Store(directory)
        reserved = store.reserve(mode=0o644)
        with as_nobody():
            outcome = store.release(reserved)
        assert outcome.verdict is Verdict.FAILED
        assert outcome.why == f"{store.network()}: permission denied"
        assert store.find(IP) == reserved
        assert not store.state.exists()


def test_an_unreadable_reservation_fails() -> None:
    needs(os.geteuid() == 0, "root, to be somebody else")
    with open_directory() as directory:
        store = Store(directory)
        reserved = store.reserve(mode=0o600)
        store.network().chmod(0o777)
        with as_nobody():
            outcome = store.release(reserved)
        assert outcome.verdict is Verdict.FAILED
        assert outcome.why == f"{store.network()}/{IP}: permission denied"
        assert store.find(IP) == reserved


def test_an_unreadable_cache_fails() -> None:
    needs(os.geteuid() == 0, "root, to be somebody else")
    with open_directory() as directory:
        store = Store(directory)
        reserved = store.reserve(mode=0o644)
        store.network().chmod(0o777)
        store.caches[1].chmod(0o700)
        with as_nobody():
            outcome = store.release(reserved)
        assert (outcome.verdict, outcome.why) == (Verdict.FAILED, f"{store.caches[1]}: permission denied")
        assert store.find(IP) == reserved


def test_an_unreadable_cached_result_fails() -> None:
    needs(os.geteuid() == 0, "root, to be somebody else")
    with open_directory() as directory:
        store = Store(directory)
        reserved = store.reserve(mode=0o644)
        result = store.keep_result()
        result.chmod(0o600)
        store.network().chmod(0o777)
        with as_nobody():
            outcome = store.release(reserved)
        assert (outcome.verdict, outcome.why) == (Verdict.FAILED, f"{result}: permission denied")
        assert store.find(IP) == reserved
        assert store.journal().entries == ()


def test_an_unwritable_state_directory_refuses() -> None:
    needs(os.geteuid() == 0, "root, to be somebody else")
    with open_directory() as directory:
        store = Store(directory)
        reserved = store.reserve(mode=0o644)
        store.network().chmod(0o777)
        store.state.mkdir(mode=0o755)
        with as_nobody():
            outcome = store.release(reserved)
            assert store.journal_store.trouble() == f"{store.state}: permission denied"
        assert outcome.verdict is Verdict.REFUSED
        (refusal,) = outcome.refusals
        assert refusal.reason is Reason.JOURNAL_UNWRITABLE
        assert refusal.why.startswith(f"{store.state}/journal/")
        assert refusal.why.endswith(".json: permission denied")
        assert store.find(IP) == reserved


def test_a_journal_that_has_become_full_refuses_and_drops_nothing(store: Store) -> None:
    """The guards go by an estimate. An entry may be larger, and another cleaner may be faster."""
    reserved = store.reserve()
    journal = store.state / "journal"
    journal.mkdir(parents=True)
    for number in range(MOST_ENTRIES):
        (journal / f"{number:04}.json").touch()
    before = {path: path.stat().st_ino for path in journal.iterdir()}
    outcome = store.release(reserved)
    assert outcome.verdict is Verdict.REFUSED
    (refusal,) = outcome.refusals
    oldest = journal / "0000.json"
    assert (refusal.reason, refusal.why) == (Reason.JOURNAL_FULL, f"the journal is full until {oldest} is 24 hours old")
    assert {path: path.stat().st_ino for path in journal.iterdir()} == before
    assert store.find(IP) == reserved


def test_a_cached_result_that_cannot_be_removed_is_reported_and_is_not_a_failure(store: Store) -> None:
    result = store.keep_result()
    with immutable(result):
        outcome = store.release(store.reserve())
    assert outcome.verdict is Verdict.RELEASED
    assert outcome.why == f"left in libcni's cache: {result}: operation not permitted"
    assert store.entry().why == outcome.why
    assert result.exists()


def test_a_file_that_cannot_be_removed_fails_and_remains(store: Store) -> None:
    reserved = store.reserve()
    with immutable(store.network() / IP):
        outcome = store.release(reserved)
    assert (outcome.verdict, outcome.why) == (Verdict.FAILED, f"{store.network()}/{IP}: operation not permitted")
    assert store.find(IP) == reserved
    assert store.entry().verdict is Verdict.FAILED
    assert store.unlocked()


@pytest.mark.parametrize("network", ["kubenet", "net1"])
def test_if_the_second_file_cannot_be_removed_the_first_is_restored_byte_for_byte(store: Store, network: str) -> None:
    reserved = [store.reserve(mode=0o640, owner=NOBODY), store.reserve(IP6, network=network)]
    result = store.keep_result()
    before = store.files()
    with immutable(store.network(network) / IP6):
        outcome = store.release(*reserved)
    assert outcome.verdict is Verdict.FAILED
    assert outcome.why == f"{store.network(network)}/{IP6}: operation not permitted"
    assert store.files() == before
    assert result.exists()
    assert store.unlocked()
    assert store.release(store.find(IP), store.find(IP6, network)).verdict is Verdict.RELEASED


def test_a_file_that_vanishes_while_it_is_read_is_not_journaled(store: Store) -> None:
    reserved = store.reserve()

    def act() -> str:
        opened = itertools.count(1)

        def vanish(event: str, arguments: tuple[object, ...]) -> None:
            if event == "open" and arguments[0] == IP and next(opened) == 2:
                (store.network() / IP).unlink()

        sys.addaudithook(vanish)
        return store.release(reserved).verdict.value

    assert in_child(act) == "changed"
    assert (store.journal().entries, store.journal().damage) == ((), ())


def test_if_the_first_file_cannot_be_restored_the_journal_still_can(store: Store) -> None:
    reserved = [store.reserve(), store.reserve(IP6)]
    before = store.files()

    def act() -> list[object]:
        refuse("os.link", errno.EIO, when=lambda _: True)
        outcome = store.release(*reserved)
        return [outcome.verdict, outcome.why]

    with immutable(store.network() / IP6):
        verdict, why = in_child(act)
    assert verdict == "failed"
    assert "input/output error: the sandbox is partly released; the next cleanup or restore recovers it" in why
    assert list(store.files()) == [f"kubenet/{IP6}"]
    store.start()
    assert store.files() == before
    assert store.entry().verdict is Verdict.FAILED


def test_no_file_is_ever_restored_partly(store: Store) -> None:
    """A disk may accept part of a file and report that it is full only for the rest."""
    result = store.keep_result(config="x" * 50_000)
    store.release(store.reserve())
    (image,) = (one for one in store.entry().files if one.place != RESERVATION)

    def bounded() -> list[object]:
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))
        count = handles()
        try:
            store.file_ops().put_back(image)
        except OSError as error:
            return [error.errno, handles() - count]
        return []

    assert in_child(bounded) == [errno.EFBIG, 0]
    assert not result.exists()
    store.file_ops().put_back(image)
    assert result.read_bytes() == image.content


def test_binary_content_is_stored_and_restored(store: Store) -> None:
    result = store.keep_result()
    tree = result.read_bytes()
    content = b"\n" + tree + b"\n"
    result.write_bytes(content)
    path = store.network() / IP
    reserved = store.reserve(content=f" {GONE}\n".encode())
    before = whole(path)
    assert store.release(reserved).verdict is Verdict.RELEASED
    file_ops = store.file_ops()
    for image in store.entry().files:
        file_ops.put_back(image)
    assert whole(path) == before
    assert result.read_bytes() == content


def test_only_the_locks_are_ever_created_in_the_store(store: Store) -> None:
    """host-local reads every file below its directory."""
    made: set[str] = set()

    def record() -> None:
        made.update(path.name for path in store.networks.rglob("*"))

    reserved = [store.reserve(), store.reserve(IP6)]
    steps = release(ReleaseRequest(tuple(reserved)), NoOwners(), store.file_ops(), JournalWriter(store.journal_store))
    for _ in steps:
        record()
    assert made == {"kubenet", "lock", IP, IP6}


def test_no_fsync_happens_under_the_locks_and_the_journal_entry_ends_last(store: Store) -> None:
    """After a power cut, what the journal calls released must not be in place again."""
    reserved = store.reserve()

    def act() -> list[list[object]]:
        synced: list[list[object]] = []
        fsync = os.fsync

        def record_fsync(handle: int) -> None:
            locked = store.file_ops(0).lock(["kubenet"])
            synced.append([Path(f"/proc/self/fd/{handle}").readlink().name, locked is not None])
            if locked:
                os.fsync = fsync
                locked.unlock()
                os.fsync = record_fsync  # type: ignore[assignment]
            fsync(handle)

        os.fsync = record_fsync  # type: ignore[assignment]
        store.release(reserved)
        os.fsync = fsync
        return synced

    synced = in_child(act)
    names = [name.rpartition(".")[2] for name, _ in synced[-5:]]
    assert names == ["nodeleak", "journal", "kubenet", "nodeleak", "journal"]
    assert all(free for _, free in synced)


def test_an_mtime_out_of_range_is_stored(store: Store) -> None:
    may_mount()
    result = store.keep_result()
    reserved = store.reserve()

    def far() -> list[Any]:
        content = result.read_bytes()
        mount("-t", "tmpfs", "none", store.caches[0])
        result.write_bytes(content)
        os.utime(result, ns=(0, 10**21))
        at = result.stat().st_mtime_ns
        outcome = store.release(reserved)
        assert not result.exists()
        (image,) = (one for one in store.entry().files if one.place != RESERVATION)
        store.file_ops().put_back(image)
        return [outcome.verdict, at, image.mtime_ns, result.stat().st_mtime_ns, stat.S_IMODE(result.stat().st_mode)]

    verdict, at, image, restored, _ = in_child(far)
    assert verdict == "released"
    assert at == 10**21, "the year 33658"
    assert at == image == restored


def test_a_removal_without_the_lock_does_not_leave_a_partly_released_sandbox(tmp_path: Path) -> None:
    store = Store(tmp_path)
    reserved = [store.reserve("10.244.1.9"), store.reserve("fd00::9"), store.reserve("fd00::10")]
    gone = store.network() / "fd00::9"
    outcome, _ = release_with(store, lambda: gone.unlink(missing_ok=True), Step.REMOVED, *reserved)
    assert (outcome.verdict, store.files()) == (Verdict.RELEASED, {})
    assert outcome.why == "fd00::9: removed by a process that does not take the lock"
