"""A process of ours with something taken out of it: a guard, or a part of the act.

Guards are taken out of `guards.GUARDS` itself, for as long as a test lasts, so that `CleanupSession` does not notice.
A part of the act is a class that answers instead of the node in memory.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime

from agent.cleanup import guards
from agent.cleanup.journal import Entry, Journal
from agent.cleanup.release import FileImage, Locked
from agent.model.release import Verdict
from agent.model.snapshot import (
    Address,
    Checkpoint,
    Container,
    Known,
    NetworkStore,
    Pod,
    Reading,
    Reservation,
    UnrecognizedEntry,
)
from tests.proof.process import Answered, Assembly, InMemory, InMemoryBook, Parts, Setup


@contextmanager
def without_guards(names: Sequence[str]) -> Iterator[None]:
    """Take guards out of the tuple. It is a constant for everybody else."""
    all_of_them = guards.GUARDS
    vars(guards)["GUARDS"] = tuple(guard for guard in all_of_them if guard.__name__ not in names)
    try:
        yield
    finally:
        vars(guards)["GUARDS"] = all_of_them


class ContainersFirst(InMemory):
    """Lists containers before it reads reservations."""

    _listed: tuple[Container, ...] = ()

    def reservations(self) -> tuple[NetworkStore, ...]:
        self._listed = super().containers()
        return super().reservations()

    def containers(self) -> tuple[Container, ...]:
        return self._listed


class OwnersFirst(ContainersFirst):
    """Reads everything that could save a reservation before the reservations."""

    _noted: tuple[Checkpoint, ...] = ()

    def reservations(self) -> tuple[NetworkStore, ...]:
        self._noted = super().checkpoints()
        return super().reservations()

    def checkpoints(self) -> tuple[Checkpoint, ...]:
        return self._noted


class DockerAskedOnce(InMemory):
    def has_container(self, _container_id: str) -> bool:
        return False


class KubeletAskedOnce(InMemory):
    def has_checkpoint(self, _container_id: str) -> bool:
        return False


class KubeletNeverAsked(KubeletAskedOnce):
    def checkpoints(self) -> tuple[Checkpoint, ...]:
        return ()


class KernelAskedOnce(InMemory):
    def holder_of(self, _ips: Sequence[str]) -> str:
        return ""


class KernelNeverAsked(KernelAskedOnce):
    def addresses(self) -> tuple[Address, ...]:
        return (Address("10.244.1.1", 1, "systemd"),)


class PodsUnheard(InMemory):
    def pods(self) -> Reading[tuple[Pod, ...]]:
        pods = super().pods()
        return Known(tuple(replace(pod, ips=()) for pod in pods.value)) if isinstance(pods, Known) else pods


class ReadOnce(InMemory):
    """Believes under the lock what was read before it."""

    def __init__(self, ask: Answered, setup: Setup) -> None:
        super().__init__(ask, setup)
        self._first: dict[str, tuple[Reservation | UnrecognizedEntry, FileImage] | None] = {}

    def read(self, reservation: Reservation) -> tuple[Reservation | UnrecognizedEntry, FileImage] | None:
        if reservation.ip not in self._first:
            self._first[reservation.ip] = super().read(reservation)
        return self._first[reservation.ip]


class Unlocked(InMemory):
    def lock(self, _networks: Sequence[str]) -> Locked | None:
        return self

    def unlock(self) -> float:
        return 0.0


class ContentOnly(InMemory):
    """Knows a file by its content alone."""

    def reservations(self) -> tuple[NetworkStore, ...]:
        return tuple(
            replace(store, reading=Known(tuple(_alike(one) for one in store.reading.known())))
            for store in super().reservations()
        )

    def read(self, reservation: Reservation) -> tuple[Reservation | UnrecognizedEntry, FileImage] | None:
        found = super().read(reservation)
        if found is None or isinstance(found[0], UnrecognizedEntry):
            return found
        return _alike(found[0]), replace(found[1], inode=0)

    def present(self, image: FileImage) -> FileImage | None:
        found = super().present(image)
        return None if found is None else replace(found, inode=0)


def _alike(reservation: Reservation) -> Reservation:
    return replace(reservation, inode=0)


class Unwritten(InMemoryBook):
    """Writes nothing down before it removes."""

    def begin(self, entry: Entry, evidence: Sequence[str]) -> None: ...
    def end(self, name: str, verdict: Verdict, why: str, at: datetime) -> None: ...


class NeverAlone(InMemoryBook):
    @contextmanager
    def exclusive(self, _seconds: float) -> Iterator[None]:
        yield


class Unsettled(InMemoryBook):
    """Does not see what it left half done."""

    def read(self) -> Journal:
        journal = super().read()
        return replace(journal, entries=tuple(one for one in journal.entries if one.verdict is not None))


def made_of(*changes: type[InMemory | InMemoryBook]) -> Assembly:
    """Put a process together with all of these changes."""
    node = type("Node", (*(one for one in changes if issubclass(one, InMemory)), InMemory), {})
    journal_store = type("JournalStore", (*(one for one in changes if issubclass(one, InMemoryBook)), InMemoryBook), {})

    def assemble(ask: Answered, setup: Setup) -> Parts:
        one = node(ask, setup)
        return one.sources(), one, one, journal_store(ask)

    return assemble
