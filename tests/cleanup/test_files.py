"""File operations on real files and locks: what they change, what they leave alone, what they release."""

import base64
import errno
import fcntl
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.cleanup.files import NodeFiles
from agent.cleanup.release import RESERVATION, FileImage, describe_error
from agent.cleanup.restore import restore
from agent.model.release import ReleaseRequest, Verdict
from agent.model.snapshot import Reservation, UnrecognizedEntry
from agent.sources.host import cni_cache
from tests.builders import GONE, NOW, WEB_ID
from tests.cleanup.stores import (
    MADE_NS,
    Store,
    another_process_locks,
    handles,
    in_child,
    let_go,
    refuse,
    whole,
    without_nameless_files,
)
from tests.wire import NOBODY, needs, until

# The children do only what is written here, and exit.
pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")

IP = "10.244.1.9"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path)


@pytest.fixture(autouse=True)
def _no_handle_is_left_open() -> Iterator[None]:
    before = handles()
    yield
    assert handles() == before


def kept_of(reserved: Reservation, file_ops: NodeFiles) -> FileImage:
    read = file_ops.read(reserved)
    assert read is not None
    return read[1]


# Locks.


def test_a_release_removes_only_the_file(store: Store) -> None:
    old, other = store.reserve(), store.reserve("10.244.1.10", WEB_ID)
    (store.network() / "last_reserved_ip.0").write_text(IP)
    outcome = store.release(old)
    assert (outcome.verdict, outcome.why) == (Verdict.RELEASED, "")
    assert sorted(store.files()) == ["kubenet/10.244.1.10", "kubenet/last_reserved_ip.0"]
    assert store.find(other.ip) == other
    assert outcome.waited is not None
    assert outcome.held is not None
    assert store.unlocked()


@pytest.mark.parametrize("locked", ["", "lock"], ids=["the directory, as 0.6 locks it", "its file, as 0.7 locks it"])
def test_a_lock_that_is_never_released_times_out_and_nothing_changes(store: Store, locked: str) -> None:
    reserved = store.reserve()
    before = store.files()
    with another_process_locks(store.network() / locked):
        start = time.perf_counter()
        outcome = store.release(reserved, file_ops=store.file_ops(0.1))
        assert 0.1 <= time.perf_counter() - start < 2
    assert (outcome.verdict, outcome.waited, outcome.held) == (Verdict.BUSY, None, None)
    assert "another process holds" in outcome.why
    assert store.files() == before
    assert store.journal().entries == (), "a lock that is held for hours does not fill the journal"


def test_after_a_timeout_the_same_lock_is_not_waited_for_again(store: Store) -> None:
    first, second = store.reserve(), store.reserve("10.244.1.10", WEB_ID)
    file_ops = store.file_ops(1)
    with another_process_locks(store.network() / "lock"):
        assert store.release(first, file_ops=file_ops).verdict is Verdict.BUSY
        start = time.perf_counter()
        assert file_ops.lock([second.network]) is None
        assert time.perf_counter() - start < 0.9, "it is tried once more, and not waited for"
    assert store.release(second, file_ops=file_ops).verdict is Verdict.RELEASED, "tried once is not given up for good"


def test_a_network_is_waited_for_although_another_timed_out_with_it(store: Store) -> None:
    file_ops = store.file_ops(0.15)
    store.reserve("10.9.0.2", network="net1")
    with another_process_locks(store.network("net1") / "lock"):
        assert file_ops.lock(["kubenet", "net1"]) is None
        with another_process_locks(store.network() / "lock"):
            start = time.perf_counter()
            assert file_ops.lock(["kubenet"]) is None
            assert time.perf_counter() - start >= 0.15
    assert store.unlocked()


@pytest.mark.parametrize("locked", ["", "lock"])
def test_a_lock_released_while_waiting_is_acquired(store: Store, locked: str) -> None:
    reserved = store.reserve()
    with another_process_locks(store.network() / locked) as holder:
        end = threading.Timer(0.2, let_go, (holder,))
        end.start()
        outcome = store.release(reserved, file_ops=store.file_ops(5))
        end.join()
    assert outcome.verdict is Verdict.RELEASED
    assert outcome.waited is not None
    assert 0.05 < outcome.waited < 4


