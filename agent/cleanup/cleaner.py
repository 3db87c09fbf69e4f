"""One round of cleaning: what could be released, what the guards say, what came of it.

Off, trying and doing are three objects, and not a flag.
"""

from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Protocol

from agent.cleanup import guards
from agent.cleanup.deferred import deferred
from agent.cleanup.guards import Case, Vigil
from agent.cleanup.journal import Book, Busy, Entry, Journal, entry_name
from agent.cleanup.restore import RestoringHands, settle_half
from agent.cleanup.steps import Kept, SecondLook, Step, release, said
from agent.model.ranges import free
from agent.model.release import Candidate, Cleaning, Limits, Outcome, Refusal, Verdict
from agent.model.report import Report
from agent.model.snapshot import Blind, Seen, Snapshot
from agent.sources.unavailable import Unavailable

HOUR = timedelta(hours=1)


class Cleaner(Protocol):
    """Whoever may clean after a look."""

    def before_look(self, now: datetime) -> None:
        """Learn what was released up to now: it must not be seen in the look that follows."""
        ...

    def after_look(self, looks: Sequence[Snapshot], report: Report) -> Cleaning | None:
        """`looks`: what the report was judged from, that was not told before."""
        ...


class Off:
    """Cleanup is off: nothing is judged, and nothing is said."""

    def before_look(self, now: datetime) -> None: ...

    def after_look(self, looks: Sequence[Snapshot], report: Report) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """How many addresses may be released, each with the setting that says so. None: as many as pass."""

    per_round: tuple[str, int] | None = None
    per_hour: tuple[str, int] | None = None

    def spent(self, journal: Journal, now: datetime, by: str) -> dict[str, int]:
        """Return what earlier rounds took, by setting; the hour's part outlives us in the journal."""
        return {} if self.per_hour is None else {self.per_hour[0]: journal.released_since(now - HOUR, by)}

    def left(self, spent: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
        """Return what is left of it."""
        allowances = (self.per_round, self.per_hour)
        return tuple((one[0], one[1] - spent.get(one[0], 0)) for one in allowances if one is not None)


class Judge:
    """The guards' word, and what has to be remembered from round to round for it."""

    def __init__(self, limits: Limits, budget: Budget, book: Book, by: str) -> None:
        """`by`: who releases, `clean` or `run`."""
        self._limits, self._budget, self._book, self.by = limits, budget, book, by
        self._vigil = Vigil()
        self._journal = Journal()
        self._unreadable = ""
        self._now: datetime | None = None
        self.stopped = ""
        self._failures: Counter[str] = Counter()

    def before_look(self, now: datetime) -> Journal:
        self._now = now
        try:
            self._journal, self._unreadable = self._book.read(), ""
        except Unavailable as error:
            self._unreadable = str(error)
        return self._journal

    def case(self, looks: Sequence[Snapshot], report: Report) -> Case:
        for look in looks:
            self._vigil = guards.watch(self._vigil, look)
            self.stopped = self.stopped or self._returned(look)
        spent = self._budget.spent(self._journal, self._now or report.scene.snapshot.taken_at, self.by)
        return Case(
            report=report,
            vigil=self._vigil,
            limits=replace(self._limits, allowances=self._budget.left(spent)),
            spent=spent,
            stopped=self.stopped,
            journal_trouble=self._unreadable or self._book.trouble(),
            failures=self._failures,
        )

    def _returned(self, look: Snapshot) -> str:
        """Say which sandbox is there again although its addresses were released before the look."""
        released = self._journal.released_from()
        if not _seen_again(released, look):
            return ""
        with suppress(Unavailable):  # then what was read before the look stands
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

    def learn(self, outcomes: Iterable[Outcome]) -> None:
        """Remember what failed: its turn comes after all that did not."""
        for outcome in outcomes:
            for one in outcome.candidate.reservations:
                if outcome.verdict in {Verdict.BUSY, Verdict.FAILED}:
                    self._failures[f"{one.network}/{one.ip}"] += 1
                elif outcome.verdict is not Verdict.REFUSED:
                    self._failures.pop(f"{one.network}/{one.ip}", None)

    def cleaning(self, report: Report, outcomes: tuple[Outcome, ...], *, applied: bool) -> Cleaning:
        snapshot = report.scene.snapshot
        return Cleaning(
            node=snapshot.node_name,
            taken_at=snapshot.taken_at,
            applied=applied,
            outcomes=outcomes,
            passed_over=guards.passed_over(report.scene, self._limits.only),
            unread=snapshot.unread(),
            stopped=self.stopped,
            free_before={network.name: network.free for network in report.networks},
            free_after=dict(_free_after(report, outcomes)),
            warnings=_warnings(self._journal),
        )


def _seen_again(released: Mapping[str, Entry], look: Snapshot) -> Entry | None:
    if isinstance(look.containers, Seen):
        for container in look.containers.items:
            if entry := released.get(container.id):
                return entry
    for store in look.reservations:
        if isinstance(store.reading, Seen):
            for reservation in store.reading.items:
                entry = released.get(reservation.container_id)
                if entry and any(kept.network == store.network for kept in entry.reservations):
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
            entries = report.scene.of(network.name)
        except Blind:
            entries = ()
        taken = [one.name for one in entries if one.blocks and (network.name, one.name) not in released]
        known = network.ranges is not None and network.free is not None
        yield network.name, free(network.ranges, taken) if known and network.ranges is not None else None


def _warnings(journal: Journal) -> tuple[str, ...]:
    half = [f"journal: entry {entry.name} never ended; the next cleaning settles it" for entry in journal.half()]
    return (*(f"journal: {damage}" for damage in journal.damage), *half)


class DryRun:
    """Says what would be released, and touches nothing."""

    def __init__(self, judge: Judge) -> None:
        self._judge = judge

    def before_look(self, now: datetime) -> None:
        self._judge.before_look(now)

    def after_look(self, looks: Sequence[Snapshot], report: Report) -> Cleaning:
        judged = guards.judge(self._judge.case(looks, report))
        outcomes = [Outcome(candidate, Verdict.WOULD_RELEASE) for candidate, refusals in judged if not refusals]
        return self._judge.cleaning(report, (*outcomes, *_refused(judged)), applied=False)


def _refused(judged: Iterable[tuple[Candidate, tuple[Refusal, ...]]]) -> list[Outcome]:
    return [Outcome(candidate, Verdict.REFUSED, refusals) for candidate, refusals in judged if refusals]


class Live:
    """Releases what passes every guard."""

    def __init__(
        self,
        judge: Judge,
        again: SecondLook,
        hands: Callable[[], RestoringHands],
        book: Book,
        now: Callable[[], datetime],
        lock_timeout: float,
        alive: Callable[[], None] = lambda: None,
    ) -> None:
        """`hands`: makes those of one round. `lock_timeout`: seconds for which another cleaner is waited for.

        `alive`: told after each release, because one may wait for docker and for a lock, and a round has several.
        """
        self._alive = alive
        self._judge, self._again, self._hands = judge, again, hands
        self._book, self._now, self._lock_timeout = book, now, lock_timeout

    def before_look(self, now: datetime) -> None:
        journal = self._judge.before_look(now)
        if not journal.half():
            return
        # What cannot be settled is there in the next round, and a warning until then.
        with suppress(Busy, OSError, Unavailable), self._book.alone(0):
            hands = self._hands()
            # Another cleaner may have been in the middle of one when we read.
            for entry in self._book.read().half():
                with suppress(OSError):
                    settle_half(entry, hands, self._book, self._now())
        self._judge.before_look(now)

    def after_look(self, looks: Sequence[Snapshot], report: Report) -> Cleaning:
        judged = guards.judge(self._judge.case(looks, report))
        passed = [candidate for candidate, refusals in judged if not refusals]
        outcomes = (*(self._act(passed) if passed else ()), *_refused(judged))
        self._judge.learn(outcomes)
        return self._judge.cleaning(report, outcomes, applied=True)

    def _act(self, passed: Sequence[Candidate]) -> list[Outcome]:
        outcomes: list[Outcome] = []
        hands, pen = self._hands(), _Pen(self._book, self._judge.by, self._now)
        try:
            with self._book.alone(self._lock_timeout):
                for candidate in passed:
                    outcomes.append(through(release(candidate, self._again, hands, pen)))
                    self._alive()
        except Busy as busy:
            # What was done before stays told.
            outcomes += [Outcome(one, Verdict.BUSY, why=str(busy)) for one in passed[len(outcomes) :]]
        except OSError as error:
            outcomes += [Outcome(one, Verdict.FAILED, why=said(error)) for one in passed[len(outcomes) :]]
        return outcomes


def through(steps: Generator[Step, None, Outcome]) -> Outcome:
    """Take every step, one after the other. From the journal on, whoever wants to end us has to wait."""
    with ExitStack() as waiting:
        while True:
            try:
                step = next(steps)
            except StopIteration as done:
                outcome: Outcome = done.value
                return outcome
            if step is Step.READ:
                waiting.enter_context(deferred())


class _Pen:
    """Writes the journal in the name of whoever releases."""

    def __init__(self, book: Book, by: str, now: Callable[[], datetime]) -> None:
        self._book, self._by, self._now = book, by, now

    def begin(self, candidate: Candidate, files: Sequence[Kept], evidence: Sequence[str]) -> str:
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
