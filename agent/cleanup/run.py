"""`Cleaner`: releases confirmed leaks, and keeps what must survive from sync to sync.

Where cleanup is off, there is none.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from agent.cleanup import guards
from agent.cleanup.guards import GuardContext, RuntimeHistory
from agent.cleanup.journal import Entry, Journal, JournalFull
from agent.cleanup.journal_store import Busy, JournalStore
from agent.cleanup.recheck import Probed, Recheck
from agent.cleanup.restore import recover_all
from agent.cleanup.signals import interrupted
from agent.cleanup.summary import NoNetwork, find_blockers, summarize, unwritable_networks
from agent.cleanup.unlink import NodeFiles, describe_error, release
from agent.model.brake import Brake
from agent.model.bug import Bug
from agent.model.release import Cleaning, Limits, Outcome, Reason, Refusal, ReleaseRequest, Verdict
from agent.model.report import Report
from agent.model.snapshot import Reading, Reservation, Snapshot, known_or
from agent.sources.source_error import SourceError

PAUSE: Final = timedelta(minutes=10)
"""After a persistent refusal: the leak must neither hold up others nor be probed in each sync."""
RETRY_AFTER: Final = timedelta(minutes=1)
"""After a failed release, perhaps because the runtime had just been restarted."""
MAX_SNAPSHOT_AGE: Final = timedelta(minutes=1)
"""No release begins later after its snapshot, by the boot clock: the node changes meanwhile."""
_PROBE_BATCH: Final = 100
"""Sandboxes per probe; stays far below the limit of the kernel's neighbor table (`gc_thresh3`)."""
_PERSISTENT_REASONS: Final = {
    Reason.ADDRESS_IN_USE,
    Reason.PROBE_UNANSWERED,
    Reason.ENTRY_TOO_LARGE,
}
"""For these, the next sync would most likely be refused again, after the guards."""
_BRAKE_REASONS: Final = {Reason.BRAKE_ON, Reason.SOURCE_UNAVAILABLE}
"""After the guards, only the brake refuses for these reasons."""


class _Pause(NamedTuple):
    until: timedelta  # the uptime
    refusals: tuple[Refusal, ...]
    """Why the leak was not released, for the syncs until then; empty: its release failed."""


