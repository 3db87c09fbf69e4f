"""The journal's files, and the lock of whoever writes them: the only thing besides the node that is written.

It lies outside host-local's directories, because host-local reads every file below its own. One writer at a time:
whoever holds the cleaner's lock.
"""

import errno
import fcntl
import json
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import tenacity

from agent.cleanup import journal
from agent.cleanup.journal import Entry, Journal
from agent.cleanup.release import describe_error
from agent.model.release import Verdict
from agent.sources.error import SourceError

LARGEST: Final = 1024 * 1024
"""Bytes of one file: about 300 entries. A file that has more is put aside, and another begun."""
FILES: Final = 6
"""How many files are kept; the oldest is dropped for a seventh."""

_CURRENT, _LOCK = "journal.jsonl", "cleaner.lock"
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_APPEND = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC


class Busy(Exception):
    """Another cleaner is at work on this node."""


class JournalStore:
    """The journal's files, in `journal/` of the agent's state directory, and the lock of whoever writes them."""

    def __init__(self, state_dir: Path) -> None:
        self._state, self._directory = state_dir, state_dir / "journal"
        self._read: Journal | None = None
        self._signature: tuple[tuple[str, int, int, int], ...] = ()

    @contextmanager
    def exclusive(self, seconds: float) -> Iterator[None]:
        """Be the only cleaner of this node; raises Busy where another was at work for so long, and OSError."""
        _make_directory(self._state)
        handle = os.open(self._state / _LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        tries = tenacity.Retrying(
            stop=tenacity.stop_after_delay(seconds),
            wait=tenacity.wait_random(0.01, 0.05),
            retry=tenacity.retry_if_exception_type(BlockingIOError),
            reraise=True,
        )
        try:
            try:
                tries(fcntl.flock, handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise Busy(f"another cleaner is at work on this node (it holds {self._state / _LOCK})") from error
            yield
        finally:
            os.close(handle)

    def trouble(self) -> str:
        """Say why nothing can be written; empty where it can. Changes nothing."""
        places = (self._directory, *self._directory.parents)
        try:
            part = next(place for place in places if place.is_symlink() or place.exists())
            if not part.is_dir():
                return f"{part} is not a directory"
            if os.statvfs(part).f_flag & os.ST_RDONLY:
                return f"{part} is mounted read-only"
        except OSError as error:
            return describe_error(error)
        return "" if os.access(part, os.W_OK | os.X_OK, effective_ids=True) else f"{part}: permission denied"

    def read(self) -> Journal:
        """Read everything; raises Unavailable where a file cannot be read. One that is not there is empty."""
        try:
            signature = self._now()
            if self._read is None or signature != self._signature:
                self._read = journal.parse(self._lines(path) for path in self._paths())
                self._signature = signature
        except OSError as error:
            raise SourceError(f"journal: {describe_error(error)}") from error
        return self._read

    def begin(self, entry: Entry, evidence: Sequence[str]) -> None:
        """Put the beginning of an entry on disk. Raises OSError."""
        _make_directory(self._directory)
        self._turn_over()
        self._append(journal.beginning(entry, evidence))

    def end(self, name: str, verdict: Verdict, why: str, at: datetime) -> None:
        """Say how an entry ended. Raises OSError."""
        self._append(journal.ending(name, verdict, why, at))

    def restoring(self, name: str, at: datetime) -> None:
        """Say that an entry is about to be put back. Raises OSError."""
        self._append(journal.restoration(name, at))

    def _paths(self) -> list[Path]:
        """Return the files, oldest first."""
        aside = (self._directory / f"journal.{number}.jsonl" for number in range(FILES - 1, 0, -1))
        return [*aside, self._directory / _CURRENT]

    def _now(self) -> tuple[tuple[str, int, int, int], ...]:
        found = []
        for path in self._paths():
            try:
                at = path.lstat()
            except (FileNotFoundError, NotADirectoryError):
                continue
            found.append((path.name, at.st_ino, at.st_size, at.st_mtime_ns))
        return tuple(found)

    def _lines(self, path: Path) -> Iterator[tuple[str, bytes]]:
        try:
            handle = os.open(path, _READ)
        except (FileNotFoundError, NotADirectoryError):
            return
        try:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                raise OSError(errno.EINVAL, "not a regular file", str(path))
            with os.fdopen(handle, "rb", closefd=False) as file:
                for number, line in enumerate(file, 1):
                    yield f"{path}, line {number}", line
        finally:
            os.close(handle)

    def _turn_over(self) -> None:
        current = self._directory / _CURRENT
        try:
            if current.lstat().st_size < LARGEST:
                return
        except FileNotFoundError:
            return
        paths = self._paths()
        for newer, older in zip(paths[1:], paths[:-1], strict=True):
            with suppress(FileNotFoundError):
                newer.rename(older)

    def _append(self, line: dict[str, Any]) -> None:
        path = self._directory / _CURRENT
        handle = os.open(path, _APPEND, 0o600)
        try:
            size = os.fstat(handle).st_size
            # We may have died in the middle of a line: it stays, damaged, and the next one is whole.
            torn = size > 0 and os.pread(handle, 1, size - 1) != b"\n"
            text = (b"\n" if torn else b"") + json.dumps(line).encode() + b"\n"
            try:
                _write_whole(handle, text)
            except OSError:
                os.ftruncate(handle, size)
                raise
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(path)) from error
        finally:
            os.close(handle)
        if size == 0:
            _sync_directory(self._directory)


def _write_whole(handle: int, text: bytes) -> None:
    """Write all of it, to the disk; a full one takes a part, and says so only the next time."""
    while text:
        text = text[os.write(handle, text) :]
    os.fsync(handle)


def _make_directory(directory: Path) -> None:
    """Make it and what it lies in, for us alone, each name on disk."""
    missing = [part for part in (directory, *directory.parents) if not part.is_dir()]
    for part in reversed(missing):
        part.mkdir(mode=0o700, exist_ok=True)
        _sync_directory(part.parent)


def _sync_directory(directory: Path) -> None:
    """Put a new file's name on disk too."""
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
