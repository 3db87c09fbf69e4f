"""What was removed, byte for byte, so that it can be put back. Lines of JSON, for people as much as for `restore`.

An entry is a line that begins it, on disk before anything is removed, and a line that says how it ended. One that
never ended is half an entry: we died, and the file is in place, or what is needed to restore it is here. The journal
lies outside host-local's directories, because host-local reads every file below its own. One writer at a time: whoever
holds the cleaner's lock.
"""

import base64
import errno
import fcntl
import json
import os
import platform
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final

import tenacity

from agent.cleanup.steps import RESERVATION, Kept, said
from agent.model.release import Candidate, Verdict
from agent.sources.unavailable import Unavailable, in_short

SCHEMA: Final = "nodeleak.journal/v1"
LARGEST: Final = 512 * 1024
"""Bytes of one file: about 300 entries. A file that has more is put aside, and another begun."""
FILES: Final = 4
"""How many files are kept; the oldest is dropped for a fifth."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LARGEST_ID, _LATEST_NS = 2**32 - 2, 2**63 * 10**9 - 1
_CURRENT, _LOCK = "journal.jsonl", "cleaner.lock"
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_APPEND = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Entry:
    """One release, from what its lines say."""

    name: str
    at: datetime
    by: str
    """`clean`, or `run` where the daemon did it."""
    container_id: str
    pod: str
    files: tuple[Kept, ...]
    verdict: Verdict | None = None
    """None: it never ended."""
    why: str = ""
    restored: datetime | None = None
    """When putting it back was begun."""

    @property
    def ips(self) -> tuple[str, ...]:
        return tuple(kept.name for kept in self.reservations)

    @property
    def reservations(self) -> tuple[Kept, ...]:
        return tuple(kept for kept in self.files if kept.place == RESERVATION)

    @property
    def released(self) -> bool:
        return self.verdict is Verdict.RELEASED and self.restored is None


@dataclass(frozen=True, slots=True)
class Journal:
    """All that is written."""

    entries: tuple[Entry, ...] = ()
    """Oldest first."""
    damage: tuple[str, ...] = ()
    """Lines that cannot be read: where, and why. They stay where they are."""

    def released_from(self) -> dict[str, Entry]:
        """Return the last release of each sandbox that has nothing any more, and must never be seen again."""
        return {entry.container_id: entry for entry in self.entries if entry.released and entry.container_id}

    def half(self) -> tuple[Entry, ...]:
        return tuple(entry for entry in self.entries if entry.verdict is None)

    def released_since(self, since: datetime, by: str) -> int:
        """Count addresses. What the clock has not reached yet counts too: it was set back."""
        return sum(len(entry.ips) for entry in self.entries if entry.released and entry.by == by and entry.at > since)


class Busy(Exception):
    """Another cleaner is at work on this node."""


class Book:
    """The journal's files, in `journal/` of the agent's state directory, and the lock of whoever writes them."""

    def __init__(self, state_dir: Path) -> None:
        self._state, self._directory = state_dir, state_dir / "journal"
        self._read: Journal | None = None
        self._signature: tuple[tuple[str, int, int, int], ...] = ()

    @contextmanager
    def alone(self, seconds: float) -> Iterator[None]:
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
            return said(error)
        return "" if os.access(part, os.W_OK | os.X_OK, effective_ids=True) else f"{part}: permission denied"

    def read(self) -> Journal:
        """Read everything; raises Unavailable where a file cannot be read. One that is not there is empty."""
        try:
            signature = self._now()
            if self._read is None or signature != self._signature:
                self._read = _parse(self._lines(path) for path in self._paths())
                self._signature = signature
        except OSError as error:
            raise Unavailable(f"journal: {said(error)}") from error
        return self._read

    def begin(self, entry: Entry, evidence: Sequence[str]) -> None:
        """Put the beginning of an entry on disk. Raises OSError."""
        _make_directory(self._directory)
        self._turn_over()
        self._append(_beginning(entry, evidence))

    def end(self, name: str, verdict: Verdict, why: str, at: datetime) -> None:
        """Say how an entry ended. Raises OSError."""
        self._append({"schema": SCHEMA, "entry": name, "ended": _moment(at), "outcome": verdict.value, "why": why})

    def restoring(self, name: str, at: datetime) -> None:
        """Say that an entry is about to be put back. Raises OSError."""
        self._append({"schema": SCHEMA, "entry": name, "restored": _moment(at)})

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


def _moment(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def entry_name(at: datetime, candidate: Candidate) -> str:
    """Name an entry so that names sort by time, can be typed, and are two for two sandboxes of one moment."""
    empty = candidate.reservations[0]
    of = candidate.container_id[:12] or f"{empty.network}-{empty.ip}"
    return f"{at.astimezone(UTC):%Y%m%dT%H%M%S.%fZ}-{of}"


def _beginning(entry: Entry, evidence: Sequence[str]) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "entry": entry.name,
        "began": _moment(entry.at),
        "by": entry.by,
        "container_id": entry.container_id,
        "pod": entry.pod,
        "evidence": list(evidence),
        "versions": {
            "nodeleak": version("nodeleak"),
            "python": platform.python_version(),
            "kernel": platform.release(),
        },
        "files": [file_document(kept) for kept in entry.files],
    }


def file_document(kept: Kept) -> dict[str, Any]:
    """Draw one file as the journal keeps it."""
    return {
        "place": kept.place,
        "network": kept.network,
        "name": kept.name,
        **_content(kept.content),
        "mode": f"{kept.mode:04o}",
        "uid": kept.uid,
        "gid": kept.gid,
        "inode": kept.inode,
        "mtime": _readable(kept.mtime_ns),
        "mtime_ns": kept.mtime_ns,
    }


def _readable(mtime_ns: int) -> str:
    try:
        return _moment(_EPOCH + timedelta(microseconds=mtime_ns // 1000))
    except OverflowError:
        return "a year that no calendar has"


def _content(content: bytes) -> dict[str, str]:
    """Write text as text, for people; what is not UTF-8 as base64."""
    try:
        return {"text": content.decode()}
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(content).decode()}


def _parse(files: Iterable[Iterator[tuple[str, bytes]]]) -> Journal:
    entries: dict[str, Entry] = {}
    damage: list[str] = []
    for where, line in (one for file in files for one in file):
        if not line.strip():
            continue
        try:
            _read_line(json.loads(line), entries)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError) as error:
            damage.append(f"{where}: {type(error).__name__}: {in_short(error)}")
    return Journal(tuple(entries.values()), tuple(damage))


def _read_line(line: dict[str, Any], entries: dict[str, Entry]) -> None:
    if line["schema"] != SCHEMA:
        raise ValueError(f"its schema is {line['schema']!r}, and not {SCHEMA}")
    name = str(line["entry"])
    if "began" in line:
        entries[name] = Entry(
            name=name,
            at=_time(line["began"]),
            by=str(line["by"]),
            container_id=str(line["container_id"]),
            pod=str(line["pod"]),
            files=tuple(map(_kept, line["files"])),
        )
    elif "ended" in line:
        # The beginning may have been dropped with the oldest file.
        if name in entries:
            entries[name] = replace(entries[name], verdict=Verdict(line["outcome"]), why=str(line["why"]))
    elif name in entries:
        entries[name] = replace(entries[name], restored=_time(line["restored"]))


def _time(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError(f"{text!r} is a time without a zone")
    return moment


def _kept(file: dict[str, Any]) -> Kept:
    content = file["text"].encode() if "text" in file else base64.b64decode(file["base64"], validate=True)
    for part in ("network", "name"):
        if "/" in file[part] or b"\0" in os.fsencode(file[part]) or file[part] in {"", ".", ".."}:
            raise ValueError(f"{file[part]!r} is no file's name")
    if file["place"] == RESERVATION:
        ip_address(file["name"])
    return Kept(
        place=str(file["place"]),
        network=str(file["network"]),
        name=str(file["name"]),
        content=content,
        mode=_number(int(file["mode"], 8), 0o7777),
        uid=_number(int(file["uid"]), _LARGEST_ID),
        gid=_number(int(file["gid"]), _LARGEST_ID),
        inode=int(file["inode"]),
        mtime_ns=_number(int(file["mtime_ns"]), _LATEST_NS, -_LATEST_NS),
    )


def _number(number: int, most: int, least: int = 0) -> int:
    """Pass what the system can take; the rest would be an error of Python's, and not the system's."""
    if not least <= number <= most:
        raise ValueError(f"{number} is not from {least} to {most}")
    return number
