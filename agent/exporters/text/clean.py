"""Cleanup results, restorations and the journal as text, for people."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from agent.checks.detector import Step
from agent.cleanup.journal import Entry, Journal
from agent.cleanup.plan import Plan
from agent.cleanup.restore import Restoration
from agent.exporters.json import Document
from agent.exporters.json.clean import (
    clean_document,
    is_read_only,
    next_plan,
    next_release,
    stopping,
)
from agent.exporters.json.scan import address_order
from agent.exporters.release_steps import release_steps
from agent.exporters.rows import WHEN_HALTED
from agent.exporters.text.layout import (
    AddressRow,
    TableView,
    address_table,
    as_text,
    fill,
    fill_each,
    fill_labeled,
    grouped,
    name_lines,
    numbered_steps,
    refer,
    section,
    sorted_rows,
    table,
    what_to_do,
)
from agent.model.ranges import runs
from agent.model.release import BlockedBy, Blocker, Cleaning, Reason, Verdict
from agent.model.text import count_of, format_number, rfc3339

_COLUMNS: Final = (
    "network",
    "ip",
    "age_seconds",
    "cause",
    "container_id",
    "pod",
    "verdict",
    "entry",
)
_GROUPED: Final = ("network", "ip", "age_seconds", "cause", "verdict", "container_id", "pod")
_DEFAULT: Final = TableView()
_RELEASED: Final = {"released", "would release"}

_SCREENFUL: Final = 15
"""How many addresses have a row each. Of more, those that are alike share one."""

_MAX_NAMED: Final = 3
"""How many addresses, or reasons of one kind, are listed before they are only counted."""


def clean_names(cleaning: Cleaning, view: TableView) -> str:
    """Return a line `network/address` for each address that was, or would be, released."""
    rows = _rows(clean_document(cleaning), view)
    return name_lines(row for row in rows if row["verdict"] in _RELEASED)


@as_text
def clean_table(
    cleaning: Cleaning, view: TableView = _DEFAULT, *, verbose: bool = False
) -> Iterator[str]:
    """Write a cleanup. `verbose`: every address, and every reason with all its addresses."""
    document = clean_document(cleaning)
    columns = view.columns
    yield f"Node {document['node']}, {document['taken_at']}"
    if cleaning.dry_run:
        yield from _dry_run(cleaning, document, view)
    elif view.release.in_pod and is_read_only(cleaning):
        yield "Nothing was released: this pod only reads."
        yield from _steps(cleaning, view)

    if document["halted"]:
        yield ""
        yield from fill(f"Cleanup halted: {document['halted']}", columns)
        yield from numbered_steps(map(Step, WHEN_HALTED.split("; ")), columns)

    if document["addresses"]:
        yield from section(_table(document, view, whole=verbose or view.wide))
    reasons = _reasons(document, verbose=verbose)
    yield from section(fill_each(reasons, columns), "Why:")

    passed_over = (
        f"{row['ip']}: nothing to release: {row['why']}" for row in document["passed_over"]
    )
    yield from section(fill_each(passed_over, columns, indent=""))

    head = "Nothing can be released, because these sources are unavailable:"
    yield from section(what_to_do(document["unavailable"], columns), head)
    yield from section(fill_labeled("warning", document["warnings"], columns))

    yield ""
    yield from _totals(cleaning, document)


def _table(document: Document, view: TableView, *, whole: bool) -> Iterator[str]:
    """`whole`: a row for each address, however many there are."""
    rows = _rows(document, view)
    if whole or len(rows) <= _SCREENFUL:
        yield from address_table(_COLUMNS, rows, view.columns)
        return

    if document["applied"]:  # what was released comes last
        rows.sort(key=lambda row: bool(row["verdict"] == "released"))
    shown = grouped(rows)
    yield from address_table(_GROUPED, shown[:_SCREENFUL], view.columns)

    more = ""
    if len(shown) > _SCREENFUL:
        more = f"… and {count_of(len(shown) - _SCREENFUL, 'more row', 'more rows')}. "
    listed = "All: -v, or after a release 'nodeleak journal'."
    yield f"{more}RESERVED FOR is that of the oldest. {listed}"


def _dry_run(cleaning: Cleaning, document: Document, view: TableView) -> Iterator[str]:
    """Say that nothing was changed, and which commands release what follows, or why none does."""
    blockers = stopping(cleaning, view.release)
    plan = next_plan(cleaning)
    # A blocker of one network leaves the others.
    is_blocked = any(not blocker.network for blocker in blockers)

    text = "DRY RUN: nothing was changed."
    if plan.batches and not is_blocked:
        text += f" {_outlook(plan, document)}"
    elif cleaning.outcomes and not is_blocked:
        text += " No command can release an address now: see below."
    yield from fill(text, view.columns)

    if blockers:
        yield f"No release is possible {_scope(blockers)}:"
    reasons = (
        "cleanup halted: see below" if blocker.by is BlockedBy.HALTED else blocker.why
        for blocker in blockers
    )
    yield from fill_each(reasons, view.columns)
    if not is_blocked:
        yield from _steps(cleaning, view)


def _steps(cleaning: Cleaning, view: TableView) -> Iterator[str]:
    """Yield the commands that release what was refused, failed, or only listed."""
    plan = next_plan(cleaning)
    release = next_release(cleaning, view.release)
    steps = release_steps(plan, release, cleaning.node, preview=False, docker=cleaning.docker)
    yield from numbered_steps(steps, view.columns)


def _outlook(plan: Plan, document: Document) -> str:
    """Say how many addresses can be released, and of the networks how many are free then."""
    now = sum(batch.count for batch in plan.batches if batch.at_once)
    later = plan.count - now
    first = []
    if any(batch.lifted for batch in plan.batches):
        first.append("a check")
    if any(batch.wait for batch in plan.batches):
        first.append("a wait")

    text = f"{count_of(now or later, 'address', 'addresses')} can be released"
    if not now:
        text += f" after {' and '.join(first)}"
    elif later:
        text += f", {later} more after {' and '.join(first)}"

    changes = [
        f"{network['network']}: {format_number(network['free_before'])} free now, "
        f"{format_number(network['free_after'])} afterwards"
        for network in document["networks"]
        if network["free_before"] != network["free_after"]
    ]
    return f"{text} ({'; '.join(changes)})." if changes else f"{text}."


def _scope(blockers: Sequence[Blocker]) -> str:
    """Return where no release is possible: a blocker without a network stops all."""
    networks = [blocker.network for blocker in blockers]
    return "here" if None in networks else f"in network {', '.join(filter(None, networks))}"


def _rows(document: Document, view: TableView) -> list[AddressRow]:
    """Return the addresses in the order of the view, each with its reasons in the verdict."""
    addresses = sorted(
        document["addresses"], key=lambda row: address_order(row["network"], row["ip"])
    )
    rows = []
    for row in addresses:
        container_id = row["container_id"] or "(empty file)"
        reasons = dict.fromkeys(refusal["reason"] for refusal in row["refusals"])
        verdict = row["verdict"].replace("_", " ")
        shown = {
            "container_id": container_id if view.wide else container_id[:12],
            "verdict": f"{verdict}: {', '.join(reasons)}" if reasons else verdict,
        }
        rows.append(row | shown)
    return sorted_rows(rows, view.sort_by)


class _Why(NamedTuple):
    """A reason of a refusal or a failure, as it is listed once for all its addresses."""

    label: str
    text: str
    setting: str | None = None


def _reasons(document: Document, *, verbose: bool) -> Iterator[str]:
    """List each reason once, with its addresses: often all have the same one."""
    ips: dict[_Why, dict[str, None]] = {}
    for row in document["addresses"]:
        for why in _reasons_of(row, document["unavailable"]):
            ips.setdefault(why, {})[row["ip"]] = None

    by_label: dict[str, list[str]] = {}
    for why, addresses in ips.items():
        line = _reason(why, list(addresses), verbose=verbose)
        by_label.setdefault(why.label, []).append(line)

    for label, lines in by_label.items():
        if verbose or len(lines) <= _MAX_NAMED:
            yield from lines
        else:  # of many that differ by a number, the last is the furthest from a release
            yield lines[0]
            yield f"{label}: … {len(lines) - 2} more: use -v to list all"
            yield lines[-1]


def _reasons_of(row: AddressRow, unavailable: Sequence[Document]) -> Iterator[_Why]:
    """Yield why an address is not released. `unavailable`: the sources, which are listed elsewhere."""
    for refusal in row["refusals"]:
        # Unavailable sources have a list of their own.
        if not (unavailable and refusal["reason"] == Reason.SOURCE_UNAVAILABLE):
            text = refer(refusal["why"], unavailable)
            yield _Why(refusal["reason"], text, refusal["setting"])
    if row["why"] and not row["refusals"]:
        yield _Why(row["verdict"].replace("_", " "), row["why"])


def _reason(why: _Why, ips: Sequence[str], *, verbose: bool) -> str:
    """Return the line of a reason. Unless `verbose`, many addresses are only counted."""
    names = runs(ips)
    listed = ", ".join(names)
    if not verbose and len(names) > _MAX_NAMED:
        listed = count_of(len(ips), "address", "addresses")
    override = f"; override with {why.setting}" if why.setting else ""
    return f"{why.label} ({listed}): {why.text}{override}"


def _totals(cleaning: Cleaning, document: Document) -> Iterator[str]:
    """Yield the number of addresses of each verdict, and of the free ones before and after."""
    if document["addresses"]:
        yield ", ".join(_counts(cleaning, document))
    elif not (document["unavailable"] or document["passed_over"]):
        yield "Nothing to release."

    now, then = ("now", "afterwards") if cleaning.dry_run else ("before", "after")
    for network in document["networks"]:
        before = network["free_before"]
        after = network["free_after"]
        if before is not None or after is not None:
            free = f"{format_number(before)} {now}, {format_number(after)} {then}"
            yield f"Free addresses in {network['network']}: {free}"


def _counts(cleaning: Cleaning, document: Document) -> Iterator[str]:
    """Count the requested verdict even where it is 0, and the others where there are any."""
    blockers = [
        blocker for blocker in cleaning.blockers if blocker.by is not BlockedBy.NO_CLEANUP_NETWORK
    ]
    requested = Verdict.WOULD_RELEASE if cleaning.dry_run else Verdict.RELEASED
    reasons = Counter(row["reason"] for row in document["addresses"] if row["reason"])
    left = reasons.pop(Reason.OVER_BUDGET, 0)

    for verdict, count in document["verdicts"].items():
        number = count
        text = f"{number} {verdict}"
        if verdict == Verdict.WOULD_RELEASE:
            impossible = f" (not possible {_scope(blockers)})" if blockers else ""
            text = f"{number} would be released{impossible}"
        elif verdict == Verdict.REFUSED:
            number -= left
            counts = (f"{times} {reason}" for reason, times in reasons.most_common())
            text = f"{number} refused ({', '.join(counts)})"
        if number or verdict == requested:
            yield text

    if left:
        yield f"{left} left for later (over_budget)"


@as_text
def restoration_text(
    restoration: Restoration, journal: Journal, *, dry_run: bool, following: Entry | None
) -> Iterator[str]:
    """Write the result of `restore`, with damage of the journal: the entry may be among it.

    `following`: what another `restore --last` restores; None: nothing, or it was not asked for.
    """
    entry = restoration.entry
    pod = f" of pod {entry.pod}" if entry.pod else ""
    what = f"{', '.join(entry.ips)} for container {_short_id(entry)}{pod}, entry {entry.name}"

    if dry_run:
        yield "DRY RUN: nothing is changed; use --apply to restore."
    if restoration.failure is None:
        yield f"{'would restore' if dry_run else 'restored'}: {what}"
        if restoration.note:
            yield from fill(f"warning: {restoration.note}")
    else:
        verdict = "would not restore" if dry_run else "not restored"
        yield from fill(f"{verdict}: {what}: {restoration.failure}")

    if following:
        last = f"{', '.join(following.ips)}, entry {following.name}"
        yield from fill(f"The same command again restores an earlier release: {last}.")
    yield from fill_labeled("warning: journal", journal.damage)


@as_text
def journal_table(journal: Journal, *, missing_in: str | None) -> Iterator[str]:
    """Write the journal, oldest entry first.

    `missing_in`: the state directory, if it has no journal.
    """
    if journal.entries:
        heads = ["WHEN", "BY", "ADDRESSES", "CONTAINER", "POD", "OUTCOME", "ENTRY", "WHY"]
        yield from table(heads, list(map(_entry_row, journal.entries)))
    elif missing_in:
        yield f"No journal in {missing_in}: nothing was released from here, or --state-dir is wrong"
    else:
        yield "No releases."

    yield from section(fill_labeled("damaged", journal.damage))


def _short_id(entry: Entry) -> str:
    return entry.container_id[:12] or "(empty file)"


def _entry_row(entry: Entry) -> list[str]:
    return [
        rfc3339(entry.at),
        entry.actor,
        ", ".join(entry.ips),
        _short_id(entry),
        entry.pod or "-",
        _outcome(entry),
        entry.name,
        entry.why,
    ]


def _outcome(entry: Entry) -> str:
    """Return the verdict, and what became of it later."""
    outcome = "unfinished" if entry.verdict is None else entry.verdict.value
    if entry.halted:
        outcome += f", halted cleanup {rfc3339(entry.halted)}"
    if entry.resumed:
        outcome += f", resumed {rfc3339(entry.resumed)}"

    if entry.restoring:
        outcome += ", restoration unfinished"
    elif entry.restored:
        outcome += f", restored {rfc3339(entry.restored)}"
    return outcome
