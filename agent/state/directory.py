"""The agent's own directory: files are replaced whole or not at all. It may be unwritable."""

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from agent.sources.source_error import SourceError, cannot_read

_MIN_FREE_BYTES: Final = 4096  # the largest file is a few blocks
_INCOMPLETE: Final = ".nodeleak"  # the end of the name of a file that is not complete yet


@dataclass
class StateFile:
    """A file of the agent's directory, which may be unwritable."""

    path: Path
    warn: Callable[[str], None]
    """Called with the reason when a write fails, once for each reason."""
    write_error: str | None = None
    """Why the last write failed; None: it did not."""

    def write(self, content: bytes) -> bool:
        """Return whether the file could be written."""
        before = self.write_error
        self.write_error = None
        try:
            replace_file(self.path, content)
        except OSError as error:
            # Without the name of the temporary file, which is different each time.
            self.write_error = f"{self.path.parent}: {error.strerror}"
            if self.write_error != before:
                self.warn(self.write_error)
        return self.write_error is None


def replace_file(path: Path, content: bytes) -> None:
    """Replace the file by a private one. Raises OSError.

    After a power cut, the old or the new version is there, and complete.
    """
    make_directory(path.parent)
    # Always the same name: what a killed process leaves is used again.
    temporary = path.with_name(f".{path.name}{_INCOMPLETE}")
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
    """Remove what killed processes left. Only the directory's one writer may call this."""
    for path in directory.glob(f".*{_INCOMPLETE}"):
        with suppress(OSError):
            path.unlink()


def make_directory(directory: Path) -> None:
    """Create the directory and its parents for the agent alone, each on disk. Raises OSError."""
    missing = [part for part in (directory, *directory.parents) if not part.is_dir()]
    for part in reversed(missing):
        part.mkdir(mode=0o700, exist_ok=True)
        _sync_directory(part.parent)


def _sync_directory(directory: Path) -> None:
    """Wait until the names in a directory are on disk. Raises OSError."""
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def read_disk(directory: Path) -> bool:
    """Return True; raises SourceError if the disk is full.

    A directory that is missing or may not be written is no fault of the disk.
    """
    try:
        existing, status = _nearest_existing(directory)
    except (FileNotFoundError, PermissionError):
        return True
    except OSError as error:
        raise SourceError(cannot_read(error.filename, error)) from error
    if _is_full(status):
        raise SourceError(f"{existing}: no space left on device")
    return True


def why_unwritable(directory: Path) -> str | None:
    """Return why nothing can be written in a directory that may not exist yet, if so.

    Changes nothing.
    """
    try:
        existing, status = _nearest_existing(directory)
    except OSError as error:
        return cannot_read(error.filename, error)

    if not existing.is_dir():
        return f"{existing} is not a directory"
    if status.f_flag & os.ST_RDONLY:
        return f"{existing} is mounted read-only"
    if _is_full(status):
        return f"{existing}: no space left on device"
    if not os.access(existing, os.W_OK | os.X_OK, effective_ids=True):
        return f"{existing}: permission denied"
    return None


def _nearest_existing(directory: Path) -> tuple[Path, os.statvfs_result]:
    """Return the nearest directory that exists, or dangling link, and its file system.

    Raises OSError.
    """
    for existing in (directory, *directory.parents):
        with suppress(FileNotFoundError, NotADirectoryError):
            existing.lstat()
            break
    return existing, os.statvfs(existing)


def _is_full(status: os.statvfs_result) -> bool:
    """Return whether there is no space; some file systems do not count their blocks."""
    return bool(status.f_blocks) and status.f_bfree * status.f_frsize < _MIN_FREE_BYTES
