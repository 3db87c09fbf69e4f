"""Reads host-local's directory. Changes nothing.

The format is that of host-local 0.6 to 1.9 (plugins/ipam/host-local/backend/disk/backend.go): one
file for each address, named as Go prints the address, with the sandbox's id (`<= 0.7`), or the id,
CR LF and the interface's name (`>= 0.8`), or nothing (or only NUL bytes) after a crash; beside them
`last_reserved_ip[.N]` and `lock`. Everything else is unrecognized. Files are read without
host-local's lock, so a file that is being written can look empty: it is too new to be a leak then.
"""

import errno
import os
import re
import socket
import stat
import sys
from pathlib import Path
from typing import Final

from agent.model.remedy import Remedy
from agent.model.settings import MAX_RESERVATIONS
from agent.model.snapshot import (
    EntryKind,
    Known,
    NetworkStore,
    Reservation,
    Unavailable,
    UnrecognizedEntry,
)
from agent.model.text import escape
from agent.sources.host.files import names_in, open_directory
from agent.sources.source_error import NotFound, SourceError

MAX_RESERVATION_BYTES: Final = 4096
"""Bytes. host-local writes 70; a larger file is not host-local's."""
_SHOWN_NETWORKS: Final = 8  # in a message
_SHOWN_CHARACTERS: Final = 24  # of a content: enough to recognize it

_OWN: Final = re.compile(r"lock|last_reserved_ip(\.\d{1,3})?")
_CONTENT: Final = re.compile(rb"\s*([0-9a-f]{64})(?:\r?\n([^\s/]{1,15}))?\s*")
"""The sandbox's ID, and since host-local 0.8 the interface's name."""
_KINDS: Final = {
    stat.S_IFDIR: EntryKind.DIRECTORY,
    stat.S_IFLNK: EntryKind.LINK,
    stat.S_IFIFO: EntryKind.FIFO,
    stat.S_IFSOCK: EntryKind.SOCKET,
    stat.S_IFCHR: EntryKind.DEVICE,
    stat.S_IFBLK: EntryKind.DEVICE,
}
_NOT_OPENED: Final = frozenset({errno.ELOOP, errno.ENXIO, errno.ENODEV})
"""Why an entry cannot be opened that is no file; a file without permission is unavailable."""

_IDS_OF_PROGRAMS: Final = {
    "nerdctl": re.compile(r"[\w.-]+-[0-9a-f]{64}", re.ASCII),
    "BuildKit": re.compile(r"[a-z0-9]{25}"),
    "Nomad": re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"),
}
"""The programs beside the kubelet that use host-local, by the form of their IDs.

podman's are like those of pods.
"""
# O_NONBLOCK: a FIFO must not block; O_NOFOLLOW: a link must not lead out of the directory.
_OPEN: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def read_reservations(
    networks_dir: Path, network: str, limit: int = 16384, already_read: int = 0
) -> NetworkStore:
    """Return one network's directory; if it does not exist, it is unavailable and not empty.

    `limit`: the number of files in the directories of all networks, of which `already_read` were
    read before.
    """
    directory = networks_dir / network
    reservations = []
    unrecognized = []
    try:
        with open_directory(directory, follow=False) as handle:
            names = names_in(handle, directory)
            if len(names) > limit - already_read:
                return NetworkStore(network, _too_many(directory, limit, already_read))
            for name in names:
                entry = read_one(network, name, handle)
                if isinstance(entry, Reservation):
                    reservations.append(entry)
                elif entry:
                    unrecognized.append(entry)
    except NotFound as error:
        return _missing(networks_dir, network, error)
    except SourceError as error:
        return NetworkStore(network, _unreadable(directory, error))
    return NetworkStore(network, Known(tuple(reservations)), tuple(unrecognized))


def _missing(networks_dir: Path, network: str, error: NotFound) -> NetworkStore:
    """Return the store of a directory that does not exist."""
    target = _target(networks_dir)
    if target and not is_directory(networks_dir):
        remedy = Remedy(f"mount {target} at this path, too")
        why = f"{networks_dir} is a symbolic link to {target}, which is not here: {remedy}"
        return NetworkStore(network, Unavailable("reservations", why, remedy=remedy))

    remedy = Remedy("check --network and --cni-networks-dir")
    why = f"{error}: {remedy}{_existing_networks(networks_dir)}"
    reading = Unavailable("reservations", why, missing=True, remedy=remedy)
    # If one of these exists, host-local makes this directory for the first pod.
    absent = is_directory(networks_dir) or is_directory(networks_dir.parent)
    return NetworkStore(network, reading, absent=absent)


def _target(path: Path) -> str:
    """Return where a symbolic link leads, for a message; empty: it is none."""
    try:
        return escape(str(path.readlink()))
    except OSError:
        return ""


def _unreadable(directory: Path, error: SourceError) -> Unavailable:
    """Return why a directory is unavailable; the reason may be that it is a symbolic link."""
    target = _target(directory)
    if not target:
        return Unavailable("reservations", str(error), remedy=error.remedy)

    remedy = Remedy(
        f"put a directory in its place and mount {target} on it (`mount --bind`, and a line in "
        "/etc/fstab), or name the directory above that as host-local's `dataDir`"
    )
    why = f"{directory} is a symbolic link, which nodeleak does not follow: {remedy}"
    return Unavailable("reservations", why, remedy=remedy)


