"""The journal of releases: what was removed, byte for byte, so that it can be restored. One readable JSON file each.

A release is in the journal, on disk, before anything is removed, and its outcome is added at the end; so it is with a
restoration. An entry that has begun and not ended is unfinished: the agent died. Then either the file is in place or
the journal has what restores it. Each file is replaced as a whole: after a power cut, the old or the new one is there.
They are outside host-local's directories, because host-local reads every file in its own.
"""

import base64
import errno
import fcntl
import json
import os
import posixpath
import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from pathlib import Path
from platform import python_version, uname
from typing import Any, Final, NamedTuple

import tenacity

from agent.model.documents import Damaged, build, parse_document
from agent.model.release import ReleaseRequest, Verdict
from agent.model.snapshot import from_mtime
from agent.sources.host.files import read_file
from agent.sources.source_error import SourceError, cannot_read
from agent.state.directory import (
    make_directory,
    remove_file,
    remove_temporary_files,
    replace_file,
    unwritable,
)

JOURNAL_SCHEMA: Final = "nodeleak.journal/v1"
RESERVATION: Final = "reservation"
IN_DOUBT: Final = (
    Verdict.INTERRUPTED
)  # of an entry: a reservation is gone, and it is not known who removed it
MAX_ENTRIES: Final = 2000  # what `run` releases in a day by default has room
RETENTION: Final = timedelta(hours=24)
"""Where there is no room, the oldest entries go, if nothing was written to them for so long.

Entries that are `needed`, and damaged files, never go.
"""
_MAX_BYTES: Final = 16 * 1024 * 1024
_MAX_BYTES_BEGUN: Final = _MAX_BYTES - 1024 * 1024
"""Of an entry that begins. Its outcome has to fit as well."""
_FURTHEST_SET_BACK: Final = timedelta(days=1)
"""A clock that is set back by more was wrong before, perhaps by years."""
_TIMES: Final = ("restored", "restoring", "halted", "resumed")
_MODES: Final = range(0o10000)
_OWNERS: Final = range(2**32)
_MTIMES: Final = range(-(2**63) * 10**9, 2**63 * 10**9)


class Busy(Exception):
    """Another cleaner is running on this node."""


class JournalFull(OSError):
    """The journal would have to drop an entry that may still be needed; the text says until when."""


class EntryTooLarge(OSError):
    """The journal could not read the entry again; the text says what to do."""


@dataclass(frozen=True, slots=True)
class FileImage:
    """One file of the node: enough to recognize it, and to put it back byte for byte."""

    place: str  # `RESERVATION`, or its directory in libcni's cache
    network: str
    name: str
    content: bytes
    mode: int
    uid: int
    gid: int
    inode: int
    mtime_ns: int
    data_dir: str = ""  # of a reservation (`Reservation.data_dir`)

    @property
    def directory(self) -> str:
        """The directory of a reservation (`Reservation.directory`)."""
        return posixpath.join(self.data_dir, self.network)


