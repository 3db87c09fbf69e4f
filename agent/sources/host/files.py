"""Opens what other programs own: with a limit, and without waiting for a FIFO.

Symbolic links are followed only if that is asked for.
"""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Final

from agent.model.remedy import Remedy
from agent.model.settings import MAX_RESERVATIONS
from agent.sources.source_error import NotFound, SourceError, read_error

FILE_LIMIT: Final = 1024 * 1024
"""Bytes of a file that a program wrote: it has some thousand."""
TABLE_LIMIT: Final = 16 * 1024 * 1024
"""Bytes of a table of the kernel: more than 50,000 mounts or 200,000 routes."""
MAX_ENTRIES: Final = 4 * MAX_RESERVATIONS
"""Entries of a directory: for each reservation, libcni's cache has a result or two."""

_PIECE: Final = 64 * 1024
_READ: Final = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC


@contextmanager
def open_directory(path: Path, *, follow: bool = True) -> Iterator[int]:
    """Yield the handle of a directory. `follow`: whether the path may be a symbolic link.

    Raises NotFound, and SourceError for any OSError until it is closed.
    """
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
    try:
        handle = os.open(path, flags)
    except FileNotFoundError as error:
        raise NotFound(f"{path} does not exist") from error
    except OSError as error:
        if not follow and error.errno in {errno.ENOTDIR, errno.ELOOP}:
            reason = "is not a directory (symbolic links are not followed)"
            raise SourceError(f"{path} {reason}") from error
        raise read_error(path, error) from error

    try:
        yield handle
    except OSError as error:
        raise read_error(path, error) from error
    finally:
        os.close(handle)


def names_in(directory: int, path: object) -> list[str]:
    """Return the names of all entries of an open directory. `path`: for messages.

    Raises OSError, and SourceError if there are more than `MAX_ENTRIES`.
    """
    with os.scandir(directory) as entries:
        names = [entry.name for entry in islice(entries, MAX_ENTRIES + 1)]

    if len(names) > MAX_ENTRIES:
        remedy = Remedy("find out what fills it")
        size = f"{path} has more than {MAX_ENTRIES:,} entries"
        raise SourceError(f"{size} and was not read: {remedy}", remedy)
    return names


def read_file(
    path: str | Path,
    directory: int | None = None,
    *,
    follow: bool = False,
    limit: int = FILE_LIMIT,
) -> tuple[bytes, int]:
    """Return the content of a regular file, and its modification time in ns.

    `directory`: the handle of the one that the path is relative to. `follow`: whether the path may
    be a symbolic link. `limit`: in bytes. Raises OSError; SourceError for anything else than a file
    within the limit.
    """
    handle = os.open(path, _READ | (0 if follow else os.O_NOFOLLOW), dir_fd=directory)
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise SourceError(f"{path}: not a regular file")
        return read_open(handle, path, limit), status.st_mtime_ns
    finally:
        os.close(handle)


def read_open(handle: int, path: object, limit: int) -> bytes:
    """Return the content of an open file; raises OSError, and SourceError if it exceeds `limit`.

    `path`: for messages. `limit`: in bytes.
    """
    content = bytearray()
    while piece := os.read(handle, _PIECE):
        content += piece
        if len(content) > limit:
            raise SourceError(f"{path}: it has more than the limit of {limit:,} bytes")
    return bytes(content)
