"""Addresses in the namespaces of processes: from a copy of a real /proc, and from real namespaces."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from ipaddress import IPv4Address
from pathlib import Path

import pytest

from agent.model.snapshot import Address
from agent.sources.host.addresses import read_addresses
from tests.wire import NOBODY, as_nobody, needs, run
from tests.wired import read, sample, why_unavailable

# Linux 6.18, a pod-like namespace: two addresses with routes to themselves, a /31, a link that is down.
FIB_TRIE, IF_INET6 = sample("proc-fib_trie", 1), sample("proc-if_inet6", 1)
# The broadcast address of one subnet is the address of an interface in another; a subnet of local addresses.
BROADCAST_FIRST = sample("proc-fib_trie", 2)
ONE_LEAF = "Main:\n  |-- 10.9.6.6\n     /32 host LOCALLocal:\n  |-- 10.9.6.6\n     /32 host LOCAL"
"""As Linux writes it where a namespace has a single address."""


def process(
    proc: Path, pid: int, *, thread: int = 0, same_as: Path | None = None, **files: str
) -> Path:
    """Copy one thread of a process, by default its first. Returns its directory of network files.

    `same_as`: that of a thread in the same namespace. The kernel gives each namespace files of its own, as links do.
    """
    net = proc / f"{pid}/task/{thread or pid}/net"
    net.mkdir(parents=True)
    (proc / f"{pid}/comm").write_text(f"command {pid}\n")
    for name, text in ({"fib_trie": "Main:\n", "if_inet6": ""} | files).items():
        if same_as:
            (net / name).hardlink_to(same_as / name)
        else:
            (net / name).write_text(text)
    return net


def addresses(proc: Path) -> tuple[Address, ...]:
    found: tuple[Address, ...] = read("addresses", proc=proc)
    return found


def ips(proc: Path) -> set[str]:
    return {address.ip for address in addresses(proc)}


def test_every_address_of_an_interface_is_found_up_or_down(tmp_path: Path) -> None:
    process(tmp_path, 1, fib_trie=FIB_TRIE, if_inet6=IF_INET6)
    process(tmp_path, 2, fib_trie=BROADCAST_FIRST)
    known = {"10.9.5.5", "10.9.7.0", "10.9.8.7", "10.9.9.1", "fd00:99::9", "2001:db8::1"}
    assert ips(tmp_path) == known | {"10.9.5.1", "10.9.5.9"}


def test_each_namespace_is_that_of_its_oldest_process_and_of_any_thread_in_it(
    tmp_path: Path,
) -> None:
    """Two networks of the node may have one range, and a thread can leave the namespace of its process."""
    first = process(tmp_path, 4, fib_trie=ONE_LEAF, if_inet6=IF_INET6)
    process(tmp_path, 30, same_as=first)
    (tmp_path / "sys").mkdir()
    (tmp_path / "self").symlink_to("4")
    (tmp_path / "٣").mkdir()
    assert {(found.pid, found.command) for found in addresses(tmp_path)} == {(4, "command 4")}
    assert len({found.ip for found in addresses(tmp_path)}) == len(addresses(tmp_path))
    process(tmp_path, 100, thread=107, fib_trie=ONE_LEAF, if_inet6=IF_INET6)
    process(tmp_path, 100, fib_trie=FIB_TRIE)
    found = addresses(tmp_path)
    for ip in ("10.9.6.6", "fd00:99::9"):
        assert [address.pid for address in found if address.ip == ip] == [4, 100]
        assert len({address.namespace for address in found if address.ip == ip}) == 2


def test_a_thread_that_leaves_between_two_files_hides_neither(tmp_path: Path) -> None:
    host = process(tmp_path, 1, fib_trie=FIB_TRIE)
    pod = process(tmp_path, 3, fib_trie=ONE_LEAF, if_inet6=IF_INET6)
    for thread, fib_trie, if_inet6 in ((20, pod, host), (21, host, pod)):
        net = tmp_path / f"2/task/{thread}/net"
        net.mkdir(parents=True)
        (net / "fib_trie").hardlink_to(fib_trie / "fib_trie")
        (net / "if_inet6").hardlink_to(if_inet6 / "if_inet6")
    assert {"10.9.5.5", "10.9.6.6", "fd00:99::9"} <= ips(tmp_path)


def test_a_process_that_ends_during_the_reading_hides_no_other(tmp_path: Path) -> None:
    """A kernel without IPv6 has no if_inet6 either."""
    for gone in ("task/1/net/fib_trie", "task/1/net/if_inet6", "comm"):
        proc = tmp_path / Path(gone).name
        process(proc, 1, fib_trie=FIB_TRIE)
        (proc / "1" / gone).unlink()
        process(proc, 2, fib_trie=ONE_LEAF)
        assert ("10.9.6.6", 2) in {(found.ip, found.pid) for found in addresses(proc)}


def test_who_may_have_an_address_for_a_moment_only_is_told_apart(tmp_path: Path) -> None:
    """A thread of dockerd enters the namespaces of pods, and a container may be newer than its list."""
    up = timedelta(hours=1)
    ticks = os.sysconf("SC_CLK_TCK")
    process(tmp_path, 1, fib_trie=FIB_TRIE)
    for pid, age in {7: 3600, 8: 59}.items():
        process(tmp_path, pid, fib_trie=ONE_LEAF)
        started = int((up.total_seconds() - age) * ticks)
        stat = f"{pid} (java) S {' '.join(['1'] * 18)} {started} 0\n"
        (tmp_path / f"{pid}/stat").write_text(stat)
    process(tmp_path, 9, fib_trie=ONE_LEAF)  # that started at an unknown time
    process(tmp_path, 10)
    process(tmp_path, 10, thread=11, fib_trie=ONE_LEAF)
    found = read_addresses(tmp_path, uptime=up)
    passing = {address.pid: address.passing for address in found}
    assert passing == {1: False, 7: False, 8: True, 9: False, 10: True}


def test_what_cannot_be_parsed_is_unavailable(tmp_path: Path) -> None:
    net = process(tmp_path, 1)
    before = len(os.listdir("/proc/self/fd"))
    for text in ("99999999.0.0.1", "10.9.6", "10.9.6.6.6", "1..2", "9" * 5000):
        (net / "fib_trie").write_text(ONE_LEAF.replace("10.9.6.6", text))
        why = why_unavailable("addresses", proc=tmp_path)
        assert why.startswith(f"cannot parse {net}/fib_trie: ")
        assert len(why) < 400
    (net / "fib_trie").write_text(FIB_TRIE)
    for line in ("fd00", "xyz 03 40 00 82 eth0", "1 2 3"):
        (net / "if_inet6").write_text(f"{line}\n")
        assert why_unavailable("addresses", proc=tmp_path).startswith(
            f"cannot parse {net}/if_inet6: "
        )
    assert len(os.listdir("/proc/self/fd")) == before
    for interface in (b"a\xffb", b"a\xe2\x80\x83b", b"a\x1cb", b"a\x0cb c"):
        (net / "if_inet6").write_bytes(
            b"fd000099000000000000000000000009 03 40 00 82 " + interface + b"\n"
        )
        assert {"10.9.5.5", "fd00:99::9"} <= ips(tmp_path)


def test_too_many_routes_or_addresses_are_unavailable_and_not_cut(tmp_path: Path) -> None:
    route, last = (
        "     |-- 10.64.0.0\n        /24 link UNICAST\n",
        "     |-- 10.9.6.6\n        /32 host LOCAL\n",
    )
    net = process(tmp_path, 1, fib_trie=f"Main:\n{route * 10_000}{last}")
    assert ips(tmp_path) == {"10.9.6.6"}
    (net / "fib_trie").write_text(f"Main:\n{route * 400_000}{last}")
    why = why_unavailable("addresses", proc=tmp_path)
    assert why.endswith("fib_trie: it has more than the limit of 16,777,216 bytes")
    leaves = [
        f"     |-- {IPv4Address('10.0.0.0') + number}\n        /32 host LOCAL\n"
        for number in range(65_537)
    ]
    (net / "fib_trie").write_text("Main:\n" + "".join(leaves[:1000]))
    assert len(addresses(tmp_path)) == 1000
    (net / "fib_trie").write_text("Main:\n" + "".join(leaves))
    assert why_unavailable("addresses", proc=tmp_path).endswith("have over 65,536 addresses")


def test_what_is_unreadable_or_no_process_table_is_unavailable_and_not_empty(
    open_dir: Path,
) -> None:
    for name in ("a", "1"):
        (open_dir / name).mkdir()
        why = f"no process in {open_dir} shows its network namespace: check --proc"
        assert why_unavailable("addresses", proc=open_dir) == why
    why = f"cannot read {open_dir}/proc: no such file or directory"
    assert why_unavailable("addresses", proc=open_dir / "proc") == why
    for name in ("fib_trie", "if_inet6"):
        file = process(open_dir / name, 1, fib_trie=ONE_LEAF) / name
        file.chmod(0o000)
        with as_nobody():
            why = why_unavailable("addresses", proc=open_dir / name)
        assert why == f"cannot read {file}: permission denied (run as root)"


# Real namespaces

REAL = Path("/proc")
IN_POD = ("198.18.77.1", "fd00:99::9", "198.18.78.1")


@pytest.fixture
def namespace() -> Iterator[str]:
    """Make a network namespace as a CNI plugin does: an address of each family, and one whose link is down."""
    needs(
        os.geteuid() == 0 and Path("/sbin/ip").exists(),
        "root and iproute2, to make a network namespace",
    )
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


def test_a_namespace_that_only_a_thread_holds_is_read_while_processes_come_and_go(
    namespace: str,
) -> None:
    churn, nobody = (
        ["/bin/sh", "-c", "while :; do /bin/true; done"],
        NOBODY if os.geteuid() == 0 else None,
    )
    with ExitStack() as stack:
        for _ in range(3):
            started = subprocess.Popen(churn, user=nobody)  # noqa: S603 (ours)
            stack.callback(started.wait)
            stack.callback(started.kill)
        for arguments in ((), ("alone",)):
            with thread_in(namespace, *arguments) as pid:
                for _ in range(4):
                    found = {address.ip: address.pid for address in addresses(REAL)}
                    assert {found.get(ip) for ip in IN_POD} == {pid}, arguments
    assert "198.18.77.1" not in ips(REAL), "nobody lives there any more"


# As in the pod: uid 0, every capability dropped. What permissions hide from it, root could read with CAP_DAC_OVERRIDE.
POWERLESS = """
import sys
from tests.wired import read, why_unavailable
print(read("addresses", proc="/proc"), why_unavailable("addresses", proc=sys.argv[1]))
"""


def test_no_capability_is_needed(namespace: str, tmp_path: Path) -> None:
    needs(Path("/usr/bin/setpriv").exists(), "setpriv, to drop capabilities")
    (process(tmp_path, 1) / "fib_trie").chmod(0o000)
    dropped = ("setpriv", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs")
    with thread_in(namespace):
        printed = run(*dropped, sys.executable, "-c", POWERLESS, str(tmp_path))
    assert "198.18.77.1" in printed
    assert printed.endswith(
        ": permission denied (as root: likely a missing capability, AppArmor or SELinux)\n"
    )


# A process that is older than the sandbox enters and leaves its namespaces as fast as it can.
MOVING = """
import ctypes, faulthandler, os, subprocess, sys, time
from tests.sources.reading import value_of
from tests.wired import wired
faulthandler.dump_traceback_later(30, exit=True)
sources = wired(proc="/proc").snapshot
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
end, readings = time.monotonic() + 3, 0
while readings < 10 or time.monotonic() < end:
    assert {"10.244.1.2", "fd00:99::9"} <= {address.ip for address in value_of(sources, "addresses")}
    readings += 1
assert os.waitpid(mover, os.WNOHANG) == (0, 0)
"""


def test_a_thread_that_changes_its_namespace_all_the_time_hides_none() -> None:
    needs(
        os.geteuid() == 0 and bool(shutil.which("unshare")) and bool(shutil.which("ip")),
        "root, unshare and ip",
    )
    private = ("unshare", "--pid", "--net", "--fork", "--kill-child", "--mount-proc")
    run(*private, sys.executable, "-c", MOVING)