@dataclass(frozen=True, slots=True)
class Entry:
    """One release."""

    name: str
    at: datetime
    actor: str  # `clean`, or `run` for the daemon
    container_id: str
    pod: str
    files: tuple[FileImage, ...]
    verdict: Verdict | None = None  # of the release; None: it is unfinished
    why: str = ""
    restored: datetime | None = None  # when it was restored
    restoring: datetime | None = None  # when a restoration began that is unfinished
    restorations: int = 0  # how many began: each is activity, whatever came of it
    halted: datetime | None = (
        None  # when a record of its container reappeared, which halted cleanup
    )
    resumed: datetime | None = None  # when cleanup was resumed since

    @property
    def ips(self) -> tuple[str, ...]:
        return tuple(image.name for image in self.reservations)

    @property
    def reservations(self) -> tuple[FileImage, ...]:
        return tuple(image for image in self.files if image.place == RESERVATION)

    @property
    def directories(self) -> tuple[str, ...]:
        return tuple(sorted({image.directory for image in self.reservations}))

    @property
    def released(self) -> bool:
        """Whether this agent removed reservations, or may have removed them before it was killed."""
        return self.verdict in {Verdict.RELEASED, IN_DOUBT} and not (
            self.restored or self.restoring
        )

    @property
    def unfinished(self) -> bool:
        return self.verdict is None or self.restoring is not None

    @property
    def halts(self) -> bool:
        """Whether it has halted cleanup, and nobody has resumed it."""
        return self.halted is not None and self.resumed is None

    @property
    def put_back(self) -> bool:
        """Whether somebody has restored it, or may have restored a part of it before a kill."""
        return self.restored is not None or (self.verdict is IN_DOUBT and self.restorations > 0)

    @property
    def needed(self) -> bool:
        """Whether the journal keeps it for good: without it, a protection would end silently."""
        return self.unfinished or self.halts or self.put_back

    @property
    def reappearance(self) -> str:
        command = f"`nodeleak restore {self.name} --apply`"
        address = f"its address was {', '.join(self.ips)}; {command} puts it back"
        return f"released container {self.container_id[:12]} reappeared ({address})"

    def ended(self, verdict: Verdict, why: str) -> "Entry":
        """End a release, or a restoration that restored nothing."""
        return replace(self, verdict=verdict, why=why, restored=None, restoring=None)

    def restoration_began(self, at: datetime) -> "Entry":
        return replace(self, restoring=at, restorations=self.restorations + 1)


def new_entry(
    request: ReleaseRequest, files: Sequence[FileImage], actor: str, at: datetime
) -> Entry:
    """Return an entry whose name sorts by time, is easy to type, and is unique for two sandboxes at the same time."""
    first = request.reservations[0]
    sandbox = request.container_id[:12] or f"{first.network[:100]}-{first.ip}"
    name = f"{at.astimezone(UTC):%Y%m%dT%H%M%S.%fZ}-{re.sub(r'[^A-Za-z0-9.:_-]', '_', sandbox)}"
    return Entry(name, at, actor, request.container_id, request.pod, tuple(files))


@dataclass(frozen=True, slots=True)
class Journal:
    entries: tuple[Entry, ...] = ()  # oldest first
    damage: tuple[str, ...] = ()  # Files that are no entry. They are kept

    def released_from(self) -> dict[str, Entry]:
        """Return the last release of each sandbox, by container ID. No record of these must ever reappear."""
        return {
            entry.container_id: entry
            for entry in self.entries
            if entry.released and entry.container_id
        }

    def restored(self) -> frozenset[str]:
        """Return the sandboxes that somebody has restored, if only in part.

        Whoever has such an address was seen by no source.
        """
        return frozenset(entry.container_id for entry in self.entries if entry.put_back) - {""}

    def unfinished(self) -> tuple[Entry, ...]:
        return tuple(entry for entry in self.entries if entry.unfinished)

    def halted(self) -> tuple[Entry, ...]:
        """Return the releases that halted cleanup, until somebody resumes it. One is enough."""
        return tuple(entry for entry in self.entries if entry.halts)

    def named(self, name: str) -> Entry | None:
        return next((entry for entry in self.entries if entry.name == name), None)

    def released_since(self, since: datetime, actor: str) -> int:
        """Count addresses. Entries of the next day count too: the clock was set back.

        Later ones do not: they would count for years.
        """
        last = since + _FURTHEST_SET_BACK
        released = (entry for entry in self.entries if entry.released and entry.actor == actor)
        return sum(len(entry.ips) for entry in released if since < entry.at <= last)

    def active_since(self, before: "Journal") -> frozenset[str]:
        """Return the sandboxes that were released or restored since the journal was read, or still are being."""
        settled = {entry for entry in before.entries if not entry.unfinished}
        return frozenset(entry.container_id for entry in self.entries if entry not in settled) - {
            ""
        }