@dataclass(kw_only=True)
class Cleaner:
    """Releases what passes every guard; a dry run only reports it."""

    limits: Limits
    actor: str  # who releases, `clean` or `run`
    store: JournalStore
    recheck: Recheck
    read_brake: Callable[[], Reading[Brake]]
    """Reads the brake as it is now, a few seconds ago at most."""
    files: NodeFiles
    now: Callable[[], datetime]
    uptime: Callable[[], timedelta]  # by the boot clock, as in `Snapshot.uptime`
    dry_run: bool
    heartbeat: Callable[[], None] = lambda: None
    """Called after each release: one may wait for the runtime and a lock, and there are several."""
    no_network: NoNetwork = lambda: None
    _journal: Journal = field(default=Journal(), init=False)
    """As it was before the snapshot, so that another process' release is no reappearance."""
    _journal_error: str | None = field(default=None, init=False)
    _history: RuntimeHistory = field(default=RuntimeHistory(), init=False)
    _reappeared: Entry | None = field(default=None, init=False)
    """The halting release of a container that reappeared, until the journal has recorded that."""
    _unrecovered: Mapping[str, str] = field(default_factory=dict, init=False)
    """Why entries stay unfinished, by name."""
    _paused: dict[Reservation, _Pause] = field(default_factory=dict, init=False)

    def before_snapshot(self) -> None:
        """Read the journal, and recover what was interrupted.

        What was released must not be in the next snapshot.
        """
        self._read_journal()
        if self.dry_run:
            self._reappeared = None  # it is not recorded here, so that nobody could resume
            return
        if not self._journal.unfinished() or self._journal_error:
            return

        self._unrecovered = {}
        with suppress(Busy, OSError, SourceError), self.store.exclusive(0):
            # This reads the journal again: another cleaner may have been in the middle of an entry.
            self._unrecovered = recover_all(self.files, self.store, self.now())
        self._read_journal()

    def after_snapshot(self, snapshots: Sequence[Snapshot], report: Report) -> Cleaning:
        """Release, or report, what passes every guard.

        `snapshots`: those behind the report that were not passed before.
        """
        for snapshot in snapshots:
            self._history = self._history.after(snapshot)
            self._reappeared = self._reappeared if self.halted else self._find_reappeared(snapshot)
        self._record_halt()

        context = self.context(report)
        decisions = guards.decide(context)
        passed = [request for request, refusals in decisions if not refusals]

        if self.dry_run:
            outcomes = self._would_release(passed)
            blockers = tuple(
                find_blockers(
                    context, self.files, self.store, self.no_network, halted=context.halted
                )
            )
        else:
            outcomes = self._release_in_batches(passed, context.snapshot)
            failed = any(outcome.verdict is Verdict.FAILED for outcome in outcomes)
            blockers = tuple(unwritable_networks(context, self.files)) if failed else ()
            # Another cleaner may have recorded a halt since.
            context = replace(context, journal=self._journal_with_halt)

        for request, refusals in decisions:
            if refusals:
                outcomes.append(Outcome(request, Verdict.REFUSED, refusals))

        cleaning = summarize(context, outcomes, blockers, dry_run=self.dry_run)
        unfinished = map(self._describe_unfinished, self._journal.unfinished())
        return replace(cleaning, warnings=(*cleaning.warnings, *unfinished))

    def failed(self, snapshot: Snapshot, bug: Bug) -> Cleaning:
        """Return the result of a cleanup that a bug ended.

        What it may have released before is in the journal, and counts as released from then on.
        """
        return Cleaning(
            node=snapshot.node_name,
            taken_at=snapshot.taken_at,
            dry_run=self.dry_run,
            unavailable=snapshot.unavailable_about_addresses(),
            halted=self.halted,
            bugs=(bug,),
        )

    def context(self, report: Report) -> GuardContext:
        """Return what the guards may know of this sync."""
        uptime = report.assessment.snapshot.uptime
        paused = {
            leak: pause.refusals for leak, pause in self._paused.items() if uptime < pause.until
        }
        return GuardContext(
            report=report,
            runtime_history=self._history,
            limits=self.limits,
            journal=self._journal_with_halt,
            journal_error=self._journal_error or self.store.why_unwritable(),
            actor=self.actor,
            paused=paused,
        )

    @property
    def halted(self) -> str | None:
        """Why cleanup has halted, if it has."""
        return self._journal_with_halt.why_halted()

    @property
    def _journal_with_halt(self) -> Journal:
        return self._journal.with_entry(self._reappeared) if self._reappeared else self._journal

    def _read_journal(self) -> None:
        """Read the journal. If that fails, the last reading stays, and `journal_usable` refuses."""
        try:
            self._journal = self.store.read()
            self._journal_error = None
        except SourceError as error:
            self._journal_error = str(error)

    def _describe_unfinished(self, entry: Entry) -> str:
        what = "the next cleanup or restore recovers it"
        if reason := self._unrecovered.get(entry.name):
            what = f"and cannot be recovered now: {reason}"
        return f"journal: entry {entry.name} is unfinished, {what}"

    def _find_reappeared(self, snapshot: Snapshot) -> Entry | None:
        """Return the release, as it halts, whose container the runtime or kubelet has a record of.

        A reservation alone is no record: a plugin that outlives its sandbox can write one, and it
        is a leak like any other.
        """
        recorded = {container.id for container in known_or(snapshot.containers, ())}
        for checkpoint in known_or(snapshot.checkpoints, ()):
            recorded.add(checkpoint.container_id)

        released = self._journal.released_from()
        reappeared = [entry for container_id, entry in released.items() if container_id in recorded]
        if not reappeared:
            return None

        # If the journal cannot be read again, what was read before the snapshot counts.
        with suppress(SourceError):
            # The container may have been restored meanwhile, and even released once more.
            released = self.store.read().released_from()
            reappeared = [
                entry for entry in reappeared if released.get(entry.container_id) == entry
            ]
        if not reappeared:
            return None
        return replace(reappeared[0], halted=snapshot.taken_at, resumed=None)

    def _record_halt(self) -> None:
        """Let a halt outlive this process, until `nodeleak resume`.

        While the journal cannot be written, each sync tries again. An entry that somebody removed
        is written again: `resume` could not end the halt without it.
        """
        if self.dry_run or self._reappeared is None:
            return

        with suppress(Busy, OSError, SourceError), self.store.exclusive(self.files.lock_timeout):
            now = self.now()
            entry = self.store.read().named(self._reappeared.name)
            if entry is None:
                entry = self._reappeared
                why = "written again: the entry was gone when its container reappeared"
                self.store.begin(entry, [why], now)

            halting = replace(entry, halted=now, resumed=None)
            self.store.update(halting, now)
            self._journal = self._journal.with_entry(halting)
            self._reappeared = None

    def _would_release(self, requests: Sequence[ReleaseRequest]) -> list[Outcome]:
        """Return the outcomes that a release would have, as far as they show without a datagram."""
        probed: Probed = {}
        with suppress(SourceError):  # --apply reports it
            probed = self.recheck.probe(_reservations(requests), send=False)

        outcomes: list[Outcome] = []
        for request in requests:
            results = [probed[leak.key] for leak in request.reservations if leak.key in probed]
            why = "; ".join(result.why for result in results)
            would_release = Outcome(request, Verdict.WOULD_RELEASE, why=why)
            outcomes.append(_outcome_if_probe_refuses(request, probed) or would_release)
        return outcomes

    def _release_in_batches(
        self, requests: Sequence[ReleaseRequest], snapshot: Snapshot
    ) -> list[Outcome]:
        """Release what passed every guard, in batches. Pause what would hold up others."""
        outcomes: list[Outcome] = []
        for start in range(0, len(requests), _PROBE_BATCH):
            outcomes += self._probe_and_release(requests[start : start + _PROBE_BATCH], snapshot)

        self._paused = {
            leak: pause for leak, pause in self._paused.items() if snapshot.uptime < pause.until
        }

        for outcome in outcomes:
            if any(refusal.reason in _PERSISTENT_REASONS for refusal in outcome.refusals):
                pause = _Pause(snapshot.uptime + PAUSE, outcome.refusals)
            elif outcome.verdict is Verdict.FAILED:
                pause = _Pause(snapshot.uptime + RETRY_AFTER, outcome.refusals)
            else:
                continue
            self._paused |= dict.fromkeys(outcome.request.reservations, pause)
        return outcomes

    def _probe_and_release(
        self, requests: Sequence[ReleaseRequest], snapshot: Snapshot
    ) -> list[Outcome]:
        """Probe a batch, then release one sandbox after the other under the cleaner's lock.

        The probe may refuse, and the journal, if another cleaner has written it since.
        """
        if stale := self._outcome_if_too_late(requests[0], snapshot):
            return [replace(stale, request=request) for request in requests]

        try:
            # Outside every lock, because it takes some seconds.
            probed = self.recheck.probe(_reservations(requests))
        except SourceError as error:
            return [Outcome(request, Verdict.FAILED, why=str(error)) for request in requests]

        self.heartbeat()
        outcomes: list[Outcome] = []
        try:
            with self.store.exclusive(self.files.lock_timeout):
                # Nobody else can write it now, so one reading serves the whole batch.
                journal = self.store.read()
                if halted := journal.halting_entries():
                    self._journal = self._journal.with_entry(halted[0])
                    refusal = Refusal(Reason.HALTED, halted[0].reappearance)
                    return [Outcome(request, Verdict.REFUSED, (refusal,)) for request in requests]

                active = journal.active_since(self._journal)
                for request in requests:
                    outcome = (
                        self._outcome_if_too_late(request, snapshot)
                        or _outcome_if_active(request, active)
                        or _outcome_if_probe_refuses(request, probed)
                        or _outcome_if_still_locked(request, outcomes)
                        or self._outcome_if_braked(request, outcomes)
                        or self._release(request, probed)
                    )
                    outcomes.append(outcome)
                    self.heartbeat()
        except (Busy, OSError, SourceError) as error:
            remaining = requests[len(outcomes) :]
            outcomes += [_outcome_without_journal(request, error) for request in remaining]
        return outcomes

    def _release(self, request: ReleaseRequest, probed: Probed) -> Outcome:
        """Return what became of a request that nothing has refused. The recheck still may."""
        return release(
            request,
            probed,
            self.recheck,
            self.files,
            self.store,
            actor=self.actor,
            at=self.now(),
        )

    def _outcome_if_braked(
        self, request: ReleaseRequest, outcomes: Sequence[Outcome]
    ) -> Outcome | None:
        """Read the brake again, and begin no release while it is on or not known.

        `outcomes`: those of the batch so far. Once it has refused, it is not read again: an API
        server that is away would be waited for each time.
        """
        earlier = (each for outcome in outcomes for each in outcome.refusals)
        refusal = next((each for each in earlier if each.reason in _BRAKE_REASONS), None)
        refusal = refusal or guards.refusal_of_brake(self.read_brake())
        return Outcome(request, Verdict.REFUSED, (refusal,)) if refusal else None

    def _outcome_if_too_late(self, request: ReleaseRequest, snapshot: Snapshot) -> Outcome | None:
        """Begin no release after a signal, or too long after the snapshot."""
        if interrupted():
            why = "interrupted by a signal before this release began"
            return Outcome(request, Verdict.INTERRUPTED, why=why)

        if self.uptime() - snapshot.uptime > MAX_SNAPSHOT_AGE:
            limit = f"{MAX_SNAPSHOT_AGE.total_seconds():.0f} s"
            why = f"its snapshot is older than {limit}: run cleanup again"
            return Outcome(request, Verdict.REFUSED, (Refusal(Reason.SNAPSHOT_EXPIRED, why),))
        return None


