"""A report as text, for people: a summary of each network, the findings, then what is unavailable."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from agent.exporters.advice import advice_below
from agent.exporters.devices import HEADS, device_rows
from agent.exporters.finding_lines import LONGEST_LIST, FindingLine, finding_lines
from agent.exporters.headline import Status, headline, incomplete, status_of
from agent.exporters.text.addresses import AddressRow, TableView, address_table, name_lines, sorted_rows
from agent.exporters.text.table import explain, grid, lines_as_text
from agent.exporters.text.unavailable import by_reason, refer
from agent.model.assessment import ClassifiedReservation, State
from agent.model.finding import LeakCause, Severity, total
from agent.model.report import NetworkSummary, Report
from agent.model.snapshot import InsufficientData, NotRequested, Reservation, ReservationKey, Snapshot
from agent.model.text import count_of, format_number, rfc3339

_LISTED = {State.UNMANAGED, State.CANDIDATE, State.TEARDOWN_PENDING, State.UNRECOGNIZED, State.UNKNOWN}
"""States whose entries are listed one by one: healthy ones are only counted, and leaks are findings."""

_HEADS: Final = ("NETWORK", "ADDRESS", "STATE", "AGE", "CAUSE", "POD", "WHY")
_WIDE_HEADS: Final = ("NETWORK", "ADDRESS", "STATE", "AGE", "CAUSE", "CONTAINER", "POD", "WHY")

_SAME_REASON = 5
"""Entries with the same state and reason that are listed."""
_DEFAULT: Final = TableView()


def scan_table(report: Report, *, verbose: bool = False, view: TableView = _DEFAULT) -> str:
    """Write a report. `verbose`: every entry and finding on a line of its own."""
    return lines_as_text(_lines(report, view, verbose=verbose))


def scan_names(report: Report, view: TableView) -> str:
    """Write the names of the addresses that the table lists."""
    return name_lines(_rows(report, view, whole=True))


def header(report: Report) -> Iterator[str]:
    snapshot = report.assessment.snapshot
    yield f"Node {snapshot.node_name}, {rfc3339(snapshot.taken_at)}"
    yield headline(report)
    if status_of(report) is not Status.INCOMPLETE and (missing := incomplete(report)):
        yield f"Incomplete: {missing}"


def _lines(report: Report, view: TableView, *, verbose: bool) -> Iterator[str]:
    snapshot = report.assessment.snapshot
    yield from header(report)
    yield ""
    heads = ["NETWORK", "RANGE", "USABLE", "RESERVED", "FREE", "STATES"]
    yield from grid([heads, *map(_summary, report.networks)], view.columns)
    yield from _reservations(report, view, whole=verbose or view.wide)
    yield from _devices(snapshot, view.columns, verbose=verbose)
    yield from _findings(report, verbose=verbose)
    yield from _not_evaluated(report)


def _reservations(report: Report, view: TableView, *, whole: bool) -> Iterator[str]:
    listed = _rows(report, view, whole=whole)
    if listed:
        yield ""
        shown = listed if whole else _without_repetition(listed)
        yield from address_table(_WIDE_HEADS if view.wide else _HEADS, shown, view.columns)
        if more := len(listed) - len(shown):
            yield f"… and {more} more: use -v to list all"


def _rows(report: Report, view: TableView, *, whole: bool) -> list[AddressRow]:
    """Return the addresses to list. Leaks are findings, so that only the whole list repeats them."""
    states = _LISTED | {State.LEAKED} if whole else _LISTED
    causes = report.leak_causes
    listed = (one for one in report.assessment.reservations if one.state in states)
    return sorted_rows((_row(one, report, causes) for one in listed), view.sort_by)


def _row(classified: ClassifiedReservation, report: Report, causes: Mapping[ReservationKey, LeakCause]) -> AddressRow:
    reservation = classified.entry if isinstance(classified.entry, Reservation) else None
    return AddressRow(
        network=classified.network,
        ip=classified.name,
        is_address=classified.blocks,
        state=classified.state.value,
        age=report.assessment.snapshot.taken_at - reservation.mtime if reservation else None,
        cause=causes.get(reservation.key, "") if reservation else "",
        container_id=classified.container_id,
        pod=classified.pod,
        why=refer(classified.why, report.unavailable),
    )


def _without_repetition(listed: Iterable[AddressRow]) -> list[AddressRow]:
    """Keep the first entries with the same state and reason: an unavailable source is the reason of all addresses."""
    seen: Counter[tuple[str, str, str]] = Counter()
    shown = []
    for one in listed:
        seen[one.network, one.state, one.why] += 1
        if seen[one.network, one.state, one.why] <= _SAME_REASON:
            shown.append(one)
    return shown[:LONGEST_LIST]


def _limited(rows: list[list[str]], columns: int | None, *, verbose: bool) -> Iterator[str]:
    """Align a table, cut to a screen unless all of it is wanted."""
    yield from grid(rows if verbose else rows[: LONGEST_LIST + 1], columns)
    if not verbose and (more := len(rows) - 1 - LONGEST_LIST) > 0:
        yield f"… and {more} more: use -v to list all"


def _devices(snapshot: Snapshot, columns: int | None, *, verbose: bool) -> Iterator[str]:
    try:
        rows = device_rows(snapshot)
    except InsufficientData:
        return
    if rows:
        yield ""
        yield "Devices:"
        yield from _limited([[head.upper() for head in HEADS], *rows], columns, verbose=verbose)


def _findings(report: Report, *, verbose: bool) -> Iterator[str]:
    if not report.findings:
        return
    yield ""
    lines = finding_lines(report, verbose=verbose)
    yield f"{count_of(total(report.findings), 'finding')} (for more: {explain(line.detector for line in lines)}):"
    counts = Counter(line.detector for line in lines)
    printed: Counter[str] = Counter()
    for line in lines:
        printed[line.detector] += 1
        if verbose or printed[line.detector] <= LONGEST_LIST:
            yield _finding(line)
        if printed[line.detector] < counts[line.detector]:
            continue
        if not verbose and (more := counts[line.detector] - LONGEST_LIST) > 0:
            yield f"  {line.detector}: … and {more} more: use -v to list all"
        if do := advice_below(line.detector, report):
            yield f"  Do: {do}"


def _finding(line: FindingLine) -> str:
    # Most are warnings.
    severity = "" if line.severity is Severity.WARNING else f"({line.severity.value}) "
    return f"  {line.detector}: {severity}{line.text}"


def _not_evaluated(report: Report) -> Iterator[str]:
    """List disabled and unavailable sources, and the checks that could not run."""
    pods = report.assessment.snapshot.pods
    if isinstance(pods, NotRequested):
        yield ""
        yield f"Checked without the API server ({pods.why}): only this node was read."
        if skipped := [gap.detector for gap in report.gaps if gap.chosen]:
            yield f"Skipped without it: {', '.join(skipped)}."
    yield from unavailable(report)
    failed: dict[str, list[str]] = {}
    for gap in report.gaps:
        if not gap.chosen:
            failed.setdefault(refer(gap.why, report.unavailable), []).append(gap.detector)
    if failed:
        yield ""
        yield "Checks that could not run:"
        yield from (f"  {', '.join(detectors)}: {why}" for why, detectors in failed.items())


def unavailable(report: Report) -> Iterator[str]:
    if report.unavailable:
        yield ""
        yield "Unavailable (nothing is concluded from these sources):"
        yield from (f"  {line}" for line in by_reason(report.unavailable))
        yield f"  Do: {explain(one.source for one in report.unavailable)}"


def _summary(network: NetworkSummary) -> list[str]:
    ranges = "?" if network.ranges is None else ", ".join(str(one) for ranges in network.ranges for one in ranges)
    if network.not_in_use:
        ranges, states = "-", f"not in use: {network.not_in_use}"
    elif network.states is None:
        states = "unavailable"
    else:
        states = ", ".join(f"{n} {state.value}" for state, n in network.states.items() if n) or "no reservation"
    return [network.name, ranges, *map(format_number, (network.usable, network.reserved, network.free)), states]