@pytest.mark.parametrize("locked", ["", "lock"])
def test_a_held_lock_excludes_others(store: Store, locked: str) -> None:
    lock = store.file_ops().lock(["kubenet"])
    assert lock is not None
    handle = os.open(store.network() / locked, os.O_RDONLY)
    try:
        with pytest.raises(BlockingIOError):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        lock.unlock()
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        os.close(handle)


def test_posix_locks_are_ignored_as_host_local_does(store: Store) -> None:
    reserved = store.reserve()
    with another_process_locks(store.network() / "lock", "lockf"):
        assert store.release(reserved).verdict is Verdict.RELEASED


@pytest.mark.parametrize(("lock", "other"), [("", "lock"), ("lock", "")])
def test_while_one_lock_is_awaited_the_other_is_free_for_host_local(store: Store, lock: str, other: str) -> None:
    (store.network() / "lock").touch()
    free = 0
    with another_process_locks(store.network() / lock):
        waiting = threading.Thread(target=store.file_ops(0.5).lock, args=(["kubenet"],))
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
    reserved = store.reserve()
    assert store.release(reserved).verdict is Verdict.RELEASED
    made = whole(store.network() / "lock")
    assert made[:2] == (b"", 0o750)


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


def replaced_after_flock(store: Store, replace: Callable[[], object], kind: str) -> list[object]:
    """Try the locks in a child in which something is replaced once, between `flock` and what checks it."""

    def act() -> list[object]:
        flocks = 0

        def hook(_arguments: tuple[object, ...]) -> bool:
            nonlocal flocks
            flocks += 1
            if flocks == (1 if kind == "directory" else 2):
                replace()
            return False

        refuse("fcntl.flock", errno.EIO, when=hook)
        before = handles()
        locked = store.file_ops(1).lock(["kubenet"])
        if locked is None:
            return [None, flocks]
        inode = (store.network() / "lock").stat().st_ino
        mine = {
            os.fstat(int(one)).st_ino for one in os.listdir("/proc/self/fd") if Path(f"/proc/self/fd/{one}").exists()
        }
        locked.unlock()
        return [inode in mine, flocks, handles() - before]

    results: list[object] = in_child(act)
    return results


def test_a_lock_replaced_between_acquiring_and_checking_is_acquired_again(store: Store) -> None:
    lock = store.network() / "lock"
    lock.touch()

    def replace_it() -> None:
        lock.with_name("new").touch()
        lock.with_name("new").rename(lock)

    assert replaced_after_flock(store, replace_it, "lock") == [True, 4, 0]


def test_a_lock_removed_between_acquiring_and_checking_is_created_again(store: Store) -> None:
    (store.network() / "lock").touch()
    assert replaced_after_flock(store, (store.network() / "lock").unlink, "lock") == [True, 4, 0]


def test_a_directory_replaced_before_the_check_is_opened_again(store: Store) -> None:
    def replace_it() -> None:
        store.network().rename(store.networks / "old")
        store.network().mkdir()

    assert replaced_after_flock(store, replace_it, "directory") == [True, 4, 0]


def make_link(lock: Path) -> None:
    lock.symlink_to("/etc/passwd")


@pytest.mark.parametrize("make", [make_link, Path.mkdir, os.mkfifo], ids=["a link", "a directory", "a FIFO"])
def test_a_lock_that_is_not_a_file_is_an_error_without_a_wait(store: Store, make: Callable[[Path], None]) -> None:
    reserved = store.reserve()
    make(store.network() / "lock")
    start = time.perf_counter()
    outcome = store.release(reserved, file_ops=store.file_ops(5))
    assert time.perf_counter() - start < 1
    assert outcome.verdict is Verdict.FAILED
    assert outcome.why == f"{store.network()}/lock: not a regular file, as host-local's lock is"
    assert store.find(IP) == reserved


