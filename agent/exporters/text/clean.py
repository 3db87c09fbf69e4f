"""Cleanup results, restorations and the journal as text, for people."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from shlex import quote
from typing import Any, Final

from agent.checks.detector import Step
from agent.cleanup.journal import Entry, Journal
from agent.cleanup.restore import Restoration
from agent.exporters.json.clean import clean_document
from agent.exporters.json.scan import address_order
from agent.exporters.release_commands import ANY_SHARE, BY_JOB, with_share
from agent.exporters.text import layout
from agent.exporters.text.layout import AddressRow, TableView
from agent.model.ranges import runs
from agent.model.release import BlockedBy, Cleaning, Reason, Verdict
from agent.model.text import count_of, format_number, rfc3339

WHEN_HALTED: Final = (
    "cordon the node; if the container is still there, `nodeleak restore ENTRY`, then with --apply; find out why "
    "the container runtime did not list it; only then `nodeleak resume` in the agent's pod "
    "(runbook NodeleakCleanupHalted)"
)

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
_OF_A_POD: Final = {BlockedBy.NO_CLEANUP_NETWORK, BlockedBy.NETWORK_UNWRITABLE}
"""What the manifests of a pod, and nobody in it, can change."""
_REMEDY: Final = re.compile(": (name the networks|to release, create a Job) .*")
"""What to do about these, where the command to run says it."""
_SCREENFUL: Final = 15
"""How many addresses have a row each. Of more, those that are alike share one."""
_NAMED: Final = 3
"""How many addresses, or reasons of one kind, are listed before they are only counted."""


def clean_names(cleaning: Cleaning, view: TableView) -> str:
    return layout.name_lines(
        row for row in _rows(clean_document(cleaning), view) if row["verdict"] in _RELEASED
    )


@layout.as_text
def clean_table(
    cleaning: Cleaning, view: TableView = _DEFAULT, *, verbose: bool = False
) -> Iterator[str]:
    """Write a cleanup. `verbose`: every address, and every reason with all its addresses."""
    document = clean_document(cleaning)
    yield f"Node {document['node']}, {document['taken_at']}"
    if not document["applied"]:
        yield from _possible(document, view)
    if document["halted"]:
        halted = layout.fill(f"Cleanup halted: {document['halted']}", view.columns, rest="  ")
        yield from (
            "",
            *halted,
            *layout.numbered_steps(map(Step, WHEN_HALTED.split("; ")), view.columns),
        )
    if document["addresses"]:
        yield from layout.section(_table(document, view, whole=verbose or view.wide))
    reasons = _reasons(document, verbose=verbose)
    yield from layout.section(layout.fill_each(reasons, view.columns), "Why:")
    passed_over = (
        f"{row['ip']}: nothing to release: {row['why']}" for row in document["passed_over"]
    )
    yield from layout.section(layout.fill_each(passed_over, view.columns, indent=""))
    head = "Nothing can be released, because these sources are unavailable:"
    yield from layout.section(layout.what_to_do(document["unavailable"], view.columns), head)
    warnings = (f"warning: {warning}" for warning in document["warnings"])
    yield from layout.section(layout.fill_each(warnings, view.columns, indent=""))
    yield ""
    yield from _totals(document)


def _table(document: dict[str, Any], view: TableView, *, whole: bool) -> Iterator[str]:
    rows = _rows(document, view)
    if whole or len(rows) <= _SCREENFUL:
        yield from layout.address_table(_COLUMNS, rows, view.columns)
        return
    shown = layout.grouped(
        sorted(rows, key=lambda row: bool(document["applied"] and row["verdict"] == "released"))
    )
    yield from layout.address_table(_GROUPED, shown[:_SCREENFUL], view.columns)
    more = (
        f"… and {count_of(len(shown) - _SCREENFUL, 'more row', 'more rows')}. "
        if len(shown) > _SCREENFUL
        else ""
    )
    yield f"{more}AGE is that of the oldest. All: -v, or after a release 'nodeleak journal'."


def _possible(document: dict[str, Any], view: TableView) -> Iterator[str]:
    """Say first whether what follows can be done here, and otherwise where."""
    blockers = document["blockers"]
    if blockers:
        yield f"No release is possible {_scope(blockers)}:"
    by_job = "clean-job" in view.release[-1] and _OF_A_POD & {blocker["by"] for blocker in blockers}
    whys = (
        "cleanup halted: see below" if each["by"] == BlockedBy.HALTED else each["why"]
        for each in blockers
    )
    yield from layout.fill_each(
        (_REMEDY.sub("", why) if by_job else why for why in whys), view.columns
    )
    if by_job:
        yield from layout.fill(f"To release{BY_JOB}:", view.columns, rest="  ")
        command = view.release[-1].replace("{node}", quote(document["node"]))
        yield f"  {with_share(command) if _is_share_doubted(document) else command}"
    yield f"DRY RUN: nothing is changed{_use_apply(document)}."


def _use_apply(document: dict[str, Any]) -> str:
    if _scope(document["blockers"]) == "here":
        return ""
    if _is_share_doubted(document):
        return f"; make the check below, then use --apply {ANY_SHARE} to release"
    return "; use --apply to release"


def _is_share_doubted(document: dict[str, Any]) -> bool:
    """Return whether nothing is released only because so much looks leaked."""
    verdicts = document["verdicts"]
    return not verdicts[Verdict.WOULD_RELEASE] and any(
        {refusal["reason"] for refusal in row["refusals"]} == {Reason.IMPLAUSIBLE_SHARE}
        for row in document["addresses"]
    )


def _scope(blockers: Sequence[dict[str, Any]]) -> str:
    networks = [blocker["network"] for blocker in blockers]
    return "here" if None in networks else f"in network {', '.join(networks)}"


def _rows(document: dict[str, Any], view: TableView) -> list[AddressRow]:
    addresses = sorted(
        document["addresses"], key=lambda row: address_order(row["network"], row["ip"])
    )
    return layout.sorted_rows(
        ({**row, **_cells(row, wide=view.wide)} for row in addresses), view.sort_by
    )


def _cells(row: AddressRow, *, wide: bool) -> AddressRow:
    container_id = row["container_id"] or "(empty file)"
    reasons = ", ".join(dict.fromkeys(refusal["reason"] for refusal in row["refusals"]))
    verdict = row["verdict"].replace("_", " ")
    return {
        "container_id": container_id if wide else container_id[:12],
        "verdict": f"{verdict}: {reasons}" if reasons else verdict,
    }


def _reasons(document: dict[str, Any], *, verbose: bool) -> Iterator[str]:
    """List each reason once, with its addresses: often all have the same one. Unavailable sources have a list."""
    found: dict[str, dict[tuple[str, str], dict[str, None]]] = {}
    for row in document["addresses"]:
        for label, why, setting in _reasons_of(row, document["unavailable"]):
            found.setdefault(label, {}).setdefault((why, setting), {})[row["ip"]] = None
    for label, reasons in found.items():
        lines = [_reason(label, *text, list(ips), verbose=verbose) for text, ips in reasons.items()]
        if verbose or len(lines) <= _NAMED:
            yield from lines
        else:  # of many that differ by a number, the last is the furthest from a release
            yield from (
                lines[0],
                f"{label}: … {len(lines) - 2} more: use -v to list all",
                lines[-1],
            )


def _reasons_of(
    row: AddressRow, unavailable: Sequence[dict[str, str]]
) -> Iterator[tuple[str, str, str]]:
    for refusal in row["refusals"]:
        if not (unavailable and refusal["reason"] == Reason.SOURCE_UNAVAILABLE):
            yield (
                refusal["reason"],
                layout.refer(refusal["why"], unavailable),
                refusal["setting"] or "",
            )
    if row["why"] and not row["refusals"]:
        yield row["verdict"].replace("_", " "), row["why"], ""


def _reason(label: str, why: str, setting: str, ips: Sequence[str], *, verbose: bool) -> str:
    listed = runs(ips)
    named = (
        ", ".join(listed)
        if verbose or len(listed) <= _NAMED
        else count_of(len(ips), "address", "addresses")
    )
    override = f"; override with {setting}" if setting else ""
    return f"{label} ({named}): {why}{override}"


def _totals(document: dict[str, Any]) -> Iterator[str]:
    if document["addresses"]:
        yield ", ".join(_counts(document))
    elif not (document["unavailable"] or document["passed_over"]):
        yield "Nothing to release."
    for network in document["networks"]:
        before, after = network["free_before"], network["free_after"]
        if before is not None or after is not None:
            free = f"{format_number(before)} before, {format_number(after)} after"
            yield f"Free addresses in {network['network']}: {free}"


def _counts(document: dict[str, Any]) -> Iterator[str]:
    """Count the requested verdict even where it is 0, and the others where there are any."""
    blockers = document["blockers"]
    impossible = f" (not possible {_scope(blockers)})" if blockers else ""
    requested = Verdict.RELEASED if document["applied"] else Verdict.WOULD_RELEASE
    for verdict, count in document["verdicts"].items():
        if count or verdict == requested:
            text = f"would be released{impossible}" if verdict == Verdict.WOULD_RELEASE else verdict
            yield f"{count} {text}{_by_reason(document) if verdict == Verdict.REFUSED else ''}"


def _by_reason(document: dict[str, Any]) -> str:
    reasons = Counter(row["reason"] for row in document["addresses"] if row["reason"])
    return f" ({', '.join(f'{count} {reason}' for reason, count in reasons.most_common())})"


@layout.as_text
def restoration_text(done: Restoration, journal: Journal, *, dry_run: bool) -> Iterator[str]:
    """Write the result of `restore`, with damage of the journal: the entry in question may be among it."""
    entry = done.entry
    pod = f" of pod {entry.pod}" if entry.pod else ""
    what = f"{', '.join(entry.ips)} for container {entry.container_id[:12] or '(empty file)'}{pod}, entry {entry.name}"
    if dry_run:
        yield "DRY RUN: nothing is changed; use --apply to restore."
    if done.failure is None:
        yield f"{'would restore' if dry_run else 'restored'}: {what}"
        if done.note:
            yield f"warning: {done.note}"
    else:
        yield f"{'would not restore' if dry_run else 'not restored'}: {what}: {done.failure}"
    yield from (f"warning: journal: {damage}" for damage in journal.damage)


@layout.as_text
def journal_table(journal: Journal, missing_in: str = "") -> Iterator[str]:
    """Write the journal, oldest entry first. `missing_in`: the state directory, if it has no journal."""
    if journal.entries:
        heads = ["WHEN", "BY", "ADDRESSES", "CONTAINER", "POD", "OUTCOME", "ENTRY", "WHY"]
        yield from layout.table(heads, [_entry(entry) for entry in journal.entries])
    elif missing_in:
        yield f"No journal in {missing_in}: nothing was released from here, or --state-dir is wrong"
    else:
        yield "No releases."
    if journal.damage:
        yield ""
        yield from (f"damaged: {damage}" for damage in journal.damage)


def _entry(entry: Entry) -> list[str]:
    at, ips, container = (
        rfc3339(entry.at),
        ", ".join(entry.ips),
        entry.container_id[:12] or "(empty file)",
    )
    return [
        at,
        entry.actor,
        ips,
        container,
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
