"""A release on real files and locks: what is removed, what is left alone, whatever happens between two steps."""

import base64
import errno
import fcntl
import json
import os
import resource
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent.cleanup.journal import MAX_ENTRIES, RESERVATION, FileImage
from agent.cleanup.restore import restore
from agent.cleanup.unlink import LockHeld, NodeFiles, describe_error
from agent.model.release import Reason, ReleaseRequest, Verdict
from agent.model.snapshot import Reservation
from tests.builders import GONE, NOW, WEB_ID
from tests.cleanup.stores import (
    MADE_NS,
    STEPS,
    NoOwners,
    Step,
    Store,
    another_process_locks,
    at,
    handles,
    immutable,
    in_child,
    let_go,
    may_mount,
    mount,
    refuse,
    whole,
    without_nameless_files,
)
from tests.wire import NOBODY, as_nobody, needs, open_directory, until

# The children do only what is written here, and exit.
pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")

IP, IP6 = "10.244.1.9", "fd00:10::9"
BEFORE_COMPARING = ("asked the runtime", "asked the kubelet", "asked the kernel", "read", "journaled")
BOTH_LOCKS = pytest.mark.parametrize("locked", ["", "lock"], ids=["the directory, as 0.6", "its file, as 0.7"])


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path)


@pytest.fixture(autouse=True)
def _no_handle_is_left_open() -> Iterator[None]:
    before = handles()
    yield
    assert handles() == before


def image_of(store: Store, reserved: Reservation) -> FileImage:
    with store.file_ops().opened([reserved.directory]) as networks:
        found = networks[reserved.directory].read(reserved.ip)
    assert found is not None
    return found


def put_back(store: Store, image: FileImage) -> None:
    with store.file_ops().locked([image.directory]) as networks:
        networks[image.directory].link(image)


# The order.


def test_the_steps_of_a_release_have_this_order(store: Store) -> None:
    taken: list[Step] = []
    reserved, other = store.reserve(), store.reserve("10.244.1.10", WEB_ID)
    (store.network() / "last_reserved_ip.0").write_text(IP)
    outcome = store.release_with(taken.append, reserved)
    assert (outcome.verdict, outcome.why, tuple(taken)) == (Verdict.RELEASED, "", STEPS)
    assert sorted(store.files()) == ["kubenet/10.244.1.10", "kubenet/last_reserved_ip.0"]
    assert store.find(other.ip) == other
    assert outcome.waited is not None
    assert outcome.held is not None


# Locks.


@BOTH_LOCKS
def test_a_lock_that_is_never_released_times_out_and_nothing_changes(store: Store, locked: str) -> None:
    reserved = store.reserve()
    before = store.files()
    with another_process_locks(store.network() / locked):
        start = time.perf_counter()
        outcome = store.release(reserved, file_ops=store.file_ops(0.1))
        assert 0.1 <= time.perf_counter() - start < 30
    assert (outcome.verdict, outcome.waited, outcome.held) == (Verdict.BUSY, None, None)
    assert outcome.why == "another process holds host-local's lock"
    assert store.files() == before
    assert store.journal().entries == (), "a lock that is held for hours does not fill the journal"


@pytest.mark.parametrize(("lock", "other"), [("", "lock"), ("lock", "")])
def test_while_one_lock_is_awaited_the_other_is_free_for_host_local(store: Store, lock: str, other: str) -> None:
    (store.network() / "lock").touch()
    free = 0

    def wait() -> None:
        with suppress(LockHeld), store.file_ops(0.5).locked(["kubenet"]):
            pass

    with another_process_locks(store.network() / lock):
        waiting = threading.Thread(target=wait)
        waiting.start()
        handle = os.open(store.network() / other, os.O_RDONLY)
        pause = threading.Event()
        for _ in range(100):
            with suppress(BlockingIOError):
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                fcntl.flock(handle, fcntl.LOCK_UN)
                free += 1
            pause.wait(0.002)
        os.close(handle)
        waiting.join()
    assert free > 50


