"""host-local's directories, the owners and the journal in memory: what changes them does it for real, and only so."""

import errno
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import count
from pathlib import Path

from agent.cleanup.book import Book, Busy
from agent.cleanup.journal import Entry, Journal
from agent.cleanup.release import RESERVATION, Kept
from agent.model.release import Candidate, Verdict
from agent.model.snapshot import Reservation
from agent.sources.error import Unavailable

NS = 10**9


def kept(reservation: Reservation) -> Kept:
    """Return the file of a reservation, as `builders.reservation` counts its bytes."""
    one = reservation
    text = "\r\n".join(filter(None, (one.container_id, one.ifname)))
    return Kept(RESERVATION, one.network, one.ip, text.encode(), 0o600, 0, 0, one.inode, one.mtime_ns)


def promised(file: Kept) -> Reservation:
    """Return what a file promises."""
    container_id, _, ifname = file.content.decode().partition("\r\n")
    return Reservation(file.network, file.name, container_id, ifname, file.inode, len(file.content), file.mtime_ns)


class Locks:
    """Some networks' locks, as held."""

    def __init__(self, held: set[str], networks: Sequence[str]) -> None:
        self.waited = 0.0
        self._held, self._networks = held, networks
        held.update(networks)

    def unlock(self) -> float:
        self._held.difference_update(self._networks)
        return 0.0


class Files:
    """The files of every network, and their locks. Nothing is removed or put back without them."""

    def __init__(self, reservations: Iterable[Reservation] = (), cache: Iterable[Kept] = ()) -> None:
        self.files = {(one.network, one.ip): kept(one) for one in reservations}
        self.cache = list(cache)
        self.busy: set[str] = set()
        """Networks whose lock somebody else holds."""
        self.broken: set[str] = set()
        """Addresses whose file cannot be removed, and networks whose directory is gone."""
        self._held: set[str] = set()
        self._inodes = count(10**6)

    def check(self, networks: Sequence[str]) -> None:
        self._whole(networks)

    def read(self, reservation: Reservation) -> tuple[Reservation, Kept] | None:
        file = self.files.get((reservation.network, reservation.ip))
        return None if file is None else (promised(file), file)

    def cached(self, candidate: Candidate) -> tuple[Kept, ...]:
        return tuple(one for one in self.cache if candidate.container_id.encode() in one.content)

    def lock(self, networks: Sequence[str]) -> Locks | None:
        self._whole(networks)
        assert not self._held, "one sandbox at a time"
        return None if self.busy.intersection(networks) else Locks(self._held, networks)

    def remove(self, kept: Kept) -> None:
        if kept.place != RESERVATION:
            self.cache.remove(kept)
            return
        assert kept.network in self._held, "removed without host-local's lock"
        self._whole([kept.name])
        del self.files[kept.network, kept.name]

    def put_back(self, kept: Kept) -> None:
        assert kept.network in self._held, "put back without host-local's lock"
        if self.taken(kept):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), kept.name)
        self.files[kept.network, kept.name] = replace(kept, inode=next(self._inodes))

    def present(self, kept: Kept) -> Kept | None:
        return self.files.get((kept.network, kept.name))

    def taken(self, kept: Kept) -> bool:
        return (kept.network, kept.name) in self.files

    def addresses_of(self, container_id: str, network: str) -> tuple[str, ...]:
        promises = map(promised, self.files.values())
        return tuple(one.ip for one in promises if (one.container_id, one.network) == (container_id, network))

    def _whole(self, names: Sequence[str]) -> None:
        for name in self.broken.intersection(names):
            raise OSError(errno.EIO, os.strerror(errno.EIO), name)


@dataclass
class Owners:
    """Who is asked again, of one sandbox. By default nobody knows it: the guards stand alone before its release."""

    containers: set[str] = field(default_factory=set)
    checkpoints: set[str] = field(default_factory=set)
    holders: dict[str, str] = field(default_factory=dict)

    def has_container(self, container_id: str) -> bool:
        return container_id in self.containers

    def has_checkpoint(self, container_id: str) -> bool:
        return container_id in self.checkpoints

    def holder_of(self, ips: Sequence[str]) -> str:
        return next((self.holders[ip] for ip in ips if ip in self.holders), "")


class Notebook(Book):
    """The journal in memory."""

    def __init__(self, *entries: Entry) -> None:
        super().__init__(Path("/nowhere"))
        self.entries = {entry.name: entry for entry in entries}
        self.other = self.unreadable = self.unwritable = ""
        """Who else is at work; why it cannot be read; why it cannot be written."""

    @contextmanager
    def alone(self, seconds: float) -> Iterator[None]:
        assert seconds >= 0
        if self.other:
            raise Busy(self.other)
        yield

    def trouble(self) -> str:
        return self.unwritable

    def read(self) -> Journal:
        if self.unreadable:
            raise Unavailable(self.unreadable)
        return Journal(tuple(self.entries.values()))

    def begin(self, entry: Entry, evidence: Sequence[str]) -> None:
        assert evidence
        if self.unwritable:
            raise OSError(errno.ENOSPC, self.unwritable)
        self.entries[entry.name] = entry

    def end(self, name: str, verdict: Verdict, why: str, at: datetime) -> None:
        assert at >= self.entries[name].at
        self.entries[name] = replace(self.entries[name], verdict=verdict, why=why)

    def restoring(self, name: str, at: datetime) -> None:
        self.entries[name] = replace(self.entries[name], restored=at)
