"""A network's range as a grid of cells, for text and page. Pure.

A range of up to 512 addresses has a cell for each. A larger one is laid out up to its highest reserved address, in at
most 256 blocks of one size where that is more than 512 addresses; the rest is a single last cell. A block has the mark
of its most severe address.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from ipaddress import IPv4Address, IPv6Address, ip_address
from itertools import chain
from typing import Final

from agent.exporters.order import sorted_reservations
from agent.model.assessment import ClassifiedReservation
from agent.model.ranges import IPAddress, Range
from agent.model.report import NetworkSummary, Report
from agent.model.text import format_number

MOST_SINGLE: Final = 512
"""The largest range with one cell per address."""
_BLOCKS: Final = 256
"""The most blocks of a larger range, plus or minus a row; a grid of more cells has wider rows."""


class Mark(StrEnum):
    """How an address is shown: the states of reservations, and addresses without one. The least severe comes first."""

    FREE = "free"
    GATEWAY = "gateway"
    IN_USE = "in_use"
    NOT_READY = "not_ready"
    TEARDOWN_PENDING = "teardown_pending"
    CANDIDATE = "candidate"
    UNRECOGNIZED = "unrecognized"
    UNMANAGED = "unmanaged"
    UNAVAILABLE = "unavailable"
    UNKNOWN = "unknown"
    LEAKED = "leaked"


WEIGHT: Final = {mark: weight for weight, mark in enumerate(Mark)}
MARK_LABELS: Final = {
    Mark.FREE: "free",
    Mark.GATEWAY: "gateway",
    Mark.IN_USE: "in use",
    Mark.NOT_READY: "not ready: its sandbox is not running",
    Mark.TEARDOWN_PENDING: "teardown pending: the kubelet will release it",
    Mark.CANDIDATE: "candidate: no owner, not confirmed yet",
    Mark.UNRECOGNIZED: "unrecognized: not a reservation of host-local",
    Mark.UNMANAGED: "unmanaged: in use, unknown to the runtime",
    Mark.UNAVAILABLE: "unavailable: may be reserved or free",
    Mark.UNKNOWN: "reserved, owner unknown",
    Mark.LEAKED: "leaked",
}


@dataclass(frozen=True, slots=True)
class Cell:
    """One address, or a block of them."""

    first: IPAddress
    last: IPAddress
    counts: Mapping[Mark, int]
    classified: ClassifiedReservation | None = None
    """The reservation, where the cell is one address."""

    @property
    def mark(self) -> Mark:
        return max(self.counts, key=WEIGHT.__getitem__)

    @property
    def size(self) -> int:
        return int(self.last) - int(self.first) + 1

    def __str__(self) -> str:
        return str(self.first) if self.size == 1 else f"{self.first}-{self.last}"


@dataclass(frozen=True, slots=True)
class Row:
    first: IPAddress
    """The address of the first column; in a range's first row it may lie before the range."""
    cells: tuple[Cell | None, ...]
    """None: outside the range."""


@dataclass(frozen=True, slots=True)
class RangeMap:
    range: Range
    block: int
    """Addresses in a cell."""
    columns: int
    """Cells in a row. A row begins at a multiple of them, so that a column always has the same last bits."""
    rows: tuple[Row, ...]
    rest: Cell | None
    """Everything after the rows, in one cell; None: nothing."""

    @property
    def cells(self) -> Iterator[Cell]:
        yield from (cell for row in self.rows for cell in row.cells if cell is not None)
        if self.rest is not None:
            yield self.rest

    @property
    def rule(self) -> Iterator[str]:
        """Say what a cell is, in sentences."""
        yield (
            "One cell per address."
            if self.block == 1
            else f"One cell per {format_number(self.block)} addresses, marked by the most severe."
        )
        if self.rest is not None:
            what = "unavailable" if Mark.UNAVAILABLE in self.rest.counts else "free"
            yield f"The last cell is the rest: {format_number(self.rest.size)} addresses, {what}."


