"""Reads the addresses configured in the network namespaces of the node's processes. Changes nothing.

`/proc/<pid>/net/fib_trie` and `if_inet6` show a process's namespace without entering it and without any capability.
This needs the node's process table (hostPID). A namespace without a process is not seen.
"""

import errno
import os
import re
from ipaddress import IPv6Address
from pathlib import Path

from agent.model.snapshot import Address
from agent.sources.error import SourceError, cannot_read

# "|-- 10.0.0.7" and, on the next line, "/32 host LOCAL": an address of an interface, up or down.
_LOCAL4 = re.compile(rb"\|-- ([\d.]+)\n\s+/32 host LOCAL")
_LINK_OR_LOOPBACK = {b"20", b"10"}
_GONE = {errno.ENOENT, errno.ESRCH, errno.EINVAL}


def read_addresses(proc: Path) -> tuple[Address, ...]:
    """Read every namespace once; raises SourceError where a living process cannot be inspected.

    A process that ends meanwhile is skipped: its namespace belongs to another process too, or is gone.
    """
    found: dict[str, Address] = {}
    seen_namespaces: set[str] = set()
    any_read = False
    for pid in _pids(proc):
        namespace = _namespace(proc, pid)
        if namespace in seen_namespaces:
            continue
        ips = _addresses(proc, pid)
        if ips is None:
            continue
        any_read = True
        if namespace is not None:
            seen_namespaces.add(namespace)
        command = ""
        for ip in ips:
            if ip not in found:
                command = command or _command(proc, pid)
                found[ip] = Address(ip, pid, command)
    if not any_read:
        raise SourceError(f"no process in {proc} shows its network namespace: check --proc")
    return tuple(found.values())


def _pids(proc: Path) -> list[int]:
    try:
        return sorted(int(name) for name in os.listdir(proc) if name.isdecimal())
    except OSError as error:
        raise SourceError(cannot_read(proc, error)) from error


def _namespace(proc: Path, pid: int) -> str | None:
    """Return the namespace's name, so that it is read once; without permission, each process is read."""
    try:
        return str((proc / f"{pid}/ns/net").readlink())
    except OSError:
        return None


def _addresses(proc: Path, pid: int) -> set[str] | None:
    """Read a process's namespace; None where it has ended. Its main thread may have ended before others."""
    found = _addresses_in(proc / f"{pid}/net")
    if found is not None:
        return found
    try:
        threads = os.listdir(proc / f"{pid}/task")
    except OSError:
        return None
    others = (proc / f"{pid}/task/{thread}/net" for thread in threads if thread != str(pid))
    return next((ips for net in others if (ips := _addresses_in(net)) is not None), None)


def _addresses_in(net: Path) -> set[str] | None:
    try:
        ips = {ip.decode() for ip in _LOCAL4.findall((net / "fib_trie").read_bytes())}
    except OSError as error:
        if error.errno in _GONE:
            return None
        raise SourceError(cannot_read(f"{net}/fib_trie", error)) from error
    ipv6 = _ipv6_addresses_in(net)
    return None if ipv6 is None else {ip for ip in ips if not ip.startswith("127.")} | ipv6


def _ipv6_addresses_in(net: Path) -> set[str] | None:
    try:
        lines = (net / "if_inet6").read_bytes().split(b"\n")
    except OSError as error:
        if error.errno not in _GONE:
            raise SourceError(cannot_read(f"{net}/if_inet6", error)) from error
        # The process has ended, or the kernel has no IPv6.
        return set() if (net / "fib_trie").exists() else None
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
