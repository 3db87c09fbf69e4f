"""One file of the agent's state directory, replaced whole or not at all.

The agent works without it: a directory that cannot be written is reported through `failed`.
"""

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

_TEMPORARY: Final = ".nodeleak"
"""The end of the name of a file that is not complete yet."""


class StateFile:
    def __init__(self, path: Path, warn: Callable[[str], None]) -> None:
        """`warn`: called with the reason when a write fails, once for each reason."""
        self.path = path
        self.failed = ""
        """Why the last write failed; empty: it did not."""
        self._warn = warn

    def write(self, content: bytes) -> bool:
        """Return whether it was written."""
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
    temporary = path.with_name(f".{path.name}{_TEMPORARY}")  # what a process leaves that is killed is used again
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
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
    """Sync the names of new files to disk."""
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
