"""A network's range as a grid of cells: laid out for the page, and drawn for terminals. Pure.

A range of up to 512 addresses has a cell for each. A larger one is laid out up to its highest
reserved address, in at most 256 blocks of one size where that is more than 512 addresses; the rest
is a single last cell. A block has the mark of its most severe address.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from ipaddress import ip_address
from itertools import chain
from typing import Final, NamedTuple

from agent.exporters.json.scan import scan_document, sorted_reservations
from agent.exporters.summary import count_by_severity
from agent.exporters.text.layout import fill
from agent.exporters.text.scan import header, unavailable
from agent.model.assessment import ClassifiedReservation
from agent.model.ranges import IPAddress, Range
from agent.model.report import NetworkSummary, Report
from agent.model.text import LONGEST_LIST, escape, format_number

MAX_SINGLE: Final = 512
"""Addresses of the largest range with one cell for each."""

_BLOCKS: Final = 256
"""The most blocks of a larger range, plus or minus a row; a grid of more cells has wider rows."""

_ASCII: Final = {"·": ".", "■": "o", "░": "/"}
"""What a terminal without Unicode shows instead."""

_GROUP: Final = 8
"""Cells between two spaces in a row of a terminal."""

_MAX_SPACED: Final = 16
"""A row of up to so many cells has room for a space after each."""


class Look(NamedTuple):
    """How a mark is shown."""

    letter: str
    color: str
    """An SGR code, which follows the terminal's own palette."""
    label: str


LOOKS: Final = {
    "free": Look("·", "2", "free"),
    "gateway": Look("G", "2", "gateway"),
    "in_use": Look("■", "34", "in use"),
    "not_ready": Look("N", "36", "not ready: its sandbox is not running"),
    "teardown_pending": Look("T", "36", "teardown pending: no container, but a checkpoint"),
    "candidate": Look("C", "33", "candidate: no owner, not confirmed yet"),
    "unrecognized": Look("U", "35", "unrecognized: not a reservation of host-local"),
    "unmanaged": Look("M", "35", "unmanaged: in use, unknown to the runtime"),
    "unavailable": Look("░", "7", "unavailable: may be reserved or free"),
    "unknown": Look("?", "7", "reserved, owner unknown"),
    "leaked": Look("L", "1;37;41", "leaked"),
}
"""By mark: the state of a reservation, or of an address without one. The least severe first."""

_SEVERITY: Final = {mark: severity for severity, mark in enumerate(LOOKS)}


