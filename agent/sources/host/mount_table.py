"""Reads the mount table of the node's first process, and of this one. Changes nothing, and needs no capability."""

import contextlib
import re
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Final, NamedTuple

from agent.sources.os_error import cannot_read
from agent.sources.source_error import SourceError

_LARGEST: Final = 16 * 1024 * 1024
"""More than 50,000 mounts; a node has some hundred."""
_DELETED: Final = "//deleted"


class MountEntry(NamedTuple):
    root: str
    """What of its file system is mounted; of a namespace, its kind and inode: `net:[4026532281]`."""
    place: str
    """The mount point, without symbolic links."""
    kind: str
    """The type of the file system."""


def is_missing_on_node(path: Path, proc: Path, own: Path = Path("/proc/self")) -> bool:
    """Return whether a path that is missing here is known to be missing on the node too, and not only not mounted.

    That is known if this process has the mounts of the node's first process, or if a directory above is mounted, and
    the node has not removed that directory since. `own`: this process.
    """
    with contextlib.suppress(OSError):  # only with CAP_SYS_PTRACE, or on the node itself
        if (proc / "1/ns/mnt").samefile(own / "ns/mnt"):
            return True
    try:
        roots = {entry.place: entry.root for entry in read_mount_table(own.parent, own.name)}
    except SourceError:
        return False
    nearest = next((str(parent) for parent in path.parents if str(parent) in roots), "/")
    return nearest != "/" and not roots[nearest].endswith(_DELETED)


def read_mount_table(proc: Path, process: str = "1") -> Iterator[MountEntry]:
    """Read the table, and yield every mount, one at a time; raises SourceError before the first.

    Read at once, because older kernels skip a mount if another one is removed between two reads.
    """
    table = proc / process / "mountinfo"
    try:
        with table.open("rb") as opened:
            text = opened.read(_LARGEST + 1)
    except OSError as error:
        raise SourceError(cannot_read(table, error)) from error
    if len(text) > _LARGEST:
        raise SourceError(f"{table}: larger than {_LARGEST >> 20} MiB")
    return filter(None, (_entry(line.decode(errors="replace")) for line in BytesIO(text)))


def _entry(line: str) -> MountEntry | None:
    """Parse a line, see proc_pid_mountinfo(5). The kernel escapes spaces in octal."""
    before, _, after = line.partition(" - ")
    match before.split(" "):
        case [_, _, _, root, place, *_]:
            # A mount outlives the file below it, which then is marked so.
            return MountEntry(root, _unescaped(place).removesuffix(_DELETED), after.partition(" ")[0])
        case _:
            return None


def _unescaped(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), text)