def test_a_lock_error_of_the_second_network_names_it(store: Store) -> None:
    store.reserve(network="net1")
    (store.network("net1") / "lock").mkdir()
    with pytest.raises(OSError, match="not a regular file") as raised:
        store.file_ops().lock(["kubenet", "net1"])
    assert raised.value.filename == str(store.network("net1") / "lock")
    assert store.unlocked(), "the first network's locks were let go"


def test_other_lock_errors_are_raised(store: Store) -> None:
    def act() -> list[object]:
        refuse("open", errno.EMFILE, when=lambda arguments: arguments[0] == "lock")
        before = handles()
        try:
            store.file_ops().lock(["kubenet"])
        except OSError as error:
            return [error.errno, error.filename, handles() - before]
        return []

    assert in_child(act) == [errno.EMFILE, f"{store.network()}", 0]


# What is read.


def test_a_reservation_file_is_read_completely(store: Store) -> None:
    reserved = store.reserve(mode=0o640, owner=NOBODY)
    read = store.file_ops().read(reserved)
    assert read is not None
    entry, image = read
    assert entry == reserved
    assert image == FileImage(
        RESERVATION, "kubenet", IP, f"{GONE}\r\neth0".encode(), 0o640, NOBODY, NOBODY, reserved.inode, MADE_NS
    )  # fmt: skip
    assert len(image.content) == 70


def make_socket(path: Path) -> None:
    os.mknod(path, 0o140600)


def make_huge(path: Path) -> None:
    path.write_bytes(b"x" * 5000)


@pytest.mark.parametrize("make", [make_link, Path.mkdir, os.mkfifo, make_socket, make_huge])
def test_an_entry_that_is_no_reservation_is_unrecognized_and_equals_nothing(
    store: Store, make: Callable[[Path], None]
) -> None:
    reserved = store.reserve()
    (store.network() / IP).unlink()
    make(store.network() / IP)
    read = store.file_ops().read(reserved)
    assert read is not None
    assert isinstance(read[0], UnrecognizedEntry)
    assert store.release(reserved).verdict is Verdict.CHANGED


def test_a_missing_file_is_none(store: Store) -> None:
    reserved = store.reserve()
    (store.network() / IP).unlink()
    assert store.file_ops().read(reserved) is None
    assert store.release(reserved).verdict is Verdict.GONE


def test_an_error_names_the_missing_directory(store: Store) -> None:
    reserved = replace(store.reserve(), network="net1")
    outcome = store.release(reserved)
    assert (outcome.verdict, outcome.why) == (
        Verdict.FAILED, f"{store.networks}/net1: no such file or directory",
    )  # fmt: skip


@pytest.mark.parametrize("make", [lambda path: path.symlink_to("kubenet"), Path.touch], ids=["a link", "a file"])
def test_a_path_that_is_no_directory_is_not_followed(store: Store, make: Callable[[Path], None]) -> None:
    reserved = replace(store.reserve(), network="net1")
    make(store.network("net1"))
    outcome = store.release(reserved)
    assert outcome.verdict is Verdict.FAILED
    assert outcome.why == f"{store.networks}/net1: not a directory, and links are not followed"
    assert store.find(IP).inode == reserved.inode


def test_an_error_relative_to_a_handle_names_the_directory(store: Store) -> None:
    file_ops, before = store.file_ops(), handles()
    with pytest.raises(OSError, match="Input/output") as raised, file_ops._network("kubenet"):  # noqa: SLF001 (a sick disk)
        raise OSError(errno.EIO, os.strerror(errno.EIO), 7)
    assert raised.value.filename == str(store.network())
    assert handles() == before


# libcni's cache.


def cached(store: Store, *reserved: Reservation) -> set[str]:
    return {image.name for image in store.file_ops().cached(ReleaseRequest(reserved))}