class JournalFile(NamedTuple):
    """A file of the journal as it was listed. An entry is never changed in place."""

    path: Path
    inode: int
    size: int
    mtime_ns: int


class JournalStore:
    """The journal in `journal/` of the state directory, and the lock of one cleaner at a time. Its holder writes."""

    def __init__(self, state_dir: Path, max_entries: int = MAX_ENTRIES) -> None:
        self._state, self._directory = state_dir, state_dir / "journal"
        self._max_entries = max_entries
        self._parsed: dict[JournalFile, Entry | str] = {}

    @contextmanager
    def exclusive(self, seconds: float) -> Iterator[None]:
        """Hold the cleaner's lock; raises Busy if another cleaner holds it for so long, and OSError."""
        make_directory(self._state)
        path = self._state / "cleaner.lock"
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            try:
                retrying(BlockingIOError, seconds)(fcntl.flock, lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise Busy(f"another cleaner is running on this node (it holds {path})") from error
            remove_temporary_files(self._directory)
            yield
        finally:
            os.close(lock)

    def trouble(self) -> str:
        """Return why the journal cannot be written; empty if it can. Changes nothing."""
        return unwritable(self._directory)

    def full(self, now: datetime) -> str:
        """Return why no entry can begin, and what ends that; empty if one can."""
        try:
            self._to_drop(now)
        except JournalFull as full:
            return str(full)
        except (OSError, SourceError):
            return ""  # `trouble` tells, or the next reading
        return ""

    def size(self) -> int | None:
        """Return the bytes of all files; None if there is none, or if that cannot be told."""
        try:
            return sum(file.size for file in self.files()) or None
        except OSError:
            return None

    def read(self) -> Journal:
        """Read all entries; raises SourceError if one cannot be read. A journal that does not exist is empty."""
        try:
            parsed = self._load()
        except OSError as error:
            raise SourceError(cannot_read(error.filename or self._directory, error)) from error
        entries = tuple(entry for entry in parsed.values() if isinstance(entry, Entry))
        kept = "it is skipped and kept; all other entries are used"
        damage = tuple(
            f"{file.path}: no entry of this version's journal: {why} ({kept})"
            for file, why in parsed.items()
            if isinstance(why, str)
        )
        return Journal(entries, damage)

    def begin(self, entry: Entry, evidence: Sequence[str], now: datetime | None = None) -> None:
        """Begin an entry, on disk before this returns.

        `now`: when that is, if the release itself began earlier. Raises OSError; JournalFull and
        EntryTooLarge say what to do.
        """
        document = {
            "schema": JOURNAL_SCHEMA,
            "entry": entry.name,
            "began": _timestamp(entry.at),
            "by": entry.actor,
            "container_id": entry.container_id,
            "pod": entry.pod,
            "evidence": list(evidence),
            "versions": {
                "nodeleak": version("nodeleak"),
                "python": python_version(),
                "kernel": uname().release,
            },
            "files": [file_document(image) for image in entry.files],
        }
        if (size := len(_encoded(document))) > _MAX_BYTES_BEGUN:
            raise EntryTooLarge(_too_large(entry, size))
        if oldest := self._to_drop(now or entry.at):
            remove_file(oldest)
        self._write(entry.name, document)

    def update(self, entry: Entry, at: datetime) -> None:
        """Record what has become of an entry, on disk before this returns. Raises OSError."""
        path = self._path(entry.name)
        try:
            document = parse_document(path.read_bytes(), JOURNAL_SCHEMA)
        except Damaged as damage:
            raise OSError(errno.EINVAL, f"damaged: {damage}", str(path)) from damage
        times = {
            name: found and _timestamp(found) for name in _TIMES for found in [getattr(entry, name)]
        }
        outcome = {"outcome": entry.verdict, "why": entry.why, "restorations": entry.restorations}
        ended = {"ended": _timestamp(at)} if entry.verdict and "ended" not in document else {}
        self._write(entry.name, document | outcome | times | ended)

    def _path(self, name: str) -> Path:
        return self._directory / f"{name}.json"

    def files(self) -> list[JournalFile]:
        """Return the files of the entries, oldest first. Raises OSError.

        What another cleaner drops meanwhile is left out.
        """
        try:
            names = sorted(name for name in os.listdir(self._directory) if name.endswith(".json"))
        except (FileNotFoundError, NotADirectoryError):
            return []
        found: list[JournalFile] = []
        for path in (self._directory / name for name in names):
            with suppress(FileNotFoundError):
                at = path.lstat()
                found.append(JournalFile(path, at.st_ino, at.st_size, at.st_mtime_ns))
        return found

    def _load(self) -> dict[JournalFile, Entry | str]:
        """Return each file's entry, or why it has none. Only new files are read.

        Raises OSError, and SourceError for what is no file.
        """
        parsed: dict[JournalFile, Entry | str] = {}
        for file in self.files():
            with suppress(FileNotFoundError):  # as in `files`
                parsed[file] = self._parsed[file] if file in self._parsed else _parse_file(file)
        self._parsed = parsed
        return parsed

    def _to_drop(self, now: datetime) -> Path | None:
        """Return what has to go before another entry can begin: what was written to least recently.

        None: there is room. Raises JournalFull if nothing may go, OSError and SourceError.
        """
        if len(self.files()) < self._max_entries:
            return None
        parsed = self._load()
        superfluous = [
            file for file, entry in parsed.items() if isinstance(entry, Entry) and not entry.needed
        ]
        if not superfluous:
            raise JournalFull(_nothing_to_drop(parsed.values(), self._directory))
        oldest = min(superfluous, key=lambda file: file.mtime_ns)
        if now - from_mtime(oldest.mtime_ns) <= RETENTION:
            hours = f"{RETENTION.total_seconds() / 3600:.0f} hours"
            raise JournalFull(f"the journal is full until {oldest.path} is {hours} old")
        return oldest.path

    def _write(self, name: str, document: dict[str, Any]) -> None:
        path = self._path(name)
        try:
            replace_file(path, _encoded(document))
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(path)) from error