def _reservations(requests: Sequence[ReleaseRequest]) -> list[Reservation]:
    return [leak for request in requests for leak in request.reservations]


def _outcome_if_active(request: ReleaseRequest, active: Collection[str]) -> Outcome | None:
    """Return an outcome if the journal shows that another process had the sandbox meanwhile.

    `active`: the container IDs of such sandboxes.
    """
    if request.container_id not in active:
        return None
    why = "the sandbox was restored, or released, since the snapshot"
    return Outcome(request, Verdict.CHANGED, why=why)


def _outcome_if_probe_refuses(request: ReleaseRequest, probed: Probed) -> Outcome | None:
    """Return the refusals of the probe, if there are any.

    An address that was not sent to, in a dry run, may have no result.
    """
    refusals: list[Refusal] = []
    for leak in request.reservations:
        result = probed.get(leak.key)
        if result and result.reason:
            refusals.append(Refusal(result.reason, f"probe: {result.why}"))
    if not refusals:
        return None
    return Outcome(request, Verdict.REFUSED, tuple(refusals))


def _outcome_if_still_locked(
    request: ReleaseRequest, outcomes: Sequence[Outcome]
) -> Outcome | None:
    """A lock is waited for once per sync, so that 118 leaks do not wait 118 times."""
    directories = {*request.directories}
    for outcome in outcomes:
        is_shared = not directories.isdisjoint(outcome.request.directories)
        if outcome.verdict is Verdict.BUSY and is_shared:
            return Outcome(request, Verdict.BUSY, why=outcome.why)
    return None


def _outcome_without_journal(request: ReleaseRequest, error: Exception) -> Outcome:
    """Return the outcome of a request that was not tried, because nothing could be journaled."""
    if isinstance(error, Busy):
        return Outcome(request, Verdict.BUSY, why=str(error))

    is_full = isinstance(error, JournalFull)
    reason = Reason.JOURNAL_FULL if is_full else Reason.JOURNAL_UNWRITABLE
    refusal = Refusal(reason, describe_error(error))
    return Outcome(request, Verdict.REFUSED, (refusal,))