def test_a_missing_lock_is_created_as_host_local_does(store: Store) -> None:
    assert store.release(store.reserve()).verdict is Verdict.RELEASED
    assert whole(store.network() / "lock")[:2] == (b"", 0o750)
    assert os.listdir(store.network()) == ["lock"], "host-local reads every file below its directory"


def test_a_lock_replaced_while_held_is_given_up_for_the_new_one(store: Store) -> None:
    """A lock on the replaced file excludes no other process."""
    reserved, lock = store.reserve(), store.network() / "lock"
    with another_process_locks(lock) as old, another_process_locks(lock.with_name("new")) as new:
        done: list[Verdict] = []
        waiting = threading.Thread(
            target=lambda: done.append(store.release(reserved, file_ops=store.file_ops(5)).verdict)
        )  # fmt: skip
        waiting.start()
        lock.with_name("new").rename(lock)
        let_go(old)
        old.wait()
        waiting.join(0.2)
        assert waiting.is_alive(), "the new one is held"
        assert store.find(reserved.ip) == reserved
        let_go(new)
        waiting.join()
    assert done == [Verdict.RELEASED]


def new_lock(store: Store) -> None:
    (store.network() / "new").touch()
    (store.network() / "new").rename(store.network() / "lock")


def no_lock(store: Store) -> None:
    (store.network() / "lock").unlink()


def new_directory(store: Store) -> None:
    store.network().rename(store.networks / "old")
    store.network().mkdir()


@pytest.mark.parametrize(("change", "after"), [(new_lock, 2), (no_lock, 2), (new_directory, 1)])
def test_what_is_replaced_between_flock_and_its_check_is_locked_again(
    store: Store, change: Callable[[Store], None], after: int
) -> None:
    (store.network() / "lock").touch()

    def act() -> list[object]:
        flocks = 0

        def hook(_arguments: tuple[object, ...]) -> bool:
            nonlocal flocks
            flocks += 1
            if flocks == after:
                change(store)
            return False

        refuse("fcntl.flock", errno.EIO, when=hook)
        before = handles()
        with store.file_ops(1).locked(["kubenet"]):
            inode = (store.network() / "lock").stat().st_ino
            paths = (Path(f"/proc/self/fd/{handle}") for handle in os.listdir("/proc/self/fd"))
            mine = {path.stat().st_ino for path in paths if path.exists()}
        return [inode in mine, flocks, handles() - before]

    assert in_child(act) == [True, 4, 0]


def make_link(path: Path) -> None:
    path.symlink_to("/etc/passwd")


@pytest.mark.parametrize("make", [make_link, Path.mkdir, os.mkfifo], ids=["a link", "a directory", "a FIFO"])
def test_a_lock_that_is_not_a_file_is_an_error_without_a_wait(store: Store, make: Callable[[Path], None]) -> None:
    reserved = store.reserve(), store.reserve(IP6, network="net1")
    make(store.network("net1") / "lock")
    start = time.perf_counter()
    outcome = store.release(*reserved, file_ops=store.file_ops(60))
    assert time.perf_counter() - start < 30
    assert outcome.verdict is Verdict.FAILED
    assert outcome.why.startswith("lock: ")
    assert store.find(IP) == reserved[0]
    assert store.unlocked(), "the first network's locks were let go"


def test_a_child_process_inherits_no_lock(store: Store) -> None:
    with store.file_ops().locked(["kubenet"]):
        holder = another_process_locks(store.root / "elsewhere")
        holder.__enter__()
    until(store.unlocked, "the locks are free while a child of ours runs", 2)
    holder.__exit__(None, None, None)


def test_under_the_locks_the_locked_directory_is_used(store: Store) -> None:
    """A directory that is renamed meanwhile is still the one whose locks are held."""
    image = image_of(store, store.reserve())
    with store.file_ops().locked(["kubenet"]) as networks:
        store.network().rename(store.networks / "old")
        store.reserve(container_id=WEB_ID)
        networks["kubenet"].unlink(image.name)
    assert sorted(store.files()) == [f"kubenet/{IP}"]
    assert store.find(IP).container_id == WEB_ID


# What is read.


