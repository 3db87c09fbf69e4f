"""The journal of releases: what was removed, byte for byte, so that it can be restored. One readable JSON file each.

A release is in the journal, on disk, before anything is removed, and its outcome is added at the end; so it is with a
restoration. An entry that has begun and not ended is unfinished: the agent died. Then either the file is in place or
the journal has what restores it. `journal_store.py` reads and writes the files.
"""

import base64
import json
import os
import platform
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version
from ipaddress import ip_address
from typing import Any, Final

from agent.cleanup.release import RESERVATION, FileImage
from agent.model.release import ReleaseRequest, Verdict
from agent.model.snapshot import from_mtime
from agent.model.text import truncate

JOURNAL_SCHEMA: Final = "nodeleak.journal/v1"

DAMAGE: Final = (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError)
"""What reading anything but an entry raises."""
_LARGEST_ID, _LATEST_NS = 2**32 - 2, 2**63 * 10**9 - 1


@dataclass(frozen=True, slots=True)
class Entry:
    """One release."""

    name: str
    at: datetime
    by: str
    """`clean`, or `run` for the daemon."""
    container_id: str
    pod: str
    files: tuple[FileImage, ...]
    verdict: Verdict | None = None
    """Of the release; None: it is unfinished."""
    why: str = ""
    restored: datetime | None = None
    """When it was restored."""
    restoring: datetime | None = None
    """When a restoration began that is unfinished."""
    restorations: int = 0
    """How many began. One that failed may have been seen half done."""
    halted: datetime | None = None
    """When a record of its container reappeared, which halted cleanup."""
    resumed: datetime | None = None
    """When cleanup was resumed since."""

    @property
    def ips(self) -> tuple[str, ...]:
        return tuple(image.name for image in self.reservations)

    @property
    def reservations(self) -> tuple[FileImage, ...]:
        return tuple(image for image in self.files if image.place == RESERVATION)

    @property
    def released(self) -> bool:
        """Whether this agent removed reservations, or may have removed them before it was killed."""
        return self.verdict in {Verdict.RELEASED, Verdict.INTERRUPTED} and not (self.restored or self.restoring)

    @property
    def unfinished(self) -> bool:
        return self.verdict is None or self.restoring is not None

    @property
    def reappearance(self) -> str:
        return (
            f"released container {self.container_id[:12]} reappeared "
            f"(its address was {', '.join(self.ips)}; `nodeleak restore {self.name}` puts it back)"
        )

    # What may happen to it.

    def ended(self, verdict: Verdict, why: str) -> "Entry":
        """End a release, or a restoration that restored nothing."""
        return replace(self, verdict=verdict, why=why, restored=None, restoring=None)

    def restoration_began(self, at: datetime) -> "Entry":
        return replace(self, restoring=at, restorations=self.restorations + 1)

    def restoration_ended(self, at: datetime) -> "Entry":
        return replace(self, restored=at, restoring=None)

    def halting(self, at: datetime) -> "Entry":
        return replace(self, halted=at, resumed=None)


@dataclass(frozen=True, slots=True)
class Journal:
    entries: tuple[Entry, ...] = ()
    """Oldest first."""
    damage: tuple[str, ...] = ()
    """Files that are no entry, and why. They are kept."""

    def released_from(self) -> dict[str, Entry]:
        """Return the last release of each sandbox, by container ID. No record of these must ever reappear."""
        return {entry.container_id: entry for entry in self.entries if entry.released and entry.container_id}

    def released_again(self, entry: Entry) -> Entry | None:
        """Return a later release of the same sandbox, which has to be restored instead."""
        if entry.released or not entry.container_id:
            return None
        return self.released_from().get(entry.container_id)

    def unfinished(self) -> tuple[Entry, ...]:
        return tuple(entry for entry in self.entries if entry.unfinished)

    def halted(self) -> tuple[Entry, ...]:
        """Return the releases that halted cleanup, until somebody resumes it. One is enough."""
        return tuple(entry for entry in self.entries if entry.halted and not entry.resumed)

    def named(self, name: str) -> Entry | None:
        return next((entry for entry in self.entries if entry.name == name), None)

    def released_since(self, since: datetime, by: str) -> int:
        """Count addresses. Entries in the future count too: the clock was set back."""
        return sum(len(entry.ips) for entry in self.entries if entry.released and entry.by == by and entry.at > since)


