"""A network's range as a grid of cells, for text and page. Pure.

A range of up to 512 addresses has a cell for each. A larger one is laid out up to its highest reserved address, in at
most 256 blocks of one size where that is more than 512 addresses; the rest is a single last cell. A block has the mark
of its most severe address.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from ipaddress import ip_address
from itertools import chain
from typing import Final, NamedTuple

from agent.exporters.json.scan import sorted_reservations
from agent.model.assessment import ClassifiedReservation
from agent.model.ranges import IPAddress, Range
from agent.model.report import NetworkSummary, Report
from agent.model.text import format_number

MOST_SINGLE: Final = 512
"""The largest range with one cell per address."""
_BLOCKS: Final = 256
"""The most blocks of a larger range, plus or minus a row; a grid of more cells has wider rows."""


class Look(NamedTuple):
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
"""By mark: the state of a reservation, or what an address without one is. The least severe comes first."""
_WEIGHT: Final = {mark: weight for weight, mark in enumerate(LOOKS)}


def by_weight(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    """Return counts, the most severe mark first."""
    return sorted(counts.items(), key=lambda item: _WEIGHT[item[0]], reverse=True)


class Cell(NamedTuple):
    first: IPAddress
    last: IPAddress
    counts: Counter[str]
    """Addresses by mark."""
    entry: ClassifiedReservation | None = None
    """The reservation, where the cell is one address."""

    @property
    def mark(self) -> str:
        return max(self.counts, key=_WEIGHT.__getitem__)

    def __str__(self) -> str:
        return str(self.first) if self.first == self.last else f"{self.first}-{self.last}"


class RangeMap(NamedTuple):
    range: Range
    block: int
    """Addresses in a cell."""
    columns: int
    """Cells in a row. A row begins at a multiple of them, so that a column always has the same last bits."""
    rows: Mapping[IPAddress, tuple[Cell | None, ...]]
    """By the address of the first column, which in the first row may lie before the range. None: outside the range."""
    rest: Cell | None
    """Everything after the rows, in one cell; None: nothing."""

    @property
    def counts(self) -> Counter[str]:
        cells = (*chain.from_iterable(self.rows.values()), self.rest)
        return sum((cell.counts for cell in cells if cell), Counter[str]())

    @property
    def rule(self) -> Iterator[str]:
        block = f"{format_number(self.block)} addresses, marked by the most severe"
        yield f"One cell per {'address' if self.block == 1 else block}."
        if self.rest is not None:
            what = "unavailable" if "unavailable" in self.rest.counts else "free"
            yield f"The last cell is the rest: {format_number(self.rest.counts.total())} addresses, {what}."


class NetworkMap(NamedTuple):
    network: NetworkSummary
    maps: tuple[RangeMap, ...]
    elsewhere: list[ClassifiedReservation]
    """Entries outside the ranges, by name."""

    @property
    def counts(self) -> Counter[str]:
        elsewhere = Counter(entry.state.value for entry in self.elsewhere)
        return sum((range_map.counts for range_map in self.maps), elsewhere)


def network_maps(report: Report) -> Iterator[NetworkMap]:
    for network in report.networks:
        mine = [entry for entry in report.assessment.reservations if entry.network == network.name]
        taken = {ip_address(entry.name): entry for entry in mine if entry.blocks}
        ranges = list(chain.from_iterable(network.ranges or ()))
        maps = tuple(_lay_out(each, taken, available=network.states is not None) for each in ranges)
        yield NetworkMap(
            network, maps, sorted_reservations(entry for entry in mine if not _is_in(entry, ranges))
        )


def _is_in(entry: ClassifiedReservation, ranges: Iterable[Range]) -> bool:
    return entry.blocks and any(ip_address(entry.name) in each for each in ranges)


def _lay_out(
    of: Range, taken: Mapping[IPAddress, ClassifiedReservation], *, available: bool
) -> RangeMap:
    """Lay out one range. `taken`: reservations, of this range or not; `available`: whether they are known at all."""
    mine = {int(ip): entry for ip, entry in taken.items() if ip in of}
    numbers, (first, last) = sorted(mine), (int(of.first), int(of.last))
    block, columns, end = _measure(first, last, max(mine, default=first))
    address, width = type(of.first), block * columns

    def cell(low: int, high: int) -> Cell | None:
        low, high = max(low, first), min(high, last)
        if low > high:
            return None
        entries = [
            mine[n] for n in numbers[bisect_left(numbers, low) : bisect_left(numbers, high + 1)]
        ]
        counts = Counter(entry.state.value for entry in entries)
        if low <= int(of.gateway) <= high and int(of.gateway) not in mine:
            counts["gateway"] = 1
        if left := high - low + 1 - counts.total():
            counts["free" if available else "unavailable"] = left
        return Cell(
            address(low), address(high), counts, entries[0] if entries and low == high else None
        )

    rows = {
        address(start): tuple(
            cell(low, min(low + block - 1, end)) for low in range(start, start + width, block)
        )
        for start in range(first - first % width, end + 1, width)
    }
    return RangeMap(of, block, columns, rows, cell(end + 1, last))


def _measure(first: int, last: int, highest: int) -> tuple[int, int, int]:
    """Return the addresses of a cell, the cells of a row, and the last address laid out."""
    size, used = last - first + 1, highest - first + 1
    if size <= MOST_SINGLE:
        return 1, _columns(size), last
    block = 1 if used <= MOST_SINGLE else 1 << ((used - 1) // _BLOCKS).bit_length()
    columns = _columns(used // block)
    # Whole rows; where little is used, the first 256 cells.
    width = block * columns
    return (
        block,
        columns,
        min(last, max(highest | (width - 1), first - first % width + _BLOCKS * block - 1)),
    )


def _columns(cells: int) -> int:
    return 16 if cells <= _BLOCKS else 32
