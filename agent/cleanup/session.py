"""What a cleaner remembers from sync to sync: journal, history of the runtime, failures, and whether it has halted."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from agent.checks.addresses import failing_plugin, leaked_reservation
from agent.cleanup.guard_context import GuardContext
from agent.cleanup.guards import passed_over
from agent.cleanup.journal import Entry, Journal
from agent.cleanup.journal_store import JournalStore
from agent.cleanup.runtime_history import RuntimeHistory, watch
from agent.model.ranges import free
from agent.model.release import Blocker, Cleaning, Limits, Outcome, Reason, ReleaseRequest, Verdict
from agent.model.report import Report
from agent.model.snapshot import InsufficientData, Reservation, ReservationKey, Snapshot, known_or
from agent.sources.source_error import SourceError

HOUR: Final = timedelta(hours=1)

_MAX_BACKOFF: Final = 5
"""What keeps failing is tried every 2**5 = 32 syncs in the end."""

_MAY_LAST: Final = {Reason.ADDRESS_IN_USE, Reason.PROBE_UNANSWERED}
"""Refusals of the probe and the recheck that do not pass by themselves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """How many addresses may be released, each with its setting. None: no limit."""

    per_sync: tuple[str, int] | None = None
    per_hour: tuple[str, int] | None = None

    def spent(self, journal: Journal, now: datetime, by: str) -> dict[str, int]:
        """Return what earlier syncs used, by setting. The journal keeps the hourly part across restarts."""
        return {} if self.per_hour is None else {self.per_hour[0]: journal.released_since(now - HOUR, by)}

    def left(self, spent: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
        allowances = (self.per_sync, self.per_hour)
        return tuple((one[0], one[1] - spent.get(one[0], 0)) for one in allowances if one is not None)


class CleanupSession:
    """Changed by `read_journal`, `observe` and `record` only."""

    def __init__(self, limits: Limits, budget: Budget, journal_store: JournalStore, by: str) -> None:
        """`by`: who releases, `clean` or `run`."""
        self._limits, self._budget, self._journal_store, self.by = limits, budget, journal_store, by
        self._runtime_history = RuntimeHistory()
        self._journal = Journal()
        self._unreadable = ""
        self._now: datetime | None = None
        self.reappeared: Entry | None = None
        """The release whose container reappeared, until the journal has recorded that."""
        self._failures: Counter[Reservation] = Counter()
        self._syncs = 0

    # These change the session.

    def read_journal(self, now: datetime) -> Journal:
        """Begin a sync: what was released up to now must not be in the snapshot that follows."""
        self._now = now
        try:
            self._journal, self._unreadable = self._journal_store.read(), ""
        except SourceError as error:
            self._unreadable = str(error)
            return Journal()  # what was read before names nothing to recover: its disk may hang
        return self._journal

    def observe(self, snapshots: Iterable[Snapshot]) -> None:
        """Count a sync, and learn from its snapshots. Halt if a record of a released container reappears in one."""
        self._syncs += 1
        for snapshot in snapshots:
            self._runtime_history = watch(self._runtime_history, snapshot)
            if not self.halted:
                self.reappeared = self._find_reappeared(snapshot)

    def record_halt(self, now: datetime) -> None:
        """Let it outlive this process. Raises OSError."""
        if found := self.reappeared:
            self._journal_store.halted(found.name, now)
            entries = (entry.halting(now) if entry.name == found.name else entry for entry in self._journal.entries)
            self._journal, self.reappeared = replace(self._journal, entries=tuple(entries)), None

    def record(self, outcomes: Iterable[Outcome]) -> None:
        """Remember failures. Requests that failed go last, and wait longer each time.

        An address that something uses fails every time. It must neither hold up others nor be probed in every sync.
        """
        for outcome in outcomes:
            in_use = any(refusal.reason in _MAY_LAST for refusal in outcome.refusals)
            for reservation in outcome.request.reservations:
                if in_use or outcome.verdict in {Verdict.BUSY, Verdict.FAILED}:
                    self._failures[reservation] += 1
                elif outcome.verdict not in {Verdict.REFUSED, Verdict.INTERRUPTED}:
                    self._failures.pop(reservation, None)

    # These do not.

    @property
    def halted(self) -> str:
        """Why cleanup halted; empty if it did not."""
        entries = (*self._journal.halted(), self.reappeared)
        return entries[0].reappearance if entries[0] else ""

    def context(self, report: Report) -> GuardContext:
        """Return what the guards may know of this sync."""
        now = self._now or report.assessment.snapshot.taken_at
        spent = self._budget.spent(self._journal, now, self.by)
        return GuardContext(
            report=report,
            runtime_history=self._runtime_history,
            limits=replace(self._limits, allowances=self._budget.left(spent)),
            spent=spent,
            halted=self.halted,
            journal_trouble=self._unreadable or self._journal_store.trouble(),
            journal_room=self._journal_store.room(now),
            failures=dict(self._failures),
        )

    def due(self, request: ReleaseRequest) -> bool:
        """Tell whether to try the request in this sync: what failed is tried less and less often."""
        failed = max(self._failures[reservation] for reservation in request.reservations)
        return failed == 0 or self._syncs % 2 ** min(failed, _MAX_BACKOFF) == 0

    def restored_meanwhile(self) -> frozenset[str]:
        """Return the sandboxes that were being restored since `read_journal`: a snapshot may show a part of them.

        Raises SourceError.
        """
        before = {(entry.name, entry.restorations) for entry in self._journal.entries if not entry.restoring}
        return frozenset(
            entry.container_id
            for entry in self._journal_store.read().entries
            if entry.restorations and (entry.restoring or (entry.name, entry.restorations) not in before)
        )

    def cleaning(
        self, report: Report, outcomes: tuple[Outcome, ...], *, applied: bool, blockers: tuple[Blocker, ...] = ()
    ) -> Cleaning:
        """Summarize a sync."""
        snapshot = report.assessment.snapshot
        return Cleaning(
            node=snapshot.node_name,
            taken_at=snapshot.taken_at,
            applied=applied,
            outcomes=outcomes,
            passed_over=passed_over(report.assessment, self._limits.only),
            unavailable=snapshot.unavailable_about_addresses(),
            halted=self.halted,
            blockers=blockers,
            free_before={network.name: network.free for network in report.networks},
            free_after=dict(_free_after(report, outcomes)),
            causes=report.leak_causes,
            warnings=(*_warnings(self._journal), *(() if self._limits.unattended else _to_mend(report, outcomes))),
        )

    def _find_reappeared(self, snapshot: Snapshot) -> Entry | None:
        """Return the release of a container that has a record in the snapshot."""
        released = self._journal.released_from()
        if not _find_released(released, snapshot):
            return None
        with suppress(SourceError):  # if it cannot be read again, what was read before the snapshot counts
            # The container may have been restored meanwhile, and even released once more.
            now = self._journal_store.read().released_from()
            released = {
                container_id: entry for container_id, entry in released.items() if now.get(container_id) == entry
            }
        return _find_released(released, snapshot)


def _find_released(released: Mapping[str, Entry], snapshot: Snapshot) -> Entry | None:
    """Return a release whose sandbox the runtime or the kubelet has a record of.

    A reservation alone is none: a plugin that outlives its sandbox can write one, and it is a leak like any other.
    """
    recorded = [one.id for one in known_or(snapshot.containers, ())]
    recorded += [one.container_id for one in known_or(snapshot.checkpoints, ())]
    return next((released[one] for one in recorded if one in released), None)


def _free_after(report: Report, outcomes: Iterable[Outcome]) -> Iterable[tuple[str, int | None]]:
    released = {one.key for one in _released(outcomes)}
    for network in report.networks:
        try:
            entries = report.assessment.of(network.name)
        except InsufficientData:
            entries = ()
        blocking = (one.name for one in entries if one.blocks)
        taken = [name for name in blocking if ReservationKey(network.name, name) not in released]
        known = network.ranges is not None and network.free is not None
        yield network.name, free(network.ranges, taken) if known and network.ranges is not None else None


def _released(outcomes: Iterable[Outcome]) -> list[Reservation]:
    """Return what was, or in a dry run would be, released."""
    done = {Verdict.RELEASED, Verdict.WOULD_RELEASE}
    return [one for outcome in outcomes if outcome.verdict in done for one in outcome.request.reservations]


def _warnings(journal: Journal) -> tuple[str, ...]:
    unfinished = (
        f"journal: entry {entry.name} is unfinished, the next cleanup or restore recovers it"
        for entry in journal.unfinished()
    )
    return (*(f"journal: {damage}" for damage in journal.damage), *unfinished)


def _to_mend(report: Report, outcomes: Iterable[Outcome]) -> Iterator[str]:
    """Yield what takes addresses again, and which rules are left. The daemon refuses both, where they are known."""
    for tracked in report.findings:
        if tracked.finding.detector == failing_plugin.NAME:
            yield tracked.finding.message
    ports = leaked_reservation.host_ports(report.assessment.snapshot, _released(outcomes))
    for unknown in (False, True):
        if found := {one.ip: known for one, known in ports.items() if known != () and (known is None) == unknown}:
            yield f"{leaked_reservation.describe_rules(found)}; they would lead to the next pod"