def test_a_directory_that_is_missing_or_no_directory_is_an_error(store: Store) -> None:
    reserved = store.reserve()
    for make in (lambda _: None, lambda path: path.symlink_to("kubenet"), Path.touch):
        make(store.network("net1"))
        outcome = store.release(replace(reserved, network="net1"))
        assert outcome.verdict is Verdict.FAILED
        assert outcome.why.startswith(f"{store.networks}/net1: ")
        store.network("net1").unlink(missing_ok=True)
    assert store.find(IP) == reserved


# Whatever happens between two steps.


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


def a_socket(path: Path) -> None:
    path.unlink()
    os.mknod(path, 0o140600)


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def huge(path: Path) -> None:
    path.write_bytes(b"x" * 300_000)


CHANGES = (
    another_id, another_file_of_the_same_bytes, another_interface, another_time, a_link, a_directory, a_fifo, a_socket,
    emptied, huge,
)  # fmt: skip


def state_of(directory: Path) -> dict[str, tuple[int, int, int, int]]:
    """Return everything in a directory but the lock, without opening it."""
    found = {file.name: file.lstat() for file in directory.iterdir() if file.name != "lock"}
    return {name: (at.st_ino, at.st_mode, at.st_size, at.st_mtime_ns) for name, at in found.items()}


@pytest.mark.parametrize("change", CHANGES)
def test_a_reservation_replaced_meanwhile_is_not_touched(tmp_path: Path, change: Callable[[Path], None]) -> None:
    """Before the comparison under the lock, whenever; and its sandbox is not touched either."""
    moments = [(step, 1) for step in BEFORE_COMPARING] + [("locked", 1), ("locked", 2)]
    for number, (step, nth) in enumerate(moments):
        store = Store(tmp_path / str(number))
        path, result = store.network() / IP, store.keep_result()
        reserved = store.reserve(), store.reserve(IP6), store.reserve("10.9.0.9", network="net1")
        after: list[Any] = []

        def happens(path: Path = path, after: list[Any] = after) -> None:
            change(path)
            after.append(state_of(path.parent))

        outcome = store.release_with(at(step, happens, nth), *reserved)
        assert (step, outcome.verdict) == (step, Verdict.CHANGED)
        assert [state_of(path.parent)] == after
        assert (store.network("net1") / "10.9.0.9").exists()
        assert result.exists()
        assert store.unlocked()
        assert [entry.verdict for entry in store.journal().entries] in ([], [Verdict.CHANGED])


def test_a_reservation_removed_meanwhile_is_gone_and_its_sandbox_is_not_touched(tmp_path: Path) -> None:
    for number, step in enumerate((*BEFORE_COMPARING, "locked")):
        store = Store(tmp_path / str(number))
        reserved = [store.reserve(ip) for ip in (IP, IP6)]
        outcome = store.release_with(at(step, (store.network() / IP6).unlink), *reserved)
        assert outcome.verdict is Verdict.GONE
        assert sorted(store.files()) == [f"kubenet/{IP}"]
        assert store.unlocked()


@pytest.mark.parametrize("change", [lambda path: path.chmod(0o640), lambda path: os.chown(path, NOBODY, NOBODY)])
def test_a_file_that_differs_from_the_journal_is_not_removed(store: Store, change: Callable[[Path], None]) -> None:
    path, reserved = store.network() / IP, store.reserve()
    assert store.release_with(at("journaled", lambda: change(path)), reserved).verdict is Verdict.CHANGED
    assert path.exists()


def test_what_is_removed_by_others_after_the_comparison_is_not_claimed(store: Store) -> None:
    gone = store.network() / IP
    assert store.release_with(at("compared", gone.unlink), store.reserve()).verdict is Verdict.GONE
    reserved = [store.reserve(ip) for ip in (IP6, "fd00:10::a", "fd00:10::b")]
    gone = store.network() / "fd00:10::a"
    outcome = store.release_with(at("removed", gone.unlink), *reserved)
    assert (outcome.verdict, store.files()) == (Verdict.RELEASED, {}), "it is not left partly released"


# The recheck.


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


