"""A release on real files and locks: what is removed, what is left alone, whatever happens between two steps."""

import base64
import fcntl
import json
import os
import resource
import shutil
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from agent.cleanup.journal import RESERVATION
from agent.cleanup.unlink import LockHeld
from agent.model.release import Reason, Verdict
from agent.model.runtime import CRI_O, ContainerRuntime
from agent.model.snapshot import Known, Reservation, Snapshot
from tests.builders import GONE, WEB_ID, node, processes
from tests.cleanup import stores
from tests.cleanup.recheck import Owners
from tests.cleanup.stores import (
    MADE_NS,
    STEPS,
    Step,
    Store,
    another_process_locks,
    at,
    in_child,
    just_before,
    whole,
)
from tests.wire import NOBODY, as_nobody, needs, open_directory, until

IP, IP6 = "10.244.1.9", "fd00:10::9"
BEFORE_COMPARING = (
    "asked the runtime",
    "asked the kubelet",
    "asked the kernel",
    "read",
    "journaled",
)
LOCKS = ("", "lock")  # What host-local <= 0.6 locks, its directory, and what >= 0.7 does


def test_what_the_journal_could_not_read_again_is_refused_before_anything_is_removed(
    store: Store,
) -> None:
    """Three cached results of four megabytes, whose every character the journal has to escape."""
    networks = "kubenet", "net-a", "net-b"
    reserved = [
        store.reserve(f"10.244.1.{last}", network=network)
        for last, network in enumerate(networks, 9)
    ]
    results = [
        store.keep_result(ip=leak.ip, network=leak.network, annotations="\\" * 2_000_000)
        for leak in reserved
    ]
    before = store.files()
    outcome = store.release(*reserved)
    assert (outcome.verdict, store.files()) == (Verdict.REFUSED, before)
    (refusal,) = outcome.refusals
    assert refusal.reason is Reason.ENTRY_TOO_LARGE
    assert all(str(result) in refusal.why for result in results)
    assert all(result.exists() for result in results)
    assert store.journal().entries == ()
    # What the refusal says helps, and other sandboxes are not affected.
    another = store.reserve("10.244.1.77", "7" * 64)
    assert store.release(another).verdict is Verdict.RELEASED
    for result in results:
        result.rename(store.root / result.name)
    assert store.release(*reserved).verdict is Verdict.RELEASED
    assert len(store.journal().entries) == 2


def test_the_steps_of_a_release_have_this_order_and_leave_nothing_but_the_lock(
    store: Store,
) -> None:
    taken: list[Step] = []
    reserved, other = store.reserve(), store.reserve("10.244.1.10", WEB_ID)
    (store.network() / "last_reserved_ip.0").write_text(IP)
    outcome = store.release_with(taken.append, reserved)
    assert (outcome.verdict, outcome.why, tuple(taken)) == (Verdict.RELEASED, "", STEPS)
    assert sorted(store.files()) == ["kubenet/10.244.1.10", "kubenet/last_reserved_ip.0"]
    assert store.find(other.ip) == other
    assert outcome.waited is not None
    assert outcome.held is not None
    assert whole(store.network() / "lock")[:2] == (b"", 0o750), (
        "a missing lock is created as host-local does"
    )
    assert sorted(os.listdir(store.network())) == ["10.244.1.10", "last_reserved_ip.0", "lock"], (
        "nothing else"
    )


def test_while_another_process_holds_a_lock_nothing_changes_and_then_it_is_released(
    store: Store,
) -> None:
    for number, locked in enumerate(LOCKS):
        reserved = store.reserve()
        before = store.files()
        with another_process_locks(store.network() / locked) as holder:
            start = time.perf_counter()
            outcome = store.release(reserved, file_ops=store.file_ops(0.1))
            assert time.perf_counter() - start >= 0.1
            assert (outcome.verdict, outcome.waited, outcome.held) == (Verdict.BUSY, None, None)
            assert outcome.why == "another process holds host-local's lock"
            assert store.files() == before
            assert len(store.journal().entries) == number, (
                "a lock that is held for hours does not fill the journal"
            )
            end = threading.Timer(0.1, stores.let_go, (holder,))
            end.start()
            assert store.release(reserved, file_ops=store.file_ops(60)).verdict is Verdict.RELEASED
            end.join()


