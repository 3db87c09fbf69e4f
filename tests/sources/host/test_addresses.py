"""Addresses in the namespaces of processes: from a copy of a real /proc, and from real namespaces."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from agent.model.snapshot import Address
from agent.sources.host import addresses
from agent.sources.source_error import SourceError
from tests.wire import NOBODY, as_nobody, needs, run, until

# Linux 6.18, a pod-like namespace: two addresses with routes to themselves, a /31, a link that is down.
FIB_TRIE = """\
Main:
  +-- 10.9.0.0/20 4 1 11
     |-- 10.9.5.5
        /32 host LOCAL
     |-- 10.9.7.0
        /32 host LOCAL
        /31 link UNICAST
     |-- 10.9.8.7
        /32 host LOCAL
        /32 link UNICAST
     +-- 10.9.9.0/24 2 0 2
        +-- 10.9.9.0/31 1 0 0
           |-- 10.9.9.0
              /24 link UNICAST
           |-- 10.9.9.1
              /32 host LOCAL
              /32 link UNICAST
        |-- 10.9.9.255
           /32 link BROADCAST
     +-- 127.0.0.0/8 2 0 2
        +-- 127.0.0.0/31 1 0 0
           |-- 127.0.0.0
              /8 host LOCAL
           |-- 127.0.0.1
              /32 host LOCAL
        |-- 127.255.255.255
           /32 link BROADCAST
"""
ONE_LEAF = "Main:\n  |-- 10.9.6.6\n     /32 host LOCALLocal:\n  |-- 10.9.6.6\n     /32 host LOCAL"
"""As Linux writes it where a namespace has a single address."""
BROADCAST_FIRST = """\
Main:
  +-- 10.9.5.0/28 2 0 2
     |-- 10.9.5.1
        /32 host LOCAL
     |-- 10.9.5.9
        /32 link BROADCAST
        /32 host LOCAL
        /24 link UNICAST
     |-- 10.9.5.15
        /32 link BROADCAST
        /28 host LOCAL
