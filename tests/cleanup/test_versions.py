"""Several versions of host-local on the agent's store. Up to 0.8, a process with the same locks replaces it.

Their binaries are not to be had here; what they lock and what they write is known to the byte: <= 0.6 `flock`s the
directory and writes the id, 0.7 `flock`s the file `lock` and writes the id, >= 0.8 writes the interface too. The
host-local of this machine, 1.1 or later, is the real one.
"""

import errno
import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.cleanup.restore import restore
from agent.model.release import Verdict
from tests.builders import GONE, NOW, WEB_ID
from tests.cleanup.stores import (
    HOST_LOCAL,
    Store,
    address,
    another_process_locks,
    handles,
    host_local,
    let_go,
    result_of,
)
from tests.wire import needs, until

IP = "10.244.1.9"

VERSIONS = pytest.mark.parametrize(
    ("locked", "ifname"),
    [("", ""), ("lock", ""), ("lock", "eth0")],
    ids=["0.6", "0.7", "0.8"],
)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path)


@pytest.fixture
def real(store: Store) -> Store:
    needs(os.access(HOST_LOCAL, os.X_OK), f"host-local in {HOST_LOCAL.parent}")
    return store


@pytest.fixture(autouse=True)
def _no_handle_is_left_open() -> Iterator[None]:
    before = handles()
    yield
    assert handles() == before


def container(number: int) -> str:
    return f"{number:064x}"


def still_runs(started: subprocess.Popen[str], seconds: float = 0.4) -> bool:
    try:
        started.wait(seconds)
    except subprocess.TimeoutExpired:
        return True
    return False


@VERSIONS
def test_while_host_local_holds_its_lock_nothing_changes_and_then_is_released(
    store: Store, locked: str, ifname: str
) -> None:
    reserved = store.reserve(ifname=ifname)
    with another_process_locks(store.network() / locked) as it:
        assert store.release(reserved).verdict is Verdict.BUSY
        assert store.find(IP) == reserved
        end = threading.Timer(0.1, let_go, (it,))
        end.start()
        assert store.release(reserved, file_ops=store.file_ops(10)).verdict is Verdict.RELEASED
        end.join()


@VERSIONS
def test_while_the_agent_holds_the_lock_host_local_waits(store: Store, locked: str, ifname: str) -> None:
    store.reserve(ifname=ifname)
    got: list[bool] = []

    def it() -> None:
        with another_process_locks(store.network() / locked):
            got.append(True)

    waiting = threading.Thread(target=it)
    with store.file_ops().locked(["kubenet"]):
        waiting.start()
        waiting.join(0.3)
        assert got == []
    waiting.join()
    assert got == [True]


@VERSIONS
def test_every_format_is_released_and_restored_byte_for_byte(store: Store, locked: str, ifname: str) -> None:
    reserved = store.reserve(ifname=ifname, mode=0o644)
    before = store.files()
    assert (reserved.ifname, reserved.size) == (ifname, 70 if ifname else 64)
    assert store.release(reserved).verdict is Verdict.RELEASED
    assert store.files() == {}
    with another_process_locks(store.network() / locked):
        assert not restore(store.entry(), store.file_ops(), store.journal_store, NOW).done
    assert restore(store.entry(), store.file_ops(), store.journal_store, NOW).done
    assert store.files() == before


def test_a_lock_that_0_6_does_not_use_is_created_and_does_no_harm(store: Store) -> None:
    """0.6 walks its directory for an id, and an empty file holds none."""
    assert store.release(store.reserve(ifname="")).verdict is Verdict.RELEASED
    assert (store.network() / "lock").read_bytes() == b""


# The real one.


def test_while_the_agent_holds_the_locks_a_real_add_and_del_wait(real: Store) -> None:
    result_of(host_local("ADD", container(1), real))
    with real.file_ops().locked(["kubenet"]):
        adding, deleting = host_local("ADD", container(2), real), host_local("DEL", container(1), real)
        assert still_runs(adding)
        assert still_runs(deleting, 0.1)
    assert address(result_of(adding)) in {"10.9.0.2", "10.9.0.3"}
    result_of(deleting)
    assert [name for name in real.files() if "last" not in name] == ["kubenet/10.9.0.3"]


