"""Cleaners with something missing: a guard, or another protection.

Guards are removed from `guards.GUARDS` itself, for the duration of a test. Other protections are removed by a class
that answers instead of the node in memory.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from typing import Any

from agent.checks.addresses import leaked_share
from agent.cleanup import guards
from agent.cleanup.journal import Entry, FileImage, Journal
from agent.model.snapshot import Address, Known, NotRequested, Unavailable
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


@contextmanager
def changed_share(changes: Mapping[str, Any]) -> Iterator[None]:
    """Change what the API server has to confirm where most of a range looks leaked."""
    before = {name: getattr(leaked_share, name) for name in changes}
    vars(leaked_share).update(changes)
    try:
        yield
    finally:
        vars(leaked_share).update(before)


class OwnersFirst(InMemory):
    """Reads all evidence of owners before the reservations."""

    _listed: Any = ()
    _noted: Any = ()

    def reservations(self) -> Any:
        self._noted, self._listed = super().checkpoints(), super().containers()
        return super().reservations()

    def containers(self) -> Any:
        return self._listed

    def checkpoints(self) -> Any:
        return self._noted


def always(**answers: object) -> type[InMemory]:
    """Return a node that gives these answers without being asked."""
    return type(
        "Always",
        (InMemory,),
        {name: lambda *_, answer=answer: answer for name, answer in answers.items()},
    )


DOCKER_NOT_RECHECKED = always(has_container=False)
KUBELET_NOT_RECHECKED = always(has_checkpoint=False)
KUBELET_IGNORED = always(has_checkpoint=False, checkpoints=())
KERNEL_NOT_RECHECKED = always(holder_of="")
KERNEL_IGNORED = always(holder_of="", addresses=(Address("10.244.1.1", 1, "systemd"),))
RECORDS_NOT_RECHECKED = always(has_record=False)
RECORDS_NOT_LISTED = always(records=())
MOUNTS_NOT_RECHECKED = always(is_mounted=False)
MOUNTS_NOT_LISTED = always(mounted_namespaces=())
BRAKE_NOT_REREAD = always(reread_brake=NotRequested("brake", "it was read in the snapshot"))
WITHOUT_LOCK = always(lock=True, unlock=None)


class Unnoticed(Journal):
    def active_since(self, before: Journal) -> frozenset[str]:  # noqa: ARG002 (that is what is wrong with it)
        return frozenset()


def changing(of: type[Any], name: str, change: Callable[[Any], Any]) -> type[Any]:
    """Return a node or a journal one of whose answers is changed."""
    return type("Changing", (of,), {name: lambda self: change(getattr(of, name)(self))})


RUNTIME_IGNORED = changing(InMemory, "processes", lambda found: replace(found, runtime=None))
"""Does not see what the kubelet names as its runtime."""
DIRECTORY_IGNORED = changing(
    InMemory, "checkpoints", lambda found: () if isinstance(found, Unavailable) else found
)
"""Reads a missing checkpoint directory as an empty one."""
PODS_IGNORED = changing(
    InMemory,
    "pods",
    lambda found: (
        Known(tuple(replace(pod, ips=()) for pod in found.value))
        if isinstance(found, Known)
        else found
    ),
)
NOT_RECOVERED = changing(
    InMemoryJournal,
    "read",
    lambda journal: Journal(tuple(entry for entry in journal.entries if not entry.unfinished)),
)
"""Does not see unfinished entries."""
ACTIVITY_IGNORED = changing(InMemoryJournal, "read", lambda journal: Unnoticed(journal.entries))
"""Does not see what others have done since the snapshot."""


class HaltReadOnce(InMemoryJournal):
    """Sees a halt only where it was in the journal before the snapshot."""

    _read_before = False

    def read(self) -> Journal:
        journal = super().read()
        if self._read_before:
            entries = (replace(entry, halted=None) for entry in journal.entries)
            return Journal(tuple(entries))
        self._read_before = True
        return journal


NOT_JOURNALED = type(
    "NotJournaled", (InMemoryJournal,), dict.fromkeys(("begin", "update"), lambda *_: None)
)
FORGETFUL = type(
    "Forgetful",
    (InMemoryJournal,),
    {"begin": lambda self, entry, _: self._ask("begin_anyway", entry)},
)
"""Drops the oldest entry for another one."""


class NamespacesSharedByReleases(InMemory):
    """Reads the namespaces for the first release, and judges the others by the same reading."""

    _ips: frozenset[str] | None = None

    def holder_of(self, _container_id: str, ips: Sequence[str]) -> str:
        if self._ips is None:
            self._ips = frozenset(address.ip for address in self._ask("addresses"))
        return "process 7 (pause)" if self._ips.intersection(ips) else ""


class ReadOnce(InMemory):
    """Uses under the lock what was read before it."""

    def __init__(self, ask: Answered, setup: Setup) -> None:
        super().__init__(ask, setup)
        self._first: dict[str, FileImage | None] = {}

    def read(self, network: str, name: str) -> Any:
        if name not in self._first:
            self._first[name] = super().read(network, name)
        return self._first[name]


class RestoredAtOnce(InMemoryJournal):
    """Records a restoration when it begins, and not when it ends."""

    def update(self, entry: Entry, at: datetime) -> None:
        if entry.restoring:
            super().update(replace(entry, restored=at, restoring=None), at)
        elif not entry.restored:
            super().update(entry, at)


class NotExclusive(InMemoryJournal):
    @contextmanager
    def exclusive(self, _seconds: float) -> Iterator[None]:
        yield


def made_of(*changes: type[InMemory | InMemoryJournal]) -> Assembly:
    """Return a cleaner with all of these changes."""
    node = type(
        "Node", (*(change for change in changes if issubclass(change, InMemory)), InMemory), {}
    )
    journal_store = type(
        "JournalStore",
        (*(change for change in changes if issubclass(change, InMemoryJournal)), InMemoryJournal),
        {},
    )

    def assemble(ask: Answered, setup: Setup) -> Parts:
        return node(ask, setup), journal_store(ask, setup)

    return assemble