def test_while_the_agent_holds_the_locks_others_wait(store: Store) -> None:
    def lock(path: Path, got: threading.Event) -> None:
        with another_process_locks(path):
            got.set()

    for locked in LOCKS:
        got = threading.Event()
        waiting = threading.Thread(target=lock, args=(store.network() / locked, got))
        with store.file_ops().locked(["kubenet"]):
            waiting.start()
            assert not got.wait(0.3)
        waiting.join()
        assert got.is_set()


def test_while_one_lock_is_awaited_the_other_is_free_for_host_local(store: Store) -> None:
    (store.network() / "lock").touch()

    def wait() -> None:
        with suppress(LockHeld), store.file_ops(0.5).locked(["kubenet"]):
            pass

    for lock, other in (LOCKS, LOCKS[::-1]):
        free = 0
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


def new_lock(store: Store) -> None:
    (store.network() / "new").touch()
    (store.network() / "new").rename(store.network() / "lock")


def no_lock(store: Store) -> None:
    (store.network() / "lock").unlink()


def new_directory(store: Store) -> None:
    store.network().rename(store.networks / "old")
    store.network().mkdir()


def test_what_is_replaced_between_flock_and_its_check_is_locked_again(tmp_path: Path) -> None:
    for change, after in ((new_lock, 2), (no_lock, 2), (new_directory, 1)):
        store, flocks = Store(tmp_path / change.__name__), 0
        (store.network() / "lock").touch()

        def act(
            store: Store = store, change: Callable[[Store], None] = change, after: int = after
        ) -> list[object]:
            def count(_arguments: tuple[object, ...]) -> None:
                nonlocal flocks
                flocks += 1
                if flocks == after:
                    change(store)

            just_before("fcntl.flock", count)
            opened = stores.handles()
            with store.file_ops(1).locked(["kubenet"]):
                inode = (store.network() / "lock").stat().st_ino
                paths = (Path(f"/proc/self/fd/{handle}") for handle in os.listdir("/proc/self/fd"))
                mine = {path.stat().st_ino for path in paths if path.exists()}
            return [inode in mine, flocks, stores.handles() - opened]

        assert in_child(act) == [True, 4, 0]


NO_FILES: tuple[Callable[[Path], None], ...] = (
    lambda path: path.symlink_to("/etc/passwd"),
    Path.mkdir,
    os.mkfifo,
)


def test_a_lock_that_is_not_a_file_or_a_network_without_a_directory_is_an_error_without_a_wait(
    tmp_path: Path,
) -> None:
    for number, make in enumerate(NO_FILES):
        store = Store(tmp_path / str(number))
        reserved = store.reserve(), store.reserve(IP6, network="net1")
        make(store.network("net1") / "lock")
        start = time.perf_counter()
        outcome = store.release(*reserved, file_ops=store.file_ops(60))
        assert time.perf_counter() - start < 30
        assert (outcome.verdict, outcome.why[:6]) == (Verdict.FAILED, "lock: ")
        assert store.find() == reserved[0]
        assert store.unlocked("kubenet"), "the first network's locks were let go"
    for make in (lambda _: None, lambda path: path.symlink_to("kubenet"), Path.touch):
        make(store.network("net2"))
        outcome = store.release(replace(reserved[0], network="net2"))
        assert outcome.verdict is Verdict.FAILED
        assert outcome.why.startswith(f"{store.networks}/net2: ")
        store.network("net2").unlink(missing_ok=True)
        assert store.find() == reserved[0]


def test_a_child_process_inherits_no_lock(store: Store) -> None:
    with store.file_ops().locked(["kubenet"]):
        holder = another_process_locks(store.root / "elsewhere")
        holder.__enter__()
    until(store.unlocked, "the locks are free while a child of ours runs", 2)
    holder.__exit__(None, None, None)


