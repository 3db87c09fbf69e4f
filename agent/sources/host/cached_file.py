"""A small file, parsed once for each of its versions. Read-only."""

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from agent.sources.os_error import cannot_read
from agent.sources.source_error import SourceError

_T = TypeVar("_T")

# O_NONBLOCK: do not hang on a FIFO. O_NOFOLLOW: do not follow symbolic links.
_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class CachedFile(Generic[_T]):
    """Keeps the last result, or error, while inode, modification time and size stay the same."""

    def __init__(self, parse: Callable[[bytes], _T], largest: int) -> None:
        """`largest`: bytes; a larger file is not parsed."""
        self._parse, self._largest = parse, largest
        self._known: tuple[tuple[int, int, int], _T | SourceError] | None = None

    def read(self, path: str | Path, directory: int | None = None) -> tuple[_T, int] | None:
        """Return the content and its modification time in ns; None: there is no file. Raises SourceError.

        `directory`: the handle that the path is relative to.
        """
        try:
            handle = os.open(path, _OPEN, dir_fd=directory)
        except FileNotFoundError:
            self._known = None
            return None
        except OSError as error:
            raise SourceError(cannot_read(path, error)) from error
        try:
            found = os.fstat(handle)
            key = (found.st_ino, found.st_mtime_ns, found.st_size)
            if self._known is None or self._known[0] != key:
                self._known = key, self._parsed(path, handle, found)
        except OSError as error:
            raise SourceError(cannot_read(path, error)) from error
        finally:
            os.close(handle)
        parsed = self._known[1]
        if isinstance(parsed, SourceError):
            raise SourceError(str(parsed))
        return parsed, found.st_mtime_ns

    def _parsed(self, path: str | Path, handle: int, found: os.stat_result) -> _T | SourceError:
        try:
            return self._parse(self._content(path, handle, found))
        except SourceError as error:
            return error

    def _content(self, path: str | Path, handle: int, found: os.stat_result) -> bytes:
        if not stat.S_ISREG(found.st_mode):
            raise SourceError(f"{path}: not a regular file")
        content = os.read(handle, self._largest + 1)
        if len(content) > self._largest:
            raise SourceError(f"{path}: it has {found.st_size} bytes, more than the limit of {self._largest}")
        return content
