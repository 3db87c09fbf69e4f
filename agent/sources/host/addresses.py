"""Reads the addresses configured in the network namespaces of the node's threads. Changes nothing.

`/proc/<pid>/task/<tid>/net/fib_trie` and `if_inet6` show a thread's namespace without entering it and without any
capability. This needs the node's process table (hostPID). A namespace that no thread is in is not seen.

The inodes of these files tell the namespaces apart. The kernel gives those of a namespace that has ended to the next,
which may be missed if it begins during the reading. No address depends on it: a sandbox has its namespace before
its reservation, and reservations are read before.
"""

import errno
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path
from typing import Final

from agent.model.snapshot import Address, Known, Snapshot
from agent.model.text import truncate
from agent.sources.host.files import LARGEST_TABLE, read_open
from agent.sources.host.processes import process_ids, read_of
from agent.sources.source import Source, unowned_ids
from agent.sources.source_error import SourceError, cannot_read

# "|-- 10.0.0.7" and, below it, "/32 host LOCAL": an address of an interface, up or down. Other routes may precede it.
_LOCAL4: Final = re.compile(rb"\|-- ([\d.]+)\n(?: +/\d+ .*\n)*? +/32 \S+ LOCAL")
_LINK_OR_LOOPBACK: Final = frozenset({b"20", b"10"})
_GONE: Final = frozenset({errno.ENOENT, errno.ESRCH, errno.EINVAL, errno.ENXIO})
_MOST_ADDRESSES: Final = 65536


@dataclass(frozen=True)
class AddressesSource(Source):
    """Looks into every network namespace, which a healthy node never pays for."""

    proc: Path
    name = "addresses"

    def reason_not_needed(self, snapshot: Snapshot) -> str | None:
        if not isinstance(snapshot.containers, Known):
            return "network namespaces were not read, because the list of containers is missing"
        return None if unowned_ids(snapshot) else "no reservation is known to be without an owner"

    def read(self, _: Snapshot) -> tuple[Address, ...]:
        return read_addresses(self.proc)


def read_addresses(proc: Path) -> tuple[Address, ...]:
    """Read every namespace once; raises SourceError where a living thread cannot be inspected."""
    # A thread that ends meanwhile is skipped: a child that has its namespace may be seen by the next snapshot only.
    found: list[Address] = []
    seen: set[int] = set()
    for pid, net in _threads(proc):
        for ip, inode in _unread_addresses(net, seen):
            found.append(Address(ip, pid, read_of(proc, pid, "comm").strip() or "?", inode))
        if len(found) > _MOST_ADDRESSES:
            raise SourceError(
                f"{net}: the namespaces up to this one have over {_MOST_ADDRESSES:,} addresses"
            )
    if not seen:
        raise SourceError(f"no process in {proc} shows its network namespace: check --proc")
    return tuple(found)


def _threads(proc: Path) -> Iterator[tuple[int, str]]:
    """Yield the process and the `net` directory of each thread: it can leave the namespace of its process."""
    for pid in process_ids(proc):
        task = f"{proc}/{pid}/task"
        try:
            threads = os.listdir(task)
        except OSError as error:
            _require_gone(task, error)
            continue
        yield from ((pid, f"{task}/{thread}/net") for thread in threads)


def _unread_addresses(net: str, seen: set[int]) -> Iterator[tuple[str, int]]:
    """Yield the addresses in a thread's namespace that were not read yet, each with the inode of its table."""
    for name, addresses_in in (("fib_trie", _ipv4_addresses), ("if_inet6", _ipv6_addresses)):
        content, inode = _unread(f"{net}/{name}", seen)
        try:
            yield from ((ip, inode) for ip in addresses_in(content))
        except (IndexError, ValueError) as error:
            raise SourceError(f"cannot parse {net}/{name}: {truncate(error)}") from error


def _unread(file: str, seen: set[int]) -> tuple[bytes, int]:
    """Return content and inode; nothing if it was read, or the thread has ended, or the kernel has no IPv6."""
    # A runtime's thread enters a pod's namespace for a moment, so each path may lead to another namespace than the
    # last. Only the open file tells which one is read, and one file of a namespace says nothing about the other.
    try:
        if os.stat(file).st_ino in seen:  # noqa: PTH116 (a node has thousands of threads: a Path costs half as much)
            return b"", 0
        handle = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
        try:
            inode = os.fstat(handle).st_ino
            content = b"" if inode in seen else read_open(handle, file, LARGEST_TABLE)
        finally:
            os.close(handle)
    except OSError as error:
        _require_gone(file, error)
        return b"", 0
    seen.add(inode)
    return content, inode


def _require_gone(file: str, error: OSError) -> None:
    """Raise SourceError if a file of a living thread cannot be read."""
    if error.errno not in _GONE:
        raise SourceError(cannot_read(file, error)) from error


def _ipv4_addresses(fib_trie: bytes) -> set[str]:
    return {
        str(IPv4Address(ip.decode()))
        for ip in _LOCAL4.findall(fib_trie)
        if not ip.startswith(b"127.")
    }


def _ipv6_addresses(if_inet6: bytes) -> set[str]:
    # The owner of a namespace can name an interface with nearly any bytes: the name, last, is not parsed.
    fields = (line.split(b" ", 4) for line in if_inet6.split(b"\n") if line)
    return {
        str(IPv6Address(int(address, 16)))
        for address, _, _, scope, *_ in fields
        if scope not in _LINK_OR_LOOPBACK
    }