@dataclass(frozen=True, slots=True)
class NetworkMap:
    network: str
    maps: tuple[RangeMap, ...] | None
    """One for each range; None: ranges unknown."""
    elsewhere: tuple[ClassifiedReservation, ...]
    """Entries outside the ranges, by name."""
    available: bool
    """Whether the reservations could be read."""
    not_in_use: str = ""
    """Why there is nothing to draw; empty: there is."""

    @property
    def counts(self) -> Counter[Mark]:
        """Count addresses of all ranges, and entries elsewhere, by mark."""
        counted = Counter(mark_of(one) for one in self.elsewhere)
        for one in self.maps or ():
            for cell in one.cells:
                counted.update(cell.counts)
        return counted


def mark_of(classified: ClassifiedReservation) -> Mark:
    return Mark(classified.state.value)


def network_maps(report: Report) -> tuple[NetworkMap, ...]:
    return tuple(_network(network, report) for network in report.networks)


def _network(network: NetworkSummary, report: Report) -> NetworkMap:
    mine = [one for one in report.assessment.reservations if one.network == network.name]
    taken = {ip_address(one.name): one for one in mine if one.blocks}
    available = network.states is not None
    ranges = list(chain.from_iterable(network.ranges or ()))
    maps = tuple(lay_out(one, taken, available=available) for one in ranges)
    return NetworkMap(
        network=network.name,
        maps=None if network.ranges is None else maps,
        elsewhere=tuple(sorted_reservations(one for one in mine if not _lies_in(one, ranges))),
        available=available,
        not_in_use=network.not_in_use,
    )


def _lies_in(one: ClassifiedReservation, ranges: Iterable[Range]) -> bool:
    return one.blocks and any(ip_address(one.name) in inside for inside in ranges)


def lay_out(one: Range, taken: Mapping[IPAddress, ClassifiedReservation], *, available: bool) -> RangeMap:
    """Lay out one range. `taken`: reservations, of this range or not; `available`: whether they are known at all."""
    mine = {int(ip): classified for ip, classified in taken.items() if ip in one}
    first, last = int(one.first), int(one.last)
    block, columns, end = _measure(first, last, max(mine, default=first))
    width = block * columns
    in_block: dict[int, list[int]] = {}
    for number in mine:
        in_block.setdefault(number // block, []).append(number)

    def cell(low: int) -> Cell | None:
        inside = max(low, first), min(low + block - 1, end)
        if inside[0] > inside[1]:
            return None
        taken_here = [mine[number] for number in in_block.get(low // block, ())]
        return _cell(one, *inside, taken_here, available=available)

    rows = tuple(
        Row(_address(start, one), tuple(cell(low) for low in range(start, start + width, block)))
        for start in range(first - first % width, end + 1, width)
    )
    rest = _cell(one, end + 1, last, [], available=available) if end < last else None
    return RangeMap(one, block, columns, rows, rest)


def _measure(first: int, last: int, highest: int) -> tuple[int, int, int]:
    """Return the addresses of a cell, the cells of a row, and the last address laid out."""
    block, columns, end = 1, _columns(last - first + 1), last
    if last - first >= MOST_SINGLE:
        used = highest - first + 1
        if used > MOST_SINGLE:
            block = 1 << ((used - 1) // _BLOCKS).bit_length()
        columns = _columns(used // block)
        # Whole rows; where little is used, the first 256 cells.
        width = block * columns
        end = min(last, max(highest | (width - 1), first - first % width + _BLOCKS * block - 1))
    return block, columns, end


def _columns(cells: int) -> int:
    return 16 if cells <= _BLOCKS else 32


def _cell(one: Range, low: int, high: int, taken: list[ClassifiedReservation], *, available: bool) -> Cell:
    size = high - low + 1
    counts = Counter(map(mark_of, taken))
    if low <= int(one.gateway) <= high and all(classified.name != str(one.gateway) for classified in taken):
        counts[Mark.GATEWAY] = 1
    if left := size - counts.total():
        counts[Mark.FREE if available else Mark.UNAVAILABLE] = left
    only = taken[0] if size == 1 and taken else None
    return Cell(_address(low, one), _address(high, one), counts, only)


def _address(number: int, like: Range) -> IPAddress:
    return IPv4Address(number) if like.first.version == 4 else IPv6Address(number)  # noqa: PLR2004 (the family)
