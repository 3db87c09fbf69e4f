"""The guards' word on a round, and what has to be remembered from round to round for it."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from agent.cleanup.book import JournalStore
from agent.cleanup.candidates import passed_over
from agent.cleanup.guard_context import GuardContext
from agent.cleanup.journal import Entry, Journal
from agent.cleanup.runtime_history import RuntimeHistory, watch
from agent.model.ranges import free
from agent.model.release import Cleaning, Limits, Outcome, ReleaseRequest, Verdict
from agent.model.report import Report
from agent.model.snapshot import InsufficientData, Known, Snapshot
from agent.sources.error import SourceError

HOUR: Final = timedelta(hours=1)

_RAREST: Final = 5
"""What fails again and again is tried every 32 rounds at last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """How many addresses may be released, each with the setting that says so. None: as many as pass."""

    per_sync: tuple[str, int] | None = None
    per_hour: tuple[str, int] | None = None

    def spent(self, journal: Journal, now: datetime, by: str) -> dict[str, int]:
        """Return what earlier rounds took, by setting; the hour's part outlives us in the journal."""
        return {} if self.per_hour is None else {self.per_hour[0]: journal.released_since(now - HOUR, by)}

    def left(self, spent: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
        """Return what is left of it."""
        allowances = (self.per_sync, self.per_hour)
        return tuple((one[0], one[1] - spent.get(one[0], 0)) for one in allowances if one is not None)


class CleanupSession:
    """The guards' word, and what has to be remembered from round to round for it."""

    def __init__(self, limits: Limits, budget: Budget, journal_store: JournalStore, by: str) -> None:
        """`by`: who releases, `clean` or `run`."""
        self._limits, self._budget, self._book, self.by = limits, budget, journal_store, by
        self._vigil = RuntimeHistory()
        self._journal = Journal()
        self._unreadable = ""
        self._now: datetime | None = None
        self.halted = ""
        self._failures: Counter[str] = Counter()
        self._rounds = 0

    def before_snapshot(self, now: datetime) -> Journal:
        self._now = now
        try:
            self._journal, self._unreadable = self._book.read(), ""
        except SourceError as error:
            self._unreadable = str(error)
        return self._journal

    def case(self, snapshots: Sequence[Snapshot], report: Report) -> GuardContext:
        self._rounds += 1
        for look in snapshots:
            self._vigil = watch(self._vigil, look)
            self.halted = self.halted or self._returned(look)
        spent = self._budget.spent(self._journal, self._now or report.assessment.snapshot.taken_at, self.by)
        return GuardContext(
            report=report,
            runtime_history=self._vigil,
            limits=replace(self._limits, allowances=self._budget.left(spent)),
            spent=spent,
            halted=self.halted,
            journal_trouble=self._unreadable or self._book.trouble(),
            failures=self._failures,
        )

    def _returned(self, look: Snapshot) -> str:
        """Say which sandbox is there again although its addresses were released before the look."""
        released = self._journal.released_from()
        if not _seen_again(released, look):
            return ""
        with suppress(SourceError):  # then what was read before the look stands
            # It may have been restored since, and even released once more.
            now = self._book.read().released_from()
            released = {one: entry for one, entry in released.items() if now.get(one) == entry}
        entry = _seen_again(released, look)
        if entry is None:
            return ""
        return (
            f"container {entry.container_id[:12]} is there again, after its address {', '.join(entry.ips)} was "
            f"released (`nodeleak restore {entry.name}` puts it back)"
        )

    def due(self, candidate: ReleaseRequest) -> bool:
        """Tell whether to try it in this round: what fails again and again is tried ever more rarely."""
        failed = max(self._failures[f"{one.network}/{one.ip}"] for one in candidate.reservations)
        return failed == 0 or self._rounds % 2 ** min(failed, _RAREST) == 0

    def learn(self, outcomes: Iterable[Outcome]) -> None:
        """Remember what failed: its turn comes after all that did not."""
        for outcome in outcomes:
            for one in outcome.candidate.reservations:
                if outcome.verdict in {Verdict.BUSY, Verdict.FAILED}:
                    self._failures[f"{one.network}/{one.ip}"] += 1
                elif outcome.verdict is not Verdict.REFUSED:
                    self._failures.pop(f"{one.network}/{one.ip}", None)

    def cleaning(self, report: Report, outcomes: tuple[Outcome, ...], *, applied: bool) -> Cleaning:
        snapshot = report.assessment.snapshot
        return Cleaning(
            node=snapshot.node_name,
            taken_at=snapshot.taken_at,
            applied=applied,
            outcomes=outcomes,
            passed_over=passed_over(report.assessment, self._limits.only),
            unavailable=snapshot.unavailable_about_addresses(),
            halted=self.halted,
            free_before={network.name: network.free for network in report.networks},
            free_after=dict(_free_after(report, outcomes)),
            warnings=_warnings(self._journal),
        )


def _seen_again(released: Mapping[str, Entry], look: Snapshot) -> Entry | None:
    if isinstance(look.containers, Known):
        for container in look.containers.value:
            if entry := released.get(container.id):
                return entry
    for store in look.reservations:
        if isinstance(store.reading, Known):
            for reservation in store.reading.value:
                entry = released.get(reservation.container_id)
                if entry and any(image.network == store.network for image in entry.reservations):
                    return entry
    return None


def _free_after(report: Report, outcomes: Iterable[Outcome]) -> Iterable[tuple[str, int | None]]:
    released = {
        (one.network, one.ip)
        for outcome in outcomes
        if outcome.verdict in {Verdict.RELEASED, Verdict.WOULD_RELEASE}
        for one in outcome.candidate.reservations
    }
    for network in report.networks:
        try:
            entries = report.assessment.of(network.name)
        except InsufficientData:
            entries = ()
        taken = [one.name for one in entries if one.blocks and (network.name, one.name) not in released]
        known = network.ranges is not None and network.free is not None
        yield network.name, free(network.ranges, taken) if known and network.ranges is not None else None


def _warnings(journal: Journal) -> tuple[str, ...]:
    half = [f"journal: entry {entry.name} never ended; the next cleaning settles it" for entry in journal.unfinished()]
    return (*(f"journal: {damage}" for damage in journal.damage), *half)
