"""Opens what other programs own. Reading has a bound, follows no link unless asked to, and waits for no FIFO."""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Final

from agent.model.limits import MAX_RESERVATIONS
from agent.sources.source_error import NotFound, SourceError, cannot_read

LARGEST_FILE: Final = 1024 * 1024  # bytes of a file that a program wrote: it has some thousand
LARGEST_TABLE: Final = (
    16 * 1024 * 1024
)  # bytes of a table of the kernel: more than 50,000 mounts or 200,000 routes
MAX_ENTRIES: Final = 4 * MAX_RESERVATIONS
"""Of a directory. For a reservation, libcni's cache has a result or two."""
_PIECE: Final = 64 * 1024


@contextmanager
def open_directory(path: Path, *, follow: bool = True) -> Iterator[int]:
    """Open a directory; raises NotFound, and SourceError for any OSError until it is closed. `follow`: a link."""
    try:
        handle = os.open(
            path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
        )
    except FileNotFoundError as error:
        raise NotFound(f"{path} does not exist") from error
    except OSError as error:
        if not follow and error.errno in {errno.ENOTDIR, errno.ELOOP}:
            raise SourceError(
                f"{path} is not a directory (symbolic links are not followed)"
            ) from error
        raise SourceError(cannot_read(path, error)) from error
    try:
        yield handle
    except OSError as error:
        raise SourceError(cannot_read(path, error)) from error
    finally:
        os.close(handle)


def names_in(directory: int, path: object) -> list[str]:
    """Return the names of all entries of an open directory; raises OSError, and SourceError if there are too many."""
    with os.scandir(directory) as entries:
        names = [entry.name for entry in islice(entries, MAX_ENTRIES + 1)]
    if len(names) > MAX_ENTRIES:
        raise SourceError(
            f"{path} has more than {MAX_ENTRIES:,} entries and was not read: find out what fills it"
        )
    return names


def read_file(
    path: str | Path,
    directory: int | None = None,
    *,
    follow: bool = False,
    largest: int = LARGEST_FILE,
) -> tuple[bytes, int]:
    """Return a regular file's content and modification time in ns; raises OSError and SourceError."""
    # `directory`: an open one that the path is relative to. `follow`: symbolic links.
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
    handle = os.open(path, flags, dir_fd=directory)
    try:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode):
            raise SourceError(f"{path}: not a regular file")
        return read_open(handle, path, largest), found.st_mtime_ns
    finally:
        os.close(handle)


def read_open(handle: int, path: object, largest: int) -> bytes:
    """Return the content of an open file; raises OSError, and SourceError if it is too large."""
    pieces, size = list[bytes](), 0
    while piece := os.read(handle, _PIECE):
        pieces.append(piece)
        size += len(piece)
        if size > largest:
            raise SourceError(f"{path}: it has more than the limit of {largest:,} bytes")
    return b"".join(pieces)