def timestamp(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def entry_name(at: datetime, request: ReleaseRequest) -> str:
    """Return a name that sorts by time, is easy to type, and is unique for two sandboxes at the same time."""
    first = request.reservations[0]
    sandbox = request.container_id[:12] or f"{first.network[:100]}-{first.ip}"
    return f"{at.astimezone(UTC):%Y%m%dT%H%M%S.%fZ}-{re.sub(r'[^A-Za-z0-9.:_-]', '_', sandbox)}"


def beginning(entry: Entry, evidence: Sequence[str]) -> dict[str, Any]:
    return {
        "schema": JOURNAL_SCHEMA,
        "entry": entry.name,
        "began": timestamp(entry.at),
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


def progress(entry: Entry) -> dict[str, Any]:
    """Return what changes in the document of an entry after its beginning."""
    times = {"restored": entry.restored, "restoring": entry.restoring, "halted": entry.halted, "resumed": entry.resumed}
    return {
        "outcome": entry.verdict and entry.verdict.value,
        "why": entry.why,
        "restorations": entry.restorations,
        **{name: at and timestamp(at) for name, at in times.items()},
    }


def file_document(image: FileImage) -> dict[str, Any]:
    """Return one file as the journal stores it."""
    return {
        "place": image.place,
        "network": image.network,
        **({"data_dir": image.data_dir} if image.data_dir else {}),
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
        return timestamp(from_mtime(mtime_ns))
    except OverflowError:
        return "out of range"


def _content(content: bytes) -> dict[str, str]:
    """Encode UTF-8 as text, for people, and anything else as base64."""
    try:
        return {"text": content.decode()}
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(content).decode()}


def why_damaged(error: Exception) -> str:
    if isinstance(error, _UnknownSchema):
        return str(error)
    not_json = isinstance(error, (json.JSONDecodeError, UnicodeDecodeError, RecursionError))
    return "incomplete, or not JSON" if not_json else "not a valid entry"


class _UnknownSchema(ValueError):
    """The file is of another version, or of another program."""


def parse_entry(tree: dict[str, Any]) -> Entry:
    """Return an entry; raises one of `DAMAGE` for anything else."""
    if tree["schema"] != JOURNAL_SCHEMA:
        raise _UnknownSchema(f"schema {truncate(tree['schema'], 40)} is not {JOURNAL_SCHEMA}")
    outcome = tree.get("outcome")
    return Entry(
        name=str(tree["entry"]),
        at=_time(tree["began"]),
        by=str(tree["by"]),
        container_id=str(tree["container_id"]),
        pod=str(tree["pod"]),
        files=tuple(map(_file_image, tree["files"])),
        verdict=None if outcome is None else Verdict(outcome),
        why=str(tree.get("why", "")),
        restorations=int(tree.get("restorations", 0)),
        **{name: _time(tree[name]) for name in ("restored", "restoring", "halted", "resumed") if tree.get(name)},
    )


def _time(text: str) -> datetime:
    parsed = datetime.fromisoformat(text)
    if parsed.tzinfo is None:
        raise ValueError(f"{text!r} has no time zone")
    return parsed.astimezone(UTC)  # or an OverflowError here: the year 10000 cannot be shown


def _file_image(file: dict[str, Any]) -> FileImage:
    content = file["text"].encode() if "text" in file else base64.b64decode(file["base64"], validate=True)
    for part in ("network", "name"):
        if "/" in file[part] or b"\0" in os.fsencode(file[part]) or file[part] in {"", ".", ".."}:
            raise ValueError(f"{file[part]!r} is not a file name")
    if file["place"] == RESERVATION:
        ip_address(file["name"])
    data_dir = str(file.get("data_dir", ""))
    if data_dir and (not data_dir.startswith("/") or ".." in data_dir.split("/") or "\0" in data_dir):
        raise ValueError(f"{data_dir!r} is not a directory's path")
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
        data_dir=data_dir,
    )


def _number(number: int, most: int, least: int = 0) -> int:
    """Reject what the system calls cannot take. Python would raise an OverflowError instead of an OSError."""
    if not least <= number <= most:
        raise ValueError(f"{number} is not between {least} and {most}")
    return number