def test_under_the_locks_the_locked_directory_is_used(store: Store) -> None:
    """A directory that is renamed meanwhile is still the one whose locks are held."""

    def replace_directory() -> None:
        new_directory(store)
        store.reserve(container_id=WEB_ID)

    assert (
        store.release_with(at("compared", replace_directory), store.reserve()).verdict
        is Verdict.RELEASED
    )
    assert sorted(store.files()) == [f"kubenet/{IP}"]
    assert store.find().container_id == WEB_ID


def rewrite(path: Path, text: str) -> None:
    path.write_text(text)
    os.utime(path, ns=(MADE_NS, MADE_NS))


def substitute(path: Path, make: Callable[[Path], object]) -> None:
    path.rename(path.with_name("before"))
    make(path)


CHANGES: dict[str, Callable[[Path], object]] = {
    "another ID": lambda path: rewrite(path, f"{WEB_ID}\r\neth0"),
    "another interface": lambda path: rewrite(path, f"{GONE}\r\neth1"),
    "nothing": lambda path: path.write_bytes(b""),
    "too much": lambda path: path.write_bytes(b"x" * 300_000),
    "another time": lambda path: os.utime(path, ns=(MADE_NS, MADE_NS + 1)),
    "another file of the same bytes": lambda path: substitute(
        path, lambda path: shutil.copy2(path.with_name("before"), path)
    ),
    "a link": lambda path: substitute(path, lambda path: path.symlink_to("before")),
    "a directory": lambda path: substitute(path, Path.mkdir),
    "a FIFO": lambda path: substitute(path, os.mkfifo),
    "a socket": lambda path: substitute(path, lambda path: os.mknod(path, 0o140600)),
}


def state_of(directory: Path) -> dict[str, tuple[int, int, int, int]]:
    """Return everything in a directory but the lock, without opening it."""
    found = {file.name: file.lstat() for file in directory.iterdir() if file.name != "lock"}
    return {name: (at.st_ino, at.st_mode, at.st_size, at.st_mtime_ns) for name, at in found.items()}


@pytest.mark.parametrize("name", CHANGES)
def test_a_reservation_replaced_meanwhile_is_not_touched(tmp_path: Path, name: str) -> None:
    """Before the comparison under the lock, whenever; and its sandbox is not touched either."""
    moments = [(step, 1) for step in BEFORE_COMPARING] + [("locked", 1), ("locked", 2)]
    for number, (step, nth) in enumerate(moments):
        store = Store(tmp_path / str(number))
        path, result = store.network() / IP, store.keep_result()
        reserved = store.reserve(), store.reserve(IP6), store.reserve("10.9.0.9", network="net1")
        after: list[Any] = []

        def change(path: Path = path, after: list[Any] = after) -> None:
            CHANGES[name](path)
            after.append(state_of(path.parent))

        outcome = store.release_with(at(step, change, nth), *reserved)
        assert (step, outcome.verdict) == (step, Verdict.CHANGED)
        assert [state_of(path.parent)] == after
        assert (store.network("net1") / "10.9.0.9").exists()
        assert result.exists()
        assert store.unlocked()
        assert [entry.verdict for entry in store.journal().entries] in ([], [Verdict.CHANGED])


def test_a_reservation_removed_meanwhile_is_gone_and_its_sandbox_is_not_touched(
    tmp_path: Path,
) -> None:
    for step in (*BEFORE_COMPARING, "locked"):
        store = Store(tmp_path / step)
        reserved = [store.reserve(ip) for ip in (IP, IP6)]
        outcome = store.release_with(at(step, (store.network() / IP6).unlink), *reserved)
        assert outcome.verdict is Verdict.GONE
        assert sorted(store.files()) == [f"kubenet/{IP}"]
        assert store.unlocked()


