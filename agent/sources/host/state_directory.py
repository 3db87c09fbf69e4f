"""The agent's own directory. Its disk may be full. It may hang: then one question waits, others fail until it ends."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

from agent.sources.deadline import Deadline, Late
from agent.sources.os_error import describe_os_error
from agent.sources.source_error import SourceError

_T = TypeVar("_T")

STATE_SECONDS: Final = 5.0
"""A sync waits so long, once, for a disk that hangs. A busy disk answers within a second."""
LEAST_FREE: Final = 4096
"""Bytes that must be free: the largest file is a few blocks."""


class StateDirectory:
    def __init__(self, path: Path) -> None:
        self._path, self._deadline = path, Deadline("state directory", STATE_SECONDS)

    def within(self, question: Callable[[], _T], /) -> _T:
        """Ask something about its files; raises SourceError if the disk hangs."""
        try:
            return self._deadline(question)
        except Late as error:
            raise SourceError(f"{self._path}: no answer for {STATE_SECONDS:g} s: its disk hangs") from error

    def read(self) -> bool:
        """Return True; raises SourceError if nothing can be written."""
        if why := self.within(lambda: unwritable(self._path)):
            raise SourceError(why)
        return True


def unwritable(directory: Path) -> str:
    """Return why nothing can be written in a directory that may not exist yet; empty if it can. Changes nothing."""
    try:
        existing = next(place for place in (directory, *directory.parents) if place.is_symlink() or place.exists())
        if not existing.is_dir():
            return f"{existing} is not a directory"
        found = os.statvfs(existing)
        if found.f_flag & os.ST_RDONLY:
            return f"{existing} is mounted read-only"
        # Some file systems do not count their blocks.
        if found.f_blocks and found.f_bfree * found.f_frsize < LEAST_FREE:
            return f"{existing}: no space left on device"
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{describe_os_error(error)}"
    return "" if os.access(existing, os.W_OK | os.X_OK, effective_ids=True) else f"{existing}: permission denied"
