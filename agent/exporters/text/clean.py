"""Cleanup results, restorations and the journal as text, for people."""

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Final

from agent.cleanup.journal import Entry, Journal
from agent.cleanup.restore import Restoration
from agent.exporters.text.addresses import AddressRow, TableView, address_table, name_lines, sorted_rows
from agent.exporters.text.table import explain, lines_as_text, table
from agent.exporters.text.unavailable import by_reason, refer
from agent.model.release import BlockedBy, Cleaning, Outcome, Reason, Verdict
from agent.model.snapshot import Reservation
from agent.model.text import count_of, format_number, rfc3339

WHEN_HALTED: Final = (
    "cordon the node; if the container is still there, `nodeleak restore ENTRY`, then with --apply; find out why "
    "the container runtime did not list it; only then `nodeleak resume` in the agent's pod "
    "(runbook NodeleakCleanupHalted)"
)
"""What to do when cleanup is halted."""

_HEADS: Final = ("NETWORK", "ADDRESS", "AGE", "CAUSE", "CONTAINER", "POD", "VERDICT", "JOURNAL ENTRY")
_DEFAULT: Final = TableView()
_RELEASED: Final = {"released", "would release"}
_NAMED = 3
"""How many addresses, or reasons of one kind, are listed before they are only counted."""


def clean_table(cleaning: Cleaning, view: TableView = _DEFAULT, *, verbose: bool = False) -> str:
    """Write a cleanup. `verbose`: every reason with all its addresses."""
    return lines_as_text(_lines(cleaning, view, verbose=verbose))


def clean_names(cleaning: Cleaning, view: TableView) -> str:
    """Write the names of the addresses that were released, or would be."""
    return name_lines(row for row in _rows(cleaning, view) if row.state in _RELEASED)


def _lines(cleaning: Cleaning, view: TableView, *, verbose: bool) -> Iterator[str]:
    yield f"Node {cleaning.node}, {rfc3339(cleaning.taken_at)}"
    if not cleaning.applied:
        yield from _possible(cleaning)
    if cleaning.halted:
        yield ""
        yield f"Cleanup halted: {cleaning.halted}"
        yield f"  Do: {WHEN_HALTED}"
    if cleaning.outcomes:
        yield ""
        yield from address_table(_HEADS, _rows(cleaning, view), view.columns)
    if reasons := list(_reasons(cleaning, verbose=verbose)):
        yield ""
        yield "Why:"
        yield from reasons
    if cleaning.passed_over:
        yield ""
        yield from (f"{one.ip}: nothing to release: {one.why}" for one in cleaning.passed_over)
    if cleaning.unavailable:
        yield ""
        yield "Nothing can be released, because these sources are unavailable:"
        yield from (f"  {line}" for line in by_reason(cleaning.unavailable))
        yield f"  Do: {explain(one.source for one in cleaning.unavailable)}"
    if cleaning.warnings:
        yield ""
        yield from (f"warning: {warning}" for warning in cleaning.warnings)
    yield ""
    yield from _totals(cleaning)


def _possible(cleaning: Cleaning) -> Iterator[str]:
    """Say first whether what follows can be done here."""
    if cleaning.blockers:
        yield f"No release is possible {_scope(cleaning)}:"
    for blocker in cleaning.blockers:
        yield "  cleanup halted: see below" if blocker.by is BlockedBy.HALTED else f"  {blocker.why}"
    yield f"DRY RUN: nothing is changed{'' if cleaning.blocked else '; use --apply to release'}."


def _scope(cleaning: Cleaning) -> str:
    return "here" if cleaning.blocked else f"in network {', '.join(one.network for one in cleaning.blockers)}"


def _rows(cleaning: Cleaning, view: TableView) -> list[AddressRow]:
    causes = cleaning.causes
    rows = (
        _row(outcome, one, view, taken_at=cleaning.taken_at, cause=causes.get(one.key, ""))
        for outcome in cleaning.outcomes
        for one in outcome.request.reservations
    )
    return sorted_rows(rows, view.sort_by)


def _row(outcome: Outcome, reservation: Reservation, view: TableView, *, taken_at: datetime, cause: str) -> AddressRow:
    container_id = reservation.container_id if view.wide else reservation.container_id[:12]
    return AddressRow(
        network=reservation.network,
        ip=reservation.ip,
        state=_verdict(outcome),
        age=taken_at - reservation.mtime,
        cause=cause,
        container_id=container_id or "(empty file)",
        pod=outcome.request.pod,
        why=outcome.entry,
    )


def _verdict(outcome: Outcome) -> str:
    verdict = outcome.verdict.value.replace("_", " ")
    reasons = ", ".join(dict.fromkeys(refusal.reason.value for refusal in outcome.refusals))
    return f"{verdict}: {reasons}" if reasons else verdict