def test_a_read_only_mount_says_how_to_release_and_is_not_journaled(store: Store) -> None:
    may_mount()
    reserved = store.reserve()

    def observed() -> list[object]:
        mount("--bind", "-o", "ro", store.networks, store.networks)
        before = handles()
        outcome = store.release(reserved)
        return [outcome.verdict, outcome.why, handles() - before]

    verdict, why, leaked = in_child(observed)
    assert (verdict, leaked) == ("failed", 0)
    assert why.startswith(f"{store.network()}: read-only mount: to release, create a Job (kubectl nodeleak clean-job")
    assert store.find(IP) == reserved
    assert not store.state.exists()


@pytest.mark.parametrize("step", ["read", "journaled"])
def test_a_mount_that_becomes_read_only_during_a_release_fails_and_changes_nothing(store: Store, step: Step) -> None:
    """A file system does so by itself after an error of its disk."""
    may_mount()
    store.reserve()

    def turned() -> object:
        mount("--bind", store.networks, store.networks)
        turn = at(step, lambda: mount("-o", "remount,bind,ro", store.networks))
        return store.release_with(turn, store.find(IP)).verdict

    assert in_child(turned) == "failed"
    assert sorted(store.files()) == [f"kubenet/{IP}"]
    store.start()
    assert [entry.verdict for entry in store.journal().entries] in ([], [Verdict.FAILED])


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
            [[refusal.reason, refusal.why] for outcome in outcomes for refusal in outcome.refusals],
            [list(journal.damage), [entry.verdict for entry in journal.entries]],
            len(list(store.journal_file.parent.iterdir())),
            store.find(IP) == reserved,
        ]

    first, reasons, journal, files, in_place = in_child(full)
    assert (first, journal, files) == ("released", [[], ["released"]], 1), "nothing is left of the others"
    assert [reason for reason, _ in reasons] == ["journal_unwritable"] * 5
    assert all(why.endswith(": no space left on device") for _, why in reasons)
    assert in_place


def test_a_disk_that_fills_up_during_a_release_leaves_an_unfinished_entry_and_reports_it(store: Store) -> None:
    reserved = store.reserve()

    def filling() -> str:
        def fill() -> None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (10, resource.RLIM_INFINITY))

        return store.release_with(at("journaled", fill), reserved).why

    assert in_child(filling) == f"the journal does not record the outcome: {store.journal_file}: file too large"
    assert len(store.journal().unfinished()) == 1
    store.start()
    assert store.entry().verdict is Verdict.INTERRUPTED


def test_without_permission_for_anything_that_a_release_needs_it_fails_before_the_journal_is_written() -> None:
    needs(os.geteuid() == 0, "root, to be somebody else")
    for kind in ("directory", "reservation", "cache", "result"):
        with open_directory() as directory:
            store = Store(directory)
            reserved = store.reserve(mode=0o600 if kind == "reservation" else 0o644)
            result = store.keep_result()
            denied = {
                "directory": store.network(), "reservation": store.network() / IP, "cache": store.caches[0],
                "result": result,
            }[kind]  # fmt: skip
            store.network().chmod(0o755 if kind == "directory" else 0o777)
            if kind in {"cache", "result"}:
                denied.chmod(0o600)
            with as_nobody():
                outcome = store.release(reserved)
            assert outcome.verdict is Verdict.FAILED
            assert outcome.why.endswith(f"{denied.name}: permission denied")
            assert store.find(IP) == reserved
            assert not store.state.exists()


def test_an_unwritable_state_directory_refuses() -> None:
    needs(os.geteuid() == 0, "root, to be somebody else")
    with open_directory() as directory:
        store = Store(directory)
        reserved = store.reserve(mode=0o644)
        store.network().chmod(0o777)
        store.state.mkdir(mode=0o755)
        with as_nobody():
            (refusal,) = store.release(reserved).refusals
            assert store.journal_store.trouble() == f"{store.state}: permission denied"
        assert refusal.reason is Reason.JOURNAL_UNWRITABLE
        assert store.find(IP) == reserved


