"""The real host-local of this machine on the agent's store. It is 1.1 or later; older ones lock as `test_unlink` does.

What those lock and write is known to the byte: <= 0.6 `flock`s the directory and writes the ID, 0.7 `flock`s the file
`lock` and writes the ID, >= 0.8 writes the interface too.
"""

import errno
import json
import os
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest

from agent.model.release import Verdict
from agent.model.snapshot import Reservation
from tests.builders import GONE
from tests.cleanup.stores import MADE_NS, Store
from tests.wire import needs, until

HOST_LOCAL = Path("/usr/lib/cni/host-local")


@pytest.fixture
def real(store: Store) -> Store:
    needs(os.access(HOST_LOCAL, os.X_OK), f"host-local in {HOST_LOCAL.parent}")
    return store


def host_local(
    command: str, container_id: str, store: Store, subnet: str = "10.9.0.0/29"
) -> subprocess.Popen[str]:
    """Start the real host-local on a store."""
    ipam = {"type": "host-local", "dataDir": str(store.networks), "ranges": [[{"subnet": subnet}]]}
    started = subprocess.Popen(  # noqa: S603 (the machine's own plugin)
        [str(HOST_LOCAL)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={
            "CNI_COMMAND": command,
            "CNI_CONTAINERID": container_id,
            "CNI_IFNAME": "eth0",
            "CNI_NETNS": "/proc/self/ns/net",
            "CNI_NETNS_OVERRIDE": "1",  # newer plugins refuse their own
            "CNI_PATH": str(HOST_LOCAL.parent),
        },
    )
    assert started.stdin is not None
    started.stdin.write(
        json.dumps({"cniVersion": "0.4.0", "name": "kubenet", "type": "bridge", "ipam": ipam})
    )
    started.stdin.close()
    return started


def result_of(started: subprocess.Popen[str], code: int = 0) -> Any:
    """Wait for host-local and return its output."""
    with started:
        assert started.stdout is not None
        output = started.stdout.read()
    assert started.returncode == code, output
    return json.loads(output) if output.strip() else None


def add(container_id: str, store: Store, subnet: str = "10.9.0.0/29") -> str:
    """Return the address that host-local allocates."""
    return address(result_of(host_local("ADD", container_id, store, subnet)))


def address(content: Any) -> str:
    return str(content["ips"][0]["address"]).partition("/")[0]


def container(number: int) -> str:
    return f"{number:064x}"


def reserved(store: Store) -> list[str]:
    return sorted(name.partition("/")[2] for name in store.files() if "last" not in name)


def aged(store: Store, ip: str) -> Reservation:
    """Let a reservation be older than the grace period."""
    os.utime(store.network() / ip, ns=(MADE_NS, MADE_NS))
    return store.find(ip)


def still_runs(started: subprocess.Popen[str], seconds: float = 0.4) -> bool:
    try:
        started.wait(seconds)
    except subprocess.TimeoutExpired:
        return True
    return False


def test_while_the_agent_holds_the_locks_an_add_and_del_wait(real: Store) -> None:
    add(container(1), real)
    with real.file_ops().locked(["kubenet"]):
        adding, deleting = (
            host_local("ADD", container(2), real),
            host_local("DEL", container(1), real),
        )
        assert still_runs(adding)
        assert still_runs(deleting, 0.1)
    assert address(result_of(adding)) in {"10.9.0.2", "10.9.0.3"}
    result_of(deleting)
    assert reserved(real) == ["10.9.0.3"]


def test_while_an_add_holds_its_lock_nothing_changes(real: Store) -> None:
    """It reads every file of the directory under its lock, and one that never ends holds it there."""
    leak = real.reserve("10.9.0.2")
    endless = real.network() / "endless"
    os.mkfifo(endless)
    adding = host_local("ADD", container(2), real)
    assert still_runs(adding)
    assert real.release(leak).verdict is Verdict.BUSY
    assert real.find("10.9.0.2") == leak

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
    assert real.release(leak).verdict is Verdict.RELEASED


def test_on_a_full_range_the_next_add_gets_what_was_released(real: Store) -> None:
    given = [add(container(number), real) for number in range(1, 6)]
    assert given == [f"10.9.0.{last}" for last in range(2, 7)]
    assert (
        "no IP addresses available"
        in result_of(host_local("ADD", container(6), real), code=1)["msg"]
    )
    assert real.release(aged(real, "10.9.0.4")).verdict is Verdict.RELEASED
    assert add(container(6), real) == "10.9.0.4"
    assert real.restore() == [False, "10.9.0.4 of network kubenet is reserved again"]
    assert real.find("10.9.0.4").container_id == container(6)


def test_a_del_after_a_release_succeeds_and_releases_no_other_address(real: Store) -> None:
    add(container(1), real)
    real.release(aged(real, "10.9.0.2"))
    add(container(2), real)
    before = real.files()
    result_of(host_local("DEL", container(1), real))
    assert real.files() == before


def test_host_local_works_with_a_restored_file_also_of_an_old_version(real: Store) -> None:
    add(container(1), real)
    leak = aged(real, "10.9.0.2")
    before = real.files()
    assert real.release(leak).verdict is Verdict.RELEASED
    assert real.restore() == [True, ""]
    assert real.files() == before
    assert "duplicate allocation" in result_of(host_local("ADD", container(1), real), code=1)["msg"]
    result_of(host_local("DEL", container(1), real))
    assert reserved(real) == []
    real.release(real.reserve("10.9.0.2", GONE, ifname=""))
    assert real.restore(real.journal().entries[-1].name) == [True, ""]
    result_of(host_local("DEL", GONE, real))
    assert reserved(real) == []


def test_adds_and_dels_during_releases_leave_one_owner_per_address(real: Store) -> None:
    leaked = [real.reserve(f"10.9.0.{last}", container(last)) for last in range(100, 140)]
    owned: dict[str, str] = {}

    def churn() -> None:
        for number in range(1000, 1025):
            sandbox = container(number)
            owned[sandbox] = add(sandbox, real, "10.9.0.0/25")
            if number % 2:
                result_of(host_local("DEL", sandbox, real, "10.9.0.0/25"))
                del owned[sandbox]

    churning = threading.Thread(target=churn)
    churning.start()
    outcomes = [real.release(leak, file_ops=real.file_ops(10)) for leak in leaked]
    churning.join()
    assert [outcome.why for outcome in outcomes if outcome.verdict is not Verdict.RELEASED] == []
    assert {real.find(ip).container_id: ip for ip in reserved(real)} == owned
