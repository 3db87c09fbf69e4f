"""One round of cleaning: what could be released, what the guards say, what came of it.

Off, trying and doing are three objects, and not a flag.
"""

from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Final, Protocol

from agent.cleanup import guards
from agent.cleanup.book import Busy, JournalStore
from agent.cleanup.journal import Entry, entry_name
from agent.cleanup.release import FileImage, Recheck, Step, describe_error, release
from agent.cleanup.restore import RestoreOperations, recover
from agent.cleanup.session import CleanupSession
from agent.cleanup.signals import ending
from agent.model.release import Cleaning, Outcome, Reason, Refusal, ReleaseRequest, Verdict
from agent.model.report import Report
from agent.model.snapshot import Snapshot
from agent.sources.error import SourceError

FRESH: Final = timedelta(minutes=1)
"""How long after a look its verdicts may be acted on: the node goes on meanwhile."""


class Cleaner(Protocol):
    """Whoever may clean after a look."""

    def before_snapshot(self, now: datetime) -> None:
        """Learn what was released up to now: it must not be seen in the look that follows."""
        ...

    def after_snapshot(self, snapshots: Sequence[Snapshot], report: Report) -> Cleaning | None:
        """`snapshots`: what the report was judged from, that was not told before."""
        ...


class DisabledCleaner:
    """Cleanup is off: nothing is judged, and nothing is said."""

    def before_snapshot(self, now: datetime) -> None: ...

    def after_snapshot(self, snapshots: Sequence[Snapshot], report: Report) -> None: ...


class DryRunCleaner:
    """Says what would be released, and touches nothing."""

    def __init__(self, judge: CleanupSession) -> None:
        self._judge = judge

    def before_snapshot(self, now: datetime) -> None:
        self._judge.before_snapshot(now)

    def after_snapshot(self, snapshots: Sequence[Snapshot], report: Report) -> Cleaning:
        judged = guards.decide(self._judge.case(snapshots, report))
        outcomes = [Outcome(candidate, Verdict.WOULD_RELEASE) for candidate, refusals in judged if not refusals]
        return self._judge.cleaning(report, (*outcomes, *_refused(judged)), applied=False)


def _refused(judged: Iterable[tuple[ReleaseRequest, tuple[Refusal, ...]]]) -> list[Outcome]:
    return [Outcome(candidate, Verdict.REFUSED, refusals) for candidate, refusals in judged if refusals]


class ApplyingCleaner:
    """Releases what passes every guard."""

    def __init__(
        self,
        judge: CleanupSession,
        again: Recheck,
        file_ops: Callable[[], RestoreOperations],
        journal_store: JournalStore,
        now: Callable[[], datetime],
        lock_timeout: float,
        alive: Callable[[], None] = lambda: None,
    ) -> None:
        """`file_ops`: makes those of one round. `lock_timeout`: seconds for which another cleaner is waited for.

        `unmanaged`: told after each release, because one may wait for docker and for a lock, and a round has several.
        """
        self._alive = alive
        self._judge, self._again, self._hands = judge, again, file_ops
        self._book, self._now, self._lock_timeout = journal_store, now, lock_timeout

    def before_snapshot(self, now: datetime) -> None:
        journal = self._judge.before_snapshot(now)
        if not journal.unfinished():
            return
        # What cannot be settled is there in the next round, and a warning until then.
        with suppress(Busy, OSError, SourceError), self._book.exclusive(0):
            file_ops = self._hands()
            # Another cleaner may have been in the middle of one when we read.
            for entry in self._book.read().unfinished():
                with suppress(OSError):
                    recover(entry, file_ops, self._book, self._now())
        self._judge.before_snapshot(now)

    def after_snapshot(self, snapshots: Sequence[Snapshot], report: Report) -> Cleaning:
        judged = guards.decide(self._judge.case(snapshots, report))
        # One that is not due failed before, and that was told.
        passed = [candidate for candidate, refusals in judged if not refusals and self._judge.due(candidate)]
        outcomes = (*(self._act(passed, report.assessment.snapshot.taken_at) if passed else ()), *_refused(judged))
        self._judge.learn(outcomes)
        return self._judge.cleaning(report, outcomes, applied=True)

    def _act(self, passed: Sequence[ReleaseRequest], taken_at: datetime) -> list[Outcome]:
        outcomes: list[Outcome] = []
        file_ops, writer = self._hands(), _JournalWriter(self._book, self._judge.by, self._now)
        try:
            with self._book.exclusive(self._lock_timeout):
                for candidate in passed:
                    outcomes.append(
                        self._too_late(candidate, taken_at)
                        or run_steps(release(candidate, self._again, file_ops, writer))
                    )
                    self._alive()
        except Busy as busy:
            # What was done before stays told.
            outcomes += [Outcome(one, Verdict.BUSY, why=str(busy)) for one in passed[len(outcomes) :]]
        except OSError as error:
            no = Refusal(Reason.JOURNAL_UNWRITABLE, describe_error(error))
            outcomes += [Outcome(one, Verdict.REFUSED, (no,)) for one in passed[len(outcomes) :]]
        return outcomes

    def _too_late(self, candidate: ReleaseRequest, taken_at: datetime) -> Outcome | None:
        """Begin nothing more when told to end, or when what the guards judged by is long ago."""
        if ending():
            return Outcome(candidate, Verdict.BUSY, why="told to end before its turn came")
        if abs(self._now() - taken_at) > FRESH:
            why = f"the look that judged it is older than {FRESH.total_seconds():.0f} s: clean again"
            return Outcome(candidate, Verdict.REFUSED, (Refusal(Reason.SOURCE_UNAVAILABLE, why),))
        return None


def run_steps(steps: Generator[Step, None, Outcome]) -> Outcome:
    """Take every step, one after the other."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            outcome: Outcome = done.value
            return outcome


class _JournalWriter:
    """Writes the journal in the name of whoever releases."""

    def __init__(self, journal_store: JournalStore, by: str, now: Callable[[], datetime]) -> None:
        self._book, self._by, self._now = journal_store, by, now

    def begin(self, candidate: ReleaseRequest, files: Sequence[FileImage], evidence: Sequence[str]) -> str:
        now = self._now()
        entry = Entry(
            name=entry_name(now, candidate),
            at=now,
            by=self._by,
            container_id=candidate.container_id,
            pod=candidate.pod,
            files=tuple(files),
        )
        self._book.begin(entry, evidence)
        return entry.name

    def end(self, entry: str, verdict: Verdict, why: str) -> None:
        self._book.end(entry, verdict, why, self._now())