def test_a_full_journal_refuses_and_drops_nothing(store: Store) -> None:
    reserved = store.reserve()
    journal = store.state / "journal"
    journal.mkdir(parents=True)
    for number in range(MAX_ENTRIES):
        (journal / f"{number:04}.json").touch()
        os.utime(journal / f"{number:04}.json", (NOW.timestamp() + number, NOW.timestamp() + number))
    before = {path: path.stat().st_ino for path in journal.iterdir()}
    (refusal,) = store.release(reserved).refusals
    oldest = journal / "0000.json"
    assert (refusal.reason, refusal.why) == (Reason.JOURNAL_FULL, f"the journal is full until {oldest} is 24 hours old")
    assert {path: path.stat().st_ino for path in journal.iterdir()} == before
    assert store.find(IP) == reserved


def test_a_file_that_cannot_be_removed_fails_and_remains(store: Store) -> None:
    reserved = store.reserve()
    with immutable(store.network() / IP):
        outcome = store.release(reserved)
    assert (outcome.verdict, outcome.why) == (Verdict.FAILED, f"{IP}: operation not permitted")
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
    assert (outcome.verdict, outcome.why) == (Verdict.FAILED, f"{IP6}: operation not permitted")
    assert store.files() == before
    assert result.exists()
    assert store.unlocked()
    assert store.release(store.find(IP), store.find(IP6, network)).verdict is Verdict.RELEASED


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
    assert "the sandbox may be partly released; the next cleanup or restore recovers it" in why
    assert list(store.files()) == [f"kubenet/{IP6}"]
    store.start()
    assert store.files() == before
    assert store.entry().verdict is Verdict.FAILED


def test_no_fsync_happens_under_the_locks_and_the_journal_entry_ends_last(store: Store) -> None:
    """After a power cut, what the journal calls released must not be in place again."""
    reserved = store.reserve(), store.reserve(IP6, network="net1")

    def act() -> list[list[object]]:
        synced: list[list[object]] = []
        fsync = os.fsync

        def record_fsync(handle: int) -> None:
            os.fsync = fsync
            free = True
            try:
                with NodeFiles(store.networks, (), 0, time.perf_counter).locked(["kubenet", "net1"]):
                    pass
            except LockHeld:
                free = False
            os.fsync = record_fsync  # type: ignore[assignment]
            synced.append([Path(f"/proc/self/fd/{handle}").readlink().name, free])
            fsync(handle)

        os.fsync = record_fsync  # type: ignore[assignment]
        store.release(*reserved)
        os.fsync = fsync
        return synced

    synced = in_child(act)
    names = [name.rpartition(".")[2] for name, _ in synced[-6:]]
    assert names == ["nodeleak", "journal", "kubenet", "net1", "nodeleak", "journal"]
    assert all(free for _, free in synced)


# libcni's cache.


def cached(store: Store, *reserved: Reservation) -> set[str]:
    return {image.name for image in store.file_ops().cached(ReleaseRequest(reserved))}


@pytest.mark.parametrize("bare", [False, True], ids=["libcni >= 0.8", "libcni < 0.8"])
@pytest.mark.parametrize("index", [0, 1], ids=["dockershim's directory", "the others'"])
def test_cached_cni_results_of_the_sandbox_are_removed_with_it(store: Store, bare: bool, index: int) -> None:
    reserved, mine = store.reserve(), store.keep_result(bare=bare, at=index)
    others, before = store.keep_result(WEB_ID, at=index), whole(mine)
    outcome = store.release(reserved)
    assert (outcome.verdict, outcome.why) == (Verdict.RELEASED, "")
    assert not mine.exists()
    assert others.exists()
    (image,) = (image for image in store.entry().files if image.place != RESERVATION)
    assert (image.content, image.mode, image.uid, image.gid, image.mtime_ns) == before


def chain(*types: object) -> str:
    plugins = [{"type": plugin} for plugin in types]
    return base64.b64encode(json.dumps({"name": "kubenet", "plugins": plugins}).encode()).decode()


