"""Syncs of a daemon with cleanup. Its host-local directories, owners and journal are in memory."""

import errno
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from agent.checks import engine
from agent.checks.engine import ConfirmationState
from agent.cleanup.journal import RESERVATION, Entry, FileImage, Journal
from agent.cleanup.journal_store import Busy, JournalStore
from agent.cleanup.run import Cleaner
from agent.cleanup.unlink import LockedNetwork, LockHeld, NodeFiles
from agent.model.brake import Brake
from agent.model.release import Cleaning, Limits, Reason, Verdict
from agent.model.report import Report
from agent.model.snapshot import Known, Reading, Reservation, Snapshot
from agent.sources.source_error import SourceError
from tests.builders import GRACE, NOW, UPTIME, make_limits, node
from tests.cleanup.recheck import Owners

Name = tuple[str, str]  # The network and the address of a reservation


def image(reservation: Reservation) -> FileImage:
    """Return the file of a reservation, as `builders.reservation` counts its bytes."""
    text = "\r\n".join(filter(None, (reservation.container_id, reservation.ifname))).encode()
    owner, times = (0, 0), (reservation.inode, reservation.mtime_ns)
    return FileImage(RESERVATION, reservation.network, reservation.ip, text, 0o600, *owner, *times)


def reserved(snapshot: Snapshot) -> dict[Name, Reservation]:
    known = [
        store.reading.value for store in snapshot.reservations if isinstance(store.reading, Known)
    ]
    return {
        (reservation.network, reservation.ip): reservation for read in known for reservation in read
    }


class Network(LockedNetwork):
    """One directory. Nothing is removed or put back without its locks."""

    def __init__(self, directory: str, node: "Files") -> None:
        super().__init__(directory, -1)
        self._node = node

    def read(self, name: str) -> FileImage | None:
        return self._node.files.get((self.directory, name))

    def unlink(self, name: str) -> None:
        assert self._node.locked_now, "removed without host-local's lock"
        self._node.check([name])
        del self._node.files[self.directory, name]

    def link(self, image: FileImage) -> None:
        assert self._node.locked_now, "put back without host-local's lock"
        assert (self.directory, image.name) not in self._node.files
        self._node.files[self.directory, image.name] = image


class Files(NodeFiles):
    """The files of every network, and their locks."""

    def __init__(self) -> None:
        super().__init__(Path(), (), 0, lambda: 0.0)
        self.files: dict[Name, FileImage] = {}
        self.broken: set[str] = (
            set()
        )  # Addresses whose file cannot be removed, and networks whose directory is gone
        self.held, self.locked_now, self.tries = False, False, 0
        """Whether another process holds the locks; whether we do; how often we tried."""

    @contextmanager
    def opened(self, directories: Iterable[str]) -> Iterator[Mapping[str, Network]]:
        yield {directory: Network(directory, self) for directory in directories}

    @contextmanager
    def locked(self, directories: Iterable[str]) -> Iterator[Mapping[str, Network]]:
        names = list(directories)
        self.check(names)
        assert not self.locked_now, "one sandbox at a time"
        self.tries += 1
        if self.held:
            raise LockHeld
        self.locked_now = True
        try:
            with self.opened(names) as networks:
                yield networks
        finally:
            self.locked_now = False

    def removed(self, _directories: Iterable[str]) -> frozenset[str]:
        return frozenset()

    def check(self, names: Sequence[str]) -> None:
        for name in self.broken.intersection(names):
            raise OSError(errno.EIO, os.strerror(errno.EIO), name)


class InMemoryJournal(JournalStore):
    def __init__(self, *entries: Entry) -> None:
        super().__init__(Path("/nowhere"))
        self.entries = {entry.name: entry for entry in entries}
        self.other = self.unreadable = self.unwritable = ""
        """Which other cleaner runs; why the journal cannot be read; why it cannot be written."""
        self.damage: tuple[str, ...] = ()
        self.held = False

    @contextmanager
    def exclusive(self, seconds: float) -> Iterator[None]:
        assert seconds >= 0
        if self.other:
            raise Busy(self.other)
        self.held = True
        yield
        self.held = False

    def why_unwritable(self) -> str | None:
        return None

    def read(self) -> Journal:
        if self.unreadable:
            raise SourceError(self.unreadable)
        return Journal(tuple(self.entries.values()), self.damage)

    def begin(self, entry: Entry, evidence: Sequence[str], now: datetime | None = None) -> None:
        assert evidence
        assert entry.name not in self.entries
        self.update(entry, now or entry.at)

    def update(self, entry: Entry, at: datetime) -> None:
        assert at.tzinfo
        if self.unwritable:
            raise OSError(errno.ENOSPC, self.unwritable)
        self.entries[entry.name] = entry