def _reasons(cleaning: Cleaning, *, verbose: bool) -> Iterator[str]:
    """List each reason once, with its addresses: often all have the same one. Unavailable sources have a list."""
    found: dict[str, dict[tuple[str, str], dict[str, None]]] = {}
    for outcome in cleaning.outcomes:
        reasons = [
            (refusal.reason.value, refer(refusal.why, cleaning.unavailable), refusal.setting)
            for refusal in outcome.refusals
            if not (cleaning.unavailable and refusal.reason is Reason.SOURCE_UNAVAILABLE)
        ]
        if outcome.why:
            reasons.append((_verdict(outcome), outcome.why, ""))
        for label, why, setting in reasons:
            ips = found.setdefault(label, {}).setdefault((why, setting), {})
            ips |= dict.fromkeys(one.ip for one in outcome.request.reservations)
    for label, reasons_of in found.items():
        lines = [_reason(label, text, list(ips), verbose=verbose) for text, ips in reasons_of.items()]
        yield from lines if verbose else _abridged(lines, label)


def _reason(label: str, text: tuple[str, str], ips: Sequence[str], *, verbose: bool) -> str:
    why, setting = text
    override = f"; override with {setting}" if setting else ""
    return f"  {label} ({', '.join(ips) if verbose else _named(ips)}): {why}{override}"


def _abridged(lines: Sequence[str], label: str) -> Iterator[str]:
    """Of many reasons that differ by a number keep the first and the last, which is the furthest from a release."""
    if len(lines) <= _NAMED:
        yield from lines
        return
    yield lines[0]
    yield f"  {label}: … {len(lines) - 2} more: use -v to list all"
    yield lines[-1]


def _named(ips: Sequence[str]) -> str:
    return ", ".join(ips) if len(ips) <= _NAMED else count_of(len(ips), "address", "addresses")


def _totals(cleaning: Cleaning) -> Iterator[str]:
    if cleaning.outcomes:
        yield ", ".join(_counts(cleaning))
    elif not (cleaning.unavailable or cleaning.passed_over):
        yield "Nothing to release."
    for network, before in cleaning.free_before.items():
        after = cleaning.free_after.get(network)
        if before is None and after is None:
            continue
        yield f"Free addresses in {network}: {format_number(before)} before, {format_number(after)} after"


def _counts(cleaning: Cleaning) -> Iterator[str]:
    """Count the requested verdict even where it is 0, and the others where there are any."""
    tally = cleaning.tally()
    impossible = f" (not possible {_scope(cleaning)})" if cleaning.blockers else ""
    requested = Verdict.RELEASED if cleaning.applied else Verdict.WOULD_RELEASE
    for verdict in Verdict:
        if not tally[verdict] and verdict is not requested:
            continue
        text = f"would be released{impossible}" if verdict is Verdict.WOULD_RELEASE else verdict.value
        yield f"{tally[verdict]} {text}{_by_reason(cleaning) if verdict is Verdict.REFUSED else ''}"


def _by_reason(cleaning: Cleaning) -> str:
    reasons = Counter(
        outcome.refusals[0].reason.value
        for outcome in cleaning.outcomes
        if outcome.refusals
        for _ in outcome.request.reservations
    )
    return f" ({', '.join(f'{count} {reason}' for reason, count in reasons.most_common())})"


def restoration_text(done: Restoration, journal: Journal, *, applied: bool) -> str:
    """Write the result of `restore`, with damage of the journal: the entry in question may be among it."""
    return lines_as_text(_restoration_lines(done, journal, applied=applied))


def _restoration_lines(done: Restoration, journal: Journal, *, applied: bool) -> Iterator[str]:
    entry = done.entry
    pod = f" of pod {entry.pod}" if entry.pod else ""
    what = f"{', '.join(entry.ips)} for container {entry.container_id[:12] or '(empty file)'}{pod}, entry {entry.name}"
    if not applied:
        yield "DRY RUN: nothing is changed; use --apply to restore."
    if done.done:
        yield f"{'restored' if applied else 'would restore'}: {what}"
        if done.why:
            yield f"warning: {done.why}"
    else:
        yield f"{'not restored' if applied else 'would not restore'}: {what}: {done.why}"
    yield from (f"warning: journal: {damage}" for damage in journal.damage)


def journal_table(image: Journal, missing_in: str = "") -> str:
    """Write the journal, oldest entry first. `missing_in`: the state directory, if it has no journal."""
    return lines_as_text(_journal_lines(image, missing_in))


def _journal_lines(image: Journal, missing_in: str) -> Iterator[str]:
    if image.entries:
        heads = ["WHEN", "BY", "ADDRESSES", "CONTAINER", "POD", "OUTCOME", "ENTRY", "WHY"]
        yield from table(heads, [_entry(entry) for entry in image.entries])
    elif missing_in:
        yield f"No journal in {missing_in}: nothing was released from here, or --state-dir is wrong"
    else:
        yield "No releases."
    if image.damage:
        yield ""
        yield from (f"damaged: {damage}" for damage in image.damage)


def _entry(entry: Entry) -> list[str]:
    return [
        rfc3339(entry.at),
        entry.by,
        ", ".join(entry.ips),
        entry.container_id[:12] or "(empty file)",
        entry.pod or "-",
        _outcome(entry),
        entry.name,
        entry.why,
    ]


def _outcome(entry: Entry) -> str:
    outcome = "unfinished" if entry.verdict is None else entry.verdict.value
    if entry.halted:
        outcome += f", halted cleanup {rfc3339(entry.halted)}"
    if entry.resumed:
        outcome += f", resumed {rfc3339(entry.resumed)}"
    if entry.restoring:
        return f"{outcome}, restoration unfinished"
    return f"{outcome}, restored {rfc3339(entry.restored)}" if entry.restored else outcome
