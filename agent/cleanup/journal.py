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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from pathlib import Path
from platform import python_version, uname
from typing import Any, Final

import tenacity

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
"""Where there is no room, the oldest entries go, if nothing was written to them for so long."""
_MAX_BYTES: Final = 16 * 1024 * 1024
_DAMAGE: Final = (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError)
"""What reading anything but an entry raises."""
_TIMES: Final = ("restored", "restoring", "halted", "resumed")


class Busy(Exception):
    """Another cleaner is running on this node."""


class JournalFull(OSError):
    """The journal would have to drop an entry that may still be needed; the text says until when."""


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
        """Return the sandboxes that somebody has restored: whoever has such an address was seen by no source."""
        return frozenset(entry.container_id for entry in self.entries if entry.restored) - {""}

    def unfinished(self) -> tuple[Entry, ...]:
        return tuple(entry for entry in self.entries if entry.unfinished)

    def halted(self) -> tuple[Entry, ...]:
        """Return the releases that halted cleanup, until somebody resumes it. One is enough."""
        return tuple(entry for entry in self.entries if entry.halted and not entry.resumed)

    def named(self, name: str) -> Entry | None:
        return next((entry for entry in self.entries if entry.name == name), None)

    def released_since(self, since: datetime, actor: str) -> int:
        """Count addresses. Entries in the future count too: the clock was set back."""
        released = (entry for entry in self.entries if entry.released and entry.actor == actor)
        return sum(len(entry.ips) for entry in released if entry.at > since)

    def active_since(self, before: "Journal") -> frozenset[str]:
        """Return the sandboxes that were released or restored since the journal was read, or still are being."""
        settled = {entry for entry in before.entries if not entry.unfinished}
        return frozenset(entry.container_id for entry in self.entries if entry not in settled) - {
            ""
        }


class JournalStore:
    """The journal in `journal/` of the state directory, and the lock of one cleaner at a time. Its holder writes."""

    def __init__(self, state_dir: Path) -> None:
        self._state, self._directory = state_dir, state_dir / "journal"
        self._parsed: dict[tuple[Path, int, int, int], Entry | None] = {}
        """By path, inode, size and modification time: an entry is never changed in place."""

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
        """Return until when no entry can begin, because the oldest may still be needed; empty if one can."""
        try:
            if (oldest := self._to_drop()) is None:
                return ""
            if now - from_mtime(oldest[1].st_mtime_ns) <= RETENTION:
                return f"the journal is full until {oldest[0]} is {RETENTION.total_seconds() / 3600:.0f} hours old"
            entry = parse_entry(read_file(oldest[0], largest=_MAX_BYTES)[0])
        except OSError:
            return ""  # `trouble` tells
        unfinished = f"the journal is full until a cleanup or restore recovers {oldest[0]}"
        return unfinished if entry and entry.unfinished else ""

    def size(self) -> int | None:
        """Return the bytes of all files; None if there is none, or if that cannot be told."""
        try:
            return sum(found.st_size for _, found in self._listed()) or None
        except OSError:
            return None

    def read(self) -> Journal:
        """Read all entries; raises SourceError if one cannot be read. A journal that does not exist is empty."""
        parsed: dict[tuple[Path, int, int, int], Entry | None] = {}
        try:
            for path, found in self._listed():
                file = path, found.st_ino, found.st_size, found.st_mtime_ns
                if file not in self._parsed:
                    self._parsed[file] = parse_entry(read_file(path, largest=_MAX_BYTES)[0])
                parsed[file] = self._parsed[file]
        except OSError as error:
            raise SourceError(cannot_read(error.filename or self._directory, error)) from error
        self._parsed = parsed
        why = "no entry of this version's journal (it is skipped and kept; all other entries are used)"
        damage = tuple(f"{path}: {why}" for (path, *_), entry in parsed.items() if not entry)
        return Journal(tuple(entry for entry in parsed.values() if entry), damage)

    def begin(self, entry: Entry, evidence: Sequence[str], now: datetime | None = None) -> None:
        """Begin an entry, on disk before this returns. Raises OSError, such as JournalFull.

        `now`: when that is, if the release itself began earlier.
        """
        if why := self.full(now or entry.at):
            raise JournalFull(why)
        if oldest := self._to_drop():
            remove_file(oldest[0])
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
        self._write(entry.name, document)

    def update(self, entry: Entry, at: datetime) -> None:
        """Record what has become of an entry, on disk before this returns. Raises OSError."""
        path = self._directory / f"{entry.name}.json"
        try:
            document = json.loads(path.read_bytes())
        except ValueError as error:
            raise OSError(errno.EINVAL, "damaged", str(path)) from error
        times = {
            name: found and _timestamp(found) for name in _TIMES for found in [getattr(entry, name)]
        }
        outcome = {"outcome": entry.verdict, "why": entry.why, "restorations": entry.restorations}
        ended = {"ended": _timestamp(at)} if entry.verdict and "ended" not in document else {}
        self._write(entry.name, document | outcome | times | ended)

    def _listed(self) -> list[tuple[Path, os.stat_result]]:
        """Return the files of the entries, oldest first. Raises OSError."""
        try:
            names = sorted(name for name in os.listdir(self._directory) if name.endswith(".json"))
        except (FileNotFoundError, NotADirectoryError):
            return []
        return [(path, path.lstat()) for path in map(self._directory.joinpath, names)]

    def _to_drop(self) -> tuple[Path, os.stat_result] | None:
        """Return what has to go before another entry can begin: what nothing was written to for the longest time."""
        files = self._listed()
        return (
            min(files, key=lambda file: file[1].st_mtime_ns) if len(files) >= MAX_ENTRIES else None
        )

    def _write(self, name: str, document: dict[str, Any]) -> None:
        path = self._directory / f"{name}.json"
        try:
            replace_file(path, f"{json.dumps(document, indent=1)}\n".encode())
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(path)) from error


