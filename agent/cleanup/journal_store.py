"""The journal on disk: a readable JSON file for each entry, and the lock of one cleaner at a time.

Each file is replaced as a whole: after a power cut, the old or the new one is there. They are
outside host-local's directories, because host-local reads every file in its own.
"""

import base64
import errno
import fcntl
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, fields, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from platform import python_version, uname
from typing import Any, Final

from agent.cleanup.journal import (
    RESERVATION,
    Damage,
    Entry,
    FileImage,
    Journal,
    JournalFile,
    JournalFull,
    choose_evicted,
)
from agent.cleanup.polling import polling
from agent.model.documents import Damaged, build, parse_document
from agent.model.release import Verdict
from agent.model.snapshot import from_mtime
from agent.sources.host.files import read_file
from agent.sources.source_error import SourceError, cannot_read
from agent.state.directory import (
    make_directory,
    remove_file,
    remove_temporary_files,
    replace_file,
    why_unwritable,
)

JOURNAL_SCHEMA: Final = "nodeleak.journal/v1"
MAX_ENTRIES: Final = 2000  # what `run` releases in a day by default has room
_MAX_BYTES: Final = 16 * 1024 * 1024
_MAX_BYTES_BEGUN: Final = _MAX_BYTES - 1024 * 1024
"""Of an entry that begins. Its outcome has to fit as well."""
_TIMES: Final = ("restored", "restoring", "halted", "resumed")
_ON_DISK: Final = {"name": "entry", "at": "began", "actor": "by", "verdict": "outcome"}
"""The fields of an `Entry` that have another name on disk."""
_IN_DOUBT_ON_DISK: Final = "interrupted"  # so that an earlier version reads it after a downgrade
_MODES: Final = range(0o10000)
_OWNERS: Final = range(2**32)
_MTIMES: Final = range(-(2**63) * 10**9, 2**63 * 10**9)


class Busy(Exception):
    """Another cleaner is running on this node."""


class EntryTooLarge(OSError):
    """The journal could not read the entry again; the text says what to do."""


def list_files(directory: Path) -> list[JournalFile]:
    """Return the files of the entries, oldest first. Raises OSError.

    What another cleaner drops meanwhile is left out.
    """
    try:
        names = sorted(name for name in os.listdir(directory) if name.endswith(".json"))
    except (FileNotFoundError, NotADirectoryError):
        return []
    files: list[JournalFile] = []
    for path in (directory / name for name in names):
        with suppress(FileNotFoundError):
            status = path.lstat()
            files.append(JournalFile(str(path), status.st_ino, status.st_size, status.st_mtime_ns))
    return files


class JournalStore:
    """The journal in `journal/` of the state directory. Who holds its lock, `exclusive`, writes."""

    def __init__(
        self,
        state_dir: Path,
        max_entries: int = MAX_ENTRIES,
        list_files: Callable[[Path], list[JournalFile]] = list_files,
    ) -> None:
        """`list_files`: lists the directory, as the function of this name does."""
        self._state = state_dir
        self._directory = state_dir / "journal"
        self._max_entries = max_entries
        self._list_files = list_files
        self._parsed: dict[JournalFile, Entry | Damage] = {}

    @contextmanager
    def exclusive(self, timeout: float) -> Iterator[None]:
        """Hold the cleaner's lock.

        Raises Busy if another cleaner holds it for longer than `timeout` seconds, and OSError.
        """
        make_directory(self._state)
        path = self._state / "cleaner.lock"
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            try:
                polling(BlockingIOError, timeout)(fcntl.flock, lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise Busy(f"another cleaner is running on this node (it holds {path})") from error
            remove_temporary_files(self._directory)
            yield
        finally:
            os.close(lock)

    def why_unwritable(self) -> str | None:
        """Return why the journal cannot be written, if it cannot. Changes nothing."""
        return why_unwritable(self._directory)

    def why_full(self, now: datetime) -> str | None:
        """Return why no entry can begin, and what ends that, if none can."""
        try:
            self._evicted(now)
        except JournalFull as full:
            return str(full)
        except (OSError, SourceError):
            return None  # `why_unwritable` or the next reading tells
        return None

    def size(self) -> int | None:
        """Return the bytes of all files; None if there are none, or if that is not known."""
        try:
            return sum(file.size for file in self._list_files(self._directory)) or None
        except OSError:
            return None

    def read(self) -> Journal:
        """Return the journal; none is empty. Raises SourceError if a file cannot be read."""
        try:
            parsed = self._load()
        except OSError as error:
            raise SourceError(cannot_read(error.filename or self._directory, error)) from error

        entries = [entry for entry in parsed.values() if isinstance(entry, Entry)]
        kept = "it is skipped and kept; all other entries are used"
        damage = [
            f"{file.path}: no entry of this version's journal: {reason} ({kept})"
            for file, reason in parsed.items()
            if isinstance(reason, str)
        ]
        return Journal(tuple(entries), tuple(damage))

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

        if (size := len(_encode(document))) > _MAX_BYTES_BEGUN:
            raise EntryTooLarge(_describe_size(entry, size))
        if evicted := self._evicted(now or entry.at):
            remove_file(Path(evicted.path))
        self._write(entry.name, document)

    def update(self, entry: Entry, at: datetime) -> None:
        """Record what has become of an entry, on disk before this returns. Raises OSError."""
        path = self._path(entry.name)
        try:
            document = parse_document(path.read_bytes(), JOURNAL_SCHEMA)
        except Damaged as damage:
            raise OSError(errno.EINVAL, f"damaged: {damage}", str(path)) from damage

        in_doubt = entry.verdict is Verdict.IN_DOUBT
        document |= {
            "outcome": _IN_DOUBT_ON_DISK if in_doubt else entry.verdict,
            "why": entry.why,
            "restorations": entry.restorations,
        }

        for name in _TIMES:
            time = getattr(entry, name)
            document[name] = _timestamp(time) if time else None
        if entry.verdict:
            document.setdefault("ended", _timestamp(at))
        self._write(entry.name, document)

    def resume(self, now: Callable[[], datetime], timeout: float) -> tuple[Entry, ...]:
        """Record that cleanup may go on. Return the releases that had halted it.

        Raises Busy, OSError and SourceError.
        """
        with self.exclusive(timeout):
            halted = self.read().halting_entries()
            for entry in halted:
                self.update(replace(entry, resumed=now()), now())
        return halted

    def _path(self, name: str) -> Path:
        return self._directory / f"{name}.json"

    def _load(self) -> dict[JournalFile, Entry | Damage]:
        """Return the entry or the damage of each file. Only new files are read.

        Raises OSError, and SourceError for what is no file.
        """
        parsed: dict[JournalFile, Entry | Damage] = {}
        for file in self._list_files(self._directory):
            with suppress(FileNotFoundError):  # another cleaner has dropped it
                parsed[file] = self._parsed[file] if file in self._parsed else _parse_file(file)
        self._parsed = parsed
        return parsed

    def _evicted(self, now: datetime) -> JournalFile | None:
        """Return what has to go before another entry can begin, if anything.

        Raises JournalFull, OSError and SourceError.
        """
        if len(self._list_files(self._directory)) < self._max_entries:
            return None
        return choose_evicted(self._load(), now)

    def _write(self, name: str, document: dict[str, Any]) -> None:
        """Replace the file of an entry as a whole. Raises OSError with its path."""
        path = self._path(name)
        try:
            replace_file(path, _encode(document))
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(path)) from error


