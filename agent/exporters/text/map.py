"""The map for terminals: one letter for each cell, so that colors are not needed to read it."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from agent.exporters.json.scan import scan_document
from agent.exporters.range_map import LOOKS, Cell, NetworkMap, RangeMap, by_weight, network_maps
from agent.exporters.summary import count_by_severity
from agent.exporters.text.layout import fill
from agent.exporters.text.scan import header, unavailable
from agent.model.report import Report
from agent.model.text import LONGEST_LIST, escape, format_number

_ASCII: Final = {"·": ".", "■": "o", "░": "/"}
_GROUP: Final = 8
_SPACED: Final = 16
"""A row of up to so many cells has room for a space after each."""

Letter = Callable[[str], str]


def map_table(report: Report, *, color: bool, unicode: bool) -> str:
    """Draw a report. `unicode`: whether the terminal can show more than ASCII."""

    def letter(mark: str) -> str:
        look = LOOKS[mark]
        text = look.letter if unicode else _ASCII.get(look.letter, look.letter)
        return f"\x1b[{look.color}m{text}\x1b[0m" if color else text

    return "".join(f"{line}\n" for line in _lines(report, letter))


def _lines(report: Report, letter: Letter) -> Iterator[str]:
    yield from map(escape, header(report))
    maps = list(network_maps(report))
    for network_map in maps:
        yield ""
        yield from _network(network_map, letter)
    yield ""
    counts = sum((network_map.counts for network_map in maps), Counter[str]())
    width = max((len(format_number(count)) for count in counts.values()), default=1)
    for mark, count in by_weight(counts):
        yield f"  {letter(mark)} {format_number(count):>{width}} {LOOKS[mark].label}"
    if report.findings:
        yield from (
            "",
            *fill(count_by_severity(report), rest="  "),
            "Run without --map to list them.",
        )
    yield from map(escape, unavailable(scan_document(report)["unavailable"]))


def _network(network_map: NetworkMap, letter: Letter) -> Iterator[str]:
    network = network_map.network
    name = escape(network.name)
    if network.not_in_use:
        yield f"{name}: not in use: {escape(network.not_in_use)}"
        return
    if network.states is None:
        yield f"{name}: reservations unavailable: no address below is known to be free"
    if network.ranges is None:
        yield f"{name}: range unknown"
    for range_map in network_map.maps:
        yield f"{name} {range_map.range}"
        yield from _range(range_map, letter)
    if network_map.elsewhere:
        yield "  Entries outside every known range:"
        for entry in network_map.elsewhere[:LONGEST_LIST]:
            yield f"    {letter(entry.state.value)} {escape(entry.name)}"
        if (more := len(network_map.elsewhere) - LONGEST_LIST) > 0:
            yield f"    and {more} more: -o json lists all"


def _range(range_map: RangeMap, letter: Letter) -> Iterator[str]:
    label = max(len(str(first)) for first in range_map.rows)
    for first, cells in range_map.rows.items():
        yield f"  {first!s:<{label}}  {_row(cells, letter)}".rstrip()
    if range_map.rest is not None:
        yield f"  {'the rest':<{label}}  {letter(range_map.rest.mark)}"
    yield from (f"  {sentence}" for sentence in range_map.rule)


def _row(cells: Sequence[Cell | None], letter: Letter) -> str:
    letters = [" " if cell is None else letter(cell.mark) for cell in cells]
    between = " " if len(letters) <= _SPACED else ""
    groups = (letters[start : start + _GROUP] for start in range(0, len(letters), _GROUP))
    return (between or " ").join(between.join(group) for group in groups)