def retrying(held: type[Exception], seconds: float) -> tenacity.Retrying:
    """Try for a lock again and again. Whoever waits for it in the kernel hangs behind one that is never released."""
    stop, wait = tenacity.stop_after_delay(seconds), tenacity.wait_random(0.001, 0.005)
    return tenacity.Retrying(
        stop=stop, wait=wait, retry=tenacity.retry_if_exception_type(held), reraise=True
    )


def _timestamp(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(
        UTC
    )  # or an OverflowError here: the year 10000 cannot be shown


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


def _file_image(document: dict[str, Any]) -> FileImage:
    """Return one file. Raises ValueError where its name would lead to another directory."""
    content = (
        document["text"].encode() if "text" in document else base64.b64decode(document["base64"])
    )
    data_dir = document.get("data_dir", "")
    leads_away = any(
        "/" in document[part] or document[part] in {"", ".", ".."} for part in ("network", "name")
    )
    if leads_away or ".." in data_dir.split("/"):
        raise ValueError(f"{document['name']} in {data_dir}/{document['network']}")
    fields = {
        name: document[name]
        for name in ("place", "network", "name", "uid", "gid", "inode", "mtime_ns")
    }
    return FileImage(**fields, content=content, mode=int(document["mode"], 8), data_dir=data_dir)


def parse_entry(content: bytes) -> Entry | None:
    """Return an entry; None for anything else."""
    try:
        document = json.loads(content)
        if document["schema"] != JOURNAL_SCHEMA:
            return None
        times: dict[str, Any] = {name: _time(at) for name in _TIMES if (at := document.get(name))}
        return Entry(
            name=document["entry"],
            at=_time(document["began"]),
            actor=document["by"],
            container_id=document["container_id"],
            pod=document["pod"],
            files=tuple(map(_file_image, document["files"])),
            verdict=Verdict(outcome) if (outcome := document.get("outcome")) else None,
            why=document.get("why", ""),
            restorations=document.get("restorations", 0),
            **times,
        )
    except _DAMAGE:
        return None
