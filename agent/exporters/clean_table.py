"""A cleaning, a restoration and the journal as text: for people."""

from collections import Counter
from collections.abc import Iterator

from agent.cleanup.journal import Entry, Journal
from agent.cleanup.restore import Restoration
from agent.exporters.document import moment
from agent.exporters.table import grid, lines_as_text
from agent.model.release import Cleaning, Outcome, Verdict

_VERBS = {Verdict.WOULD_RELEASE: "would release"}


def table(cleaning: Cleaning) -> str:
    return lines_as_text(_lines(cleaning))


def _lines(cleaning: Cleaning) -> Iterator[str]:
    how = "" if cleaning.applied else ", dry run: nothing is touched"
    yield f"Node {cleaning.node}, {moment(cleaning.taken_at)}{how}"
    if cleaning.stopped:
        yield f"CLEANING HAS STOPPED ITSELF: {cleaning.stopped}"
    if cleaning.outcomes:
        yield ""
        rows = [row for outcome in cleaning.outcomes for row in _rows(outcome)]
        yield from grid([["NETWORK", "ADDRESS", "CONTAINER", "POD", "VERDICT", "WHY"], *rows])
    yield ""
    yield from _totals(cleaning)
    if cleaning.warnings:
        yield ""
        yield from (f"warning: {warning}" for warning in cleaning.warnings)
    if cleaning.unread:
        yield ""
        yield "Nothing is released, because something could not be read:"
        yield from (f"  {one.source}: {one.why}" for one in cleaning.unread)


def _rows(outcome: Outcome) -> Iterator[list[str]]:
    verdict = _VERBS.get(outcome.verdict, outcome.verdict.value)
    if outcome.refusals:
        verdict = f"refused: {outcome.refusals[0].reason.value}"
    for one in outcome.candidate.reservations:
        pod, container = outcome.candidate.pod or "-", one.container_id[:12] or "(empty file)"
        yield [one.network, one.ip, container, pod, verdict, _why(outcome)]


def _why(outcome: Outcome) -> str:
    if not outcome.refusals:
        return outcome.why or (f"journal entry {outcome.entry}" if outcome.entry else "nobody owns it")
    why = "; ".join(refusal.why for refusal in outcome.refusals)
    settings = [refusal.setting for refusal in outcome.refusals]
    return f"{why} (lift with {' '.join(settings)})" if all(settings) else why


def _totals(cleaning: Cleaning) -> Iterator[str]:
    tally = cleaning.tally()
    if not cleaning.outcomes:
        if not cleaning.unread:
            yield "Nothing to release."
    elif cleaning.applied:
        yield ", ".join(f"{tally[verdict]} {verdict.value}" for verdict in Verdict if tally[verdict])
    else:
        yield f"{tally[Verdict.WOULD_RELEASE]} would be released with --apply, {tally[Verdict.REFUSED]} refused"
    refused = Counter(
        outcome.refusals[0].reason.value
        for outcome in cleaning.outcomes
        if outcome.refusals
        for _ in outcome.candidate.reservations
    )
    for reason, count in refused.most_common():
        yield f"  refused for {reason}: {count}"
    for network, before in cleaning.free_before.items():
        after = cleaning.free_after.get(network)
        yield f"{network}: free addresses {_number(before)} before, {_number(after)} after"


def _number(value: int | None) -> str:
    return "?" if value is None else str(value)


def restoration(done: Restoration, *, applied: bool) -> str:
    """Draw what came of `restore`."""
    what = f"{', '.join(done.entry.ips)} of container {done.entry.container_id[:12] or '(empty file)'}"
    if not done.done:
        return lines_as_text([f"not restored: {what}: {done.why}"])
    verb = "restored" if applied else "would restore (with --apply)"
    return lines_as_text([f"{verb}: {what}", *([f"warning: {done.why}"] if done.why else [])])


def journal(kept: Journal) -> str:
    """Draw the journal, oldest entry first."""
    return lines_as_text(_journal_lines(kept))


def _journal_lines(kept: Journal) -> Iterator[str]:
    if kept.entries:
        yield from grid([["ENTRY", "BY", "ADDRESSES", "POD", "OUTCOME", "WHY"], *map(_entry, kept.entries)])
    else:
        yield "Nothing was released."
    yield from (f"damaged: {damage}" for damage in kept.damage)


def _entry(entry: Entry) -> list[str]:
    outcome = "never ended" if entry.verdict is None else entry.verdict.value
    if entry.restored:
        outcome = f"restored {moment(entry.restored)}"
    return [entry.name, entry.by, ", ".join(entry.ips), entry.pod or "-", outcome, entry.why or "-"]
