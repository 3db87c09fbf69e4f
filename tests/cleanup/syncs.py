"""Rounds of a daemon that cleans, and what it told."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from agent.checks import engine
from agent.checks.confirm import Memory
from agent.cleanup.book import Book
from agent.cleanup.cleaner import Cleaner, Live
from agent.cleanup.journal import Entry
from agent.cleanup.session import HOUR, Budget, Judge
from agent.model.release import Cleaning, Limits, Reason, Verdict
from agent.model.snapshot import Reservation
from tests.builders import GRACE, NOW, OLD, limits, node, reservation
from tests.cleanup.file_operations import Files, Notebook, Owners, kept

SECOND = timedelta(seconds=1)
THE_ID, THE_IP = "9" * 64, "10.244.1.9"
LEAK = reservation(THE_IP)
NONE = Budget()


def leaks(count: int) -> list[Reservation]:
    """Return leaks of different sandboxes, the first the oldest."""
    return [reservation(f"10.244.1.{10 + n}", f"{n:02x}" * 32, age=OLD - n * SECOND) for n in range(1, count + 1)]


def entry(one: Reservation, verdict: Verdict | None = Verdict.RELEASED, **more: Any) -> Entry:
    """Return the journal's entry of one release, an hour and a half ago unless it is said when."""
    at: datetime = more.pop("at", NOW - 1.5 * HOUR)
    name = f"{at:%H%M%S.%f}-{one.container_id[:12]}-{one.ip}"
    told = {"by": "run", "pod": "", "files": (kept(one),), "verdict": verdict} | more
    return Entry(name=name, at=at, container_id=one.container_id, **told)


class Daemon:
    """The rounds of one daemon, 15 s apart, over a node whose files are what each look says."""

    def __init__(
        self,
        book: Book | None = None,
        *,
        bold: Limits | None = None,
        budget: Budget = NONE,
        by: str = "run",
        again: Owners | None = None,
    ) -> None:
        self.files, self.book = Files(), book or Notebook()
        self.judge = Judge(bold or limits(), budget, self.book, by)
        self.cleaner: Cleaner = Live(
            self.judge, again or Owners(), lambda: self.files, self.book, lambda: self.now, lock_timeout=0
        )
        self.now = NOW
        self._memory: Memory | None = None

    def round(self, *things: Any, meanwhile: Sequence[Entry] = (), **changes: Any) -> Cleaning:
        """Look and clean. `meanwhile`: what other cleaners write between our reading of the journal and our look."""
        self.now += timedelta(seconds=15)
        self.cleaner.before_look(self.now)
        for one in meanwhile:
            assert isinstance(self.book, Notebook)
            self.book.entries[one.name] = one
        look = node(*things, **changes, later=self.now - NOW)
        self.files.files = {
            (one.network, one.ip): kept(one) for store in look.reservations for one in store.reading.known()
        }
        report, self._memory = engine.run(look, self._memory, patience=GRACE, period=timedelta(0))
        cleaning = self.cleaner.after_look((look,), report)
        assert cleaning is not None
        return cleaning

    @property
    def names(self) -> list[str]:
        """The addresses that are reserved now."""
        return sorted(name for _, name in self.files.files)


def told(cleaning: Cleaning) -> list[tuple[str, Verdict]]:
    return [(one.candidate.reservations[0].ip, one.verdict) for one in cleaning.outcomes]


def why(cleaning: Cleaning) -> list[list[Reason]]:
    return [[no.reason for no in one.refusals] for one in cleaning.outcomes]