def _describe_size(entry: Entry, size: int) -> str:
    """Say which files make an entry larger than the journal reads, and what to do."""
    results = [f"{image.place}/{image.name}" for image in entry.files if image.place != RESERVATION]
    return (
        f"its journal entry would have {size:,} bytes, and {_MAX_BYTES_BEGUN:,} are the limit: "
        f"move its results out of libcni's cache ({', '.join(results)})"
    )


def _encode(document: dict[str, Any]) -> bytes:
    return f"{json.dumps(document, indent=1)}\n".encode()


def _timestamp(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def file_document(image: FileImage) -> dict[str, Any]:
    """Return one file as the journal stores it: UTF-8 as text, for people, else base64."""
    document = asdict(image)
    del document["content"]
    if not image.data_dir:
        del document["data_dir"]
    document["mode"] = f"{image.mode:04o}"
    document["mtime"] = _timestamp(from_mtime(image.mtime_ns))
    try:
        return document | {"text": image.content.decode()}
    except UnicodeDecodeError:
        return document | {"base64": base64.b64encode(image.content).decode()}


def _parse_file(file: JournalFile) -> Entry | Damage:
    """Return the entry of a file, or why it has none. Raises OSError and SourceError."""
    if file.size > _MAX_BYTES:
        return f"it has more than the limit of {_MAX_BYTES:,} bytes"
    path = Path(file.path)
    try:
        entry = _parse_entry(read_file(path, limit=_MAX_BYTES)[0])
    except Damaged as damaged:
        return str(damaged)
    if entry.name != path.stem:  # what is written for it would go to another file
        return f"it is that of entry {entry.name}"
    return entry


def _parse_entry(content: bytes) -> Entry:
    """Return an entry; raises Damaged for anything else."""
    document = parse_document(content, JOURNAL_SCHEMA)
    if document.get("outcome") == _IN_DOUBT_ON_DISK:
        document["outcome"] = Verdict.IN_DOUBT
    if isinstance(files := document.get("files"), list):
        document["files"] = [_with_content(file) for file in files]

    on_disk = {field.name: _ON_DISK.get(field.name, field.name) for field in fields(Entry)}
    tree = {name: document[key] for name, key in on_disk.items() if key in document}
    entry = build(Entry, tree, "entry")

    try:
        entry.container_id.encode()  # as it is compared with the files of host-local
    except ValueError as error:
        raise Damaged(f"{entry.container_id!r}: {error}") from error
    for image in entry.files:
        _require_possible(image)
    return entry


def _with_content(file: Any) -> Any:
    """Return the fields of a `FileImage`; raises Damaged without its mode and content."""
    try:
        text = file.get("text")
        content = base64.b64decode(file["base64"]) if text is None else str.encode(text)
        return {**file, "mode": int(file["mode"], 8), "content": content}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise Damaged(f"entry.files: no mode or content: {error!r}") from error


def _require_possible(image: FileImage) -> None:
    """Raise Damaged if the node can have no such file of a network."""
    path = f"{image.data_dir}/{image.network}/{image.name}"
    try:
        os.fsencode(path)
    except ValueError as error:
        raise Damaged(f"{path!r}: {error}") from error

    parts = (image.network, image.name)
    leads_away = any("/" in part or part in {"", ".", ".."} for part in parts)
    leads_away |= ".." in image.data_dir.split("/") or "\0" in path
    if leads_away or (image.data_dir and not image.data_dir.startswith("/")):
        raise Damaged(f"{path!r} is not a file of a network")

    is_possible = (
        image.mode in _MODES
        and image.uid in _OWNERS
        and image.gid in _OWNERS
        and image.mtime_ns in _MTIMES
    )
    if not is_possible:
        raise Damaged(f"{path!r}: no file has this mode, owner or time")
