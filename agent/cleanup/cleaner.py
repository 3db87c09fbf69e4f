"""The cleanup of one sync: ask the guards, release what passes, report.

Off, dry run and apply are three classes, not a flag.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final, Protocol

from agent.cleanup import guards
from agent.cleanup.guard_context import GuardContext
from agent.cleanup.guards import Decision
from agent.cleanup.journal_store import Busy, EntryWriter, JournalStore
from agent.cleanup.release import Recheck, describe_error, release, run_steps
from agent.cleanup.restore import RestoreOperations, recover_all
from agent.cleanup.session import CleanupSession
from agent.cleanup.signals import interrupted
from agent.model.release import Blocker, Cleaning, Outcome, ProbeResult, Reason, Refusal, ReleaseRequest, Verdict
from agent.model.report import Report
from agent.model.snapshot import Snapshot
from agent.sources.source_error import SourceError

MAX_SNAPSHOT_AGE: Final = timedelta(minutes=1)
"""No release begins later than this after its snapshot: the node goes on meanwhile."""


_PROBED_AT_ONCE: Final = 100
"""Sandboxes: far fewer addresses than the kernel's table of neighbors holds (gc_thresh3, 1024)."""


class Cleaner(Protocol):
    def before_snapshot(self, now: datetime) -> None:
        """Read the journal. What was released up to now must not be in the snapshot that follows."""
        ...

    def after_snapshot(self, snapshots: Sequence[Snapshot], report: Report) -> Cleaning | None:
        """`snapshots`: those behind the report that were not passed before."""
        ...


class DisabledCleaner:
    def before_snapshot(self, now: datetime) -> None: ...

    def after_snapshot(self, snapshots: Sequence[Snapshot], report: Report) -> None: ...


class DryRunCleaner:
    """Reports what would be released, and changes nothing."""

    def __init__(
        self,
        session: CleanupSession,
        blockers: Callable[[GuardContext], tuple[Blocker, ...]] = lambda _: (),
        unasked: Callable[[Sequence[str]], Mapping[str, ProbeResult]] = lambda _: {},
    ) -> None:
        """`blockers`: returns why nothing could be released here. `unasked`: what a probe knows before it asks."""
        self._session, self._blockers, self._unasked = session, blockers, unasked

    def before_snapshot(self, now: datetime) -> None:
        self._session.read_journal(now)
        self._session.reappeared = None  # it is not recorded here, so that nobody could resume

    def after_snapshot(self, snapshots: Sequence[Snapshot], report: Report) -> Cleaning:
        self._session.observe(snapshots)
        context = self._session.context(report)
        decisions = guards.decide(context)
        outcomes = (*self._passed([one for one, refusals in decisions if not refusals]), *_refused(decisions))
        return self._session.cleaning(report, outcomes, applied=False, blockers=self._blockers(context))

    def _passed(self, requests: Sequence[ReleaseRequest]) -> Iterator[Outcome]:
        known: Mapping[str, ProbeResult] = {}
        with suppress(SourceError):  # --apply reports it
            known = self._unasked([one.ip for request in requests for one in request.reservations])
        for request in requests:
            results = [known[one.ip] for one in request.reservations if one.ip in known]
            why = "; ".join(result.why for result in results)
            yield _objected(request, results) or Outcome(request, Verdict.WOULD_RELEASE, why=why)