def _too_many(directory: Path, limit: int, already_read: int) -> Unavailable:
    together = f", together with the {already_read:,} of other networks" if already_read else ""
    remedy = Remedy("raise --max-reservations, and the memory limit of its container")
    if limit >= MAX_RESERVATIONS:
        remedy = Remedy("--max-reservations cannot be higher: find out what fills it")
    why = f"{directory} has more than {limit:,} files{together}: {remedy}"
    return Unavailable("reservations", why, remedy=remedy)


def _existing_networks(networks_dir: Path) -> str:
    """Return the end of a message; empty if there is none, or it cannot be read."""
    try:
        names = describe_networks(networks_dir)
    except OSError:
        return ""  # only a hint: the directory itself was found missing
    return f" (networks found: {names})" if names else ""


def describe_networks(networks_dir: Path) -> str:
    """Return some names for a message; empty: there is none. Raises OSError."""
    return ", ".join(map(escape, network_names(networks_dir)[:_SHOWN_NETWORKS]))


def network_names(networks_dir: Path) -> list[str]:
    """Return the directories, one for each network; none if it does not exist. Raises OSError."""
    try:
        with os.scandir(networks_dir) as entries:
            names = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except FileNotFoundError:
        return []
    # A network's name comes from JSON, which Go decodes to UTF-8: a directory whose name is not
    # UTF-8 is that of no network.
    return sorted(name for name in names if name.encode(errors="ignore") == os.fsencode(name))


def is_directory(path: Path) -> bool:
    """Return whether it is known to be a directory; False on a disk that fails."""
    try:
        return path.is_dir()
    except OSError:
        return False


def read_one(network: str, name: str, directory: int) -> Reservation | UnrecognizedEntry | None:
    """Return one entry of an open directory; raises OSError.

    None: it is one of host-local's own, or no longer exists.
    """
    if not _is_canonical(name):
        return _other_entry(network, name, directory)

    try:
        handle = os.open(name, _OPEN, dir_fd=directory)
    except FileNotFoundError:
        return None
    except OSError as error:
        kind = _kind(name, directory)
        if error.errno not in _NOT_OPENED or kind is None:
            raise
        return UnrecognizedEntry(network, name, f"it is {kind}", blocks=True, kind=kind)

    try:
        status = os.fstat(handle)
        if kind := _KINDS.get(stat.S_IFMT(status.st_mode)):
            return UnrecognizedEntry(network, name, f"it is {kind}", blocks=True, kind=kind)
        content = os.read(handle, MAX_RESERVATION_BYTES + 1)
    finally:
        os.close(handle)

    return _parse(network, name, content, status)


def _other_entry(network: str, name: str, directory: int) -> UnrecognizedEntry | None:
    """Return an entry that is not named as an address; None: it is one of host-local's own."""
    kind = _kind(name, directory)
    if _OWN.fullmatch(name) and kind is not EntryKind.FIFO:
        return None

    reason = "its name is not an address as host-local writes it"
    if kind:
        reason = f"it is {kind}"
    return UnrecognizedEntry(network, escape(name), reason, blocks=False, kind=kind)


def _kind(name: str, directory: int) -> EntryKind | None:
    """Return what an entry is; None: a regular file, or it no longer exists. Raises OSError."""
    try:
        mode = os.lstat(name, dir_fd=directory).st_mode
    except FileNotFoundError:
        return None
    return _KINDS.get(stat.S_IFMT(mode))


def _parse(
    network: str, name: str, content: bytes, status: os.stat_result
) -> Reservation | UnrecognizedEntry:
    """Return what the content of a file is that is named as an address."""
    container_id = ""
    ifname = ""
    if parts := _CONTENT.fullmatch(content):
        container_id = parts[1].decode()
        ifname = (parts[2] or b"").decode(errors="surrogateescape")
    is_garbage = any(content) and not parts
    if is_garbage or len(content) > MAX_RESERVATION_BYTES or not ifname.isprintable():
        return _unparsable(network, name, content, status.st_size)

    return Reservation(
        network=network,
        ip=name,
        container_id=container_id,
        ifname=sys.intern(ifname),
        inode=status.st_ino,
        size=status.st_size,
        mtime_ns=status.st_mtime_ns,
    )


def _unparsable(network: str, name: str, content: bytes, size: int) -> UnrecognizedEntry:
    """Say why it is no reservation.

    `size`: of the file in bytes, of which `content` may be the beginning.
    """
    text = content.decode(errors="replace")
    line = text.split("\n", 1)[0].strip()
    programs = (name for name, form in _IDS_OF_PROGRAMS.items() if form.fullmatch(line))
    program = next(programs, "")

    if len(content) > MAX_RESERVATION_BYTES:
        reason = f"it holds {size} bytes; host-local writes 70"
    elif text.encode() != content:
        reason = "its content is not text"
    else:
        shown = line if len(line) <= _SHOWN_CHARACTERS else f"{line[: _SHOWN_CHARACTERS - 3]}..."
        form = "64 hex digits, optionally CR LF and an interface"
        reason = f"{shown!r} is not a container id: {form}"
        if program:
            reason = f"{shown!r} is an ID of {program}, which shares this directory"

    return UnrecognizedEntry(network, name, reason, blocks=True, program=program)


def _is_canonical(name: str) -> bool:
    """Return whether Go prints an address like this.

    It prints an IPv4 address that is mapped into IPv6 as IPv4.
    """
    if ":" in name and "." in name:
        return False

    family = socket.AF_INET6 if ":" in name else socket.AF_INET
    try:
        return socket.inet_ntop(family, socket.inet_pton(family, name)) == name
    except (OSError, ValueError):
        return False
