"""The kernel's tables of mounts, which need no capability. Read-only."""

import re
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from agent.sources.host.files import TABLE_LIMIT, read_file
from agent.sources.source_error import SourceError, read_error

_LINE: Final = re.compile(
    r"[^ ]+ [^ ]+ (?P<device>[^ ]+) (?P<root>[^ ]+) (?P<point>[^ ]+) (?P<options>[^ ]+) (?:.* )?"
    r"- (?P<kind>[^ ]+) (?:[^ ]* )?(?P<of_all>[^ ]*)"
)
"""A line of proc_pid_mountinfo(5)."""
_OCTAL: Final = re.compile(r"\\([0-7]{3})")  # how the kernel writes a space, or a line's end
_DELETED: Final = "//deleted"
"""The end of a root that was removed while it is mounted."""
OWN_PROC: Final = Path("/proc")
"""That of this process, not the node's."""


class MountEntry(NamedTuple):
    root: str
    """What is mounted of its file system; of a namespace, kind and inode: `net:[4026532281]`."""
    point: str
    """The mount point, without symbolic links."""
    kind: str
    """The type of the file system."""
    device: str
    """Of its file system: `major:minor`."""
    read_only: bool = False
    """The mount is, or its file system."""


def read_mount_table(proc: Path, process: int | str = 1) -> tuple[MountEntry, ...]:
    """Return every mount that a process sees; raises SourceError."""
    table = proc / f"{process}/mountinfo"
    try:
        content, _ = read_file(table, follow=True, limit=TABLE_LIMIT)
    except OSError as error:
        raise read_error(table, error) from error

    entries = []
    lines = content.decode(errors="replace").split("\n")
    for line in filter(None, map(_LINE.fullmatch, lines)):
        point = _OCTAL.sub(lambda code: chr(int(code[1], 8)), line["point"])
        # A mount outlives the file below it, which then is marked so.
        point = point.removesuffix(_DELETED)
        options = (line["options"], line["of_all"])
        entries.append(
            MountEntry(
                root=line["root"],
                point=point,
                kind=line["kind"],
                device=line["device"],
                read_only=any(option.split(",")[0] == "ro" for option in options),
            )
        )
    return tuple(entries)


def is_on_node(path: Path, proc: Path) -> bool:
    """Return whether a path is that of the node for this process, whether it exists or not.

    In a pod, it could also be one of the container's own, where the node's is not mounted.
    """
    # It is known if this process has the mounts of the node's first process, or if a directory
    # above is mounted, and the node has not removed that directory since.
    with suppress(OSError):  # only with CAP_SYS_PTRACE, or on the node itself
        if (proc / "1/ns/mnt").samefile(OWN_PROC / "self/ns/mnt"):
            return True

    try:
        roots = {entry.point: entry.root for entry in read_mount_table(OWN_PROC, "self")}
    except SourceError:
        return False
    points = map(str, (path, *path.parents))
    nearest = next((point for point in points if point in roots), "/")
    return nearest != "/" and not roots[nearest].endswith(_DELETED)