class ApplyingCleaner:
    """Releases what passes every guard."""

    def __init__(
        self,
        session: CleanupSession,
        recheck: Recheck,
        file_ops: Callable[[], RestoreOperations],
        journal_store: JournalStore,
        now: Callable[[], datetime],
        lock_timeout: float,
        beat: Callable[[], None] = lambda: None,
    ) -> None:
        """`file_ops`: returns those of one sync. `lock_timeout`: seconds to wait for another cleaner.

        `beat`: called after each release. One may wait for the runtime and for a lock, and a sync can have several.
        """
        self._session, self._recheck, self._file_ops = session, recheck, file_ops
        self._journal_store, self._now, self._lock_timeout, self._beat = journal_store, now, lock_timeout, beat

    def before_snapshot(self, now: datetime) -> None:
        if self._session.read_journal(now).unfinished():
            self._recover()
            self._session.read_journal(now)

    def _recover(self) -> None:
        with suppress(Busy, OSError, SourceError), self._journal_store.exclusive(0):
            # The journal is read again under the lock: another cleaner may have been in the middle of an entry.
            recover_all(self._file_ops(), self._journal_store, self._now())

    def after_snapshot(self, snapshots: Sequence[Snapshot], report: Report) -> Cleaning:
        self._session.observe(snapshots)
        if self._session.reappeared:
            with suppress(Busy, OSError, SourceError), self._journal_store.exclusive(self._lock_timeout):
                self._session.record_halt(self._now())
        decisions = guards.decide(self._session.context(report))
        # A request that is not due failed in an earlier sync, and that was reported.
        due = [request for request, refusals in decisions if not refusals and self._session.due(request)]
        taken_at, released = report.assessment.snapshot.taken_at, list[Outcome]()
        while batch := due[len(released) : len(released) + _PROBED_AT_ONCE]:
            released += self._release_batch(batch, taken_at)
        self._session.record(released)
        return self._session.cleaning(report, (*released, *_refused(decisions)), applied=True)

    def _release_batch(self, requests: Sequence[ReleaseRequest], taken_at: datetime) -> list[Outcome]:
        if end := self._not_begun(requests[0], taken_at):
            return [replace(end, request=request) for request in requests]
        try:
            # Outside every lock, because it takes some seconds.
            probed = self._recheck.probe([one.ip for request in requests for one in request.reservations])
        except SourceError as error:
            return [Outcome(request, Verdict.FAILED, why=str(error)) for request in requests]
        self._beat()
        return self._release_all(requests, taken_at, probed)

    def _release_all(
        self, requests: Sequence[ReleaseRequest], taken_at: datetime, probed: Mapping[str, ProbeResult]
    ) -> list[Outcome]:
        outcomes: list[Outcome] = []
        file_ops, writer = self._file_ops(), EntryWriter(self._journal_store, self._session.by, self._now)
        try:
            with self._journal_store.exclusive(self._lock_timeout):
                restored = self._session.restored_meanwhile()
                for request in requests:
                    results = [probed[one.ip] for one in request.reservations]
                    evidence = [result.why for result in results]
                    outcomes.append(
                        self._not_begun(request, taken_at, restored)
                        or _objected(request, results)
                        or run_steps(release(request, self._recheck, file_ops, writer, evidence))
                    )
                    self._beat()
        except Busy as busy:
            outcomes += [Outcome(request, Verdict.BUSY, why=str(busy)) for request in requests[len(outcomes) :]]
        except (OSError, SourceError) as error:
            refusal = Refusal(Reason.JOURNAL_UNWRITABLE, describe_error(error))
            outcomes += [Outcome(request, Verdict.REFUSED, (refusal,)) for request in requests[len(outcomes) :]]
        return outcomes

    def _not_begun(self, request: ReleaseRequest, taken_at: datetime, restored: Collection[str] = ()) -> Outcome | None:
        """Begin no release after a signal, too long after the snapshot, or of what was restored meanwhile."""
        if interrupted():
            return Outcome(request, Verdict.INTERRUPTED, why="interrupted by a signal before this release began")
        if abs(self._now() - taken_at) > MAX_SNAPSHOT_AGE:
            why = f"its snapshot is older than {MAX_SNAPSHOT_AGE.total_seconds():.0f} s: run cleanup again"
            return Outcome(request, Verdict.REFUSED, (Refusal(Reason.SNAPSHOT_EXPIRED, why),))
        if request.container_id in restored:
            return Outcome(request, Verdict.CHANGED, why="the sandbox was being restored during the snapshot")
        return None


def _objected(request: ReleaseRequest, probed: Iterable[ProbeResult]) -> Outcome | None:
    refusals = tuple(Refusal(one.objection, f"probe: {one.why}") for one in probed if one.objection)
    return Outcome(request, Verdict.REFUSED, refusals) if refusals else None


def _refused(decisions: Iterable[Decision]) -> list[Outcome]:
    return [Outcome(request, Verdict.REFUSED, refusals) for request, refusals in decisions if refusals]