def test_what_differs_from_the_journal_stays_and_what_others_remove_is_not_claimed(
    store: Store,
) -> None:
    gone = store.network() / IP
    for change in (partial(gone.chmod, 0o640), partial(os.chown, gone, NOBODY, NOBODY)):
        assert (
            store.release_with(at("journaled", change), store.reserve()).verdict is Verdict.CHANGED
        )
        assert gone.exists()
        gone.unlink()
    assert store.release_with(at("compared", gone.unlink), store.reserve()).verdict is Verdict.GONE
    reserved = [store.reserve(ip) for ip in (IP6, "fd00:10::a", "fd00:10::b")]
    gone = store.network() / "fd00:10::a"
    outcome = store.release_with(at("removed", gone.unlink), *reserved)
    assert (outcome.verdict, store.files()) == (Verdict.RELEASED, {}), (
        "it is not left partly released"
    )


def test_a_recheck_without_an_answer_refuses_the_release(store: Store) -> None:
    reserved = store.reserve()
    for silent in ("runtime", "kubelet", "kernel"):
        outcome = store.release(reserved, recheck=Owners(silent=silent).recheck())
        assert (outcome.verdict, outcome.why) == (Verdict.FAILED, f"{silent} is gone")
        assert store.find() == reserved
        assert store.journal().entries == ()
        assert not (store.network() / "lock").exists(), "no lock was tried for"


@pytest.mark.parametrize("step", ["read", "journaled"])
def test_a_mount_that_becomes_read_only_during_a_release_fails_and_changes_nothing(
    store: Store, step: Step
) -> None:
    """A file system does so by itself after an error of its disk."""
    stores.may_mount()
    store.reserve()

    def turned() -> object:
        stores.mount("--bind", store.networks, store.networks)
        turn = at(step, lambda: stores.mount("-o", "remount,bind,ro", store.networks))
        return store.release_with(turn, store.find()).verdict

    assert in_child(turned) == "failed"
    assert sorted(store.files()) == [f"kubenet/{IP}"]
    store.start()
    assert [entry.verdict for entry in store.journal().entries] in ([], [Verdict.FAILED])


def test_without_permission_for_anything_that_a_release_needs_nothing_is_journaled_and_released() -> (
    None
):
    needs(os.geteuid() == 0, "root, to be somebody else")
    for kind in ("directory", "reservation", "cache", "result", "state"):
        with open_directory() as directory:
            store = Store(directory)
            reserved = store.reserve(mode=0o600 if kind == "reservation" else 0o644)
            result = store.keep_result()
            store.network().chmod(0o755 if kind == "directory" else 0o777)
            store.state.mkdir()
            store.state.chmod(0o755 if kind == "state" else 0o777)
            denied = {
                "directory": store.network(), "reservation": store.network() / IP, "cache": store.caches[0],
                "result": result, "state": store.state,
            }[kind]  # fmt: skip
            if kind in {"cache", "result"}:
                denied.chmod(0o600)
            with as_nobody():
                outcome = store.release(reserved)
            if kind == "state":
                assert [refusal.reason for refusal in outcome.refusals] == [
                    Reason.JOURNAL_UNWRITABLE
                ]
            else:
                assert outcome.verdict is Verdict.FAILED
                assert outcome.why.endswith(f"{denied.name}: permission denied")
            assert store.find() == reserved
            assert store.journal().entries == ()


def test_no_fsync_happens_under_the_locks_and_the_journal_entry_ends_last(store: Store) -> None:
    """After a power cut, what the journal calls released must not be in place again."""
    reserved = store.reserve(), store.reserve(IP6, network="net1")
    found = stores.synced(lambda: store.release(*reserved), store.unlocked)
    names = [path.name.rpartition(".")[2] for path, _ in found[-6:]]
    assert names == ["nodeleak", "journal", "kubenet", "net1", "nodeleak", "journal"]
    assert all(unlocked for _, unlocked in found)


