"""Reads host-local's directory. Changes nothing.

The format is that of host-local 0.6 to 1.9: one file for each address, named as Go prints the address, with the
sandbox's id (`<= 0.7`), or the id, CR LF and the interface's name (`>= 0.8`), or nothing at all after a crash; beside
them `last_reserved_ip[.N]` and `lock`. Everything else is unrecognized. Files are read without host-local's lock, so
a file that is being written can look empty: it is too new to be a leak then.
"""

import errno
import os
import re
import stat
import sys
from collections.abc import Iterator
from dataclasses import replace
from ipaddress import IPv6Address, ip_address
from itertools import islice
from pathlib import Path
from typing import Final

from agent.model.snapshot import Known, NetworkStore, Reservation, Unavailable, UnrecognizedEntry
from agent.model.text import escape
from agent.sources.os_error import cannot_read

MAX_RESERVATION_BYTES = 4096
"""Bytes. host-local writes 70; a larger file is not host-local's."""
MAX_NETWORKS: Final = 1000
"""Directories of networks: a node has a few."""
_MOST_NAMED: Final = 8
"""Of them in a message."""

_OWN = re.compile(r"lock|last_reserved_ip(\.\d{1,3})?")
_OCTET = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_IPV4 = re.compile(rf"(?:{_OCTET}\.){{3}}{_OCTET}")
_CONTENT = re.compile(rb"\s*([0-9a-f]{64})(?:\r?\n([^\s/]{1,15}))?\s*")
_ODD_KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFLNK: "a symbolic link",
}
_IDS_OF_PROGRAMS = {
    "nerdctl": re.compile(r"[\w.-]+-[0-9a-f]{64}", re.ASCII),
    "BuildKit": re.compile(r"[a-z0-9]{25}"),
    "Nomad": re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"),
}
"""The programs beside the kubelet that use host-local, by the form of their IDs. podman's are like those of pods."""
# O_NONBLOCK: a FIFO must not block; O_NOFOLLOW: a link must not lead out of the directory.
_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def read_reservations(networks_dir: Path, network: str, most: int = 16384, others: int = 0) -> NetworkStore:
    """Read one network's directory; one that does not exist, or is no directory, is unavailable and not empty.

    `most`: how many files, together with those of the `others` that were read.
    """
    directory = networks_dir / network
    try:
        handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        reading = Unavailable("reservations", _why_unavailable(directory, error), error.errno == errno.ENOENT)
        # Whatever else is there, host-local makes this one for the first pod.
        absent = error.errno == errno.ENOENT and any(map(is_directory, (networks_dir, networks_dir.parent)))
        return NetworkStore(network, reading, data_dir=str(networks_dir), absent=absent)
    try:
        return replace(_read_entries(network, handle, max(0, most - others)), data_dir=str(networks_dir))
    except _TooMany:
        together = f", together with the {others:,} of other networks" if others else ""
        what_to_do = "raise --max-reservations, and the memory limit of its container"
        why = f"{directory} has more than {most:,} files{together}: {what_to_do}"
        return NetworkStore(network, Unavailable("reservations", why))
    except OSError as error:
        return NetworkStore(network, Unavailable("reservations", cannot_read(directory, error)))
    finally:
        os.close(handle)


def _why_unavailable(directory: Path, error: OSError) -> str:
    if error.errno == errno.ENOENT:
        others = _other_networks(directory)
        return f"{directory} does not exist: check --network and --cni-networks-dir{others}"
    if error.errno in {errno.ENOTDIR, errno.ELOOP}:
        return f"{directory} is not a directory (symbolic links are not followed)"
    return cannot_read(directory, error)


def _other_networks(directory: Path) -> str:
    try:
        found = describe_networks(directory.parent)
    except OSError:
        return ""  # only a hint: the directory itself was found missing
    return f" (networks found: {found})" if found else ""


def describe_networks(networks_dir: Path) -> str:
    """Return some names for a message; empty: there is none. Raises OSError."""
    return ", ".join(map(escape, network_names(networks_dir)[:_MOST_NAMED]))