"""
"""The broadcast address of one subnet is the address of an interface in another; a subnet of local addresses."""
IF_INET6 = """\
00000000000000000000000000000001 01 80 10 80       lo
fe80000000000000149513fffee25e5f 02 40 20 c0     eth0
fd000099000000000000000000000009 03 40 00 82     eth0
20010db8000000000000000000000001 03 40 00 80     eth0
"""


def process(
    proc: Path,
    pid: int,
    fib_trie: str | None = "Main:\n",
    *,
    if_inet6: str | None = "",
    thread: int = 0,
    same_as: Path | None = None,
) -> Path:
    """Copy one thread of a process, by default its first; None leaves a file out. Returns the thread's directory.

    `same_as`: a thread in the same namespace. The kernel gives each namespace files of its own, as links do.
    """
    home = proc / f"{pid}/task/{thread or pid}"
    (home / "net").mkdir(parents=True)
    (proc / f"{pid}/comm").write_text(f"command {pid}\n")
    for name, text in (("fib_trie", fib_trie), ("if_inet6", if_inet6)):
        if same_as:
            (home / "net" / name).hardlink_to(same_as / "net" / name)
        elif text is not None:
            (home / "net" / name).write_text(text)
    return home


def ips(proc: Path) -> set[str]:
    return {address.ip for address in addresses.read_addresses(proc)}


def test_every_address_of_an_interface_is_found_up_or_down(tmp_path: Path) -> None:
    process(tmp_path, 1, FIB_TRIE, if_inet6=IF_INET6)
    process(tmp_path, 2, BROADCAST_FIRST)
    known = {"10.9.5.5", "10.9.7.0", "10.9.8.7", "10.9.9.1", "fd00:99::9", "2001:db8::1"}
    assert ips(tmp_path) == known | {"10.9.5.1", "10.9.5.9"}


def test_each_namespace_is_attributed_to_its_oldest_process(tmp_path: Path) -> None:
    first = process(tmp_path, 4, ONE_LEAF)
    for pid in (30, 100):
        process(tmp_path, pid, same_as=first)
    (tmp_path / "sys").mkdir()
    (tmp_path / "self").symlink_to("4")
    (tmp_path / "٣").mkdir()
    assert [replace(found, namespace=0) for found in addresses.read_addresses(tmp_path)] == [
        Address("10.9.6.6", 4, "command 4")
    ]


def test_an_address_is_found_in_each_namespace_that_has_it(tmp_path: Path) -> None:
    """Two networks of the node may have one range."""
    first = process(tmp_path, 4, ONE_LEAF, if_inet6=IF_INET6)
    process(tmp_path, 30, same_as=first)
    process(tmp_path, 100, ONE_LEAF, if_inet6=IF_INET6)
    found = addresses.read_addresses(tmp_path)
    for ip in ("10.9.6.6", "fd00:99::9"):
        assert [address.pid for address in found if address.ip == ip] == [4, 100]
        assert len({address.namespace for address in found if address.ip == ip}) == 2


def test_the_namespace_of_any_thread_is_read(tmp_path: Path) -> None:
    process(tmp_path, 4, FIB_TRIE)
    process(tmp_path, 4, ONE_LEAF, thread=7)
    assert ("10.9.6.6", 4) in {(found.ip, found.pid) for found in addresses.read_addresses(tmp_path)}


def test_a_thread_that_leaves_between_two_files_hides_neither(tmp_path: Path) -> None:
    host = process(tmp_path, 1, FIB_TRIE, if_inet6="")
    pod = process(tmp_path, 3, ONE_LEAF, if_inet6=IF_INET6)
    for number, (fib_trie, if_inet6) in enumerate(((pod, host), (host, pod))):
        moving = process(tmp_path, 2, None, if_inet6=None, thread=20 + number)
        (moving / "net/fib_trie").hardlink_to(fib_trie / "net/fib_trie")
        (moving / "net/if_inet6").hardlink_to(if_inet6 / "net/if_inet6")
    assert {"10.9.5.5", "10.9.6.6", "fd00:99::9"} <= ips(tmp_path)


def test_text_in_place_of_an_address_is_unavailable_and_no_address(tmp_path: Path) -> None:
    for text in ("99999999.0.0.1", "10.9.6", "10.9.6.6.6", "1..2", "9" * 5000):
        shutil.rmtree(tmp_path / "2", ignore_errors=True)
        process(tmp_path, 2, ONE_LEAF.replace("10.9.6.6", text))
        with pytest.raises(SourceError, match=r"cannot parse .*fib_trie") as raised:
            addresses.read_addresses(tmp_path)
        assert len(str(raised.value)) < 400


@pytest.mark.parametrize("gone", ["task/1/net/fib_trie", "task/1/net/if_inet6", "comm"])
def test_a_process_that_ends_during_the_reading_hides_no_other(tmp_path: Path, gone: str) -> None:
    """A kernel without IPv6 has no if_inet6 either."""
    process(tmp_path, 1, FIB_TRIE)
    (tmp_path / "1" / gone).unlink()
    process(tmp_path, 2, ONE_LEAF)
    assert ("10.9.6.6", 2) in {(found.ip, found.pid) for found in addresses.read_addresses(tmp_path)}


def test_any_interface_name_can_be_read(tmp_path: Path) -> None:
    home = process(tmp_path, 1, FIB_TRIE)
    for name in (b"a\xffb", b"a\xe2\x80\x83b", b"a\x1cb", b"a\x0cb c"):
        (home / "net/if_inet6").write_bytes(b"fd000099000000000000000000000009 03 40 00 82 " + name + b"\n")
        assert {"10.9.5.5", "fd00:99::9"} <= ips(tmp_path)
    before = len(os.listdir("/proc/self/fd"))
    for line in ("fd00", "xyz 03 40 00 82 eth0", "1 2 3"):
        (home / "net/if_inet6").write_text(f"{line}\n")
        with pytest.raises(SourceError, match="if_inet6"):
            addresses.read_addresses(tmp_path)
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_namespace_with_too_many_routes_is_unavailable_and_not_cut(tmp_path: Path) -> None:
    route, last = "     |-- 10.64.0.0\n        /24 link UNICAST\n", "     |-- 10.9.6.6\n        /32 host LOCAL\n"
    process(tmp_path, 1, f"Main:\n{route * 10_000}{last}")
    assert ips(tmp_path) == {"10.9.6.6"}
    process(tmp_path, 2, f"Main:\n{route * 400_000}{last}")
    with pytest.raises(SourceError, match="fib_trie: it has more than the limit of 16,777,216 bytes"):
        addresses.read_addresses(tmp_path)


def test_too_many_addresses_are_unavailable_and_not_cut(tmp_path: Path) -> None:
    several = [f"10.{1 + number // 250}.0.{1 + number % 250}" for number in range(3 * 250)]
    leaves = "".join(f"     |-- {ip}\n        /32 host LOCAL\n" for ip in several)
    process(tmp_path, 1, f"Main:\n{leaves}")
    assert len(addresses.read_addresses(tmp_path)) == len(several)
    many = "".join(leaves.replace(" 10.", f" {first}.") for first in range(11, 100))
    process(tmp_path, 2, f"Main:\n{many}")
    with pytest.raises(SourceError, match="have over 65,536 addresses"):
        addresses.read_addresses(tmp_path)


@pytest.mark.parametrize("name", ["fib_trie", "if_inet6"])
def test_an_unreadable_namespace_is_unavailable_and_not_empty(open_dir: Path, name: str) -> None:
    home = process(open_dir, 1, ONE_LEAF)
    (home / "net" / name).chmod(0o000)
    with as_nobody(), pytest.raises(SourceError, match=f"cannot read {home}/net/{name}: permission denied"):
        addresses.read_addresses(open_dir)


def test_what_is_no_process_table_is_unavailable(tmp_path: Path) -> None:
    for name in ("a", "1"):
        (tmp_path / name).mkdir()
        with pytest.raises(SourceError, match=f"no process in {tmp_path} shows its network namespace"):
            addresses.read_addresses(tmp_path)
    with pytest.raises(SourceError, match=f"cannot read {tmp_path}/proc: no such file or directory"):
        addresses.read_addresses(tmp_path / "proc")


@pytest.fixture
def namespace() -> Iterator[str]:
    """Make a network namespace as a CNI plugin does: an address of each family, and one whose link is down."""
    needs(os.geteuid() == 0 and Path("/sbin/ip").exists(), "root and iproute2, to make a network namespace")
    name = f"nodeleak-{os.getpid()}"
    run("ip", "netns", "add", name)
    for command in (
        "link add pod0 type veth peer name pod1", "link set pod0 up", "link set pod1 up",
        "addr add 198.18.77.1/24 dev pod0", "route add 198.18.77.1/32 dev pod0",
        "addr add fd00:99::9/64 dev pod0 nodad",
        "link add down0 type veth peer name down1", "addr add 198.18.78.1/24 dev down0",
    ):  # fmt: skip
        run("ip", "-n", name, *command.split())
    yield name
    run("ip", "netns", "del", name)


@contextmanager
def living_in(namespace: str) -> Iterator[int]:
    """Keep a process in a namespace."""
    process = subprocess.Popen(["ip", "netns", "exec", namespace, "sleep", "30"])  # noqa: S603, S607 (a name of ours)
    try:
        until(lambda: Path(f"/proc/{process.pid}/comm").read_text() == "sleep\n", "ip has become sleep")
        yield process.pid
    finally:
        process.kill()
        process.wait()


def test_the_addresses_of_a_real_process_in_a_real_namespace_are_found(namespace: str) -> None:
    with living_in(namespace) as pid:
        found = {one.ip: one for one in addresses.read_addresses(Path("/proc"))}
    for ip in ("198.18.77.1", "fd00:99::9", "198.18.78.1"):
        assert (found[ip].pid, found[ip].command) == (pid, "sleep")
    assert "198.18.77.1" not in ips(Path("/proc")), "no process lives there any more"


def test_no_capability_is_needed(namespace: str) -> None:
    # As in the pod: uid 0, every capability dropped.
    code = (
        "from agent.sources.host import addresses; from pathlib import Path; "
        "print(addresses.read_addresses(Path('/proc')))"
    )
    needs(Path("/usr/bin/setpriv").exists(), "setpriv, to drop capabilities")
    with thread_in(namespace):
        assert "198.18.77.1" in run(
            "setpriv", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs", *python(code)
        )


def python(code: str) -> tuple[str, ...]:
    return (sys.executable, "-c", code)


# A second thread enters the namespace; with the argument "alone" the first one ends.
THREAD = """
import ctypes, os, sys, threading, time
libc = ctypes.CDLL(None, use_errno=True)
def enter():
    assert libc.setns(os.open(sys.argv[1], os.O_RDONLY), 0x40000000) == 0, os.strerror(ctypes.get_errno())
    print("entered", flush=True)
    time.sleep(60)