def test_while_a_real_add_holds_its_lock_nothing_changes(real: Store) -> None:
    """It reads every file of the directory under its lock, and one that never ends holds it there."""
    reserved = real.reserve("10.9.0.2")
    endless = real.network() / "endless"
    os.mkfifo(endless)
    adding = host_local("ADD", container(2), real)
    assert still_runs(adding)
    assert real.release(reserved).verdict is Verdict.BUSY
    assert real.find("10.9.0.2") == reserved

    def let_it_go_on() -> bool:
        """Let it come to the end of the file; a pass of the directory that is yet to come waits there again."""
        try:
            os.close(os.open(endless, os.O_WRONLY | os.O_NONBLOCK))
        except OSError as error:
            if error.errno not in {errno.ENXIO, errno.ENOENT}:
                raise
        return adding.poll() is not None

    until(let_it_go_on, "host-local ends")
    assert address(result_of(adding)) == "10.9.0.3"
    assert real.release(reserved).verdict is Verdict.RELEASED


def test_on_a_full_range_the_next_real_add_gets_what_was_released(real: Store) -> None:
    given = [address(result_of(host_local("ADD", container(number), real))) for number in range(1, 6)]
    assert given == [f"10.9.0.{last}" for last in range(2, 7)]
    assert "no IP addresses available" in result_of(host_local("ADD", container(6), real), code=1)["msg"]
    assert real.release(real.find("10.9.0.4")).verdict is Verdict.RELEASED
    assert address(result_of(host_local("ADD", container(6), real))) == "10.9.0.4"
    assert real.find("10.9.0.4").container_id == container(6)
    done = restore(real.entry(), real.file_ops(), real.journal_store, NOW)
    assert done.why == "10.9.0.4 of network kubenet is reserved again"
    assert real.find("10.9.0.4").container_id == container(6)


def test_a_real_del_after_a_release_succeeds_and_releases_no_other_address(real: Store) -> None:
    result_of(host_local("ADD", container(1), real))
    real.release(real.find("10.9.0.2"))
    result_of(host_local("ADD", container(2), real))
    before = real.files()
    result_of(host_local("DEL", container(1), real))
    assert real.files() == before


def test_a_restored_file_works_with_the_real_host_local(real: Store) -> None:
    result_of(host_local("ADD", container(1), real))
    before = real.files()
    real.release(real.find("10.9.0.2"))
    assert restore(real.entry(), real.file_ops(), real.journal_store, NOW).done
    assert real.files() == before
    assert "duplicate allocation" in result_of(host_local("ADD", container(1), real), code=1)["msg"]
    result_of(host_local("DEL", container(1), real))
    assert [name for name in real.files() if "last" not in name] == []


def test_a_restored_file_of_an_old_version_is_released_by_the_real_host_local(real: Store) -> None:
    real.release(real.reserve("10.9.0.2", GONE, ifname=""))
    assert restore(real.entry(), real.file_ops(), real.journal_store, NOW).done
    result_of(host_local("DEL", GONE, real))
    assert real.files() == {}


def test_a_sandbox_with_a_new_address_from_host_local_is_not_restored(real: Store) -> None:
    result_of(host_local("ADD", WEB_ID, real))
    real.release(real.find("10.9.0.2"))
    assert address(result_of(host_local("ADD", WEB_ID, real))) == "10.9.0.3"
    done = restore(real.entry(), real.file_ops(), real.journal_store, NOW)
    assert done.why == f"container {WEB_ID[:12]} has another address now: 10.9.0.3"


def test_real_adds_and_dels_during_releases_leave_one_owner_per_address(real: Store) -> None:
    leaked = [real.reserve(f"10.9.0.{last}", container(last)) for last in range(100, 140)]
    owned: dict[str, str] = {}
    failed: list[str] = []

    def churn() -> None:
        for number in range(1000, 1025):
            sandbox = container(number)
            owned[sandbox] = address(result_of(host_local("ADD", sandbox, real, "10.9.0.0/25")))
            if number % 2:
                result_of(host_local("DEL", sandbox, real, "10.9.0.0/25"))
                del owned[sandbox]

    churning = threading.Thread(target=churn)
    churning.start()
    for reserved in leaked:
        outcome = real.release(reserved, file_ops=real.file_ops(10))
        if outcome.verdict is not Verdict.RELEASED:
            failed.append(outcome.why)
    churning.join()
    assert failed == []
    left = {name.partition("/")[2]: file for name, file in real.files().items() if "last" not in name}
    kept = {content[:64].decode(): ip for ip, (content, *_) in left.items()}
    assert (kept, len(left)) == (owned, len(owned))
