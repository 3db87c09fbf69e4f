"""What was removed, byte for byte, so that it can be put back. Lines of JSON, for people as much as for `restore`.

An entry is a line that begins it, on disk before anything is removed, and a line that says how it ended. One that
never ended is half an entry: we died, and the file is in place, or what is needed to restore it is here. Where the
lines are kept is `journal_store.py`'s business.
"""

import base64
import json
import os
import platform
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from ipaddress import ip_address
from typing import Any, Final

from agent.cleanup.release import RESERVATION, FileImage
from agent.model.release import ReleaseRequest, Verdict
from agent.model.text import truncate

SCHEMA: Final = "nodeleak.journal/v1"

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LARGEST_ID, _LATEST_NS = 2**32 - 2, 2**63 * 10**9 - 1


@dataclass(frozen=True, slots=True)
class Entry:
    """One release, from what its lines say."""

    name: str
    at: datetime
    by: str
    """`clean`, or `run` where the daemon did it."""
    container_id: str
    pod: str
    files: tuple[FileImage, ...]
    verdict: Verdict | None = None
    """None: it never ended."""
    why: str = ""
    restored: datetime | None = None
    """When putting it back was begun."""

    @property
    def ips(self) -> tuple[str, ...]:
        return tuple(image.name for image in self.reservations)

    @property
    def reservations(self) -> tuple[FileImage, ...]:
        return tuple(image for image in self.files if image.place == RESERVATION)

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

    def released_again(self, entry: Entry) -> Entry | None:
        """Return a later release of the same sandbox, which is the one to restore."""
        if entry.released or not entry.container_id:
            return None
        return self.released_from().get(entry.container_id)

    def unfinished(self) -> tuple[Entry, ...]:
        return tuple(entry for entry in self.entries if entry.verdict is None)

    def released_since(self, since: datetime, by: str) -> int:
        """Count addresses. What the clock has not reached yet counts too: it was set back."""
        return sum(len(entry.ips) for entry in self.entries if entry.released and entry.by == by and entry.at > since)


def _moment(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def entry_name(at: datetime, candidate: ReleaseRequest) -> str:
    """Name an entry so that names sort by time, can be typed, and are two for two sandboxes of one moment."""
    empty = candidate.reservations[0]
    of = candidate.container_id[:12] or f"{empty.network}-{empty.ip}"
    return f"{at.astimezone(UTC):%Y%m%dT%H%M%S.%fZ}-{of}"


def beginning(entry: Entry, evidence: Sequence[str]) -> dict[str, Any]:
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
        "files": [file_document(image) for image in entry.files],
    }


def ending(name: str, verdict: Verdict, why: str, at: datetime) -> dict[str, Any]:
    return {"schema": SCHEMA, "entry": name, "ended": _moment(at), "outcome": verdict.value, "why": why}


def restoration(name: str, at: datetime) -> dict[str, Any]:
    return {"schema": SCHEMA, "entry": name, "restored": _moment(at)}


def file_document(image: FileImage) -> dict[str, Any]:
    """Draw one file as the journal keeps it."""
    return {
        "place": image.place,
        "network": image.network,
        "name": image.name,
        **_content(image.content),
        "mode": f"{image.mode:04o}",
        "uid": image.uid,
        "gid": image.gid,
        "inode": image.inode,
        "mtime": _readable(image.mtime_ns),
        "mtime_ns": image.mtime_ns,
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


def parse(files: Iterable[Iterator[tuple[str, bytes]]]) -> Journal:
    entries: dict[str, Entry] = {}
    damage: list[str] = []
    for where, line in (one for file in files for one in file):
        if not line.strip():
            continue
        try:
            _read_line(json.loads(line), entries)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError) as error:
            damage.append(f"{where}: {type(error).__name__}: {truncate(error)}")
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


def _kept(file: dict[str, Any]) -> FileImage:
    content = file["text"].encode() if "text" in file else base64.b64decode(file["base64"], validate=True)
    for part in ("network", "name"):
        if "/" in file[part] or b"\0" in os.fsencode(file[part]) or file[part] in {"", ".", ".."}:
            raise ValueError(f"{file[part]!r} is no file's name")
    if file["place"] == RESERVATION:
        ip_address(file["name"])
    return FileImage(
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
