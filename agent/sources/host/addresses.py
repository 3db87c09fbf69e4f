"""Reads the addresses configured in the network namespaces of the node's threads. Changes nothing.

`/proc/<pid>/task/<tid>/net/fib_trie` and `if_inet6` show a thread's namespace without entering it and without any
capability. This needs the node's process table (hostPID). A namespace that no thread is in is not seen.
"""

import errno
import os
import re
from collections.abc import Iterator
from ipaddress import IPv6Address
from pathlib import Path

from agent.model.snapshot import Address
from agent.sources.os_error import cannot_read
from agent.sources.source_error import SourceError

# "|-- 10.0.0.7" and, below it, "/32 host LOCAL": an address of an interface, up or down. Other routes may precede it.
_LOCAL4 = re.compile(rb"\|-- ([\d.]+)\n(?: +/\d+ .*\n)*? +/32 \S+ LOCAL")
_LINK_OR_LOOPBACK = {b"20", b"10"}
_GONE = {errno.ENOENT, errno.ESRCH, errno.EINVAL, errno.ENXIO}


def read_addresses(proc: Path) -> tuple[Address, ...]:
    """Read every namespace once; raises SourceError where a living thread cannot be inspected.

    A thread that ends meanwhile is skipped: its namespace belongs to another thread too, or is gone.
    """
    found: dict[str, Address] = {}
    seen4: set[int] = set()
    seen6: set[int] = set()
    for pid, net in _threads(proc):
        ips = _ipv4_addresses(_unseen(f"{net}/fib_trie", seen4)) | _ipv6_addresses(net, seen6)
        for ip in ips - found.keys():
            found[ip] = Address(ip, pid, _command(proc, pid))
    if not seen4:
        raise SourceError(f"no process in {proc} shows its network namespace: check --proc")
    return tuple(found.values())


def _unseen(file: str, seen: set[int]) -> bytes:
    """Read a file of a thread's namespace and add its inode to `seen`; nothing if that was done or the thread ended.

    A runtime's thread enters a pod's namespace for a moment, so each path may lead to another namespace than the last.
    Only the open file tells which one was read, and one file of a namespace says nothing about the other.

    `ns/net` would need a capability. An inode is used again once its namespace has died. That hides nothing: a
    namespace is older than the reservations of its addresses, so one born now has none in this snapshot.
    """
    try:
        if os.stat(file).st_ino in seen:  # noqa: PTH116 (a Path for each thread costs half as much again)
            return b""
        with Path(file).open("rb") as opened:
            text = opened.read()
            seen.add(os.fstat(opened.fileno()).st_ino)
            return text
    except OSError as error:
        if error.errno in _GONE:
            return b""
        raise SourceError(cannot_read(file, error)) from error


def _threads(proc: Path) -> Iterator[tuple[int, str]]:
    """Yield each thread's process and `net` directory: a thread can leave the namespace of its process."""
    try:
        pids = sorted(int(name) for name in os.listdir(proc) if name.isdecimal())
    except OSError as error:
        raise SourceError(cannot_read(proc, error)) from error
    for pid in pids:
        try:
            threads = os.listdir(f"{proc}/{pid}/task")
        except OSError as error:
            if error.errno in _GONE:
                continue
            raise SourceError(cannot_read(f"{proc}/{pid}/task", error)) from error
        yield from ((pid, f"{proc}/{pid}/task/{thread}/net") for thread in threads)


def _ipv4_addresses(fib_trie: bytes) -> set[str]:
    return {ip.decode() for ip in _LOCAL4.findall(fib_trie) if not ip.startswith(b"127.")}


def _ipv6_addresses(net: str, seen: set[int]) -> set[str]:
    """Read the thread's IPv6 addresses; none if the kernel has no IPv6, which looks as if the thread had ended."""
    lines = _unseen(f"{net}/if_inet6", seen).split(b"\n")
    try:
        # The owner of a namespace can name an interface with nearly any bytes: the name, last, is not parsed.
        fields = [line.split(b" ", 4) for line in lines if line]
        return {str(IPv6Address(int(one[0], 16))) for one in fields if one[3] not in _LINK_OR_LOOPBACK}
    except (IndexError, ValueError) as error:
        raise SourceError(f"cannot parse {net}/if_inet6: {error}") from error


def _command(proc: Path, pid: int) -> str:
    try:
        return (proc / f"{pid}/comm").read_text(errors="backslashreplace").strip()
    except OSError:
        return "?"