def by_severity(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    """Return the counts of marks, the most severe mark first."""
    return sorted(counts.items(), key=lambda item: _SEVERITY[item[0]], reverse=True)


class Cell(NamedTuple):
    """One address, or a block of them."""

    first: IPAddress
    last: IPAddress
    counts: Counter[str]
    """Addresses by mark."""
    entry: ClassifiedReservation | None = None
    """The reservation, where the cell is one address."""

    @property
    def mark(self) -> str:
        """The most severe one of its addresses."""
        return max(self.counts, key=_SEVERITY.__getitem__)

    def __str__(self) -> str:
        return str(self.first) if self.first == self.last else f"{self.first}-{self.last}"


class RangeMap(NamedTuple):
    """The grid of one range."""

    range: Range
    block: int
    """Addresses in a cell."""
    columns: int
    """Cells in a row, which begins at a multiple of them: a column has the same last bits."""
    rows: Mapping[IPAddress, tuple[Cell | None, ...]]
    """By the address of the first column, which in the first row may lie before the range.

    None: outside the range.
    """
    rest: Cell | None
    """Everything after the rows, in one cell; None: nothing."""

    @property
    def counts(self) -> Counter[str]:
        """Addresses by mark."""
        cells = (*chain.from_iterable(self.rows.values()), self.rest)
        return sum((cell.counts for cell in cells if cell), Counter[str]())

    @property
    def rule(self) -> Iterator[str]:
        """Sentences that say what a cell stands for."""
        block = f"{format_number(self.block)} addresses, marked by the most severe"
        yield f"One cell per {'address' if self.block == 1 else block}."
        if self.rest is not None:
            what = "unavailable" if "unavailable" in self.rest.counts else "free"
            count = format_number(self.rest.counts.total())
            yield f"The last cell is the rest: {count} addresses, {what}."


class NetworkMap(NamedTuple):
    """The grids of one network."""

    network: NetworkSummary
    maps: tuple[RangeMap, ...]
    elsewhere: list[ClassifiedReservation]
    """Entries outside the ranges, by name."""

    @property
    def counts(self) -> Counter[str]:
        """Addresses and other entries by mark."""
        elsewhere = Counter(entry.state.value for entry in self.elsewhere)
        return sum((range_map.counts for range_map in self.maps), elsewhere)


def network_maps(report: Report) -> Iterator[NetworkMap]:
    """Yield the grids of each network, in the order of the report."""
    for network in report.networks:
        entries = [
            entry for entry in report.assessment.reservations if entry.network == network.name
        ]
        addresses = {ip_address(entry.name): entry for entry in entries if entry.blocks}
        ranges = list(chain.from_iterable(network.ranges or ()))
        is_read = network.states is not None
        maps = tuple(_range_map(range_, addresses, is_read=is_read) for range_ in ranges)
        elsewhere = (entry for entry in entries if not _is_inside(entry, ranges))
        yield NetworkMap(network, maps, sorted_reservations(elsewhere))


def _is_inside(entry: ClassifiedReservation, ranges: Sequence[Range]) -> bool:
    return entry.blocks and any(ip_address(entry.name) in range_ for range_ in ranges)


def _range_map(
    range_: Range, reservations: Mapping[IPAddress, ClassifiedReservation], *, is_read: bool
) -> RangeMap:
    """Lay out one range.

    `reservations`: of this range or not. `is_read`: whether they are known at all.
    """
    entries = {int(ip): entry for ip, entry in reservations.items() if ip in range_}
    numbers = sorted(entries)
    first = int(range_.first)
    last = int(range_.last)
    gateway = int(range_.gateway)
    address = type(range_.first)
    block, columns, end = _measure(first, last, highest=max(numbers, default=first))

    def cell(low: int, high: int) -> Cell | None:
        low = max(low, first)
        high = min(high, last)
        if low > high:
            return None

        taken = numbers[bisect_left(numbers, low) : bisect_left(numbers, high + 1)]
        counts = Counter(entries[number].state.value for number in taken)
        if low <= gateway <= high and gateway not in entries:
            counts["gateway"] = 1
        if left := high - low + 1 - counts.total():
            counts["free" if is_read else "unavailable"] = left

        entry = entries.get(low) if low == high else None
        return Cell(address(low), address(high), counts, entry)

    width = block * columns
    rows = {}
    for start in range(first - first % width, end + 1, width):
        lows = range(start, start + width, block)
        rows[address(start)] = tuple(cell(low, min(low + block - 1, end)) for low in lows)
    return RangeMap(range_, block, columns, rows, rest=cell(end + 1, last))


def _measure(first: int, last: int, *, highest: int) -> tuple[int, int, int]:
    """Return the addresses of a cell, the cells of a row, and the last address laid out."""
    size = last - first + 1
    if size <= MAX_SINGLE:
        return 1, _columns(size), last
    used = highest - first + 1
    block = 1
    if used > MAX_SINGLE:  # the power of two of which 256 have room for all of them
        block <<= ((used - 1) // _BLOCKS).bit_length()
    columns = _columns(used // block)

    # Whole rows; where little is used, the first 256 cells.
    width = block * columns
    end = max(highest | (width - 1), first - first % width + _BLOCKS * block - 1)
    return block, columns, min(last, end)


def _columns(cells: int) -> int:
    return 16 if cells <= _BLOCKS else 32


_Letter = Callable[[str], str]
"""Writes the letter of a mark."""


def map_table(report: Report, *, color: bool, unicode: bool, columns: int | None) -> str:
    """Draw a report with a letter for each cell, so that colors are not needed to read it.

    `unicode`: whether the terminal can show more than ASCII.
    """

    def letter(mark: str) -> str:
        look = LOOKS[mark]
        text = look.letter if unicode else _ASCII.get(look.letter, look.letter)
        return f"\x1b[{look.color}m{text}\x1b[0m" if color else text

    return "".join(f"{line}\n" for line in _lines(report, letter, columns))


def _lines(report: Report, letter: _Letter, columns: int | None) -> Iterator[str]:
    """Yield the lines, in which only `letter` writes control characters."""
    yield from map(escape, header(report, columns))
    counts = Counter[str]()
    for network_map in network_maps(report):
        yield ""
        yield from _network_lines(network_map, letter)
        counts += network_map.counts

    yield ""
    width = max((len(format_number(count)) for count in counts.values()), default=1)
    for mark, count in by_severity(counts):
        yield f"  {letter(mark)} {format_number(count):>{width}} {LOOKS[mark].label}"

    if report.findings:
        yield ""
        yield from fill(count_by_severity(report), columns)
        yield "Run without --map to list them."
    missing = scan_document(report)["unavailable"]
    yield from map(escape, unavailable(missing, columns))


def _network_lines(network_map: NetworkMap, letter: _Letter) -> Iterator[str]:
    """Yield the grids of a network, and the entries outside of them."""
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
        yield from _range_lines(range_map, letter)

    if network_map.elsewhere:
        yield "  Entries outside every known range:"
        for entry in network_map.elsewhere[:LONGEST_LIST]:
            yield f"    {letter(entry.state.value)} {escape(entry.name)}"
        more = len(network_map.elsewhere) - LONGEST_LIST
        if more > 0:
            yield f"    and {more} more: -o json lists all"


def _range_lines(range_map: RangeMap, letter: _Letter) -> Iterator[str]:
    """Yield the rows, each behind its first address, then what a cell stands for."""
    width = max(len(str(first)) for first in range_map.rows)
    for first, cells in range_map.rows.items():
        yield f"  {first!s:<{width}}  {_row_line(cells, letter)}".rstrip()
    if range_map.rest is not None:
        yield f"  {'the rest':<{width}}  {letter(range_map.rest.mark)}"
    yield from (f"  {sentence}" for sentence in range_map.rule)


def _row_line(cells: Sequence[Cell | None], letter: _Letter) -> str:
    letters = [" " if cell is None else letter(cell.mark) for cell in cells]
    space = " " if len(letters) <= _MAX_SPACED else ""
    groups = (letters[start : start + _GROUP] for start in range(0, len(letters), _GROUP))
    return " ".join(map(space.join, groups))
