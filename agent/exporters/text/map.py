"""The map for terminals: one letter for each cell, so that colors are not needed to read it."""

from collections import Counter
from collections.abc import Iterator
from typing import Final

from agent.exporters.range_map import MARK_LABELS, WEIGHT, Mark, NetworkMap, RangeMap, Row, mark_of, network_maps
from agent.exporters.text.scan import header, unavailable
from agent.model.finding import total
from agent.model.report import Report
from agent.model.text import count_of, escape, format_number

_LOOK: Final = {
    Mark.FREE: ("·", "2"),
    Mark.GATEWAY: ("G", "2"),
    Mark.IN_USE: ("■", "34"),
    Mark.NOT_READY: ("N", "36"),
    Mark.TEARDOWN_PENDING: ("T", "36"),
    Mark.CANDIDATE: ("C", "33"),
    Mark.UNRECOGNIZED: ("U", "35"),
    Mark.UNMANAGED: ("M", "35"),
    Mark.UNAVAILABLE: ("░", "7"),
    Mark.UNKNOWN: ("?", "7"),
    Mark.LEAKED: ("L", "1;37;41"),
}
"""A letter, and an SGR code, which follows the terminal's own palette."""
LETTERS: Final = {mark: letter for mark, (letter, _) in _LOOK.items()}
_ASCII: Final = {"·": ".", "■": "o", "░": "/"}
_GROUP: Final = 8
_SPACED: Final = 16
"""A row of up to so many cells has room for a space after each."""
_LONGEST_LIST: Final = 40


def map_table(report: Report, *, color: bool, unicode: bool) -> str:
    """Draw a report. `unicode`: whether the terminal can show more than ASCII."""
    return "".join(f"{line}\n" for line in _lines(report, _LetterFormat(color, unicode)))


class _LetterFormat:
    def __init__(self, color: bool, unicode: bool) -> None:
        self._color, self._unicode = color, unicode

    def __call__(self, mark: Mark) -> str:
        letter = LETTERS[mark] if self._unicode else _ASCII.get(LETTERS[mark], LETTERS[mark])
        return f"\x1b[{_LOOK[mark][1]}m{letter}\x1b[0m" if self._color else letter


def _lines(report: Report, letter: _LetterFormat) -> Iterator[str]:
    yield from map(escape, header(report))
    maps = network_maps(report)
    for one in maps:
        yield ""
        yield from _unused(one) if one.not_in_use else _network(one, letter)
    yield ""
    yield from _legend(sum((one.counts for one in maps), Counter[Mark]()), letter)
    if report.findings:
        yield ""
        yield f"{count_of(total(report.findings), 'finding')}: run without --map to list them."
    yield from map(escape, unavailable(report))


def _unused(network: NetworkMap) -> Iterator[str]:
    yield escape(f"{network.network}: not in use: {network.not_in_use}")


def _network(network: NetworkMap, letter: _LetterFormat) -> Iterator[str]:
    name = escape(network.network)
    if not network.available:
        yield f"{name}: reservations unavailable: no address below is known to be free"
    if network.maps is None:
        yield f"{name}: range unknown"
    for one in network.maps or ():
        yield f"{name} {one.range}"
        label = max(len(str(row.first)) for row in one.rows)
        yield from (f"  {row.first!s:<{label}}  {_row(row, one, letter)}".rstrip() for row in one.rows)
        if one.rest is not None:
            yield f"  {'the rest':<{label}}  {letter(one.rest.mark)}"
        yield from (f"  {sentence}" for sentence in one.rule)
    if network.elsewhere:
        yield "  Entries outside every known range:"
        for classified in network.elsewhere[:_LONGEST_LIST]:
            yield f"    {letter(mark_of(classified))} {escape(classified.name)}"
        if (more := len(network.elsewhere) - _LONGEST_LIST) > 0:
            yield f"    and {more} more: -o json lists all"


def _row(row: Row, of_map: RangeMap, letter: _LetterFormat) -> str:
    cells = [" " if cell is None else letter(cell.mark) for cell in row.cells]
    between = " " if of_map.columns <= _SPACED else ""
    groups = (cells[start : start + _GROUP] for start in range(0, len(cells), _GROUP))
    return (between or " ").join(between.join(group) for group in groups)


def _legend(counts: Counter[Mark], letter: _LetterFormat) -> Iterator[str]:
    width = max((len(format_number(n)) for n in counts.values()), default=1)
    for mark in sorted(counts, key=WEIGHT.__getitem__, reverse=True):
        yield f"  {letter(mark)} {format_number(counts[mark]):>{width}} {MARK_LABELS[mark]}"