def test_cached_results_of_the_sandbox_and_its_loopback_are_removed_with_it(tmp_path: Path) -> None:
    for bare, index in (
        (False, 0),
        (False, 1),
        (True, 0),
        (True, 1),
    ):  # libcni < 0.8 wrote bare results
        store = Store(tmp_path / f"{bare}{index}")
        store.caches[1].rename(store.root / "linked")
        store.caches[1].symlink_to("linked")  # it is used all the same
        reserved, mine = store.reserve(), store.keep_result(bare=bare, at=index)
        others, before = store.keep_result(WEB_ID, at=index), whole(mine)
        outcome = store.release(reserved)
        assert (outcome.verdict, outcome.why) == (Verdict.RELEASED, "")
        assert not mine.exists()
        assert others.exists()
        (image,) = (image for image in store.entry().files if image.place != RESERVATION)
        assert (image.content, image.mode, image.uid, image.gid, image.mtime_ns) == before
    loopback: dict[str, Any] = {"ip": "127.0.0.1", "ifname": "lo"}
    kubenet, other = (
        store.keep_result(network=f"{network}-loopback", **loopback)
        for network in ("kubenet", "cni")
    )
    assert store.release(store.reserve()).verdict is Verdict.RELEASED
    assert (kubenet.exists(), other.exists()) == (False, True)
    assert store.release(store.reserve("10.9.0.2", network="net1")).verdict is Verdict.RELEASED
    assert not other.exists()


def chain(*types: object) -> str:
    plugins = [{"type": plugin} for plugin in types]
    return base64.b64encode(json.dumps({"name": "kubenet", "plugins": plugins}).encode()).decode()


def with_crio(reserved: Reservation) -> Snapshot:
    """A node with CRI-O, which calls DEL at its start for what its cache has."""
    socket = "/run/crio/crio.sock"
    snapshot = node(
        reserved, processes=[replace(processes(), runtime=socket, crio=processes().booted)]
    )
    return replace(snapshot, runtimes=Known((ContainerRuntime(CRI_O, "1.35.6", socket),)))


def test_a_result_that_the_runtime_deletes_stays_unless_its_del_may_hit_the_next_pod(
    store: Store,
) -> None:
    reserved, result = (
        store.reserve(),
        store.keep_result(config=chain("bridge", "portmap", "bandwidth")),
    )
    before = whole(result)
    assert store.release(reserved, snapshot=with_crio(reserved)).verdict is Verdict.RELEASED
    assert whole(result) == before
    assert [image.place for image in store.entry().files] == [RESERVATION]
    assert store.restore() == [True, ""]
    assert whole(result) == before
    assert store.release(store.find()).verdict is Verdict.RELEASED, (
        "by a runtime that does not delete it"
    )
    assert not result.exists()
    # firewall deletes the rules of the addresses in the result: the next pod would be without its own.
    chains = [
        chain("bridge", "firewall"),
        chain("bridge", "example.com"),
        chain("bridge", []),
        chain(),
    ]
    for config in (*chains, "e30=", "?", None):
        reserved, result = store.reserve(), store.keep_result(config=config)
        assert store.release(reserved, snapshot=with_crio(reserved)).verdict is Verdict.RELEASED
        assert not result.exists()


ODD_RESULTS = (
    b"", b'{"ip4": "10.244.1.9/24"}', b'{"ips": [{}]}', b'{"ips": [{"address": "127.0.0.1/8"}]}',
    b'{"ip4": {"ip": "10.244.1.90/24"}}', b'{"ips": [{"address": "10.244.1.9/24"}, {"address": "10.244.1.300/24"}]}',
    b"{", b"[]", b"null", b"\xff\xfe\x00", b"[" * 100_000, b"{}", b" " * 300_000,
    b'{"ips": [{"address": "10.244.1.91/24"}]}',
    json.dumps({"kind": "cniCacheV1", "containerId": GONE[:12], "networkName": "kubenet", "ifName": "eth0"}).encode(),
    json.dumps({"kind": "cniCacheV1", "containerId": WEB_ID, "networkName": "kubenet", "ifName": "eth0"}).encode(),
    json.dumps({"kind": "cniCacheV1", "containerId": GONE, "networkName": "other", "ifName": "eth0"}).encode(),
    json.dumps({"kind": "cniCacheV1", "containerId": GONE, "networkName": "kubenet", "ifName": "eth1"}).encode(),
)  # fmt: skip