def test_a_result_that_the_runtime_deletes_stays_and_a_restore_needs_none(store: Store) -> None:
    reserved, result = store.reserve(), store.keep_result(config=chain("bridge", "portmap", "bandwidth"))
    before = whole(result)
    assert store.release(reserved, keeps_results=True).verdict is Verdict.RELEASED
    assert whole(result) == before
    assert [image.place for image in store.entry().files] == [RESERVATION]
    done = restore(store.entry(), store.file_ops(), store.journal_store, NOW)
    assert (done.done, done.why) == (True, "")
    assert whole(result) == before
    assert store.release(store.find(IP)).verdict is Verdict.RELEASED, "by a runtime that does not delete it"
    assert not result.exists()


@pytest.mark.parametrize(
    "config",
    [chain("bridge", "firewall"), chain("bridge", "example.com"), chain("bridge", []), chain(), "e30=", "?", None],
)
def test_a_result_whose_del_may_hit_the_next_pod_is_removed(store: Store, config: object) -> None:
    """firewall deletes the rules of the addresses in the result: the next pod would be without its own."""
    reserved, result = store.reserve(), store.keep_result(config=config)
    assert store.release(reserved, keeps_results=True).verdict is Verdict.RELEASED
    assert not result.exists()


def test_the_loopback_result_is_removed_too(store: Store) -> None:
    for network in ("kubenet-loopback", "cni-loopback"):
        store.keep_result(ip="127.0.0.1", network=network, ifname="lo")
    reserved, other = store.reserve(), store.reserve("10.9.0.2", network="net1")
    assert cached(store, reserved) == {f"kubenet-loopback-{GONE}-lo"}
    assert cached(store, other) == {f"cni-loopback-{GONE}-lo"}


ODD_RESULTS = (
    b"", b"{", b"[]", b"null", b"\xff\xfe\x00", b"[" * 100_000, b"{}", b" " * 300_000,
    json.dumps({"ips": [{"address": "10.244.1.91/24"}]}).encode(),
    json.dumps({"kind": "cniCacheV1", "containerId": WEB_ID, "networkName": "kubenet", "ifName": "eth0"}).encode(),
    json.dumps({"kind": "cniCacheV1", "containerId": GONE, "networkName": "other", "ifName": "eth0"}).encode(),
    json.dumps({"kind": "cniCacheV1", "containerId": GONE, "networkName": "kubenet", "ifName": "eth1"}).encode(),
)  # fmt: skip


def test_what_has_only_the_name_of_a_result_is_kept(store: Store) -> None:
    file = store.keep_result()
    for content in ODD_RESULTS:
        file.write_bytes(content)
        assert store.release(store.reserve()).verdict is Verdict.RELEASED
        assert file.read_bytes() == content
    for make in (make_link, Path.mkdir, os.mkfifo):
        file.unlink() if file.is_symlink() or file.is_file() else file.rmdir()
        make(file)
        assert store.release(store.reserve()).verdict is Verdict.RELEASED
        assert os.path.lexists(file)


def test_releasing_an_empty_file_removes_nothing_from_the_cache(store: Store) -> None:
    result = store.keep_result("")
    assert store.release(store.reserve(content=b"")).verdict is Verdict.RELEASED
    assert result.exists()
    assert store.entry().name.endswith(f"-kubenet-{IP}")


def test_a_bare_result_is_of_the_sandbox_whose_address_it_has(store: Store) -> None:
    file, loopback = store.keep_result(), store.keep_result(network="kubenet-loopback", ifname="lo")
    loopback.write_text('{"cniVersion": "0.2.0"}')
    for ip, tree, removed in (
        (IP, {"ip4": {"ip": f"{IP}/24"}}, True),
        (IP6, {"ip6": {"ip": f"{IP6}/64"}}, True),
        (IP6, {"ips": [{"address": f"{IP}/24"}, {"address": f"{IP6}/64"}]}, True),
        (IP, {"ip4": {"ip": f"{IP}0/24"}}, False),
        (IP, {"ip4": f"{IP}/24"}, False),
        (IP, {"ips": [{"address": f"{IP}/24"}, {"address": "10.244.1.300/24"}]}, False),
        (IP, {"ips": [{"address": "127.0.0.1/8"}]}, False),
        (IP, {"ips": [{}]}, False),
        (IP, {"kind": "cniCacheV1", "containerId": GONE[:12], "networkName": "kubenet", "ifName": "eth0"}, False),
    ):
        file.write_text(json.dumps(tree))
        assert store.release(store.reserve(ip)).verdict is Verdict.RELEASED
        assert file.exists() is not removed, tree
    assert loopback.exists(), "without an address it says nothing of whose it is"


