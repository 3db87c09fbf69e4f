"""The files of the journal, and the lock that admits one cleaner at a time.

They are outside host-local's directories, because host-local reads every file in its own. Only the holder of the
cleaner's lock writes.
"""

import errno
import fcntl
import json
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import tenacity

from agent.cleanup import journal
from agent.cleanup.journal import Entry, Journal
from agent.cleanup.release import FileImage, describe_error
from agent.model.release import ReleaseRequest, Verdict
from agent.sources.error import SourceError, cannot_read

MAX_JOURNAL_BYTES: Final = 1024 * 1024
"""Bytes of one file, about 300 entries. A larger file is rotated."""
FILES: Final = 6
"""Including the current one. Rotation drops the oldest."""

_CURRENT, _LOCK = "journal.jsonl", "cleaner.lock"
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_APPEND = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC


class Busy(Exception):
    """Another cleaner is running on this node."""


class JournalStore:
    """The journal in `journal/` of the agent's state directory, and the cleaner's lock beside it."""

    def __init__(self, state_dir: Path) -> None:
        self._state, self._directory = state_dir, state_dir / "journal"
        self._cached: Journal | None = None
        self._signature: tuple[tuple[str, int, int, int], ...] = ()

    @contextmanager
    def exclusive(self, seconds: float) -> Iterator[None]:
        """Hold the cleaner's lock; raises Busy if another cleaner holds it for so many seconds, and OSError."""
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
                raise Busy(f"another cleaner is running on this node (it holds {self._state / _LOCK})") from error
            yield
        finally:
            os.close(handle)

    def trouble(self) -> str:
        """Return why the journal cannot be written; empty if it can. Changes nothing."""
        places = (self._directory, *self._directory.parents)
        try:
            existing = next(place for place in places if place.is_symlink() or place.exists())
            if not existing.is_dir():
                return f"{existing} is not a directory"
            if os.statvfs(existing).f_flag & os.ST_RDONLY:
                return f"{existing} is mounted read-only"
        except OSError as error:
            return describe_error(error)
        return "" if os.access(existing, os.W_OK | os.X_OK, effective_ids=True) else f"{existing}: permission denied"

    def read(self) -> Journal:
        """Read all files; raises SourceError if one cannot be read. A file that does not exist is empty."""
        try:
            signature = self._current_signature()
            if self._cached is None or signature != self._signature:
                self._cached = journal.parse_journal(self._lines(path) for path in self._paths())
                self._signature = signature
        except OSError as error:
            raise SourceError(cannot_read(error.filename or self._directory, error)) from error
        return self._cached

    def begin(self, entry: Entry, evidence: Sequence[str]) -> None:
        """Begin an entry, on disk before this returns. Raises OSError."""
        _make_directory(self._directory)
        self._rotate()
        self._append(journal.beginning(entry, evidence))

    def end(self, name: str, verdict: Verdict, why: str, at: datetime) -> None:
        """Record the outcome of an entry. Raises OSError."""
        self._append(journal.ending(name, verdict, why, at))

    def restoring(self, name: str, at: datetime) -> None:
        """Begin a restoration, on disk before this returns. Raises OSError."""
        self._append(journal.restoration_beginning(name, at))

    def restored(self, name: str, at: datetime) -> None:
        """Record that an entry was restored. Raises OSError."""
        self._append(journal.restoration_ending(name, at))

    def _paths(self) -> list[Path]:
        """Return the files, oldest first."""
        rotated = (self._directory / f"journal.{number}.jsonl" for number in range(FILES - 1, 0, -1))
        return [*rotated, self._directory / _CURRENT]

    def _current_signature(self) -> tuple[tuple[str, int, int, int], ...]:
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

    def _rotate(self) -> None:
        current = self._directory / _CURRENT
        try:
            if current.lstat().st_size < MAX_JOURNAL_BYTES:
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
            # The agent may have died within a line. That line stays damaged; the next one must be complete.
            torn = size > 0 and os.pread(handle, 1, size - 1) != b"\n"
            text = (b"\n" if torn else b"") + json.dumps(line).encode() + b"\n"
            try:
                _write_all(handle, text)
            except OSError:
                os.ftruncate(handle, size)
                raise
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(path)) from error
        finally:
            os.close(handle)
        if size == 0:
            _sync_directory(self._directory)


class EntryWriter:
    """Writes the entries of one cleaner."""

    def __init__(self, journal_store: JournalStore, by: str, now: Callable[[], datetime]) -> None:
        self._journal_store, self._by, self._now = journal_store, by, now

    def begin(self, request: ReleaseRequest, files: Sequence[FileImage], evidence: Sequence[str]) -> str:
        now = self._now()
        entry = Entry(
            name=journal.entry_name(now, request),
            at=now,
            by=self._by,
            container_id=request.container_id,
            pod=request.pod,
            files=tuple(files),
        )
        self._journal_store.begin(entry, evidence)
        return entry.name

    def end(self, entry: str, verdict: Verdict, why: str) -> None:
        self._journal_store.end(entry, verdict, why, self._now())


def _write_all(handle: int, text: bytes) -> None:
    """Write to the disk. A full disk takes a part, and fails only at the next write."""
    while text:
        text = text[os.write(handle, text) :]
    os.fsync(handle)


def _make_directory(directory: Path) -> None:
    """Create the directory and its parents, accessible only to the agent, and sync each name to disk."""
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
