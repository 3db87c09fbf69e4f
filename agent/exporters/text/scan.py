"""A report as text, for people: the networks, the findings, then what is unavailable."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from agent.exporters import summary
from agent.exporters.advice import advice
from agent.exporters.json import Document
from agent.exporters.json.scan import scan_document
from agent.exporters.json.status import NodeState
from agent.exporters.rows import DEVICE_HEADS, device_rows
from agent.exporters.text.layout import (
    AddressRow,
    TableView,
    address_table,
    as_text,
    by_reason,
    command_list,
    explain_commands,
    fill,
    fill_each,
    grid,
    name_lines,
    numbered_steps,
    refer,
    section,
    sorted_rows,
    what_to_do,
)
from agent.model.assessment import State
from agent.model.finding import Severity
from agent.model.report import NetworkSummary, Report
from agent.model.snapshot import InsufficientData, NotRequested
from agent.model.text import LONGEST_LIST, count_of, format_number, rfc3339

_LISTED: Final = {
    State.UNMANAGED,
    State.CANDIDATE,
    State.TEARDOWN_PENDING,
    State.UNRECOGNIZED,
    State.UNKNOWN,
}
"""States whose entries are listed: healthy ones are only counted, and leaks are findings."""

_COLUMNS: Final = ("network", "ip", "state", "age_seconds", "cause", "pod", "why")
_WIDE_COLUMNS: Final = (*_COLUMNS[:5], "container_id", *_COLUMNS[5:])

_MAX_ALIKE: Final = 5
"""Entries with the same state and reason that are listed."""

_DEFAULT: Final = TableView()


@as_text
def scan_table(
    report: Report, *, verbose: bool = False, view: TableView = _DEFAULT
) -> Iterator[str]:
    """Write a report.

    `verbose`: every address, device and finding on a line of its own.
    """
    document = scan_document(report)
    yield from header(report, view.columns)

    yield ""
    heads = ["NETWORK", "RANGE", "USABLE", "FREE", "FILES", "STATES"]
    yield from grid([heads, *map(_network_row, document["networks"])], view.columns)
    for note in _notes_on_counts(report.networks):
        yield from fill(note, view.columns)

    yield from _reservations(document, view, whole=verbose or view.wide)
    yield from _devices(report, view.columns, verbose=verbose)
    yield from _findings(report, view, verbose=verbose)
    yield from _not_evaluated(report, document["unavailable"], view.columns)


def scan_names(report: Report, view: TableView) -> str:
    """Return a line `network/address` for each address that a wide table lists."""
    return name_lines(_rows(scan_document(report), view, whole=True))


def header(report: Report, columns: int | None) -> Iterator[str]:
    """Yield the node, the time and the headline; how much is missing, if the headline does not."""
    snapshot = report.snapshot
    yield f"Node {snapshot.node_name}, {rfc3339(snapshot.taken_at)}"
    yield from fill(summary.headline(report), columns)

    missing = summary.incomplete(report)
    if missing and summary.state_of(report) is not NodeState.INCOMPLETE:
        yield from fill(f"Incomplete: {missing}", columns)


def _network_row(network: Document) -> list[str]:
    ranges = "?" if network["ranges"] is None else ", ".join(network["ranges"])
    if network["not_in_use"]:
        ranges = "-"
        states = f"not in use: {network['not_in_use']}"
    elif network["states"] is None:
        states = "unavailable"
    else:
        counts = [f"{count} {state}" for state, count in network["states"].items() if count]
        states = ", ".join(counts) or "no reservation"

    numbers = (format_number(network[key]) for key in ("usable", "free", "reserved"))
    return [network["name"], ranges, *numbers, states]


def _notes_on_counts(networks: Iterable[NetworkSummary]) -> Iterator[str]:
    """Yield why there are not as many files as addresses are missing from the free ones."""
    for network in networks:
        if network.usable is None or network.free is None or network.reserved is None:
            continue
        unexplained = network.reserved - (network.usable - network.free)
        if len(network.ranges or ()) > 1 and network.reserved:
            yield (
                f"{network.name}: each pod has an address of each range. USABLE and FREE count "
                "pods, FILES and STATES count addresses."
            )
        elif unexplained:
            files = count_of(unexplained, "file is", "files are")
            yield f"{network.name}: {files} outside of the range."


def _reservations(document: Document, view: TableView, *, whole: bool) -> Iterator[str]:
    """`whole`: list every address, also those that findings name."""
    rows = _rows(document, view, whole=whole)
    if not rows:
        return
    shown = rows if whole else _without_repetition(rows)
    keys = _WIDE_COLUMNS if view.wide else _COLUMNS

    yield ""
    yield from address_table(keys, shown, view.columns)
    yield from _omitted(len(rows) - len(shown))


def _omitted(count: int, indent: str = "") -> Iterator[str]:
    if count:
        yield f"{indent}… and {count} more: use -v to list all"


def _rows(document: Document, view: TableView, *, whole: bool) -> list[AddressRow]:
    """Return the addresses to list, in the order of the view.

    `whole`: also leaks, and the addresses that findings name.
    """
    states = _LISTED | {State.LEAKED} if whole else _LISTED
    named = set() if whole else {finding["subject"] for finding in document["findings"]}
    rows = [
        row | {"why": refer(row["why"], document["unavailable"])}
        for row in document["reservations"]
        if row["state"] in states and f"{row['network']}/{row['ip']}" not in named
    ]
    return sorted_rows(rows, view.sort_by)


def _without_repetition(rows: Iterable[AddressRow]) -> list[AddressRow]:
    """Return the first rows of each network, state and reason: all may have the same one."""
    counts: Counter[tuple[str, str, str]] = Counter()
    shown = []
    for row in rows:
        kind = row["network"], row["state"], row["why"]
        counts[kind] += 1
        if counts[kind] <= _MAX_ALIKE:
            shown.append(row)
    return shown[:LONGEST_LIST]


def _devices(report: Report, columns: int | None, *, verbose: bool) -> Iterator[str]:
    """Yield the table of device resources; nothing if they are unknown, or there are none."""
    try:
        rows = device_rows(report.snapshot)
    except InsufficientData:
        return
    if rows:
        shown = rows if verbose else rows[:LONGEST_LIST]
        heads = [head.upper() for head in DEVICE_HEADS]
        yield from section(grid([heads, *shown], columns), "Devices:")
        yield from _omitted(len(rows) - len(shown))


def _findings(report: Report, view: TableView, *, verbose: bool) -> Iterator[str]:
    """Yield the findings by detector, each with what to do about it."""
    if not report.findings:
        return
    columns = view.columns
    yield ""
    yield from fill(summary.count_by_severity(report), columns)

    groups = summary.finding_lines(report, verbose=verbose)
    for detector, lines in groups.items():
        shown = lines if verbose else lines[:LONGEST_LIST]
        for line in shown:
            is_usual = line.severity is Severity.WARNING
            severity = "" if is_usual else f"({line.severity.value}) "
            text = f"{detector}: {severity}{line.text}"
            yield from fill(text, columns, first="  ", rest="    ")
            for detail in line.details:
                yield from fill(detail, columns, first="    - ", rest="      ")

        yield from _omitted(len(lines) - len(shown), f"  {detector}: ")
        yield from numbered_steps(advice(detector, report, view.release), columns)

    yield from command_list("For more:", explain_commands(groups))


def _not_evaluated(
    report: Report, sources: Sequence[Document], columns: int | None
) -> Iterator[str]:
    """Yield what was not asked, what could not be read, and the checks that need it.

    `sources`: those that are unavailable.
    """
    pods = report.snapshot.pods
    if isinstance(pods, NotRequested):
        yield ""
        text = f"Checked without the API server ({pods.why}): only this node was read."
        yield from fill(text, columns)
        if skipped := [gap.detector for gap in report.gaps if gap.chosen]:
            yield from fill(f"Skipped without it: {', '.join(skipped)}.", columns)

    yield from unavailable(sources, columns)

    failed = [
        {"source": gap.detector, "why": refer(gap.why, sources)}
        for gap in report.gaps
        if not gap.chosen
    ]
    # Where sources are listed, what to do stands there.
    lines = fill_each(by_reason(failed), columns) if sources else what_to_do(failed, columns)
    yield from section(lines, "Checks that could not run:")


def unavailable(sources: Sequence[Document], columns: int | None) -> Iterator[str]:
    """Yield the unavailable sources with their reasons, and how to learn more."""
    head = "Unavailable (nothing is concluded from these sources):"
    return section(what_to_do(sources, columns), head)
