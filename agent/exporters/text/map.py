"""The map of a node's ranges as text: a letter an address, in colour where the terminal has it."""

from collections import Counter
from collections.abc import Iterator
from typing import Final

from agent.exporters.json.scan import moment
from agent.exporters.range_map import (
    IN_WORDS,
    WEIGHT,
    Cell,
    Mark,
    NetworkMap,
    RangeMap,
    Row,
    in_figures,
    mark_of,
    network_maps,
)
from agent.exporters.text.scan import escape
from agent.model.report import Report

LETTERS: Final = {
    Mark.FREE: "·",
    Mark.GATEWAY: "G",
    Mark.IN_USE: "■",
    Mark.NOT_READY: "H",
    Mark.TEARDOWN_PENDING: "T",
    Mark.CANDIDATE: "Y",
    Mark.UNRECOGNIZED: "F",
    Mark.UNMANAGED: "A",
    Mark.UNAVAILABLE: "░",
    Mark.UNKNOWN: "?",
    Mark.LEAKED: "L",
}
_ASCII: Final = {"·": ".", "■": "o", "░": "/"}
_COLOURS: Final = {
    Mark.FREE: "2",
    Mark.GATEWAY: "2",
    Mark.IN_USE: "34",
    Mark.NOT_READY: "36",
    Mark.TEARDOWN_PENDING: "36",
    Mark.CANDIDATE: "33",
    Mark.UNRECOGNIZED: "35",
    Mark.UNMANAGED: "35",
    Mark.UNAVAILABLE: "7",
    Mark.UNKNOWN: "7",
    Mark.LEAKED: "1;37;41",
}
"""What a terminal is told (SGR): it follows the reader's own palette."""
_GROUP: Final = 8
_SPACED: Final = 16
"""A row of so many cells has room for a space after each."""
_LONGEST_LIST: Final = 40


def drawn(report: Report, *, colour: bool, unicode: bool) -> str:
    """Draw a report. `unicode`: whether the reader's terminal knows more than ASCII."""
    writer = _JournalWriter(colour, unicode)
    return "".join(f"{line}\n" for line in _lines(report, writer))


class _JournalWriter:
    def __init__(self, colour: bool, unicode: bool) -> None:
        self._colour, self._unicode = colour, unicode

    def __call__(self, mark: Mark) -> str:
        message = LETTERS[mark] if self._unicode else _ASCII.get(LETTERS[mark], LETTERS[mark])
        return f"\x1b[{_COLOURS[mark]}m{message}\x1b[0m" if self._colour else message


def _lines(report: Report, writer: _JournalWriter) -> Iterator[str]:
    snapshot = report.assessment.snapshot
    yield escape(f"Node {snapshot.node_name}, {moment(snapshot.taken_at)}")
    maps = network_maps(report)
    for one in maps:
        yield ""
        yield from _network(one, writer)
    yield ""
    yield from _legend(sum((one.counts for one in maps), Counter[Mark]()), writer)
    yield ""
    yield _findings(report)
    if report.unavailable:
        yield ""
        yield "Could not be read (nothing is concluded from these):"
        yield from (escape(f"  {one.source}: {one.why}") for one in report.unavailable)


def _network(network: NetworkMap, writer: _JournalWriter) -> Iterator[str]:
    name = escape(network.network)
    if not network.read:
        yield f"{name}: its reservations were NOT READ; nothing below is known to be free"
    if network.maps is None:
        yield f"{name}: its range is not known"
    for one in network.maps or ():
        yield f"{name} {one.range}"
        label = max(len(str(row.first)) for row in one.rows)
        yield from (f"  {row.first!s:<{label}}  {_row(row, one, writer)}".rstrip() for row in one.rows)
        if one.rest is not None:
            yield f"  {'the rest':<{label}}  {writer(one.rest.mark)}"
        yield from (f"  {sentence}" for sentence in one.rule)
    if network.elsewhere:
        yield "  Entries of no known range:"
        for classified in network.elsewhere[:_LONGEST_LIST]:
            yield f"    {writer(mark_of(classified))} {escape(classified.name)}"
        if (more := len(network.elsewhere) - _LONGEST_LIST) > 0:
            yield f"    and {more} more: -o json lists all"


def _row(row: Row, of_map: RangeMap, writer: _JournalWriter) -> str:
    cells = [_letter(cell, writer) for cell in row.cells]
    between = " " if of_map.columns <= _SPACED else ""
    groups = (cells[start : start + _GROUP] for start in range(0, len(cells), _GROUP))
    return (between or " ").join(between.join(group) for group in groups)


def _letter(cell: Cell | None, writer: _JournalWriter) -> str:
    return " " if cell is None else writer(cell.mark)


def _legend(counts: Counter[Mark], writer: _JournalWriter) -> Iterator[str]:
    width = max((len(in_figures(n)) for n in counts.values()), default=1)
    for mark in sorted(counts, key=WEIGHT.__getitem__, reverse=True):
        yield f"  {writer(mark)} {in_figures(counts[mark]):>{width}} {IN_WORDS[mark]}"


def _findings(report: Report) -> str:
    if not report.findings:
        return "No findings." if report.complete else "No findings, as far as could be read."
    return f"Findings: {len(report.findings)} (without --map they are told)."