threading.Thread(target=enter).start()
if sys.argv[2:] == ["alone"]:
    libc.pthread_exit(None)
"""


@contextmanager
def thread_in(namespace: str, *arguments: str) -> Iterator[int]:
    """Keep a thread in a namespace in which no process has its first thread."""
    command = [sys.executable, "-c", THREAD, f"/run/netns/{namespace}", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:  # noqa: S603 (a command of ours)
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "entered\n"
            yield process.pid
        finally:
            process.kill()


@pytest.mark.parametrize("arguments", [(), ("alone",)], ids=["beside the main thread", "after the main thread"])
def test_a_namespace_that_only_a_thread_holds_is_read(namespace: str, arguments: tuple[str, ...]) -> None:
    with thread_in(namespace, *arguments) as pid:
        found = {one.ip: one.pid for one in addresses.read_addresses(Path("/proc"))}
    assert {found.get(ip) for ip in ("198.18.77.1", "fd00:99::9", "198.18.78.1")} == {pid}


def test_processes_that_come_and_go_cause_no_error(namespace: str) -> None:
    stop: list[Callable[[], object]] = []
    with living_in(namespace):
        for _ in range(3):
            churn = subprocess.Popen(
                ["/bin/sh", "-c", "while :; do /bin/true; done"], user=NOBODY if os.geteuid() == 0 else None
            )
            stop += [churn.kill, churn.wait]
        try:
            assert all("198.18.77.1" in ips(Path("/proc")) for _ in range(8))
        finally:
            for action in stop:
                action()


# A process that is older than the sandbox enters and leaves its namespaces as fast as it can.
MOVING = """
import ctypes, faulthandler, os, subprocess, sys, time
from pathlib import Path
from agent.sources.host import addresses
faulthandler.dump_traceback_later(30, exit=True)
libc = ctypes.CDLL(None, use_errno=True)
host = os.open("/proc/self/ns/net", os.O_RDONLY)
made, ready = os.pipe(), os.pipe()
mover = os.fork()
if not mover:
    pod = os.open(f"/proc/{int(os.read(made[0], 16))}/ns/net", os.O_RDONLY)
    os.write(ready[1], b"1")
    while True:
        for namespace in (pod, host):
            assert libc.setns(namespace, 0x40000000) == 0, os.strerror(ctypes.get_errno())
            time.sleep(0.00003)
pause = os.fork()
if not pause:
    assert libc.unshare(0x40000000) == 0, os.strerror(ctypes.get_errno())
    for command in ("link set lo up", "addr add 10.244.1.2/32 dev lo", "addr add fd00:99::9/128 dev lo nodad"):
        subprocess.run(["ip", *command.split()], check=True)
    os.write(made[1], str(os.getpid()).encode())
    time.sleep(60)
os.read(ready[0], 1)
end, readings, missed = time.monotonic() + float(sys.argv[1]), 0, 0
while time.monotonic() < end:
    found = {one.ip for one in addresses.read_addresses(Path("/proc"))}
    readings, missed = readings + 1, missed + (not {"10.244.1.2", "fd00:99::9"} <= found)
assert readings > 10 and os.waitpid(mover, os.WNOHANG) == (0, 0)
print(missed)
"""


def test_a_thread_that_changes_its_namespace_all_the_time_hides_none() -> None:
    needs(os.geteuid() == 0 and bool(shutil.which("unshare")) and bool(shutil.which("ip")), "root, unshare and ip")
    private = ("unshare", "--pid", "--net", "--fork", "--kill-child", "--mount-proc")
    assert run(*private, *python(MOVING), "3") == "0\n"