@pytest.mark.parametrize("bare", [False, True], ids=["libcni >= 0.8", "libcni < 0.8"])
@pytest.mark.parametrize("at", [0, 1], ids=["dockershim's place", "the others' place"])
def test_cached_cni_results_of_the_sandbox_are_removed_with_it(store: Store, bare: bool, at: int) -> None:
    reserved, mine, others = store.reserve(), store.keep_result(bare=bare, at=at), store.keep_result(WEB_ID, at=at)
    before = whole(mine)
    outcome = store.release(reserved)
    assert (outcome.verdict, outcome.why) == (Verdict.RELEASED, "")
    assert not mine.exists()
    assert others.exists()
    (image,) = (one for one in store.entry().files if one.place != RESERVATION)
    assert (image.content, image.mode, image.uid, image.gid, image.mtime_ns) == before


def chain(*types: object) -> str:
    plugins = [{"type": one} for one in types]
    return base64.b64encode(json.dumps({"name": "kubenet", "plugins": plugins}).encode()).decode()


def test_a_result_that_the_runtime_deletes_stays_and_a_restore_needs_none(store: Store) -> None:
    reserved, result = store.reserve(), store.keep_result(config=chain("bridge", "portmap", "bandwidth"))
    before = whole(result)
    assert store.release(reserved, keeps_results=True).verdict is Verdict.RELEASED
    assert not (store.network() / IP).exists()
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
    store.keep_result(ip="127.0.0.1", network="kubenet-loopback", ifname="lo", bare=True)
    assert cached(store, reserved) == {f"kubenet-loopback-{GONE}-lo"}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff\xfe\x00",
        b"[" * 100_000,
        b"{}",
        json.dumps({"ips": [{"address": "10.244.1.10/24"}]}).encode(),
        json.dumps({"ips": [{"address": "10.244.1.91/24"}]}).encode(),
        json.dumps({"kind": "cniCacheV1", "containerId": WEB_ID, "networkName": "kubenet", "ifName": "eth0"}).encode(),
        json.dumps({"kind": "cniCacheV1", "containerId": GONE, "networkName": "other", "ifName": "eth0"}).encode(),
        json.dumps({"kind": "cniCacheV1", "containerId": GONE, "networkName": "kubenet", "ifName": "eth1"}).encode(),
        json.dumps({"kind": "cniCacheV1", "containerId": GONE, "networkName": "kubenet"}).encode(),
        b" " * 300_000,
    ],
)
def test_a_file_with_the_name_of_a_result_but_other_content_is_kept(store: Store, content: bytes) -> None:
    reserved, file = store.reserve(), store.keep_result()
    file.write_bytes(content)
    assert store.release(reserved).verdict is Verdict.RELEASED
    assert file.read_bytes() == content


@pytest.mark.parametrize("make", [make_link, Path.mkdir, os.mkfifo, make_socket])
def test_an_entry_with_the_name_of_a_result_that_is_no_file_is_kept(store: Store, make: Callable[[Path], None]) -> None:
    reserved, file = store.reserve(), store.keep_result()
    file.unlink()
    make(file)
    assert store.release(reserved).verdict is Verdict.RELEASED
    assert os.path.lexists(file)


def test_without_a_cache_the_reservation_is_released(store: Store) -> None:
    for directory in store.caches:
        directory.rmdir()
    outcome = store.release(store.reserve())
    assert (outcome.verdict, outcome.why) == (Verdict.RELEASED, "")


def test_releasing_an_empty_file_removes_nothing_from_the_cache(store: Store) -> None:
    result = store.keep_result("")
    assert store.release(store.reserve(content=b"")).verdict is Verdict.RELEASED
    assert result.exists()
    assert store.entry().name.endswith(f"-kubenet-{IP}")


def test_a_cached_result_that_changed_after_it_was_read_is_not_removed(store: Store) -> None:
    result = store.keep_result()
    file_ops = store.file_ops()
    (image,) = file_ops.cached(ReleaseRequest((store.reserve(),)))
    store.keep_result(netns="/proc/7/ns/net")
    file_ops.remove(image)
    assert result.exists()
    store.keep_result().unlink()
    file_ops.remove(image)
    result.parent.rmdir()
    file_ops.remove(image)
    assert not result.parent.exists(), "gone is what was wanted"


