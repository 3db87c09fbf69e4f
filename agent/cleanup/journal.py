"""The journal of releases as values: what was removed, byte for byte, and what became of it. Pure.

A release is in the journal before anything is removed, and its outcome is added at the end. So it
is with a restoration. An entry that began and did not end is unfinished: the agent was killed. Then
the file is in place, or the entry can restore it. `journal_store.py` keeps the entries on disk.
"""

import posixpath
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple, TypeAlias

from agent.model.release import ReleaseRequest, Verdict
from agent.model.snapshot import from_mtime

RESERVATION: Final = "reservation"
RETENTION: Final = timedelta(hours=24)
"""A full journal drops an entry only if nothing was written to it for so long."""
_LARGEST_CLOCK_ERROR: Final = timedelta(days=1)
"""A clock that is set back by more was wrong before, perhaps by years."""


class JournalFull(OSError):
    """The journal would have to drop an entry that may be needed; the text says until when."""


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
    halted: datetime | None = None  # when a record of its container reappeared: cleanup halted
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
        """Whether this agent removed reservations, or may have before it was killed."""
        may_be_removed = self.verdict in {Verdict.RELEASED, Verdict.IN_DOUBT}
        return may_be_removed and not (self.restored or self.restoring)

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
        in_part = self.verdict is Verdict.IN_DOUBT and self.restorations > 0
        return self.restored is not None or in_part

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
    """Return an entry. Its name sorts by time, is easy to type, and differs for each sandbox."""
    first = request.reservations[0]
    sandbox = request.container_id[:12] or f"{first.network[:100]}-{first.ip}"
    typeable = re.sub(r"[^A-Za-z0-9.:_-]", "_", sandbox)
    return Entry(
        name=f"{at.astimezone(UTC):%Y%m%dT%H%M%S.%fZ}-{typeable}",
        at=at,
        actor=actor,
        container_id=request.container_id,
        pod=request.pod,
        files=tuple(files),
    )


@dataclass(frozen=True, slots=True)
class Journal:
    entries: tuple[Entry, ...] = ()  # oldest first
    damage: tuple[str, ...] = ()  # files that are no entry, and why; they are kept

    def released_from(self) -> dict[str, Entry]:
        """Return the last release of each sandbox, by container ID.

        No record of these containers must ever reappear.
        """
        return {
            entry.container_id: entry
            for entry in self.entries
            if entry.released and entry.container_id
        }

    def restored_sandboxes(self) -> frozenset[str]:
        """Return the sandboxes that somebody has restored, if only in part.

        No source saw who has such an address.
        """
        return frozenset(entry.container_id for entry in self.entries if entry.put_back) - {""}

    def unfinished(self) -> tuple[Entry, ...]:
        return tuple(entry for entry in self.entries if entry.unfinished)

    def halting_entries(self) -> tuple[Entry, ...]:
        """Return the releases that halted cleanup, until somebody resumes it. One is enough."""
        return tuple(entry for entry in self.entries if entry.halts)

    def why_halted(self) -> str | None:
        """Return why cleanup has halted, if it has."""
        return next((entry.reappearance for entry in self.halting_entries()), None)

    def named(self, name: str) -> Entry | None:
        return next((entry for entry in self.entries if entry.name == name), None)

    def with_entry(self, entry: Entry) -> "Journal":
        """Return the journal with an entry in its place, or as its newest."""
        other_entries = (other for other in self.entries if other.name != entry.name)
        return replace(self, entries=(*other_entries, entry))

    def released_since(self, since: datetime, actor: str) -> int:
        """Count addresses. Entries of the next day count too: the clock was set back.

        Later ones do not: they would count for years.
        """
        until = since + _LARGEST_CLOCK_ERROR
        return sum(
            len(entry.ips)
            for entry in self.entries
            if entry.released and entry.actor == actor and since < entry.at <= until
        )

    def active_since(self, before: "Journal") -> frozenset[str]:
        """Return the sandboxes released or restored since `before` was read, or still being so."""
        settled = {entry for entry in before.entries if not entry.unfinished}
        active = frozenset(entry.container_id for entry in self.entries if entry not in settled)
        return active - {""}


class JournalFile(NamedTuple):
    """A file of the journal as it was listed. An entry is never changed in place."""

    path: str
    inode: int
    size: int
    mtime_ns: int


Damage: TypeAlias = str
"""Why a file of the journal is no entry."""


def choose_evicted(files: Mapping[JournalFile, Entry | Damage], now: datetime) -> JournalFile:
    """Return the file that a full journal drops for another entry: the least recently written.

    Raises JournalFull if it may drop none. Entries that are `needed` and damaged files never go.
    """
    candidates = [
        file for file, entry in files.items() if isinstance(entry, Entry) and not entry.needed
    ]
    if not candidates:
        raise JournalFull(_describe_needed(files))

    oldest = min(candidates, key=lambda file: file.mtime_ns)
    if now - from_mtime(oldest.mtime_ns) <= RETENTION:
        hours = f"{RETENTION.total_seconds() / 3600:.0f} hours"
        raise JournalFull(f"the journal is full until {oldest.path} is {hours} old")
    return oldest


def _describe_needed(files: Mapping[JournalFile, Entry | Damage]) -> str:
    """Say why a full journal can drop nothing, and what to do."""
    entries = [entry for entry in files.values() if isinstance(entry, Entry)]
    counts = {
        "restored": sum(entry.put_back for entry in entries),
        "unfinished": sum(entry.unfinished for entry in entries),
        "halted": sum(entry.halts for entry in entries),
        "damaged": len(files) - len(entries),
    }

    described = ", ".join(f"{count} {what}" for what, count in counts.items() if count)
    directory = posixpath.dirname(next(iter(files)).path)
    return (
        f"the journal is full, and none of its {len(files)} entries may be dropped ({described}): "
        f"move those that are not needed any more out of {directory}"
    )