def _nothing_to_drop(parsed: Collection[Entry | str], directory: Path) -> str:
    """Say why a full journal can drop nothing, and what to do."""
    entries = [entry for entry in parsed if isinstance(entry, Entry)]
    counts = {
        "restored": sum(entry.put_back for entry in entries),
        "unfinished": sum(entry.unfinished for entry in entries),
        "halted": sum(entry.halts for entry in entries),
        "damaged": len(parsed) - len(entries),
    }
    described = ", ".join(f"{count} {what}" for what, count in counts.items() if count)
    return (
        f"the journal is full, and none of its {len(parsed)} entries may be dropped ({described}): "
        f"move those that are not needed any more out of {directory}"
    )


def _too_large(entry: Entry, size: int) -> str:
    """Say which files make an entry larger than the journal reads, and what to do."""
    results = [f"{image.place}/{image.name}" for image in entry.files if image.place != RESERVATION]
    return (
        f"its journal entry would have {size:,} bytes, and {_MAX_BYTES_BEGUN:,} are the limit: "
        f"move its results out of libcni's cache ({', '.join(results)})"
    )


def _encoded(document: dict[str, Any]) -> bytes:
    return f"{json.dumps(document, indent=1)}\n".encode()


def retrying(held: type[Exception], seconds: float) -> tenacity.Retrying:
    """Try for a lock again and again. Whoever waits for it in the kernel hangs behind one that is never released."""
    stop, wait = tenacity.stop_after_delay(seconds), tenacity.wait_random(0.001, 0.005)
    return tenacity.Retrying(
        stop=stop, wait=wait, retry=tenacity.retry_if_exception_type(held), reraise=True
    )


