"""Reads the addresses configured in the network namespaces of the node's threads. Changes nothing.

`/proc/<pid>/task/<tid>/net/fib_trie` and `if_inet6` show a thread's namespace without entering it
and without any capability. This needs the node's process table (hostPID). A namespace that no
thread is in is not seen.

The inodes of these files tell the namespaces apart. Inodes are reused: a namespace created during
the read may be missed. No address depends on it: a sandbox has its namespace before its
reservation, and reservations are read before.
"""

import errno
import os
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path
from typing import Final

from agent.model.remedy import Remedy
from agent.model.snapshot import INIT, Address, Known, Snapshot, known_or
from agent.model.text import truncate
from agent.sources.host.files import TABLE_LIMIT, read_open
from agent.sources.host.processes import process_ids, read_process_file, started_after_boot
from agent.sources.source import Source, reservations_of, unowned_ids
from agent.sources.source_error import SourceError, read_error

_LOCAL4: Final = re.compile(rb"\|-- ([\d.]+)\n(?: +/\d+ .*\n)*? +/32 \S+ LOCAL")
"""`|-- 10.0.0.7` and, below it, `/32 host LOCAL`: an address of an interface, up or down. Other
routes may stand between (`fib_trie_seq_show` in the kernel's net/ipv4/fib_trie.c)."""
_LINK_OR_LOOPBACK: Final = frozenset({b"20", b"10"})
"""Scopes in `if_inet6`: `IPV6_ADDR_LINKLOCAL` and `IPV6_ADDR_LOOPBACK` (include/net/ipv6.h)."""
_GONE: Final = frozenset({errno.ENOENT, errno.ESRCH, errno.EINVAL, errno.ENXIO})
"""What reading a file of a thread fails with that has ended."""

_MAX_ADDRESSES: Final = 65536
_INTERVAL: Final = timedelta(minutes=1)
_SETTLED: Final = timedelta(minutes=1)
"""The list of containers, read before, has that of a process as old as this."""
_ID: Final = re.compile(r"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])")
"""A container's, in the path of a cgroup."""


@dataclass
class AddressesSource(Source):
    """Looks into every network namespace.

    That is expensive: once a minute, unless a reservation has no owner, or the last reading had an
    address that no reservation and no container explains.
    """

    proc: Path
    name = "addresses"
    _last: tuple[Address, ...] | None = None
    """Of the last reading; None: it failed."""
    _read_at: timedelta = timedelta(0)
    """By the boot clock."""

    def reason_not_needed(self, snapshot: Snapshot) -> str | None:
        if isinstance(snapshot.containers, Known):
            return None
        return "network namespaces were not read, because the list of containers is missing"

    def read(self, snapshot: Snapshot) -> tuple[Address, ...]:
        """Return the addresses, of the last reading if that is enough; raises SourceError."""
        last = self._last
        is_recent = snapshot.uptime - self._read_at < _INTERVAL
        if last is not None and is_recent and not unowned_ids(snapshot):
            reserved = {reservation.ip for reservation in reservations_of(snapshot)}
            if all(_is_explained(address, reserved) for address in last):
                return last

        self._last = None
        ids = frozenset(container.id for container in known_or(snapshot.containers, ()))
        self._last = read_addresses(self.proc, ids, snapshot.uptime)
        self._read_at = snapshot.uptime
        return self._last


def _is_explained(address: Address, reserved: Collection[str]) -> bool:
    """Return whether it is the node's own, or is reserved or of a container."""
    return address.pid == INIT or address.contained or address.ip in reserved


def read_addresses(
    proc: Path, container_ids: frozenset[str] = frozenset(), uptime: timedelta = timedelta.max
) -> tuple[Address, ...]:
    """Return the addresses of every namespace; raises SourceError if a living thread is unreadable.

    A thread that ends meanwhile is skipped: the next snapshot may be the first to see its child.
    `container_ids`: of the containers that the runtime has. `uptime`: of the node, since its boot.
    """
    found = []
    seen: set[int] = set()  # the inodes of the tables that were read

    for pid, net in _threads(proc):
        for ip, inode, table in _unread_addresses(net, seen):
            command = read_process_file(proc, pid, "comm").strip() or "?"
            contained = pid != INIT and _is_in_container(proc, pid, container_ids)
            found.append((Address(ip, pid, command, inode, contained), table))
        if len(found) > _MAX_ADDRESSES:
            limit = f"over {_MAX_ADDRESSES:,} addresses"
            raise SourceError(f"{net}: the namespaces up to this one have {limit}")

    if not seen:
        remedy = Remedy("check --proc")
        raise SourceError(f"no process in {proc} shows its network namespace: {remedy}", remedy)
    return tuple(
        replace(address, passing=_is_passing(proc, address, table, uptime))
        if address.pid != INIT and not address.contained
        else address
        for address, table in found
    )


