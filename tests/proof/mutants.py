"""Cleaners with something missing: a guard, or another protection.

Guards are removed from `guards.GUARDS` itself, for the duration of a test. Other protections are removed by a class
that answers instead of the node in memory.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime

from agent.cleanup import guards
from agent.cleanup.journal import Entry, FileImage, Journal
from agent.model.release import ProbeResult
from agent.model.snapshot import (
    Address,
    Checkpoint,
    Container,
    Known,
    NetworkStore,
    Pod,
    ProcessStartTimes,
    Reading,
    Reservation,
    ReservationKey,
)
from agent.sources.source_error import SourceError
from tests.proof.process import Answered, Assembly, InMemory, InMemoryJournal, Parts, Setup


@contextmanager
def without_guards(names: Sequence[str]) -> Iterator[None]:
    """Remove guards from the tuple, which is a constant elsewhere."""
    every_guard = guards.GUARDS
    vars(guards)["GUARDS"] = tuple(guard for guard in every_guard if guard.__name__ not in names)
    try:
        yield
    finally:
        vars(guards)["GUARDS"] = every_guard


class ContainersFirst(InMemory):
    """Lists containers before it reads reservations."""

    _listed: tuple[Container, ...] = ()

    def reservations(self) -> tuple[NetworkStore, ...]:
        self._listed = super().containers()
        return super().reservations()

    def containers(self) -> tuple[Container, ...]:
        return self._listed


class OwnersFirst(ContainersFirst):
    """Reads all evidence of owners before the reservations."""

    _noted: tuple[Checkpoint, ...] = ()

    def reservations(self) -> tuple[NetworkStore, ...]:
        self._noted = super().checkpoints()
        return super().reservations()

    def checkpoints(self) -> tuple[Checkpoint, ...]:
        return self._noted


class DockerNotRechecked(InMemory):
    def has_container(self, _container_id: str) -> bool:
        return False


class KubeletNotRechecked(InMemory):
    def has_checkpoint(self, _container_id: str) -> bool:
        return False


class KubeletIgnored(KubeletNotRechecked):
    def checkpoints(self) -> tuple[Checkpoint, ...]:
        return ()


class RecordsNotRechecked(InMemory):
    def has_record(self, _container_id: str) -> bool:
        return False


class RecordsNotListed(InMemory):
    def records(self, _container_ids: Sequence[str]) -> tuple[Container, ...]:
        return ()


class RuntimeIgnored(InMemory):
    """Does not see what the kubelet names as its runtime."""

    def processes(self) -> ProcessStartTimes:
        return replace(super().processes(), runtime=None)


class DirectoryIgnored(InMemory):
    """Reads a missing checkpoint directory as an empty one."""

    def checkpoints(self) -> tuple[Checkpoint, ...]:
        try:
            return super().checkpoints()
        except SourceError:
            return ()


class KernelNotRechecked(InMemory):
    def holder_of(self, _container_id: str, _ips: Sequence[str]) -> str:
        return ""


class NamespacesSharedByReleases(InMemory):
    """Reads the namespaces for the first release, and judges the others by the same reading."""

    _ips: frozenset[str] | None = None

    def holder_of(self, _container_id: str, ips: Sequence[str]) -> str:
        if self._ips is None:
            self._ips = frozenset(address.ip for address in self._ask("addresses"))
        return "process 7 (pause)" if self._ips.intersection(ips) else ""


class KernelIgnored(KernelNotRechecked):
    def addresses(self) -> tuple[Address, ...]:
        return (Address("10.244.1.1", 1, "systemd"),)


class NotProbed(InMemory):
    def probe(self, reservations: Sequence[Reservation]) -> dict[ReservationKey, ProbeResult]:
        return {leak.key: ProbeResult("not probed") for leak in reservations}


class MountsNotRechecked(InMemory):
    def is_mounted(self, _container_id: str) -> bool:
        return False


class MountsNotListed(InMemory):
    def mounted_namespaces(self) -> tuple[str, ...]:
        return ()


class PodsIgnored(InMemory):
    def pods(self) -> Reading[tuple[Pod, ...]]:
        pods = super().pods()
        return Known(tuple(replace(pod, ips=()) for pod in pods.value)) if isinstance(pods, Known) else pods


class ReadOnce(InMemory):
    """Uses under the lock what was read before it."""

    def __init__(self, ask: Answered, setup: Setup) -> None:
        super().__init__(ask, setup)
        self._first: dict[str, FileImage | None] = {}

    def read(self, network: str, name: str) -> FileImage | None:
        if name not in self._first:
            self._first[name] = super().read(network, name)
        return self._first[name]


class WithoutLock(InMemory):
    def lock(self) -> bool:
        return True

    def unlock(self) -> None: ...


class ContentOnly(InMemory):
    """Compares files by content only."""

    def reservations(self) -> tuple[NetworkStore, ...]:
        return tuple(
            replace(store, reading=Known(tuple(_alike(reservation) for reservation in store.reading.known())))
            for store in super().reservations()
        )

    def read(self, network: str, name: str) -> FileImage | None:
        found = super().read(network, name)
        return found and replace(found, inode=0)


def _alike(reservation: Reservation) -> Reservation:
    return replace(reservation, inode=0)


class NotJournaled(InMemoryJournal):
    """Writes no journal."""

    def begin(self, entry: Entry, evidence: Sequence[str]) -> None: ...
    def update(self, entry: Entry, at: datetime) -> None: ...


class RestoredAtOnce(InMemoryJournal):
    """Records a restoration when it begins, and not when it ends."""

    def update(self, entry: Entry, at: datetime) -> None:
        if entry.restoring:
            super().update(replace(entry, restored=at, restoring=None), at)
        elif not entry.restored:
            super().update(entry, at)


class Forgetful(InMemoryJournal):
    """Drops the oldest entry for another one."""

    def begin(self, entry: Entry, _evidence: Sequence[str]) -> None:
        self._ask("begin_anyway", entry)


class Unnoticed(Journal):
    def active_since(self, before: Journal) -> frozenset[str]:  # noqa: ARG002 (that is what is wrong with it)
        return frozenset()


class ActivityIgnored(InMemoryJournal):
    """Does not see what others have done since the snapshot."""

    def read(self) -> Journal:
        return Unnoticed(super().read().entries)


class NotExclusive(InMemoryJournal):
    @contextmanager
    def exclusive(self, _seconds: float) -> Iterator[None]:
        yield


class NotRecovered(InMemoryJournal):
    """Does not see unfinished entries."""

    def read(self) -> Journal:
        journal = super().read()
        return replace(journal, entries=tuple(entry for entry in journal.entries if not entry.unfinished))


def made_of(*changes: type[InMemory | InMemoryJournal]) -> Assembly:
    """Return a cleaner with all of these changes."""
    node = type("Node", (*(change for change in changes if issubclass(change, InMemory)), InMemory), {})
    journal_store = type(
        "JournalStore", (*(change for change in changes if issubclass(change, InMemoryJournal)), InMemoryJournal), {}
    )

    def assemble(ask: Answered, setup: Setup) -> Parts:
        return node(ask, setup), journal_store(ask, setup)

    return assemble
