"""Syncs of a daemon with cleanup, and what it reports."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from agent.checks import engine
from agent.checks.confirm import ConfirmationState
from agent.cleanup.journal import Entry, JournalStore
from agent.cleanup.run import Apply, Budget, DryRun
from agent.model.release import Cleaning, Limits, Reason, Verdict
from agent.model.snapshot import Reservation
from tests.builders import GRACE, NOW, OLD, make_limits, node, reservation
from tests.cleanup.file_operations import Files, InMemoryJournal, Owners, image

SECOND = timedelta(seconds=1)
THE_ID, THE_IP = "9" * 64, "10.244.1.9"
LEAK = reservation(THE_IP)
NONE = Budget()


def leaks(count: int) -> list[Reservation]:
    """Return leaks of different sandboxes, the first the oldest."""
    return [reservation(f"10.244.1.{10 + n}", f"{n:02x}" * 32, age=OLD - n * SECOND) for n in range(1, count + 1)]


def entry(released: Reservation, verdict: Verdict | None = Verdict.RELEASED, **more: Any) -> Entry:
    """Return the journal entry of one release, by default an hour and a half ago."""
    at: datetime = more.pop("at", NOW - timedelta(minutes=90))
    name = f"{at:%H%M%S.%f}-{released.container_id[:12]}-{released.ip}"
    fields = {"actor": "run", "pod": "", "files": (image(released),), "verdict": verdict} | more
    return Entry(name=name, at=at, container_id=released.container_id, **fields)


class Daemon:
    """The syncs of one daemon, 15 s apart, on a node whose files are those of each snapshot."""

    def __init__(
        self,
        journal_store: JournalStore | None = None,
        *,
        limits: Limits | None = None,
        budget: Budget = NONE,
        actor: str = "run",
        recheck: Owners | None = None,
    ) -> None:
        self.files, self.journal_store = Files(), journal_store or InMemoryJournal()
        owners = (recheck or Owners()).recheck()
        self.session = limits or make_limits(), budget, actor, self.journal_store, owners, self.files
        self.cleaner: DryRun = Apply(*self.session, now=lambda: self.now, lock_timeout=0)
        self.now = NOW
        self._memory: ConfirmationState | None = None

    def sync(self, *records: Any, meanwhile: Sequence[Entry] = (), **changes: Any) -> Cleaning:
        """Take a snapshot and clean up. `meanwhile`: what others journal between our reading and our snapshot."""
        self.now += timedelta(seconds=15)
        self.cleaner.before_snapshot()
        for entry in meanwhile:
            assert isinstance(self.journal_store, InMemoryJournal)
            self.journal_store.entries[entry.name] = entry
        snapshot = node(*records, **changes, later=self.now - NOW)
        self.files.files.clear()
        reserved = [reservation for store in snapshot.reservations for reservation in store.reading.known()]
        self.files.files.update({(reservation.network, reservation.ip): image(reservation) for reservation in reserved})
        report, self._memory = engine.run(snapshot, self._memory, grace=GRACE, confirm_after=timedelta(0))
        return self.cleaner.after_snapshot((snapshot,), report)

    @property
    def names(self) -> list[str]:
        """The addresses that are reserved now."""
        return sorted(name for _, name in self.files.files)


def verdicts_of(cleaning: Cleaning) -> list[tuple[str, Verdict]]:
    return [(outcome.request.reservations[0].ip, outcome.verdict) for outcome in cleaning.outcomes]


def reasons_of(cleaning: Cleaning) -> list[list[Reason]]:
    return [[refusal.reason for refusal in outcome.refusals] for outcome in cleaning.outcomes]