def network_names(networks_dir: Path) -> list[str]:
    """Return the directories, one for each network; none where `networks_dir` does not exist. Raises OSError.

    If there are more than MAX_NETWORKS, return one more than that. A name that is not UTF-8 has surrogates.
    """
    try:
        with os.scandir(networks_dir) as entries:
            names = (entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
            return sorted(islice(names, MAX_NETWORKS + 1))
    except FileNotFoundError:
        return []


def is_directory(path: Path) -> bool:
    """Return whether it is known to be one: a disk that fails knows nothing."""
    try:
        return path.is_dir()
    except OSError:
        return False


class _TooMany(Exception):
    pass


def _names(directory: int, most: int) -> Iterator[str]:
    with os.scandir(directory) as entries:
        for place, entry in enumerate(entries):
            if place >= most:
                raise _TooMany
            yield entry.name


def _read_entries(network: str, directory: int, most: int) -> NetworkStore:
    reservations: list[Reservation] = []
    unrecognized: list[UnrecognizedEntry] = []
    for name in _names(directory, most):
        if _OWN.fullmatch(name):
            continue
        entry = read_one(network, name, directory)
        if isinstance(entry, Reservation):
            reservations.append(entry)
        elif entry is not None:
            unrecognized.append(entry)
    return NetworkStore(network, Known(tuple(reservations)), tuple(unrecognized))


def read_one(network: str, name: str, directory: int) -> Reservation | UnrecognizedEntry | None:
    """Read one entry by its directory's handle; None where it no longer exists. Raises OSError."""
    is_address = _is_canonical(name)
    try:
        handle = os.open(name, _OPEN, dir_fd=directory)
    except FileNotFoundError:
        return None
    except OSError as error:
        # A link or a socket cannot be opened and is unrecognized; a file without permission is unavailable.
        if error.errno not in {errno.ELOOP, errno.ENXIO, errno.ENODEV}:
            raise
        kind = "a symbolic link" if error.errno == errno.ELOOP else "a socket or a device"
        return UnrecognizedEntry(network, escape(name), f"it is {kind}", is_address)
    try:
        found = os.fstat(handle)
        why = _why_unrecognized(found, is_address)
        content = b"" if why else os.read(handle, MAX_RESERVATION_BYTES + 1)
    finally:
        os.close(handle)
    if why:
        return UnrecognizedEntry(network, escape(name), why, is_address)
    return _parse(network, name, content, found)


def _why_unrecognized(found: os.stat_result, is_address: bool) -> str:
    kind = stat.S_IFMT(found.st_mode)
    if kind != stat.S_IFREG:
        return f"it is {_ODD_KINDS.get(kind, 'not a regular file')}"
    if not is_address:
        return "its name is not an address as host-local writes it"
    if found.st_size > MAX_RESERVATION_BYTES:
        return f"it holds {found.st_size} bytes; host-local writes 70"
    return ""


def _parse(network: str, name: str, content: bytes, found: os.stat_result) -> Reservation | UnrecognizedEntry:
    container_id = ifname = ""
    if content:
        matched = _CONTENT.fullmatch(content)
        if matched is None:
            return UnrecognizedEntry(network, name, _why_unparsable(content), blocks=True, program=_program(content))
        container_id = matched[1].decode("ascii")
        ifname = (matched[2] or b"").decode(errors="surrogateescape")
        if not ifname.isprintable():  # control characters, or not UTF-8
            return UnrecognizedEntry(network, name, _why_unparsable(content), blocks=True)
    return Reservation(network, name, container_id, sys.intern(ifname), found.st_ino, found.st_size, found.st_mtime_ns)


def _why_unparsable(content: bytes) -> str:
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return "its content is not text"
    first = text.split("\n", 1)[0].strip()
    shown = first if len(first) <= 24 else f"{first[:21]}..."  # noqa: PLR2004 (enough to recognize it)
    return f"{shown!r} is not a container id: 64 hex digits, optionally CR LF and an interface"


def _program(content: bytes) -> str:
    """Return the program that writes such IDs; empty: none that is known."""
    first = content.decode("ascii", errors="replace").split("\n", 1)[0].strip()
    return next((name for name, form in _IDS_OF_PROGRAMS.items() if form.fullmatch(first)), "")


def _is_canonical(name: str) -> bool:
    if _IPV4.fullmatch(name):  # what nearly every name is: parsing it takes ten times as long
        return True
    try:
        address = ip_address(name)
    except ValueError:
        return False
    # Go's addresses have no zone, and it prints an IPv4 address mapped into IPv6 as IPv4.
    if isinstance(address, IPv6Address) and (address.scope_id or address.ipv4_mapped):
        return False
    return str(address) == name
