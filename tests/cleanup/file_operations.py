"""host-local's directories, the owners and the journal, in memory."""

import errno
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import count
from pathlib import Path

from agent.cleanup.journal import RESERVATION, Busy, Entry, FileImage, Journal, JournalStore
from agent.cleanup.recheck import Recheck
from agent.cleanup.unlink import LockedNetwork, NodeFiles, OpenNetwork
from agent.model.release import ProbeResult, Reason
from agent.model.snapshot import Reservation, ReservationKey
from agent.sources.host.cni_cache import CniResults
from agent.sources.host.processes import ProcessTable
from agent.sources.source_error import SourceError


def image(reservation: Reservation) -> FileImage:
    """Return the file of a reservation, as `builders.reservation` counts its bytes."""
    text = "\r\n".join(filter(None, (reservation.container_id, reservation.ifname))).encode()
    owner, times = (0, 0), (reservation.inode, reservation.mtime_ns)
    return FileImage(RESERVATION, reservation.network, reservation.ip, text, 0o600, *owner, *times)


class Network(LockedNetwork):
    """One directory in memory. Nothing is removed or put back without its locks."""

    def __init__(self, directory: str, node: "Files", *, locked: bool) -> None:
        super().__init__(directory, -1)
        self._node, self._locked = node, locked

    def read(self, name: str) -> FileImage | None:
        return self._node.files.get((self.directory, name))

    def addresses_of(self, container_id: str) -> list[str]:
        return [
            name
            for (network, name), file in self._node.files.items()
            if network == self.directory and file.content.split()[:1] == [container_id.encode()]
        ]

    def unlink(self, name: str) -> None:
        assert self._locked, "removed without host-local's lock"
        self._node.check([name])
        del self._node.files[self.directory, name]

    def link(self, image: FileImage) -> None:
        assert self._locked, "put back without host-local's lock"
        if (self.directory, image.name) in self._node.files:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), image.name)
        self._node.files[self.directory, image.name] = replace(image, inode=next(self._node.inodes))


class Files(NodeFiles):
    """The files of every network, and their locks."""

    def __init__(self, reservations: Iterable[Reservation] = ()) -> None:
        super().__init__(Path(), (), 0, lambda: 0.0)
        self.files = {(reservation.network, reservation.ip): image(reservation) for reservation in reservations}
        self.broken: set[str] = set()
        """Addresses whose file cannot be removed, and networks whose directory is gone."""
        self.inodes = count(10**6)
        self._held = False

    @contextmanager
    def opened(self, directories: Iterable[str]) -> Iterator[Mapping[str, OpenNetwork]]:
        yield {directory: Network(directory, self, locked=False) for directory in directories}

    @contextmanager
    def locked(self, directories: Iterable[str]) -> Iterator[Mapping[str, LockedNetwork]]:
        names = list(directories)
        self.check(names)
        assert not self._held, "one sandbox at a time"
        self._held = True
        try:
            yield {directory: Network(directory, self, locked=True) for directory in names}
        finally:
            self._held = False

    def check(self, names: Sequence[str]) -> None:
        for name in self.broken.intersection(names):
            raise OSError(errno.EIO, os.strerror(errno.EIO), name)


@dataclass
class Owners:
    """The owners that a recheck finds. By default none, so that only the guards protect an address."""

    containers: set[str] = field(default_factory=set)
    checkpoints: set[str] = field(default_factory=set)
    holders: dict[str, str] = field(default_factory=dict)
    objections: dict[str, Reason] = field(default_factory=dict)
    """What the probe says against the release of an address."""
    probed: list[list[str]] = field(default_factory=list)

    def holder_of(self, container_id: str, ips: Sequence[str]) -> str:
        assert len(container_id) in {0, 64}
        return next((self.holders[ip] for ip in ips if ip in self.holders), "")

    def probe(self, reservations: Sequence[Reservation]) -> dict[ReservationKey, ProbeResult]:
        self.probed.append([leak.ip for leak in reservations])
        return {leak.key: ProbeResult(f"{leak.ip} was probed", self.objections.get(leak.ip)) for leak in reservations}

    def recheck(self) -> Recheck:
        owners = self

        class Live(Recheck):
            def holder_of(self, container_id: str, ips: Sequence[str]) -> str:
                return owners.holder_of(container_id, ips)

            def probe(
                self, reservations: Sequence[Reservation], *, send: bool = True
            ) -> dict[ReservationKey, ProbeResult]:
                return owners.probe(reservations) if send else {}

        containers, checkpoints = self.containers.__contains__, self.checkpoints.__contains__
        return Live(containers, checkpoints, CniResults([]), Path(), ProcessTable(Path()), lambda *_: {})


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

    def read(self) -> Journal:
        if self.unreadable:
            raise SourceError(self.unreadable)
        return Journal(tuple(self.entries.values()))

    def begin(self, entry: Entry, evidence: Sequence[str]) -> None:
        assert evidence
        if self.unwritable:
            raise OSError(errno.ENOSPC, self.unwritable)
        self.entries[entry.name] = entry

    def update(self, entry: Entry, at: datetime) -> None:
        assert at.tzinfo
        if self.unwritable:
            raise OSError(errno.ENOSPC, self.unwritable)
        self.entries[entry.name] = entry
