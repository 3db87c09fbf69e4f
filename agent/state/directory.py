"""The agent's own directory: its files are replaced whole or not at all, and it may be full, or not be writable."""

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from agent.sources.source_error import SourceError, cannot_read

_LEAST_FREE: Final = 4096  # bytes: the largest file is a few blocks
_TEMPORARY: Final = ".nodeleak"  # the end of the name of a file that is not complete yet


class StateFile:
    def __init__(self, path: Path, warn: Callable[[str], None]) -> None:
        """`warn`: called with the reason when a write fails, once for each reason."""
        self.path, self._warn = path, warn
        self.failed = ""  # why the last write failed

    def write(self, content: bytes) -> bool:
        before, self.failed = self.failed, ""
        try:
            replace_file(self.path, content)
        except OSError as error:
            # Without the name of the temporary file, which is different each time.
            self.failed = f"{self.path.parent}: {error.strerror}"
            if self.failed != before:
                self._warn(self.failed)
        return not self.failed


def replace_file(path: Path, content: bytes) -> None:
    """Replace the file by a private one. After a power cut, either version is there and complete. Raises OSError."""
    make_directory(path.parent)
    temporary = path.with_name(
        f".{path.name}{_TEMPORARY}"
    )  # what a process leaves that is killed is used again
    # O_NONBLOCK: a FIFO of that name would wait for a reader.
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    handle = os.open(temporary, flags, 0o600)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _sync_directory(path.parent)


def remove_file(path: Path) -> None:
    """Remove one file of the state directory. Raises OSError."""
    path.unlink()


def remove_temporary_files(directory: Path) -> None:
    """Remove what processes left that were killed. The caller is the only writer of the directory."""
    for path in directory.glob(f".*{_TEMPORARY}"):
        with suppress(OSError):
            path.unlink()


def make_directory(directory: Path) -> None:
    """Create the directory and its parents, accessible only to the agent, each name on disk. Raises OSError."""
    missing = [part for part in (directory, *directory.parents) if not part.is_dir()]
    for part in reversed(missing):
        part.mkdir(mode=0o700, exist_ok=True)
        _sync_directory(part.parent)


def _sync_directory(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


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
    return (
        ""
        if os.access(existing, os.W_OK | os.X_OK, effective_ids=True)
        else f"{existing}: permission denied"
    )


def _stat(directory: Path) -> tuple[Path, os.statvfs_result]:
    """Return the nearest directory that exists, or link to nothing, and its file system; raises OSError."""
    for existing in (directory, *directory.parents):
        with suppress(FileNotFoundError, NotADirectoryError):
            existing.lstat()
            break
    return existing, os.statvfs(existing)


def _is_full(found: os.statvfs_result) -> bool:
    """Return whether there is no space; some file systems do not count their blocks."""
    return bool(found.f_blocks) and found.f_bfree * found.f_frsize < _LEAST_FREE
