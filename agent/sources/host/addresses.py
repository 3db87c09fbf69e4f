"""Reads the addresses configured in the network namespaces of the node's threads. Changes nothing.

`/proc/<pid>/task/<tid>/net/fib_trie` and `if_inet6` show a thread's namespace without entering it and without any
capability. This needs the node's process table (hostPID). A namespace that no thread is in is not seen.
"""

import errno
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path
from typing import Final

from agent.model.snapshot import Address
from agent.model.text import truncate
from agent.sources.os_error import cannot_read
from agent.sources.source_error import SourceError

# "|-- 10.0.0.7" and, below it, "/32 host LOCAL": an address of an interface, up or down. Other routes may precede it.
_LOCAL4 = re.compile(rb"\|-- ([\d.]+)\n(?: +/\d+ .*\n)*? +/32 \S+ LOCAL")
_LINK_OR_LOOPBACK = {b"20", b"10"}
_GONE = {errno.ENOENT, errno.ESRCH, errno.EINVAL, errno.ENXIO}
_IPV4, _IPV6 = "fib_trie", "if_inet6"
_LARGEST: Final = 16 * 1024 * 1024
_MOST_BYTES: Final = 64 * 1024 * 1024
"""Of all namespaces together: a large host table, and 1,000 routes in each of 500 pods."""
_MOST_ADDRESSES: Final = 65536
_PIECE = 64 * 1024
_LINKS_OF_ONE = 3
"""Of a directory with one directory in it."""
_MOST_OPEN = 512
"""Files, of 256 namespaces. A process may usually have 1024 open."""


def read_addresses(proc: Path) -> tuple[Address, ...]:
    """Read every namespace once; raises SourceError where a living thread cannot be inspected.

    A thread that ends meanwhile is skipped: its namespace belongs to another thread too, or is gone.
    """
    found: dict[str, Address] = {}
    with closing(_Files(_own_inodes(proc))) as files:
        for pid, net, inode in _threads(proc, files):
            for ip in _unread_addresses(net, inode, files) - found.keys():
                found[ip] = Address(ip, pid, _command(proc, pid))
            if len(found) > _MOST_ADDRESSES:
                raise SourceError(f"{net}: the namespaces up to this one have over {_MOST_ADDRESSES:,} addresses")
        if not files.read:
            raise SourceError(f"no process in {proc} shows its network namespace: check --proc")
    return tuple(found.values())


class _Files:
    """The files of namespaces that were read. Their inodes tell the namespaces apart; `ns/net` needs a capability.

    The kernel gives the inodes of a namespace that has died to another one, but not while somebody has the file open.
    So each one stays open until the end. `O_PATH` keeps only the file: its namespace can die.
    """

    def __init__(self, own: frozenset[int]) -> None:
        """`own`: the two files of this process' namespace, which it never leaves; empty: not known."""
        self.read: set[int] = set()
        self.done = frozenset[int]()
        """The files of the own namespace, once both were read.

        The threads of host processes are in it, and one `stat` is enough for each. Of no other namespace is it certain
        which two files belong together, because a thread can enter another one between two questions.
        """
        self._own, self._open = own, ExitStack()
        self._bytes = 0

    def unread(self, file: str, inode: int | None) -> bytes:
        """Return the content; nothing if it was read, or the thread has ended. Raises SourceError.

        A runtime's thread enters a pod's namespace for a moment, so each path may lead to another namespace than the
        last. Only the open file tells which one is read, and one file of a namespace says nothing about the other.
        """
        if inode is None or inode in self.read:
            return b""
        try:
            with ExitStack() as opened:
                handle = os.open(file, os.O_PATH | os.O_CLOEXEC)
                opened.callback(os.close, handle)
                inode = os.fstat(handle).st_ino
                if inode in self.read:
                    return b""
                text = _content(handle, file)
                self._count(text, file)
                if len(self.read) == _MOST_OPEN:
                    self.close()
                self._open.callback(opened.pop_all().close)
        except OSError as error:
            _require_gone(file, error)
            return b""
        self.read.add(inode)
        if self._own <= self.read:
            self.done = self._own
        return text

    def _count(self, text: bytes, file: str) -> None:
        self._bytes += len(text)
        if self._bytes > _MOST_BYTES:
            raise SourceError(f"{file}: the namespaces up to this one have over {_MOST_BYTES >> 20} MiB of routes")

    def close(self) -> None:
        """Close the files, and forget what was read: from now on, an inode may be that of another namespace."""
        self.read.clear()
        self.done = frozenset()
        self._open.close()


