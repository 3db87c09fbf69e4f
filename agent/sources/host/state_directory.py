"""The agent's own directory, whose disk may be full."""

import os
from pathlib import Path
from typing import Final

from agent.sources.os_error import describe_os_error
from agent.sources.source_error import SourceError

LEAST_FREE: Final = 4096
"""Bytes that must be free: the largest file is a few blocks."""


def read_disk(directory: Path) -> bool:
    """Return True; raises SourceError if the disk is full. A directory that may not be written is a setting."""
    if why := full(directory):
        raise SourceError(why)
    return True


def full(directory: Path) -> str:
    """Return that a directory, which may not exist yet, has no space or cannot be asked; empty if it has."""
    try:
        existing = _existing(directory)
        found = os.statvfs(existing)
    except (FileNotFoundError, PermissionError):
        return ""  # not the disk
    except OSError as error:
        return _described(error)
    # Some file systems do not count their blocks.
    is_full = found.f_blocks and found.f_bfree * found.f_frsize < LEAST_FREE
    return f"{existing}: no space left on device" if is_full else ""


def unwritable(directory: Path) -> str:
    """Return why nothing can be written in a directory that may not exist yet; empty if it can. Changes nothing."""
    try:
        existing = _existing(directory)
        if not existing.is_dir():
            return f"{existing} is not a directory"
        if os.statvfs(existing).f_flag & os.ST_RDONLY:
            return f"{existing} is mounted read-only"
        if why := full(existing):
            return why
    except OSError as error:
        return _described(error)
    return "" if os.access(existing, os.W_OK | os.X_OK, effective_ids=True) else f"{existing}: permission denied"


def _existing(directory: Path) -> Path:
    return next(place for place in (directory, *directory.parents) if _exists(place))


def _exists(path: Path) -> bool:
    """Return whether there is anything, or a link to nothing; raises OSError where Path.exists may say no."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def _described(error: OSError) -> str:
    return f"{error.filename}: {describe_os_error(error)}" if error.filename else describe_os_error(error)
