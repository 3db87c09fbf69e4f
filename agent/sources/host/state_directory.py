"""The agent's own directory, whose disk may be full."""

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from agent.sources.source_error import SourceError, cannot_read

LEAST_FREE: Final = 4096
"""Bytes that must be free: the largest file is a few blocks."""


def read_disk(directory: Path) -> bool:
    """Return True; raises SourceError if the disk is full. A directory that may not be written is a setting."""
    try:
        existing, found = _stat(directory)
    except (FileNotFoundError, PermissionError):
        return True  # not the disk
    except OSError as error:
        raise SourceError(cannot_read(error.filename, error)) from error
    if _is_full(found):
        raise SourceError(f"{existing}: no space left on device")
    return True


def unwritable(directory: Path) -> str:
    """Return why nothing can be written in a directory that may not exist yet; empty if it can. Changes nothing."""
    try:
        existing, found = _stat(directory)
    except OSError as error:
        return cannot_read(error.filename, error)
    if not existing.is_dir():
        return f"{existing} is not a directory"
    if found.f_flag & os.ST_RDONLY:
        return f"{existing} is mounted read-only"
    if _is_full(found):
        return f"{existing}: no space left on device"
    return "" if os.access(existing, os.W_OK | os.X_OK, effective_ids=True) else f"{existing}: permission denied"


def _stat(directory: Path) -> tuple[Path, os.statvfs_result]:
    """Return the nearest directory that exists, or link to nothing, and its file system; raises OSError."""
    for existing in (directory, *directory.parents):
        with suppress(FileNotFoundError, NotADirectoryError):
            existing.lstat()
            break
    return existing, os.statvfs(existing)


def _is_full(found: os.statvfs_result) -> bool:
    """Return whether there is no space; some file systems do not count their blocks."""
    return bool(found.f_blocks) and found.f_bfree * found.f_frsize < LEAST_FREE
