"""The files of the journal, and the lock that admits one cleaner at a time.

They are outside host-local's directories, because host-local reads every file in its own. Only the holder of the
cleaner's lock writes.

A disk can hang. What did not return in time fails, and may still be written: such an entry is unfinished, nothing is
released for it, and the next recovery resolves it. Until then the cleaner's lock stays held.
"""

import errno
import fcntl
import json
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise, takewhile
from pathlib import Path
from typing import Any, Final, TypeVar

import tenacity

from agent.cleanup import journal
from agent.cleanup.journal import Entry, Journal
from agent.cleanup.release import FileImage, JournalFull
from agent.model.input_limit import InputLimit
from agent.model.release import ReleaseRequest, Verdict
from agent.model.times import from_mtime
from agent.sources.deadline import Within, ask
from agent.sources.host.state_directory import unwritable
from agent.sources.os_error import cannot_read
from agent.sources.source_error import SourceError

MAX_JOURNAL_BYTES: Final = 1024 * 1024
"""Bytes of one file, about 300 entries. A larger file is rotated."""
MAX_READ_BYTES: Final[InputLimit] = 16 * 1024 * 1024
"""Bytes of one file that is read: the last entry before a rotation may be large, but not so large."""
FILES: Final = 8
"""Including the current one. What `run` releases in a day by default has room, with a file to spare."""
RETENTION: Final = timedelta(hours=24)
"""Rotation drops the oldest file, if nothing was written to it for so long."""
BYTES_PER_ADDRESS: Final = 4096
"""An estimate: an entry with one address, and libcni's cached result for it."""

_T = TypeVar("_T")

_CURRENT, _LOCK = "journal.jsonl", "cleaner.lock"
_NAMES = (*(f"journal.{number}.jsonl" for number in range(FILES - 1, 0, -1)), _CURRENT)
"""The oldest first."""
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_APPEND = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC


class Busy(Exception):
    """Another cleaner is running on this node."""


@dataclass(eq=False)
class _CleanerLock:
    handle: int | None = None
    wanted: bool = True