def test_a_symlinked_cache_is_used(store: Store, tmp_path: Path) -> None:
    result = store.keep_result()
    (tmp_path / "link").symlink_to(store.caches[0])
    file_ops = NodeFiles(store.networks, [tmp_path / "link"], 0.1, time.perf_counter)
    assert store.release(store.reserve(), file_ops=file_ops).verdict is Verdict.RELEASED
    assert not result.exists()


@pytest.mark.parametrize("place", ["/etc", "", ".", "reservations", "cache/results"])
def test_a_directory_that_is_no_cni_cache_is_not_touched(store: Store, place: str, tmp_path: Path) -> None:
    for file in ("x", "y"):
        (tmp_path / file).write_bytes(b"x")
    image = FileImage(place or str(tmp_path), "kubenet", "x", b"x", 0o600, 0, 0, (tmp_path / "x").stat().st_ino, 0)
    file_ops = store.file_ops()
    for act in (file_ops.remove, file_ops.put_back, file_ops.present, file_ops.taken):
        with pytest.raises(PermissionError, match="not a configured directory of libcni's cache"):
            act(image)
    assert (tmp_path / "x").exists()


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.just(GONE),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["kind", "ips", "ip4", "ip", "address", "containerId", "networkName"]), inner, max_size=4
        )
    ),
    max_leaves=10,
)


@given(content=st.binary(max_size=50) | json_values.map(lambda tree: json.dumps(tree).encode()))
def test_any_bytes_of_a_result_can_be_parsed(content: bytes) -> None:
    of = Reservation("kubenet", IP, GONE, "eth0", 1, 70, 0)
    assert cni_cache.belongs(content, of, "kubenet", "eth0") in {True, False}


# What is created.


@pytest.mark.parametrize("named", [False, True], ids=["O_TMPFILE", "a file system without O_TMPFILE"])
@pytest.mark.parametrize("mode", [0o600, 0o644, 0o000, 0o4755])
def test_a_file_is_restored_byte_for_byte_with_any_umask(store: Store, named: bool, mode: int) -> None:
    reserved = store.reserve(mode=mode, owner=NOBODY)
    before = whole(store.network() / IP)
    image = kept_of(reserved, store.file_ops())
    (store.network() / IP).unlink()

    def act() -> None:
        if named:
            without_nameless_files()
        os.umask(0o777)
        store.file_ops().put_back(image)

    in_child(act)
    assert whole(store.network() / IP) == before
    assert os.listdir(store.network()) == [IP]
    assert os.listdir(store.networks) == ["kubenet"]
    assert (store.network() / IP).stat().st_nlink == 1


def test_leftovers_of_a_killed_agent_are_never_written_to(store: Store) -> None:
    """It may be a second name of a reservation: the agent died between linking and unlinking."""
    live = store.reserve("10.244.1.10", WEB_ID)
    before = whole(store.network() / live.ip)
    image = kept_of(store.reserve(), store.file_ops())
    (store.network() / IP).unlink()
    os.link(store.network() / live.ip, store.networks / ".nodeleak-restoring")

    def act() -> None:
        without_nameless_files()
        store.file_ops().put_back(image)

    in_child(act)
    assert whole(store.network() / live.ip) == before
    assert os.listdir(store.networks) == ["kubenet"]


@pytest.mark.parametrize("named", [False, True])
def test_an_existing_file_is_never_overwritten(store: Store, named: bool) -> None:
    image = kept_of(store.reserve(), store.file_ops())
    store.reserve(container_id=WEB_ID)
    before = store.files()

    def act() -> str:
        if named:
            without_nameless_files()
        count = handles()
        try:
            store.file_ops().put_back(image)
        except FileExistsError as error:
            assert handles() == count
            return describe_error(error)
        return ""

    assert in_child(act) == f"{store.network()}/{IP}: file exists"
    assert store.files() == before
    assert os.listdir(store.networks) == ["kubenet"]


