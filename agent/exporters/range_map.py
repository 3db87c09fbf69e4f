"""A network's range as a grid of cells, for whoever draws it. Pure, and judges nothing.

A range of up to 512 addresses has a cell for each. Of a larger one, only what lies up to its highest reserved address
is laid out, in at most 256 blocks of one size where it is more than 512 addresses; the rest is a single last cell.
A block is shown by the weightiest of its addresses.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final

from agent.model.assessment import ClassifiedReservation
from agent.model.ranges import IPAddress, Range
from agent.model.report import NetworkSummary, Report

MOST_SINGLE: Final = 512
"""The largest range of which every address has its own cell."""
_BLOCKS: Final = 256
"""How many blocks a larger one has at most, give or take a row; and a grid of more cells has wider rows."""
_LEGIBLE: Final = 10**9


class Mark(StrEnum):
    """What an address is shown as: the states of reservations, and what has none. The lightest comes first."""

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
IN_WORDS: Final = {
    Mark.FREE: "free",
    Mark.GATEWAY: "gateway, never given out",
    Mark.IN_USE: "in use",
    Mark.NOT_READY: "held by a container that does not run",
    Mark.TEARDOWN_PENDING: "waits for the kubelet to release it",
    Mark.CANDIDATE: "no owner, but too young to judge",
    Mark.UNRECOGNIZED: "not host-local's",
    Mark.UNMANAGED: "in use, though its container is gone",
    Mark.UNAVAILABLE: "not read: may be anything",
    Mark.UNKNOWN: "reserved; whose is not known",
    Mark.LEAKED: "leaked",
}


@dataclass(frozen=True, slots=True)
class Cell:
    """One address, or a block of them."""

    first: IPAddress
    last: IPAddress
    counts: Mapping[Mark, int]
    classified: ClassifiedReservation | None = None
    """What is reserved there, where it is one address."""

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
    """The address its first column stands for; in a range's first row it may lie before the range."""
    cells: tuple[Cell | None, ...]
    """None: outside the range."""


@dataclass(frozen=True, slots=True)
class RangeMap:
    range: Range
    block: int
    """How many addresses a cell stands for."""
    columns: int
    """Cells in a row. A row begins at a multiple of them, so that a column is always the same last bits."""
    rows: tuple[Row, ...]
    rest: Cell | None
    """All that lies behind the rows, in one cell; None: nothing does."""

    @property
    def cells(self) -> Iterator[Cell]:
        yield from (cell for row in self.rows for cell in row.cells if cell is not None)
        if self.rest is not None:
            yield self.rest

    @property
    def rule(self) -> Iterator[str]:
        """Say what a cell is, a sentence each."""
        yield (
            "One cell an address."
            if self.block == 1
            else f"A cell is {in_figures(self.block)} addresses, shown by the worst."
        )
        if self.rest is not None:
            what = "were not read" if Mark.UNAVAILABLE in self.rest.counts else "are free"
            yield f"The last cell is the rest: {in_figures(self.rest.size)} addresses, which {what}."


def in_figures(count: int) -> str:
    """Write a number of addresses; IPv6 has more than anybody reads."""
    return f"{count:,}" if count < _LEGIBLE else f"{count:.1e}"


@dataclass(frozen=True, slots=True)
class NetworkMap:
    network: str
    maps: tuple[RangeMap, ...] | None
    """One for each range; None: the ranges are not known."""
    elsewhere: tuple[ClassifiedReservation, ...]
    """Entries that lie in none of the ranges, by name."""
    read: bool
    """Whether its reservations were read."""

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
    """Lay out every network of a report."""
    return tuple(_network(network, report) for network in report.networks)


def _network(network: NetworkSummary, report: Report) -> NetworkMap:
    mine = [one for one in report.assessment.classified_reservations if one.network == network.name]
    taken = {ip_address(one.name): one for one in mine if one.blocks}
    read = network.states is not None
    ranges = None if network.ranges is None else [one for ranges in network.ranges for one in ranges]
    outside = (one for ip, one in taken.items() if not any(ip in one_range for one_range in ranges or ()))
    strange = (one for one in mine if not one.blocks)
    return NetworkMap(
        network=network.name,
        maps=None if ranges is None else tuple(lay_out(one, taken, read=read) for one in ranges),
        elsewhere=(*sorted(outside, key=lambda one: _order(one.name)), *sorted(strange, key=lambda one: one.name)),
        read=read,
    )


def _order(ip: str) -> tuple[int, int]:
    address = ip_address(ip)
    return address.version, int(address)


def lay_out(one: Range, taken: Mapping[IPAddress, ClassifiedReservation], *, read: bool) -> RangeMap:
    """Draw one range. `taken`: what is reserved, here or elsewhere; `read`: whether that is known at all."""
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
        return _cell(one, *inside, taken_here, read=read)

    rows = tuple(
        Row(_address(start, one), tuple(cell(low) for low in range(start, start + width, block)))
        for start in range(first - first % width, end + 1, width)
    )
    rest = _cell(one, end + 1, last, [], read=read) if end < last else None
    return RangeMap(one, block, columns, rows, rest)


def _measure(first: int, last: int, highest: int) -> tuple[int, int, int]:
    """Return how many addresses a cell stands for, how many cells a row has, and the last address laid out."""
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


def _cell(one: Range, low: int, high: int, taken: list[ClassifiedReservation], *, read: bool) -> Cell:
    size = high - low + 1
    counts = Counter(map(mark_of, taken))
    if low <= int(one.gateway) <= high and all(classified.name != str(one.gateway) for classified in taken):
        counts[Mark.GATEWAY] = 1
    if left := size - counts.total():
        counts[Mark.FREE if read else Mark.UNAVAILABLE] = left
    only = taken[0] if size == 1 and taken else None
    return Cell(_address(low, one), _address(high, one), counts, only)


def _address(number: int, like: Range) -> IPAddress:
    return IPv4Address(number) if like.first.version == 4 else IPv6Address(number)  # noqa: PLR2004 (the family)