def test_a_cached_result_that_changed_or_cannot_be_removed_stays(store: Store) -> None:
    result = store.keep_result()
    outcome = store.release_with(at("journaled", lambda: store.keep_result(netns="/proc/7/ns/net")), store.reserve())
    assert (outcome.verdict, result.exists()) == (Verdict.RELEASED, True)
    with immutable(result):
        outcome = store.release(store.reserve())
    assert (outcome.verdict, result.exists()) == (Verdict.RELEASED, True)
    assert outcome.why == f"left in libcni's cache: {result.name}: operation not permitted"
    assert outcome.why in {entry.why for entry in store.journal().entries}


def test_a_symlinked_cache_is_used(store: Store, tmp_path: Path) -> None:
    result = store.keep_result()
    (tmp_path / "link").symlink_to(store.caches[0])
    file_ops = NodeFiles(store.networks, (tmp_path / "link",), 0.1, time.perf_counter)
    assert store.release(store.reserve(), file_ops=file_ops).verdict is Verdict.RELEASED
    assert not result.exists()


# The link back.


@pytest.mark.parametrize("named", [False, True], ids=["O_TMPFILE", "a file system without O_TMPFILE"])
def test_a_file_is_put_back_byte_for_byte_with_any_umask(store: Store, named: bool) -> None:
    for mode in (0o600, 0o644, 0o000, 0o4755):
        reserved = store.reserve(mode=mode, owner=NOBODY)
        before = whole(store.network() / IP)
        image = image_of(store, reserved)
        (store.network() / IP).unlink()

        def act(image: FileImage = image) -> None:
            if named:
                without_nameless_files()
            os.umask(0o777)
            put_back(store, image)

        in_child(act)
        assert whole(store.network() / IP) == before
        assert sorted(os.listdir(store.network())) == [IP, "lock"]
        assert os.listdir(store.networks) == ["kubenet"]
        assert (store.network() / IP).stat().st_nlink == 1


def test_leftovers_of_a_killed_agent_are_never_written_to(store: Store) -> None:
    """It may be a second name of a reservation: the agent died between linking and unlinking."""
    live = store.reserve("10.244.1.10", WEB_ID)
    before = whole(store.network() / live.ip)
    image = image_of(store, store.reserve())
    (store.network() / IP).unlink()
    (store.networks / ".nodeleak-restoring").hardlink_to(store.network() / live.ip)

    def act() -> None:
        without_nameless_files()
        put_back(store, image)

    in_child(act)
    assert whole(store.network() / live.ip) == before
    assert os.listdir(store.networks) == ["kubenet"]


@pytest.mark.parametrize("named", [False, True])
def test_an_existing_file_is_never_overwritten(store: Store, named: bool) -> None:
    image = image_of(store, store.reserve())
    store.reserve(container_id=WEB_ID)
    before = store.files()

    def act() -> str:
        if named:
            without_nameless_files()
        count = handles()
        try:
            put_back(store, image)
        except FileExistsError as error:
            assert handles() == count
            return describe_error(error)
        return ""

    assert in_child(act) == f"{IP}: file exists"
    assert store.files() == before
    assert os.listdir(store.networks) == ["kubenet"]


def test_no_file_is_ever_put_back_partly(store: Store) -> None:
    """A disk may accept part of a file and report that it is full only for the rest."""
    result = store.keep_result(config="x" * 50_000)
    store.release(store.reserve())
    content = next(image.content for image in store.entry().files if image.place != RESERVATION)

    def bounded() -> str:
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))
        return store.file_ops().link_cached(store.entry())

    assert in_child(bounded).endswith("file too large")
    assert not result.exists()
    assert store.file_ops().link_cached(store.entry()) == ""
    assert result.read_bytes() == content
