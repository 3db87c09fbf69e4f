"""host-local's directories, the owners and the journal, in memory."""

import errno
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import count
from pathlib import Path

from agent.cleanup.journal import Entry, Journal
from agent.cleanup.journal_store import Busy, JournalStore
from agent.cleanup.release import RESERVATION, FileImage
from agent.model.release import ProbeResult, Reason, ReleaseRequest, Verdict
from agent.model.snapshot import Reservation
from agent.sources.source_error import SourceError

NS = 10**9


def image(reservation: Reservation) -> FileImage:
    """Return the file of a reservation, as `builders.reservation` counts its bytes."""
    one = reservation
    text = "\r\n".join(filter(None, (one.container_id, one.ifname)))
    return FileImage(RESERVATION, one.network, one.ip, text.encode(), 0o600, 0, 0, one.inode, one.mtime_ns)


def promised(file: FileImage) -> Reservation:
    """Return the reservation that a file contains."""
    container_id, _, ifname = file.content.decode().partition("\r\n")
    return Reservation(file.network, file.name, container_id, ifname, file.inode, len(file.content), file.mtime_ns)


class Locks:
    """The held locks of some networks."""

    def __init__(self, held: set[str], networks: Sequence[str]) -> None:
        self.waited = 0.0
        self._held, self._networks = held, networks
        held.update(networks)

    def unlock(self) -> float:
        self._held.difference_update(self._networks)
        return 0.0


class Files:
    """The files of every network, and their locks. Nothing is removed or put back without them."""

    def __init__(self, reservations: Iterable[Reservation] = (), cache: Iterable[FileImage] = ()) -> None:
        self.files = {(one.network, one.ip): image(one) for one in reservations}
        self.cache = list(cache)
        self.busy: set[str] = set()
        """Networks whose lock another process holds."""
        self.broken: set[str] = set()
        """Addresses whose file cannot be removed, and networks whose directory is gone."""
        self._held: set[str] = set()
        self._inodes = count(10**6)

    def read(self, reservation: Reservation) -> tuple[Reservation, FileImage] | None:
        file = self.files.get((reservation.network, reservation.ip))
        return None if file is None else (promised(file), file)

    def cached(self, request: ReleaseRequest) -> tuple[FileImage, ...]:
        return tuple(one for one in self.cache if request.container_id.encode() in one.content)

    def try_lock(self, networks: Sequence[str]) -> float | None:
        if (locked := self.lock(networks)) is None:
            return None
        locked.unlock()
        return locked.waited

    def lock(self, networks: Sequence[str]) -> Locks | None:
        self._whole(networks)
        assert not self._held, "one sandbox at a time"
        return None if self.busy.intersection(networks) else Locks(self._held, networks)

    def remove(self, image: FileImage) -> None:
        if image.place != RESERVATION:
            self.cache.remove(image)
            return
        assert image.network in self._held, "removed without host-local's lock"
        self._whole([image.name])
        del self.files[image.network, image.name]

    def put_back(self, image: FileImage) -> None:
        assert image.network in self._held, "put back without host-local's lock"
        if self.taken(image):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), image.name)
        self.files[image.network, image.name] = replace(image, inode=next(self._inodes))

    def present(self, image: FileImage) -> FileImage | None:
        return self.files.get((image.network, image.name))

    def taken(self, image: FileImage) -> bool:
        return (image.network, image.name) in self.files

    def addresses_of(self, container_id: str, network: str) -> tuple[str, ...]:
        promises = map(promised, self.files.values())
        return tuple(one.ip for one in promises if (one.container_id, one.network) == (container_id, network))

    def _whole(self, names: Sequence[str]) -> None:
        for name in self.broken.intersection(names):
            raise OSError(errno.EIO, os.strerror(errno.EIO), name)


@dataclass
class Owners:
    """The recheck. By default it finds no owner, so that only the guards protect an address."""

    containers: set[str] = field(default_factory=set)
    checkpoints: set[str] = field(default_factory=set)
    holders: dict[str, str] = field(default_factory=dict)
    objections: dict[str, Reason] = field(default_factory=dict)
    """What the probe says against the release of an address."""
    probed: list[list[str]] = field(default_factory=list)

    def has_container(self, container_id: str) -> bool:
        return container_id in self.containers

    def has_checkpoint(self, container_id: str) -> bool:
        return container_id in self.checkpoints

    def holder_of(self, container_id: str, ips: Sequence[str]) -> str:
        assert len(container_id) in {0, 64}
        return next((self.holders[ip] for ip in ips if ip in self.holders), "")

    def probe(self, ips: Sequence[str]) -> dict[str, ProbeResult]:
        self.probed.append(list(ips))
        return {ip: ProbeResult(f"{ip} was probed", self.objections.get(ip)) for ip in ips}


class InMemoryJournal(JournalStore):
    """The journal in memory."""

    def __init__(self, *entries: Entry) -> None:
        super().__init__(Path("/nowhere"))
        self.entries = {entry.name: entry for entry in entries}
        self.other = self.unreadable = self.unwritable = ""
        """Which other cleaner runs; why the journal cannot be read; why it cannot be written."""

    @contextmanager
    def exclusive(self, seconds: float) -> Iterator[None]:
        assert seconds >= 0
        if self.other:
            raise Busy(self.other)
        yield

    def trouble(self) -> str:
        return self.unwritable

    def room(self, now: datetime) -> int:
        assert now.tzinfo
        return 1000

    def read(self) -> Journal:
        if self.unreadable:
            raise SourceError(self.unreadable)
        return Journal(tuple(self.entries.values()))

    def begin(self, entry: Entry, evidence: Sequence[str]) -> None:
        assert evidence
        if self.unwritable:
            raise OSError(errno.ENOSPC, self.unwritable)
        self.entries[entry.name] = entry

    def end(self, name: str, verdict: Verdict, why: str, at: datetime) -> None:
        assert at >= self.entries[name].at
        self.entries[name] = self.entries[name].ended(verdict, why)

    def restoring(self, name: str, at: datetime) -> None:
        self.entries[name] = self.entries[name].restoration_began(at)

    def restored(self, name: str, at: datetime) -> None:
        self.entries[name] = self.entries[name].restoration_ended(at)

    def halted(self, name: str, at: datetime) -> None:
        if self.unwritable:
            raise OSError(errno.ENOSPC, self.unwritable)
        self.entries[name] = self.entries[name].halting(at)