def _is_passing(proc: Path, address: Address, table: str, uptime: timedelta) -> bool:
    """Return whether a process may have an address for a moment only.

    Threads of runtimes enter the namespaces of pods, and a container may be younger than the
    runtime's list. `table`: the file that showed the address.
    """
    if not table.startswith(f"{proc}/{address.pid}/task/{address.pid}/"):
        return True
    try:
        has_left = os.stat(table).st_ino != address.namespace  # noqa: PTH116 (as below)
    except OSError:
        has_left = True

    started = started_after_boot(proc, address.pid)
    return has_left or (started is not None and uptime - started < _SETTLED)


def _is_in_container(proc: Path, pid: int, container_ids: frozenset[str]) -> bool:
    """Return whether the cgroup of a process is below that of one of these containers.

    Every runtime and cgroup driver has the container's ID in the path (cgroups(7)). A process
    without a readable cgroup may be in any.
    """
    if not container_ids:
        return False

    cgroup = read_process_file(proc, pid, "cgroup")
    return not cgroup or not container_ids.isdisjoint(_ID.findall(cgroup))


def _threads(proc: Path) -> Iterator[tuple[int, str]]:
    """Yield the process and the `net` directory of each thread.

    A thread can leave the namespace of its process.
    """
    for pid in process_ids(proc):
        task = f"{proc}/{pid}/task"
        try:
            threads = os.listdir(task)
        except OSError as error:
            _require_gone(task, error)
            continue

        for thread in threads:
            yield pid, f"{task}/{thread}/net"


def _unread_addresses(net: str, seen: set[int]) -> Iterator[tuple[str, int, str]]:
    """Yield each address of a thread's namespace that is not `seen`, with inode and path."""
    for name, parse in (("fib_trie", _ipv4_addresses), ("if_inet6", _ipv6_addresses)):
        table = f"{net}/{name}"
        content, inode = _read_unless_seen(table, seen)
        try:
            for ip in parse(content):
                yield ip, inode, table
        except (IndexError, ValueError) as error:
            raise SourceError(f"cannot parse {table}: {truncate(error)}") from error


def _read_unless_seen(file: str, seen: set[int]) -> tuple[bytes, int]:
    """Return content and inode of a table, and add the inode to `seen`.

    The content is empty if it was seen, if the thread has ended, or if the kernel has no IPv6.
    """
    # A runtime's thread enters a pod's namespace for a moment, so each path may lead to another
    # namespace than the last. Only the open file tells which one is read, and one file of a
    # namespace says nothing about the other.
    try:
        # A node has thousands of threads: a Path costs half as much again.
        if os.stat(file).st_ino in seen:  # noqa: PTH116
            return b"", 0
        handle = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
        try:
            inode = os.fstat(handle).st_ino
            content = b"" if inode in seen else read_open(handle, file, TABLE_LIMIT)
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
        raise read_error(file, error) from error


def _ipv4_addresses(fib_trie: bytes) -> set[str]:
    """Return the addresses in the table of one namespace, without those of loopback."""
    ips = (ip for ip in _LOCAL4.findall(fib_trie) if not ip.startswith(b"127."))
    return {str(IPv4Address(ip.decode())) for ip in ips}


def _ipv6_addresses(if_inet6: bytes) -> set[str]:
    """Return the same for IPv6, and without those of links; raises ValueError."""
    ips = set()
    for line in filter(None, if_inet6.split(b"\n")):
        # The owner of a namespace can name an interface with nearly any bytes: the name, last, is
        # not parsed.
        address, _, _, scope, *_ = line.split(b" ", 4)
        if scope not in _LINK_OR_LOOPBACK:
            ips.add(str(IPv6Address(int(address, 16))))
    return ips
