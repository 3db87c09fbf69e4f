"""Reads host-local's directory. Changes nothing.

The format is that of host-local 0.6 to 1.9: one file for each address, named as Go prints the address, with the
sandbox's id (`<= 0.7`), or the id, CR LF and the interface's name (`>= 0.8`), or nothing (or only NUL bytes)
after a crash; beside them `last_reserved_ip[.N]` and `lock`. Everything else is unrecognized. Files are read without
host-local's lock, so a file that is being written can look empty: it is too new to be a leak then.
"""

import errno
import os
import re
import socket
import stat
import sys
from itertools import filterfalse
from pathlib import Path
from typing import Final

from agent.model.limits import MAX_RESERVATIONS
from agent.model.snapshot import (
    Known,
    NetworkStore,
    Reservation,
    Unavailable,
    UnrecognizedEntry,
)
from agent.model.text import escape
from agent.sources.host.files import names_in, open_directory
from agent.sources.source_error import NotFound, SourceError

MAX_RESERVATION_BYTES: Final = (
    4096  # Bytes. host-local writes 70; a larger file is not host-local's.
)
_MOST_NAMED: Final = 8  # networks in a message

_OWN: Final = re.compile(r"lock|last_reserved_ip(\.\d{1,3})?")
_CONTENT: Final = re.compile(rb"\s*([0-9a-f]{64})(?:\r?\n([^\s/]{1,15}))?\s*")
_NOT_OPENED: Final = {
    errno.ELOOP: "it is a symbolic link",
    errno.ENXIO: "it is a socket or a device",
    errno.ENODEV: "it is a socket or a device",
}
"""Why an entry cannot be opened that is no file; a file without permission is unavailable."""
_IDS_OF_PROGRAMS: Final = {
    "nerdctl": re.compile(r"[\w.-]+-[0-9a-f]{64}", re.ASCII),
    "BuildKit": re.compile(r"[a-z0-9]{25}"),
    "Nomad": re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"),
}
"""The programs beside the kubelet that use host-local, by the form of their IDs. podman's are like those of pods."""
# O_NONBLOCK: a FIFO must not block; O_NOFOLLOW: a link must not lead out of the directory.
_OPEN: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def read_reservations(
    networks_dir: Path, network: str, most: int = 16384, others: int = 0
) -> NetworkStore:
    """Read one network's directory; what does not exist, or is no directory, is unavailable and not empty."""
    # `most`: how many files, together with those of the `others` that were read.
    directory = networks_dir / network
    try:
        with open_directory(directory, follow=False) as handle:
            names = names_in(handle, directory)
            if len(names) > most - others:
                together = f", together with the {others:,} of other networks" if others else ""
                remedy = "raise --max-reservations, and the memory limit of its container"
                if most >= MAX_RESERVATIONS:
                    remedy = "--max-reservations cannot be higher: find out what fills it"
                why = f"{directory} has more than {most:,} files{together}: {remedy}"
                return NetworkStore(network, Unavailable("reservations", why))
            entries = [
                read_one(network, name, handle) for name in filterfalse(_OWN.fullmatch, names)
            ]
    except NotFound as error:
        why = f"{error}: check --network and --cni-networks-dir{_other_networks(networks_dir)}"
        # Whatever else is there, host-local makes this directory for the first pod.
        absent = any(map(is_directory, (networks_dir, networks_dir.parent)))
        return NetworkStore(network, Unavailable("reservations", why, missing=True), absent=absent)
    except SourceError as error:
        return NetworkStore(network, Unavailable("reservations", str(error)))
    reservations = tuple(entry for entry in entries if isinstance(entry, Reservation))
    unrecognized = tuple(entry for entry in entries if isinstance(entry, UnrecognizedEntry))
    return NetworkStore(network, Known(reservations), unrecognized)


def _other_networks(networks_dir: Path) -> str:
    try:
        found = describe_networks(networks_dir)
    except OSError:
        return ""  # only a hint: the directory itself was found missing
    return f" (networks found: {found})" if found else ""


def describe_networks(networks_dir: Path) -> str:
    """Return some names for a message; empty: there is none. Raises OSError."""
    return ", ".join(map(escape, network_names(networks_dir)[:_MOST_NAMED]))


def network_names(networks_dir: Path) -> list[str]:
    """Return the directories, one for each network; none where `networks_dir` does not exist. Raises OSError."""
    # A network's name comes from JSON, which Go decodes to UTF-8: a directory of another name is that of no network.
    try:
        with os.scandir(networks_dir) as entries:
            names = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except FileNotFoundError:
        return []
    return sorted(name for name in names if name.encode(errors="ignore") == os.fsencode(name))


def is_directory(path: Path) -> bool:
    """Return whether it is known to be a directory: a disk that fails knows nothing."""
    try:
        return path.is_dir()
    except OSError:
        return False


def read_one(network: str, name: str, directory: int) -> Reservation | UnrecognizedEntry | None:
    """Read one entry by its directory's handle; None where it no longer exists. Raises OSError."""
    if not _is_canonical(name):
        why = "its name is not an address as host-local writes it"
        return UnrecognizedEntry(network, escape(name), why, blocks=False)
    try:
        handle = os.open(name, _OPEN, dir_fd=directory)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno not in _NOT_OPENED:
            raise
        return UnrecognizedEntry(network, name, _NOT_OPENED[error.errno], blocks=True)
    try:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode):
            kind = "a directory" if stat.S_ISDIR(found.st_mode) else "not a regular file"
            return UnrecognizedEntry(network, name, f"it is {kind}", blocks=True)
        return _parse(network, name, os.read(handle, MAX_RESERVATION_BYTES + 1), found)
    finally:
        os.close(handle)


def _parse(
    network: str, name: str, content: bytes, found: os.stat_result
) -> Reservation | UnrecognizedEntry:
    matched = _CONTENT.fullmatch(content)
    container_id = matched[1].decode() if matched else ""
    ifname = (matched[2] or b"").decode(errors="surrogateescape") if matched else ""
    if (
        (any(content) and not matched)
        or len(content) > MAX_RESERVATION_BYTES
        or not ifname.isprintable()
    ):
        return _unparsable(network, name, content, found.st_size)
    return Reservation(
        network,
        name,
        container_id,
        sys.intern(ifname),
        found.st_ino,
        found.st_size,
        found.st_mtime_ns,
    )


def _unparsable(network: str, name: str, content: bytes, size: int) -> UnrecognizedEntry:
    text = content.decode(errors="replace")
    first = text.split("\n", 1)[0].strip()
    program = next((name for name, form in _IDS_OF_PROGRAMS.items() if form.fullmatch(first)), "")
    shown = first if len(first) <= 24 else f"{first[:21]}..."  # noqa: PLR2004 (enough to recognize it)
    why = f"{shown!r} is not a container id: 64 hex digits, optionally CR LF and an interface"
    if len(content) > MAX_RESERVATION_BYTES:
        why = f"it holds {size} bytes; host-local writes 70"
    elif text.encode() != content:
        why = "its content is not text"
    return UnrecognizedEntry(network, name, why, blocks=True, program=program)


def _is_canonical(name: str) -> bool:
    """Return whether Go prints an address like this: it prints an IPv4 address mapped into IPv6 as IPv4."""
    if ":" in name and "." in name:
        return False
    family = socket.AF_INET6 if ":" in name else socket.AF_INET
    try:
        return socket.inet_ntop(family, socket.inet_pton(family, name)) == name
    except (OSError, ValueError):
        return False