def test_what_has_only_the_name_of_a_result_and_that_of_an_empty_file_is_kept(store: Store) -> None:
    result = store.keep_result("")
    assert store.release(store.reserve(content=b"")).verdict is Verdict.RELEASED
    assert result.exists()
    assert store.entry().name.endswith(f"-kubenet-{IP}")
    file = store.keep_result()
    for content in ODD_RESULTS:
        file.write_bytes(content)
        assert store.release(store.reserve()).verdict is Verdict.RELEASED
        assert file.read_bytes() == content
    for number, make in enumerate(NO_FILES):
        file.rename(store.root / str(number))
        make(file)
        assert store.release(store.reserve()).verdict is Verdict.RELEASED
        assert os.path.lexists(file)


def test_a_bare_result_is_of_the_sandbox_whose_address_it_has(store: Store) -> None:
    file, loopback = store.keep_result(), store.keep_result(network="kubenet-loopback", ifname="lo")
    loopback.write_text('{"cniVersion": "0.2.0"}')
    for ip, tree in (
        (IP, {"ip4": {"ip": f"{IP}/24"}}),
        (IP6, {"ip6": {"ip": f"{IP6}/64"}}),
        (IP6, {"ips": [{"address": f"{IP}/24"}, {"address": f"{IP6}/64"}]}),
    ):
        file.write_text(json.dumps(tree))
        assert store.release(store.reserve(ip)).verdict is Verdict.RELEASED
        assert not file.exists(), tree
    assert loopback.exists(), "without an address it says nothing of whose it is"


def test_a_cached_result_that_changed_or_cannot_be_removed_stays(store: Store) -> None:
    result = store.keep_result()
    outcome = store.release_with(
        at("journaled", lambda: store.keep_result(netns="/proc/7/ns/net")), store.reserve()
    )
    assert (outcome.verdict, result.exists()) == (Verdict.RELEASED, True)
    with stores.immutable(result):
        outcome = store.release(store.reserve())
    assert (outcome.verdict, result.exists()) == (Verdict.RELEASED, True)
    assert outcome.why == f"left in libcni's cache: {result.name}: operation not permitted"
    assert outcome.why in {entry.why for entry in store.journal().entries}


def test_leftovers_of_a_killed_agent_are_never_written_to(store: Store) -> None:
    """It may be a second name of a reservation: the agent died between linking and unlinking."""
    live = store.reserve("10.244.1.10", WEB_ID)
    before = whole(store.network() / live.ip)
    store.release(store.reserve())
    (store.networks / ".nodeleak-restoring").hardlink_to(store.network() / live.ip)
    assert in_child(store.restore, named=True) == [True, ""]
    assert whole(store.network() / live.ip) == before
    assert os.listdir(store.networks) == ["kubenet"]


def test_a_file_that_appears_right_before_the_link_is_not_overwritten(store: Store) -> None:
    """By a process that does not take the lock."""
    for named in (False, True):
        store.release(store.reserve())

        def act() -> list[object]:
            just_before("os.link", lambda _: store.reserve(container_id=WEB_ID))
            return store.restore(store.journal().entries[-1].name)

        assert in_child(act, named=named) == [False, f"{IP}: file exists"]
        assert store.find().container_id == WEB_ID
        assert os.listdir(store.networks) == ["kubenet"]
        assert store.unlocked()


def test_no_file_is_ever_put_back_partly(store: Store) -> None:
    """A disk may accept part of a file and report that it is full only for the rest."""
    result = store.keep_result(config="x" * 50_000)
    store.release(store.reserve())

    def bounded() -> list[object]:
        limit = at(
            "locked",
            lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY)),
        )
        return store.restore(file_ops=store.file_ops(happens=limit))

    done, why = in_child(bounded)
    assert done
    assert why.startswith(
        f"not restored to libcni's cache: {result.name}: file too large; the journal does not record"
    )
    assert not result.exists()
    assert (store.entry().unfinished, store.entry().released) == (True, False)
    store.start()
    assert store.entry().restored is not None
