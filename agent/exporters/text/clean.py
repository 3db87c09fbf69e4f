"""A cleaning, a restoration and the journal as text: for people."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from agent.cleanup.journal import Entry, Journal
from agent.cleanup.restore import Restoration
from agent.exporters.json.scan import moment
from agent.exporters.text.scan import grid, lines_as_text
from agent.model.release import Cleaning, Outcome, Verdict
from agent.model.snapshot import Reservation

WHEN_HALTED: Final = (
    "find out how it could come back before cleaning is trusted here; "
    "`nodeleak restore ENTRY --apply` settles the entry, and a daemon cleans again after its next start"
)
"""What to do about cleaning that has stopped itself."""

_NAMED = 3
"""How many addresses, or reasons of one kind, are told before they are only counted."""


def table(cleaning: Cleaning) -> str:
    return lines_as_text(_lines(cleaning))


def _lines(cleaning: Cleaning) -> Iterator[str]:
    yield f"Node {cleaning.node}, {moment(cleaning.taken_at)}"
    if not cleaning.applied:
        yield "DRY RUN: nothing is touched; --apply releases."
    if cleaning.halted:
        yield ""
        yield f"CLEANING HAS STOPPED ITSELF: {cleaning.halted}"
        yield f"  Do: {WHEN_HALTED}"
    if cleaning.outcomes:
        yield ""
        yield from _addresses(cleaning.outcomes)
    if reasons := list(_reasons(cleaning.outcomes)):
        yield ""
        yield "Why:"
        yield from reasons
    if cleaning.passed_over:
        yield ""
        yield from (f"{one.ip}: nothing to release: {one.why}" for one in cleaning.passed_over)
    if cleaning.unavailable:
        yield ""
        yield "NOTHING IS RELEASED, because something could not be read:"
        yield from (f"  {one.source}: {one.why}" for one in cleaning.unavailable)
    if cleaning.warnings:
        yield ""
        yield from (f"warning: {warning}" for warning in cleaning.warnings)
    yield ""
    yield from _totals(cleaning)


def _addresses(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """List the addresses, a short line each."""
    rows = [_row(outcome, one) for outcome in outcomes for one in outcome.request.reservations]
    yield from _grid(["NETWORK", "ADDRESS", "CONTAINER", "POD", "VERDICT", "JOURNAL ENTRY"], rows)


def _grid(heads: list[str], rows: list[list[str]]) -> Iterator[str]:
    """Align columns; a last one that would be empty is left out."""
    table = [heads, *rows]
    return grid(table if any(row[-1] for row in rows) else [row[:-1] for row in table])


def _row(outcome: Outcome, reservation: Reservation) -> list[str]:
    return [
        reservation.network,
        reservation.ip,
        reservation.container_id[:12] or "(empty file)",
        outcome.request.pod or "-",
        _verdict(outcome),
        outcome.entry,
    ]


def _verdict(outcome: Outcome) -> str:
    said = outcome.verdict.value.replace("_", " ")
    reasons = ", ".join(refusal.reason.value for refusal in outcome.refusals)
    return f"{said}: {reasons}" if reasons else said


def _reasons(outcomes: Iterable[Outcome]) -> Iterator[str]:
    """Say each reason once, with the addresses that it holds for: often it is one for all of them."""
    found: dict[str, dict[tuple[str, str], list[str]]] = {}
    for outcome in outcomes:
        reasons = [(refusal.reason.value, refusal.why, refusal.setting) for refusal in outcome.refusals]
        if outcome.why:
            reasons.append((_verdict(outcome), outcome.why, ""))
        for label, why, setting in reasons:
            ips = found.setdefault(label, {}).setdefault((why, setting), [])
            ips.extend(one.ip for one in outcome.request.reservations)
    for label, words_of in found.items():
        yield from _in_brief([_reason(label, words, ips) for words, ips in words_of.items()], label)


def _reason(label: str, words: tuple[str, str], ips: Sequence[str]) -> str:
    why, setting = words
    lift = f"; {setting} would lift this" if setting else ""
    return f"  {label} ({_named(ips)}): {why}{lift}"


def _in_brief(lines: Sequence[str], label: str) -> Iterator[str]:
    """Keep of many reasons that differ by a number the first, and the last, which is the furthest from a release."""
    if len(lines) <= _NAMED:
        yield from lines
        return
    yield lines[0]
    yield f"  {label}: … {len(lines) - 2} more: -o json lists all"
    yield lines[-1]


def _named(ips: Sequence[str]) -> str:
    return ", ".join(ips) if len(ips) <= _NAMED else f"{len(ips)} addresses"


def _totals(cleaning: Cleaning) -> Iterator[str]:
    if cleaning.outcomes:
        yield ", ".join(_counted(cleaning))
    elif not (cleaning.unavailable or cleaning.passed_over):
        yield "Nothing to release."
    for network, before in cleaning.free_before.items():
        after = cleaning.free_after.get(network)
        yield f"Free addresses of {network}: {_number(before)} before, {_number(after)} after"


def _counted(cleaning: Cleaning) -> Iterator[str]:
    """Count what was asked for even where it is none, and the rest where there is any."""
    tally = cleaning.tally()
    asked_for = Verdict.RELEASED if cleaning.applied else Verdict.WOULD_RELEASE
    for verdict in Verdict:
        if not tally[verdict] and verdict is not asked_for:
            continue
        said = "would be released" if verdict is Verdict.WOULD_RELEASE else verdict.value
        yield f"{tally[verdict]} {said}{_by_reason(cleaning) if verdict is Verdict.REFUSED else ''}"


def _by_reason(cleaning: Cleaning) -> str:
    reasons = Counter(
        outcome.refusals[0].reason.value
        for outcome in cleaning.outcomes
        if outcome.refusals
        for _ in outcome.request.reservations
    )
    return f" ({', '.join(f'{count} {reason}' for reason, count in reasons.most_common())})"


def _number(value: int | None) -> str:
    return "?" if value is None else str(value)


def restoration(done: Restoration, journal: Journal, *, applied: bool) -> str:
    """Draw what came of `restore`. What is damaged in the journal may be what was looked for."""
    return lines_as_text(_restoration_lines(done, journal, applied=applied))


def _restoration_lines(done: Restoration, journal: Journal, *, applied: bool) -> Iterator[str]:
    entry = done.entry
    pod = f" of pod {entry.pod}" if entry.pod else ""
    what = f"{', '.join(entry.ips)} for container {entry.container_id[:12] or '(empty file)'}{pod}, entry {entry.name}"
    if not applied:
        yield "DRY RUN: nothing is touched; --apply restores."
    if done.done:
        yield f"{'restored' if applied else 'would restore'}: {what}"
        if done.why:
            yield f"warning: {done.why}"
    else:
        yield f"{'not restored' if applied else 'would not restore'}: {what}: {done.why}"
    yield from (f"warning: journal: {damage}" for damage in journal.damage)


def journal(image: Journal) -> str:
    """Draw the journal, oldest entry first."""
    return lines_as_text(_journal_lines(image))


def _journal_lines(image: Journal) -> Iterator[str]:
    if image.entries:
        heads = ["WHEN", "BY", "ADDRESSES", "CONTAINER", "POD", "OUTCOME", "ENTRY", "WHY"]
        yield from _grid(heads, [_entry(entry) for entry in image.entries])
    else:
        yield "Nothing was released."
    if image.damage:
        yield ""
        yield from (f"damaged: {damage}" for damage in image.damage)


def _entry(entry: Entry) -> list[str]:
    return [
        moment(entry.at),
        entry.by,
        ", ".join(entry.ips),
        entry.container_id[:12] or "(empty file)",
        entry.pod or "-",
        _ended(entry),
        entry.name,
        entry.why,
    ]


def _ended(entry: Entry) -> str:
    outcome = "never ended" if entry.verdict is None else entry.verdict.value
    return f"{outcome}, restored {moment(entry.restored)}" if entry.restored else outcome
