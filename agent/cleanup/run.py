"""The session of one cleaner: what it may release, what it remembers from sync to sync, and what it does in one.

Where cleanup is off, there is no session.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from agent.cleanup import guards, restore
from agent.cleanup.guards import GuardContext, RuntimeHistory
from agent.cleanup.journal import Busy, Entry, Journal, JournalFull, JournalStore
from agent.cleanup.recheck import Probed, Recheck
from agent.cleanup.signals import interrupted
from agent.cleanup.summary import find_blockers, summarize
from agent.cleanup.unlink import NodeFiles, describe_error, release
from agent.model.bug import Bug
from agent.model.release import (
    Blocker,
    Cleaning,
    Limits,
    Outcome,
    Reason,
    Refusal,
    ReleaseRequest,
    Verdict,
)
from agent.model.report import Report
from agent.model.snapshot import Reservation, Snapshot, known_or
from agent.sources.source_error import SourceError

HOUR: Final = timedelta(hours=1)
PAUSE: Final = timedelta(minutes=10)
"""A leak that the probe or the recheck refused is left alone for so long: it must neither hold up others nor be probed
in every sync."""
RETRY: Final = timedelta(
    minutes=1
)  # one whose release failed, perhaps because the runtime had just been restarted
MAX_SNAPSHOT_AGE: Final = timedelta(minutes=1)
"""By the boot clock. No release begins later after its snapshot: the node goes on."""
_PROBED_AT_ONCE: Final = (
    100  # sandboxes: far fewer addresses than the kernel's table of neighbors holds (gc_thresh3)
)
_MAY_LAST: Final = {Reason.ADDRESS_IN_USE, Reason.PROBE_UNANSWERED, Reason.ENTRY_TOO_LARGE}
"""Refusals after the guards that do not pass by themselves."""


class _Pause(NamedTuple):
    until: timedelta  # the uptime
    refusals: tuple[Refusal, ...]
    """Why the leak was not released, for the syncs until then; empty: its release failed."""


@dataclass
class Cleaner:
    """Releases what passes every guard. If not `applied`, it only reports what would be released: a dry run."""

    limits: Limits
    actor: str  # who releases, `clean` or `run`
    journal: JournalStore
    recheck: Recheck
    files: NodeFiles
    now: Callable[[], datetime]
    uptime: Callable[[], timedelta]  # by the boot clock, as in `Snapshot.uptime`
    applied: bool
    heartbeat: Callable[[], None] = lambda: None
    """Called after each release. One may wait for the runtime and for a lock, and a sync can have several."""
    no_network: Callable[[], Blocker | None] = lambda: None
    """Returns why no network may be cleaned, if none may be."""
    _read: Journal = field(
        default=Journal(), init=False
    )  # the journal as it was before the snapshot
    _unreadable: str = field(default="", init=False)
    _history: RuntimeHistory = field(default=RuntimeHistory(), init=False)
    _reappeared: Entry | None = field(default=None, init=False)
    """The release whose container reappeared, until the journal has recorded that."""
    _unrecovered: Mapping[str, str] = field(default_factory=dict, init=False)
    """Why entries stay unfinished, by name."""
    _paused: dict[Reservation, _Pause] = field(default_factory=dict, init=False)
    """The leaks that are left alone for a while."""

    def before_snapshot(self) -> None:
        """Read the journal, and recover what was interrupted. What was released must not be in the next snapshot."""
        self._read_journal()
        if not self.applied:
            self._reappeared = None  # it is not recorded here, so that nobody could resume
        elif self._read.unfinished() and not self._unreadable:
            self._unrecovered = {}
            with suppress(Busy, OSError, SourceError), self.journal.exclusive(0):
                # The journal is read again under the lock: another cleaner may have been in the middle of an entry.
                self._unrecovered = restore.recover_all(self.files, self.journal, self.now())
            self._read_journal()

    def after_snapshot(self, snapshots: Sequence[Snapshot], report: Report) -> Cleaning:
        """`snapshots`: those behind the report that were not passed before."""
        for snapshot in snapshots:
            self._history = self._history.after(snapshot)
            self._reappeared = self._reappeared if self.halted else self._find_reappeared(snapshot)
        self._record_halt()
        context = self.context(report)
        decisions = guards.decide(context)
        passed = [request for request, refusals in decisions if not refusals]
        outcomes = (
            self._release(passed, context.snapshot) if self.applied else self._would_release(passed)
        )
        # Another cleaner may have recorded a halt since.
        context = replace(context, halted=self.halted)
        outcomes += [
            Outcome(request, Verdict.REFUSED, refusals)
            for request, refusals in decisions
            if refusals
        ]
        blockers = (
            ()
            if self.applied
            else find_blockers(context, self.files, self.journal, self.no_network)
        )
        cleaning = summarize(context, outcomes, self._read, blockers, applied=self.applied)
        unfinished = map(self._about_unfinished, self._read.unfinished())
        return replace(cleaning, warnings=(*cleaning.warnings, *unfinished))

    def failed(self, snapshot: Snapshot, bug: Bug) -> Cleaning:
        """Return the result of a cleanup that a bug ended.

        What it may have released before is in the journal, and counts as released from then on.
        """
        return Cleaning(
            node=snapshot.node_name,
            taken_at=snapshot.taken_at,
            applied=self.applied,
            unavailable=snapshot.unavailable_about_addresses(),
            halted=self.halted,
            bugs=(bug,),
        )

    def _about_unfinished(self, entry: Entry) -> str:
        what = "the next cleanup or restore recovers it"
        if why := self._unrecovered.get(entry.name):
            what = f"and cannot be recovered now: {why}"
        return f"journal: entry {entry.name} is unfinished, {what}"

    def context(self, report: Report) -> GuardContext:
        """Return what the guards may know of this sync."""
        snapshot = report.assessment.snapshot
        return GuardContext(
            report=report,
            runtime_history=self._history,
            limits=self.limits,
            spent=self._read.released_since(snapshot.taken_at - HOUR, self.actor),
            halted=self.halted,
            journal_trouble=self._unreadable or self.journal.trouble(),
            journal_damage=self._read.damage,
            restored=self._read.restored(),
            paused={
                leak: pause.refusals
                for leak, pause in self._paused.items()
                if snapshot.uptime < pause.until
            },
        )

    @property
    def halted(self) -> str:
        """Why cleanup halted; empty if it did not."""
        halted = next(iter(self._read.halted()), self._reappeared)
        return halted.reappearance if halted else ""

    def _read_journal(self) -> None:
        try:
            self._read, self._unreadable = self.journal.read(), ""
        except SourceError as error:
            self._unreadable = str(error)

    def _find_reappeared(self, snapshot: Snapshot) -> Entry | None:
        """Return the release of a container that the runtime or the kubelet has a record of.

        A reservation alone is none: a plugin that outlives its sandbox can write one, and it is a leak like any other.
        """
        recorded = {container.id for container in known_or(snapshot.containers, ())}
        recorded.update(
            checkpoint.container_id for checkpoint in known_or(snapshot.checkpoints, ())
        )
        found = [
            entry
            for container_id, entry in self._read.released_from().items()
            if container_id in recorded
        ]
        if found:
            with suppress(
                SourceError
            ):  # if it cannot be read again, what was read before the snapshot counts
                # The container may have been restored meanwhile, and even released once more.
                released = self.journal.read().released_from()
                found = [entry for entry in found if released.get(entry.container_id) == entry]
        return found[0] if found else None

    def _record_halt(self) -> None:
        """Let a halt outlive this process, until `nodeleak resume`.

        While the journal cannot be written, each sync tries again. An entry that somebody removed
        is written again: `resume` could not end the halt without it.
        """
        if not (self.applied and self._reappeared):
            return
        with suppress(Busy, OSError, SourceError), self.journal.exclusive(self.files.lock_timeout):
            entry = self.journal.read().named(self._reappeared.name)
            if entry is None:
                entry = self._reappeared
                why = "written again: the entry was gone when its container reappeared"
                self.journal.begin(entry, [why], self.now())
            halting = replace(entry, halted=self.now(), resumed=None)
            self.journal.update(halting, self.now())
            self._note(halting)
            self._reappeared = None

    def _note(self, entry: Entry) -> None:
        """Add to the reading of the journal what an entry has become since."""
        others = (known for known in self._read.entries if known.name != entry.name)
        self._read = replace(self._read, entries=(*others, entry))

    def _would_release(self, requests: Sequence[ReleaseRequest]) -> list[Outcome]:
        """Return what would come of the requests that passed every guard, as far as that is known without a probe."""
        known: Probed = {}
        with suppress(SourceError):  # --apply reports it
            known = self.recheck.probe(_reservations(requests), send=False)
        outcomes = []
        for request in requests:
            why = "; ".join(
                known[leak.key].why for leak in request.reservations if leak.key in known
            )
            outcomes.append(
                _probe_refusal(request, known) or Outcome(request, Verdict.WOULD_RELEASE, why=why)
            )
        return outcomes

    def _release(self, requests: Sequence[ReleaseRequest], snapshot: Snapshot) -> list[Outcome]:
        """Release the requests that passed every guard, and pause those that would hold up others."""
        outcomes: list[Outcome] = []
        while batch := requests[len(outcomes) : len(outcomes) + _PROBED_AT_ONCE]:
            outcomes += self._release_batch(batch, snapshot)
        self._paused = {
            leak: pause for leak, pause in self._paused.items() if snapshot.uptime < pause.until
        }
        for outcome in outcomes:
            may_last = any(refusal.reason in _MAY_LAST for refusal in outcome.refusals)
            if span := PAUSE if may_last else RETRY if outcome.verdict is Verdict.FAILED else None:
                pause = _Pause(snapshot.uptime + span, outcome.refusals)
                self._paused |= dict.fromkeys(outcome.request.reservations, pause)
        return outcomes

    def _release_batch(
        self, requests: Sequence[ReleaseRequest], snapshot: Snapshot
    ) -> list[Outcome]:
        if refused := self._why_not(requests[0], snapshot):
            return [replace(refused, request=request) for request in requests]
        try:
            # Outside every lock, because it takes some seconds.
            probed = self.recheck.probe(_reservations(requests))
        except SourceError as error:
            return [Outcome(request, Verdict.FAILED, why=str(error)) for request in requests]
        self.heartbeat()
        return self._release_probed(requests, probed, snapshot)

    def _release_probed(
        self, requests: Sequence[ReleaseRequest], probed: Probed, snapshot: Snapshot
    ) -> list[Outcome]:
        outcomes: list[Outcome] = []
        try:
            with self.journal.exclusive(self.files.lock_timeout):
                # Nobody else can write it now, so one reading serves the whole batch.
                journal = self.journal.read()
                active = journal.active_since(self._read)
                halted = next(iter(journal.halted()), None)
                if halted:  # another cleaner may have recorded it since
                    self._note(halted)
                for request in requests:
                    refused = self._why_not(request, snapshot, active, halted) or _probe_refusal(
                        request, probed
                    )
                    outcomes.append(
                        refused
                        or _still_locked(request, outcomes)
                        or self._release_one(request, probed)
                    )
                    self.heartbeat()
        except (Busy, OSError, SourceError) as error:
            outcomes += [_not_journaled(request, error) for request in requests[len(outcomes) :]]
        return outcomes

    def _why_not(
        self,
        request: ReleaseRequest,
        snapshot: Snapshot,
        active: Collection[str] = (),
        halted: Entry | None = None,
    ) -> Outcome | None:
        """Begin no release after a halt or a signal, or too long after the snapshot.

        `active`: the sandboxes that the journal shows in motion, of which none is released either.
        """
        if halted:
            refusal = Refusal(Reason.HALTED, halted.reappearance)
            return Outcome(request, Verdict.REFUSED, (refusal,))
        if interrupted():
            return Outcome(
                request,
                Verdict.INTERRUPTED,
                why="interrupted by a signal before this release began",
            )
        if self.uptime() - snapshot.uptime > MAX_SNAPSHOT_AGE:
            why = f"its snapshot is older than {MAX_SNAPSHOT_AGE.total_seconds():.0f} s: run cleanup again"
            return Outcome(request, Verdict.REFUSED, (Refusal(Reason.SNAPSHOT_EXPIRED, why),))
        if request.container_id in active:
            return Outcome(
                request,
                Verdict.CHANGED,
                why="the sandbox was restored, or released, since the snapshot",
            )
        return None

    def _release_one(self, request: ReleaseRequest, probed: Probed) -> Outcome:
        return release(
            request, probed, self.recheck, self.files, self.journal, actor=self.actor, at=self.now()
        )


def _reservations(requests: Sequence[ReleaseRequest]) -> list[Reservation]:
    return [leak for request in requests for leak in request.reservations]


def _probe_refusal(request: ReleaseRequest, probed: Probed) -> Outcome | None:
    results = [probed[leak.key] for leak in request.reservations if leak.key in probed]
    refusals = tuple(
        Refusal(result.objection, f"probe: {result.why}") for result in results if result.objection
    )
    return Outcome(request, Verdict.REFUSED, refusals) if refusals else None


def _still_locked(request: ReleaseRequest, outcomes: Sequence[Outcome]) -> Outcome | None:
    """A lock is waited for once per sync, so that 118 leaks do not wait 118 times."""
    for outcome in outcomes:
        if outcome.verdict is Verdict.BUSY and {*outcome.request.directories}.intersection(
            request.directories
        ):
            return Outcome(request, Verdict.BUSY, why=outcome.why)
    return None


def _not_journaled(request: ReleaseRequest, error: Exception) -> Outcome:
    if isinstance(error, Busy):
        return Outcome(request, Verdict.BUSY, why=str(error))
    reason = Reason.JOURNAL_FULL if isinstance(error, JournalFull) else Reason.JOURNAL_UNWRITABLE
    return Outcome(request, Verdict.REFUSED, (Refusal(reason, describe_error(error)),))