class JournalStore:
    """The journal in `journal/` of the agent's state directory, and the cleaner's lock beside it."""

    def __init__(self, state_dir: Path, within: Within = ask) -> None:
        """`within`: bounds what is read and written. It asks in order: the lock is released after what it guards."""
        self._state, self._directory, self._within = state_dir, state_dir / "journal", within
        self._cached: Journal | None = None
        self._signature: tuple[tuple[str, int, int, int], ...] = ()
        self._locks: list[_CleanerLock] = []
        self._name_synced = False
        """The name of the current file is on disk."""

    @contextmanager
    def exclusive(self, seconds: float) -> Iterator[None]:
        """Hold the cleaner's lock; raises Busy if another cleaner holds it for so long, OSError and SourceError."""
        tries = tenacity.Retrying(
            stop=tenacity.stop_after_delay(seconds),
            wait=tenacity.wait_random(0.01, 0.05),
            retry=tenacity.retry_if_exception_type(BlockingIOError),
            reraise=True,
        )
        cleaner = _CleanerLock()
        self._locks.append(cleaner)
        try:
            lock = self._bounded(lambda: self._open(cleaner))
            try:
                tries(lambda: self._bounded(lambda: fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)))
            except BlockingIOError as error:
                raise Busy(f"another cleaner is running on this node (it holds {self._state / _LOCK})") from error
            yield
        finally:
            cleaner.wanted = False
            with suppress(SourceError):  # whatever is asked next closes it
                self._bounded(lambda: None)

    def _bounded(self, question: Callable[[], _T]) -> _T:
        def answer() -> _T:
            try:
                return question()
            finally:
                self._close_unwanted()

        return self._within(answer)

    def _open(self, lock: "_CleanerLock") -> int:
        _make_directory(self._state)
        lock.handle = os.open(self._state / _LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        return lock.handle

    def _close_unwanted(self) -> None:
        for lock in [one for one in self._locks if not one.wanted]:
            self._locks.remove(lock)
            if lock.handle is not None:
                with suppress(OSError):
                    os.close(lock.handle)

    def trouble(self) -> str:
        """Return why the journal cannot be written; empty if it can. Changes nothing."""
        try:
            return self._bounded(lambda: unwritable(self._directory))
        except SourceError as error:
            return str(error)

    def room(self, now: datetime) -> int:
        """Return for how many addresses there is room, with a file to spare. 0 if that cannot be told."""
        try:
            return self._bounded(lambda: self._room(now))
        except (OSError, SourceError):
            return 0

    def _room(self, now: datetime) -> int:
        left = max(0, MAX_JOURNAL_BYTES - _size(self._directory / _CURRENT))
        return max(0, left + (self._rotations(now) - 1) * MAX_JOURNAL_BYTES) // BYTES_PER_ADDRESS

    def size(self) -> int | None:
        """Return the bytes of all files; None if there is none, or if that cannot be told."""
        try:
            return self._bounded(lambda: sum(at.st_size for at in map(_stat, self._paths()) if at)) or None
        except (OSError, SourceError):
            return None

    def read(self) -> Journal:
        """Read all files; raises SourceError if one cannot be read. A file that does not exist is empty."""
        return self._bounded(self._read)

    def _read(self) -> Journal:
        try:
            signature = self._current_signature()
            if self._cached is None or signature != self._signature:
                with ExitStack() as stack:
                    files = self._open_all(stack)
                    self._cached = journal.parse_journal(_lines(path, handle) for path, handle in files)
                self._signature = signature
        except OSError as error:
            raise SourceError(cannot_read(error.filename or self._directory, error)) from error
        return self._cached

    def begin(self, entry: Entry, evidence: Sequence[str]) -> None:
        """Begin an entry, on disk before this returns. Raises OSError, such as JournalFull."""

        def begin() -> None:
            _make_directory(self._directory)
            self._rotate(entry.at)
            self._append(journal.beginning(entry, evidence))

        self._write(begin)

    def end(self, name: str, verdict: Verdict, why: str, at: datetime) -> None:
        """Record the outcome of an entry. Raises OSError."""
        self._write(lambda: self._append(journal.ending(name, verdict, why, at)))

    def restoring(self, name: str, at: datetime) -> None:
        """Begin a restoration, on disk before this returns. Raises OSError."""
        self._write(lambda: self._append(journal.event("restoring", name, at)))

    def restored(self, name: str, at: datetime) -> None:
        """Record that an entry was restored. Raises OSError."""
        self._write(lambda: self._append(journal.event("restored", name, at)))

    def halted(self, name: str, at: datetime) -> None:
        """Record that the container of an entry reappeared. Raises OSError."""
        self._write(lambda: self._append(journal.event("halted", name, at)))

    def resumed(self, name: str, at: datetime) -> None:
        """Record that cleanup was resumed. Raises OSError."""
        self._write(lambda: self._append(journal.event("resumed", name, at)))

    def _write(self, write: Callable[[], None]) -> None:
        """Raises OSError: what is late may still be written."""
        try:
            self._bounded(write)
        except SourceError as error:
            raise OSError(str(error)) from error

    def _paths(self) -> list[Path]:
        """Return the files, oldest first."""
        return [self._directory / name for name in _NAMES]

    def _current_signature(self) -> tuple[tuple[str, int, int, int], ...]:
        found = ((path.name, _stat(path)) for path in self._paths())
        return tuple((name, at.st_ino, at.st_size, at.st_mtime_ns) for name, at in found if at)

    def _open_all(self, stack: ExitStack) -> list[tuple[Path, int]]:
        """Open the files and return them, oldest first.

        The newest is opened first: another process may be rotating them, to older names only, so that none is missed.
        """
        found: dict[tuple[int, int], tuple[Path, int]] = {}
        for path in reversed(self._paths()):
            try:
                handle = os.open(path, _READ)
            except (FileNotFoundError, NotADirectoryError):
                continue
            stack.callback(os.close, handle)
            at = os.fstat(handle)
            if not stat.S_ISREG(at.st_mode):
                raise OSError(errno.EINVAL, "not a regular file", str(path))
            if at.st_size > MAX_READ_BYTES:
                raise OSError(errno.EFBIG, f"more than {MAX_READ_BYTES} bytes", str(path))
            found.setdefault((at.st_dev, at.st_ino), (path, handle))
        return list(reversed(found.values()))

    def _rotations(self, now: datetime) -> int:
        """Return how often the files can be rotated now, without dropping one that must be kept."""
        rotated = [_stat(path) for path in self._paths()[:-1]]
        existing = [from_mtime(at.st_mtime_ns) for at in rotated if at]
        return rotated.count(None) + sum(1 for _ in takewhile(lambda written: now - written > RETENTION, existing))

    def _rotate(self, now: datetime) -> None:
        """Make room in the current file. Raises JournalFull if that would drop a file that must be kept."""
        paths = self._paths()
        if _size(paths[-1]) < MAX_JOURNAL_BYTES:
            return
        if not self._rotations(now):
            raise JournalFull(
                f"the journal is full until {paths[0]} is {RETENTION.total_seconds() / 3600:.0f} hours old"
            )
        # A gap remains where an agent died while it rotated: only what is newer has to move.
        gap = max((number for number, path in enumerate(paths) if _stat(path) is None), default=0)
        for older, newer in pairwise(paths[gap:]):
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
        if size == 0 or not self._name_synced:
            self._name_synced = False
            _sync_directory(self._directory)
            self._name_synced = True


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


def _stat(path: Path) -> os.stat_result | None:
    """Return None if there is no such file."""
    try:
        return path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None


def _size(path: Path) -> int:
    at = _stat(path)
    return at.st_size if at else 0


def _lines(path: Path, handle: int) -> Iterator[tuple[str, bytes]]:
    with os.fdopen(handle, "rb", closefd=False) as file:
        for number, line in enumerate(file, 1):
            yield f"{path}, line {number}", line


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
