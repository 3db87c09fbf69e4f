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
from agent.sources.error import SourceError, cannot_read

# "|-- 10.0.0.7" and, below it, "/32 host LOCAL": an address of an interface, up or down. Other routes may precede it.
_LOCAL4 = re.compile(rb"\|-- ([\d.]+)\n(?: +/\d+ .*\n)*? +/32 \S+ LOCAL")
_LINK_OR_LOOPBACK = {b"20", b"10"}
_GONE = {errno.ENOENT, errno.ESRCH, errno.EINVAL, errno.ENXIO}
_ATTEMPTS = 10
"""A runtime's thread enters a pod's namespace for a moment: the second attempt reads one namespace from end to end."""


def read_addresses(proc: Path) -> tuple[Address, ...]:
    """Read every namespace once; raises SourceError where a living thread cannot be inspected.

    A thread that ends meanwhile is skipped: its namespace belongs to another thread too, or is gone.
    """
    found: dict[str, Address] = {}
    seen: set[int] = set()
    for pid, net in _threads(proc):
        for ip in _unseen(net, seen) - found.keys():
            found[ip] = Address(ip, pid, _command(proc, pid))
    if not seen:
        raise SourceError(f"no process in {proc} shows its network namespace: check --proc")
    return tuple(found.values())


def _unseen(net: str, seen: set[int]) -> set[str]:
    """Read a thread's namespace unless that was done, and add it to `seen`."""
    ips: set[str] = set()
    for _ in range(_ATTEMPTS):
        namespace = _namespace(net)
        if namespace is None or namespace in seen:
            return ips
        read = _addresses_in(net)
        ips |= read or set()
        # If the thread has entered another namespace meanwhile, it is not known which one was read.
        if read is not None and namespace == _namespace(net):
            seen.add(namespace)
            return ips
    raise SourceError(f"cannot read {net}: its thread changes its namespace all the time")


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


def _namespace(net: str) -> int | None:
    """Return the inode that the kernel gave to a file of the thread's namespace; None where the thread has ended.

    `ns/net` would need a capability. An inode is used again once its namespace has died. That hides nothing: a
    namespace is older than the reservations of its addresses, so one born now has none in this snapshot.
    """
    try:
        return os.stat(f"{net}/fib_trie").st_ino  # noqa: PTH116 (a Path for each thread costs half as much again)
    except OSError as error:
        if error.errno in _GONE:
            return None
        raise SourceError(cannot_read(f"{net}/fib_trie", error)) from error


def _addresses_in(net: str) -> set[str] | None:
    try:
        ips = {ip.decode() for ip in _LOCAL4.findall(Path(f"{net}/fib_trie").read_bytes())}
    except OSError as error:
        if error.errno in _GONE:
            return None
        raise SourceError(cannot_read(f"{net}/fib_trie", error)) from error
    ipv6 = _ipv6_addresses_in(net)
    return None if ipv6 is None else {ip for ip in ips if not ip.startswith("127.")} | ipv6


def _ipv6_addresses_in(net: str) -> set[str] | None:
    try:
        lines = Path(f"{net}/if_inet6").read_bytes().split(b"\n")
    except OSError as error:
        if error.errno not in _GONE:
            raise SourceError(cannot_read(f"{net}/if_inet6", error)) from error
        # The process has ended, or the kernel has no IPv6.
        return None if _namespace(net) is None else set()
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
