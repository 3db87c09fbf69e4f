"""The files of the journal, and the lock that admits one cleaner at a time.

They are outside host-local's directories, because host-local reads every file in its own. Only the holder of the
cleaner's lock writes. Each file is replaced as a whole: after a power cut, the old or the new one is there.
"""

import errno
import fcntl
import json
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

import tenacity

from agent.cleanup import journal
from agent.cleanup.journal import Entry, Journal
from agent.cleanup.release import FileImage, JournalFull
from agent.model.release import ReleaseRequest, Verdict
from agent.model.snapshot import from_mtime
from agent.sources.host.state_directory import unwritable
from agent.sources.os_error import cannot_read
from agent.sources.source_error import SourceError
from agent.state.atomic_file import make_directory, replace_file

MOST_ENTRIES: Final = 2000
"""What `run` releases in a day by default has room."""
RETENTION: Final = timedelta(hours=24)
"""Where there is no room, the oldest entries go, if nothing was written to them for so long."""
_LARGEST: Final = 16 * 1024 * 1024
_SUFFIX: Final = ".json"
_LOCK = "cleaner.lock"
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Busy(Exception):
    """Another cleaner is running on this node."""


class JournalStore:
    """The journal in `journal/` of the agent's state directory, and the cleaner's lock beside it."""

    def __init__(self, state_dir: Path) -> None:
        self._state, self._directory = state_dir, state_dir / "journal"
        self._read: dict[Path, tuple[tuple[int, int, int], Entry | str]] = {}
        """What was read of each file, or why it is no entry, and its version then."""

    @contextmanager
    def exclusive(self, seconds: float) -> Iterator[None]:
        """Hold the cleaner's lock; raises Busy if another cleaner holds it for so long, and OSError."""
        tries = tenacity.Retrying(
            stop=tenacity.stop_after_delay(seconds),
            wait=tenacity.wait_random(0.01, 0.05),
            retry=tenacity.retry_if_exception_type(BlockingIOError),
            reraise=True,
        )
        make_directory(self._state)
        lock = os.open(self._state / _LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            try:
                tries(fcntl.flock, lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise Busy(f"another cleaner is running on this node (it holds {self._state / _LOCK})") from error
            yield
        finally:
            os.close(lock)

    def trouble(self) -> str:
        """Return why the journal cannot be written; empty if it can. Changes nothing."""
        return unwritable(self._directory)

    def room(self, now: datetime) -> int:
        """Return for how many entries there is room. 0 if that cannot be told."""
        try:
            files = self._files()
        except OSError:
            return 0
        return max(0, MOST_ENTRIES - len(files)) + len(self._old(files, now))

    def size(self) -> int | None:
        """Return the bytes of all files; None if there is none, or if that cannot be told."""
        try:
            return sum(at.st_size for _, at in self._files()) or None
        except OSError:
            return None

    def read(self) -> Journal:
        """Read all entries; raises SourceError if one cannot be read. A journal that does not exist is empty."""
        try:
            read = {}
            for path, at in self._files():
                version = at.st_ino, at.st_size, at.st_mtime_ns
                known = self._read.get(path)
                read[path] = known if known and known[0] == version else (version, _parsed(path))
            self._read = read
        except OSError as error:
            raise SourceError(cannot_read(error.filename or self._directory, error)) from error
        parsed = [one for _, one in read.values()]
        return Journal(
            tuple(one for one in parsed if isinstance(one, Entry)), tuple(one for one in parsed if isinstance(one, str))
        )

    def begin(self, entry: Entry, evidence: Sequence[str]) -> None:
        """Begin an entry, on disk before this returns. Raises OSError, such as JournalFull."""
        self._make_room(entry.at)
        self._write(entry.name, journal.beginning(entry, evidence))

    def end(self, name: str, verdict: Verdict, why: str, at: datetime) -> None:
        """Record the outcome of an entry. Raises OSError, as those that follow."""
        self._change(name, lambda entry: entry.ended(verdict, why), ended=journal.timestamp(at))

    def restoring(self, name: str, at: datetime) -> None:
        """Begin a restoration, on disk before this returns."""
        self._change(name, lambda entry: entry.restoration_began(at))

    def restored(self, name: str, at: datetime) -> None:
        """Record that an entry was restored."""
        self._change(name, lambda entry: entry.restoration_ended(at))

    def halted(self, name: str, at: datetime) -> None:
        """Record that the container of an entry reappeared."""
        self._change(name, lambda entry: entry.halting(at))

    def resumed(self, name: str, at: datetime) -> None:
        """Record that cleanup was resumed."""
        self._change(name, lambda entry: replace(entry, resumed=at))

    def _files(self) -> list[tuple[Path, os.stat_result]]:
        """Return the files of the entries, oldest first. Raises OSError."""
        try:
            names = os.listdir(self._directory)
        except (FileNotFoundError, NotADirectoryError):
            return []
        paths = (self._directory / name for name in sorted(names) if name.endswith(_SUFFIX))
        return [(path, at) for path in paths if (at := _stat(path))]

    def _old(self, files: Sequence[tuple[Path, os.stat_result]], now: datetime) -> list[Path]:
        return [path for path, at in files if now - from_mtime(at.st_mtime_ns) > RETENTION]

    def _make_room(self, now: datetime) -> None:
        """Remove the oldest entries where there is no room. Raises JournalFull if they must be kept."""
        files = self._files()
        if (missing := len(files) + 1 - MOST_ENTRIES) <= 0:
            return
        old = self._old(files, now)
        if len(old) < missing:
            hours = RETENTION.total_seconds() / 3600
            raise JournalFull(f"the journal is full until {files[0][0]} is {hours:.0f} hours old")
        for path in old[:missing]:
            path.unlink()

    def _path(self, name: str) -> Path:
        return self._directory / f"{name}{_SUFFIX}"

    def _change(self, name: str, change: Callable[[Entry], Entry], **more: str) -> None:
        path = self._path(name)
        try:
            tree = json.loads(_content(path))
            entry = change(journal.parse_entry(tree))
        except journal.DAMAGE as error:
            raise OSError(errno.EINVAL, "damaged", str(path)) from error
        self._write(name, tree | journal.progress(entry) | more)

    def _write(self, name: str, document: dict[str, Any]) -> None:
        path = self._path(name)
        try:
            replace_file(path, f"{json.dumps(document, indent=1)}\n".encode())
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(path)) from error


class EntryWriter:
    """Writes the entries of one cleaner."""

    def __init__(self, journal_store: JournalStore, by: str, now: Callable[[], datetime]) -> None:
        self._journal_store, self._by, self._now = journal_store, by, now

    def begin(self, request: ReleaseRequest, files: Sequence[FileImage], evidence: Sequence[str]) -> str:
        now = self._now()
        name = journal.entry_name(now, request)
        entry = Entry(name, now, self._by, request.container_id, request.pod, tuple(files))
        self._journal_store.begin(entry, evidence)
        return name

    def end(self, entry: str, verdict: Verdict, why: str) -> None:
        self._journal_store.end(entry, verdict, why, self._now())


def _stat(path: Path) -> os.stat_result | None:
    """Return None if the file is gone."""
    try:
        return path.lstat()
    except FileNotFoundError:
        return None


def _parsed(path: Path) -> Entry | str:
    try:
        return journal.parse_entry(json.loads(_content(path)))
    except journal.DAMAGE as error:
        return f"{path}: {journal.why_damaged(error)} (it is skipped and kept; all other entries are used)"


def _content(path: Path) -> bytes:
    """Read a regular file; raises OSError."""
    handle = os.open(path, _READ)
    try:
        at = os.fstat(handle)
        if not stat.S_ISREG(at.st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        if at.st_size > _LARGEST:
            raise OSError(errno.EFBIG, f"more than {_LARGEST} bytes", str(path))
        with os.fdopen(handle, "rb", closefd=False) as file:
            return file.read()
    finally:
        os.close(handle)