def _timestamp(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def file_document(image: FileImage) -> dict[str, Any]:
    """Return one file as the journal stores it: UTF-8 as text, for people, and anything else as base64."""
    document = {
        name: value for name, value in asdict(image).items() if name != "content" and value != ""
    }
    document |= {"mode": f"{image.mode:04o}", "mtime": _timestamp(from_mtime(image.mtime_ns))}
    try:
        return document | {"text": image.content.decode()}
    except UnicodeDecodeError:
        return document | {"base64": base64.b64encode(image.content).decode()}


@dataclass(frozen=True, slots=True, kw_only=True)
class _FileDocument:
    """One file in an entry, with the types that the journal has on disk.

    It has one of `text` and `base64`.
    """

    place: str
    network: str
    name: str
    mode: str  # octal
    uid: int
    gid: int
    inode: int
    mtime_ns: int
    data_dir: str = ""
    text: str | None = None
    base64: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _EntryDocument:
    """An entry, with the names and types that the journal has on disk."""

    entry: str
    began: datetime
    by: str
    container_id: str
    pod: str
    files: tuple[_FileDocument, ...]
    outcome: Verdict | None = None
    why: str = ""
    restorations: int = 0
    restored: datetime | None = None
    restoring: datetime | None = None
    halted: datetime | None = None
    resumed: datetime | None = None


def parse_entry(content: bytes) -> Entry:
    """Return an entry; raises Damaged for anything else."""
    tree = parse_document(content, JOURNAL_SCHEMA)
    document = build(_EntryDocument, tree, "entry")
    try:
        document.container_id.encode()  # as it is compared with the files of host-local
    except ValueError as error:
        raise Damaged(f"{document.container_id!r}: {error}") from error
    return Entry(
        name=document.entry,
        at=document.began,
        actor=document.by,
        container_id=document.container_id,
        pod=document.pod,
        files=tuple(map(_file_image, document.files)),
        verdict=document.outcome,
        why=document.why,
        restorations=document.restorations,
        restored=document.restored,
        restoring=document.restoring,
        halted=document.halted,
        resumed=document.resumed,
    )


def _parse_file(file: JournalFile) -> Entry | str:
    """Return the entry of a file, or why it has none. Raises OSError and SourceError."""
    if file.size > _MAX_BYTES:
        return f"it has more than the limit of {_MAX_BYTES:,} bytes"
    try:
        entry = parse_entry(read_file(file.path, limit=_MAX_BYTES)[0])
    except Damaged as damaged:
        return str(damaged)
    if entry.name != file.path.stem:  # what is written for it would go to another file
        return f"it is that of entry {entry.name}"
    return entry


def _file_image(document: _FileDocument) -> FileImage:
    """Return one file; raises Damaged if it cannot be one of a node."""
    path = f"{document.data_dir}/{document.network}/{document.name}"
    try:
        mode = int(document.mode, 8)
        content = _content(document)
        os.fsencode(path)
    except ValueError as error:
        raise Damaged(f"{path!r}: {error}") from error
    parts = (document.network, document.name)
    leads_away = any("/" in part or part in {"", ".", ".."} for part in parts)
    leads_away |= ".." in document.data_dir.split("/") or "\0" in path
    if leads_away or (document.data_dir and not document.data_dir.startswith("/")):
        raise Damaged(f"{path!r} is no file of a network")
    is_possible = (
        mode in _MODES
        and document.uid in _OWNERS
        and document.gid in _OWNERS
        and document.mtime_ns in _MTIMES
    )
    if not is_possible:
        raise Damaged(f"{path!r}: no file has this mode, owner or time")
    return FileImage(
        place=document.place,
        network=document.network,
        name=document.name,
        content=content,
        mode=mode,
        uid=document.uid,
        gid=document.gid,
        inode=document.inode,
        mtime_ns=document.mtime_ns,
        data_dir=document.data_dir,
    )


def _content(document: _FileDocument) -> bytes:
    """Return the bytes of a file; raises ValueError."""
    if document.text is not None:
        return document.text.encode()
    if document.base64 is not None:
        return base64.b64decode(document.base64)
    raise ValueError("no content")