def _content(handle: int, file: str) -> bytes:
    pieces, size = list[bytes](), 0
    with Path(f"/proc/self/fd/{handle}").open("rb", buffering=0) as opened:
        while piece := opened.read(_PIECE):
            pieces.append(piece)
            size += len(piece)
            if size > _LARGEST:
                raise SourceError(
                    f"{file}: larger than {_LARGEST >> 20} MiB: its network namespace has too many routes"
                )
    return b"".join(pieces)


def _own_inodes(proc: Path) -> frozenset[int]:
    try:
        return frozenset((proc / "self/net" / name).stat().st_ino for name in (_IPV4, _IPV6))
    except OSError:  # another process table, or a kernel without IPv6
        return frozenset()


def _unread_addresses(net: str, inode: int | None, files: _Files) -> set[str]:
    """Return the addresses in a thread's namespace that were not read yet. `inode`: of its first file."""
    fib_trie, if_inet6 = f"{net}/{_IPV4}", f"{net}/{_IPV6}"
    ipv4 = _ipv4_addresses(files.unread(fib_trie, inode), fib_trie)
    return ipv4 | _ipv6_addresses(files.unread(if_inet6, _inode(if_inet6)), if_inet6)


def _inode(file: str) -> int | None:
    """Return None if the thread has ended, or the kernel has no IPv6, which looks the same."""
    try:
        return os.stat(file).st_ino  # noqa: PTH116 (a Path for each thread costs half as much again)
    except OSError as error:
        _require_gone(file, error)
        return None


def _require_gone(file: str, error: OSError) -> None:
    """Raise SourceError if a file of a living thread cannot be read."""
    if error.errno not in _GONE:
        raise SourceError(cannot_read(file, error)) from error


def _threads(proc: Path, files: _Files) -> Iterator[tuple[int, str, int | None]]:
    """Yield the process, the `net` directory and the first file of each thread that is not in the own namespace.

    Every thread is asked, because it can leave the namespace of its process. A node has thousands: nothing else is
    done for most of them.
    """
    try:
        pids = sorted(int(name) for name in os.listdir(proc) if name.isdecimal())
    except OSError as error:
        raise SourceError(cannot_read(proc, error)) from error
    for pid in pids:
        task = f"{proc}/{pid}/task"
        for thread in _threads_of(task, pid):
            if (inode := _inode(f"{task}/{thread}/net/{_IPV4}")) not in files.done:
                yield pid, f"{task}/{thread}/net", inode


def _threads_of(task: str, pid: int) -> Sequence[str | int]:
    try:
        # The kernel counts the threads as directories. A single one has the number of the process.
        if os.stat(task).st_nlink == _LINKS_OF_ONE:  # noqa: PTH116 (a Path for each process costs as much)
            return (pid,)
        return os.listdir(task)
    except OSError as error:
        _require_gone(task, error)
        return ()


def _ipv4_addresses(fib_trie: bytes, file: str) -> set[str]:
    try:
        return {str(IPv4Address(ip.decode())) for ip in _LOCAL4.findall(fib_trie) if not ip.startswith(b"127.")}
    except ValueError as error:
        raise SourceError(f"cannot parse {file}: {truncate(error)}") from error


def _ipv6_addresses(if_inet6: bytes, file: str) -> set[str]:
    try:
        # The owner of a namespace can name an interface with nearly any bytes: the name, last, is not parsed.
        fields = [line.split(b" ", 4) for line in if_inet6.split(b"\n") if line]
        return {str(IPv6Address(int(one[0], 16))) for one in fields if one[3] not in _LINK_OR_LOOPBACK}
    except (IndexError, ValueError) as error:
        raise SourceError(f"cannot parse {file}: {truncate(error)}") from error


def _command(proc: Path, pid: int) -> str:
    try:
        return (proc / f"{pid}/comm").read_text(errors="backslashreplace").strip()
    except OSError:
        return "?"