def test_other_errors_of_o_tmpfile_are_raised(store: Store) -> None:
    image = kept_of(store.reserve(), store.file_ops())

    def act() -> str:
        refuse("open", errno.EDQUOT, when=lambda arguments: arguments[0] == ".")
        try:
            store.file_ops().put_back(image)
        except OSError as error:
            return describe_error(error)
        return ""

    assert in_child(act) == f"{store.network()}: disk quota exceeded"


def test_present_and_taken_describe_the_current_file(store: Store) -> None:
    file_ops = store.file_ops()
    image = kept_of(store.reserve(), file_ops)
    assert (file_ops.present(image), file_ops.taken(image)) == (image, True)
    (store.network() / IP).unlink()
    assert (file_ops.present(image), file_ops.taken(image)) == (None, False)
    (store.network() / IP).symlink_to("nowhere")
    assert (file_ops.present(image), file_ops.taken(image)) == (None, True), (
        "a link that leads nowhere has the name, too"
    )


def test_the_addresses_of_a_sandbox_are_the_files_with_its_id(store: Store) -> None:
    for ip, container_id in ((IP, GONE), ("10.244.1.10", WEB_ID), ("fd00::9", GONE)):
        store.reserve(ip, container_id)
    (store.network() / "notes").write_text(GONE)
    (store.network() / "10.244.1.11").mkdir()
    assert set(store.file_ops().addresses_of(GONE, "kubenet")) == {IP, "fd00::9"}


# Release of locks and handles.


def test_no_outcome_leaves_an_open_handle_or_a_held_lock(store: Store) -> None:
    before = handles()
    reserved = store.reserve()
    file_ops = store.file_ops(0)
    lock = store.network() / "lock"
    with another_process_locks(lock):
        count = handles()
        for _ in range(5):
            assert store.release(reserved, file_ops=file_ops).verdict is Verdict.BUSY
        assert handles() == count
    lock.unlink()
    lock.mkdir()
    for _ in range(5):
        assert store.release(reserved, file_ops=file_ops).verdict is Verdict.FAILED
    lock.rmdir()
    changed = replace(reserved, inode=1)
    for _ in range(5):
        assert store.release(changed, file_ops=file_ops).verdict is Verdict.CHANGED
    assert store.release(reserved, file_ops=file_ops).verdict is Verdict.RELEASED
    assert handles() == before
    assert store.unlocked()


def test_without_a_timeout_a_lock_is_tried_once(store: Store) -> None:
    for _ in range(3):
        locked = store.file_ops(0).lock(["kubenet"])
        assert locked is not None
        assert locked.unlock() >= 0
    with another_process_locks(store.network()):
        start = time.perf_counter()
        assert store.file_ops(0).lock(["kubenet"]) is None
        assert time.perf_counter() - start < 1


def test_under_the_locks_the_locked_directory_is_used(store: Store) -> None:
    """A directory that is renamed meanwhile is still the one whose locks are held."""
    file_ops = store.file_ops()
    image = kept_of(store.reserve(), file_ops)
    locked = file_ops.lock(["kubenet"])
    assert locked is not None
    store.network().rename(store.networks / "old")
    store.reserve(container_id=WEB_ID)
    file_ops.remove(image)
    locked.unlock()
    assert sorted(store.files()) == [f"kubenet/{IP}"]
    assert store.find(IP).container_id == WEB_ID


def test_unlocking_a_removed_directory_is_no_error(store: Store) -> None:
    locked = store.file_ops().lock(["kubenet"])
    assert locked is not None
    store.network().rename(store.networks / "old")
    assert locked.unlock() >= 0


def test_a_child_process_inherits_no_lock(store: Store) -> None:
    needs(Path("/proc/self/fd").is_dir(), "/proc")
    locked = store.file_ops().lock(["kubenet"])
    assert locked is not None
    with another_process_locks(store.root / "elsewhere"):
        locked.unlock()
        until(store.unlocked, "the locks are free while a child of ours runs", 2)