def entry(released: Reservation, verdict: Verdict | None = Verdict.RELEASED, **more: Any) -> Entry:
    """Return the journal entry of one release, by default an hour and a half ago."""
    at: datetime = more.pop("at", NOW - timedelta(minutes=90))
    name = f"{at:%H%M%S.%f}-{released.container_id[:12]}-{released.ip}"
    fields = {"actor": "run", "pod": "", "files": (image(released),), "verdict": verdict} | more
    return Entry(name=name, at=at, container_id=released.container_id, **fields)


class Daemon:
    """A daemon on a node whose files are those of each snapshot."""

    def __init__(
        self,
        *entries: Entry,
        journal: InMemoryJournal | None = None,
        limits: Limits | None = None,
        budget: Mapping[str, tuple[str, int]] | None = None,
        owners: Owners | None = None,
    ) -> None:
        self.files, self.journal = Files(), journal or InMemoryJournal(*entries)
        recheck = (owners or Owners()).recheck()
        limits = replace(limits or make_limits(), **(budget or {}))  # type: ignore[arg-type]
        self.session: dict[str, Any] = {
            "limits": limits,
            "actor": "run",
            "store": self.journal,
            "recheck": recheck,
            "files": self.files,
        }
        self.brake: Reading[Brake] = Known(Brake("kube-system/nodeleak-brake", on=False))
        """As a release reads it; a snapshot has its own reading."""
        self.brakes: list[Reading[Brake]] = []
        """What it is in turn, before `brake`."""
        self.brake_readings = 0
        self.now = NOW
        self.passed = timedelta(0)  # Since the snapshot
        self.set_by = timedelta(0)  # How far the wall clock was set since the snapshot
        self.cleaner: Cleaner = self.new_cleaner(dry_run=False)
        self._memory: ConfirmationState | None = None

    def new_cleaner(self, *, dry_run: bool) -> Cleaner:
        """Return a cleaner that has seen nothing yet."""
        return Cleaner(
            **self.session,
            read_brake=self._read_brake,
            now=lambda: self.now + self.passed + self.set_by,
            uptime=lambda: UPTIME + (self.now - NOW) + self.passed,
            dry_run=dry_run,
        )

    def _read_brake(self) -> Reading[Brake]:
        self.brake_readings += 1
        return self.brakes.pop(0) if self.brakes else self.brake

    def sync(self, *records: Any, meanwhile: Sequence[Entry] = (), **changes: Any) -> Cleaning:
        """Take a snapshot, 15 s later, and clean up."""
        self.now += timedelta(seconds=15)
        snapshot = node(*records, **changes, later=self.now - NOW)
        report, self._memory = engine.run(
            snapshot, self._memory, grace=GRACE, confirm_after=timedelta(0)
        )
        return self.clean((snapshot,), report, meanwhile)

    def twice(self, *records: Any, **changes: Any) -> Cleaning:
        """Sync twice: what leaks in both syncs is released in the second."""
        self.sync(*records, **changes)
        return self.sync(*records, **changes)

    def clean(
        self, snapshots: Sequence[Snapshot], report: Report, meanwhile: Sequence[Entry] = ()
    ) -> Cleaning:
        """Clean up after these snapshots. `meanwhile`: what others journal after our reading of it."""
        self.cleaner.before_snapshot()
        self.journal.entries.update({entry.name: entry for entry in meanwhile})
        self.files.files = {
            name: image(reservation) for name, reservation in reserved(snapshots[-1]).items()
        }
        return self.cleaner.after_snapshot(snapshots, report)

    @property
    def names(self) -> list[str]:
        """The addresses that are reserved now."""
        return sorted(name for _, name in self.files.files)


def verdicts_of(cleaning: Cleaning) -> list[tuple[str, Verdict]]:
    return [(outcome.request.reservations[0].ip, outcome.verdict) for outcome in cleaning.outcomes]


def reasons_of(cleaning: Cleaning) -> list[list[Reason]]:
    return [[refusal.reason for refusal in outcome.refusals] for outcome in cleaning.outcomes]
