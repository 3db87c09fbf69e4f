"""The map of the page as plain values: texts, and positions of cells."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os.path import commonprefix
from typing import Final

from agent.exporters.order import sorted_reservations
from agent.exporters.range_map import MARK_LABELS, WEIGHT, Cell, Mark, NetworkMap, RangeMap, mark_of, network_maps
from agent.exporters.text.map import LETTERS
from agent.model.assessment import ClassifiedReservation, State
from agent.model.report import NetworkSummary, Report
from agent.model.snapshot import Reservation
from agent.model.text import escape, format_age, format_number

MAX_LISTED: Final = 1000
"""Rows of the tables of all networks, of each kind: the page is bounded, `-o json` is not."""
_PITCH: Final = 22
"""From one cell to the next, in units of the drawing; a cell is two less."""
_DIGIT: Final = 6
"""Width of a character of a row's label."""
_WITHOUT_LETTER: Final = frozenset({Mark.IN_USE, Mark.UNAVAILABLE})
"""Marks that are a plain or hatched square; the others have their letter on it."""


@dataclass(frozen=True, slots=True)
class Marker:
    """How a mark is shown: a color or a pattern, by its name, and a letter."""

    name: str
    letter: str
    label: str
    count: str = ""


@dataclass(frozen=True, slots=True)
class Square:
    x: int
    y: int
    marker: Marker
    title: str


@dataclass(frozen=True, slots=True)
class Label:
    y: int
    text: str


@dataclass(frozen=True, slots=True)
class Drawing:
    """One range, in units of its own."""

    name: str
    summary: str
    rule: tuple[str, ...]
    width: int
    height: int
    left: int
    """Where the first column starts."""
    labels: tuple[Label, ...]
    squares: tuple[Square, ...]
    rest: Square | None


@dataclass(frozen=True, slots=True)
class AddressEntry:
    ip: str
    marker: Marker
    state: str
    pod: str
    age: str
    why: str


@dataclass(frozen=True, slots=True)
class Listing:
    rows: tuple[AddressEntry, ...]
    total: int
    """Including those that are not listed."""


@dataclass(frozen=True, slots=True)
class NetworkSection:
    name: str
    available: bool
    not_in_use: str
    figures: tuple[tuple[str, str], ...]
    drawings: tuple[Drawing, ...] | None
    elsewhere: Listing
    legend: tuple[Marker, ...]
    other: Listing
    """The entries that are not in use."""
    entries: Listing


def map_networks(report: Report) -> tuple[NetworkSection, ...]:
    entries: defaultdict[str, list[ClassifiedReservation]] = defaultdict(list)
    for one in sorted_reservations(report.assessment.reservations):
        entries[one.network].append(one)
    return tuple(
        _network(one, laid_out, entries[one.name], report)
        for one, laid_out in zip(report.networks, network_maps(report), strict=True)
    )


def _network(
    network: NetworkSummary, laid_out: NetworkMap, mine: Sequence[ClassifiedReservation], report: Report
) -> NetworkSection:
    return NetworkSection(
        name=escape(network.name),
        available=laid_out.available,
        not_in_use=escape(network.not_in_use),
        figures=(
            ("usable", format_number(network.usable)),
            ("reserved", format_number(network.reserved)),
            ("free", format_number(network.free)),
        ),
        drawings=None if laid_out.maps is None else tuple(_drawing(one, report) for one in laid_out.maps),
        elsewhere=_listing(laid_out.elsewhere, report),
        legend=tuple(
            _marker(mark, format_number(laid_out.counts[mark]))
            for mark in sorted(laid_out.counts, key=WEIGHT.__getitem__, reverse=True)
        ),
        other=_listing([one for one in mine if one.state is not State.IN_USE], report),
        entries=_listing(mine, report),
    )


def _listing(entries: Sequence[ClassifiedReservation], report: Report) -> Listing:
    most = max(1, MAX_LISTED // len(report.networks))
    return Listing(tuple(_entry(one, report) for one in entries[:most]), len(entries))


def _marker(mark: Mark, count: str = "") -> Marker:
    return Marker(mark.value, "" if mark in _WITHOUT_LETTER else LETTERS[mark], MARK_LABELS[mark], count)


def _drawing(one: RangeMap, report: Report) -> Drawing:
    names = _row_labels([str(row.first) for row in one.rows])
    left = max(map(len, names)) * _DIGIT + 8
    counts: Counter[Mark] = Counter()
    for cell in one.cells:
        counts.update(cell.counts)
    rows = len(one.rows)
    return Drawing(
        name=str(one.range),
        summary=_summary(counts),
        rule=tuple(one.rule),
        width=left + one.columns * _PITCH,
        height=(rows + (one.rest is not None)) * _PITCH,
        left=left,
        labels=tuple(Label(y * _PITCH, name) for y, name in enumerate(names)),
        squares=tuple(
            Square(left + x * _PITCH, y * _PITCH, _marker(cell.mark), _title(cell, report))
            for y, row in enumerate(one.rows)
            for x, cell in enumerate(row.cells)
            if cell is not None
        ),
        rest=None
        if one.rest is None
        else Square(left, rows * _PITCH, _marker(one.rest.mark), _title(one.rest, report)),
    )


def _row_labels(names: list[str]) -> list[str]:
    """Shorten addresses by what all have in common: the range's name says it."""
    common = commonprefix(names)  # noqa: RUF071 (not paths)
    keep = max(common.rfind("."), common.rfind(":"))
    return names if keep < 0 else [f"{name[keep:]}{'' if name[keep + 1 :] else '0'}" for name in names]


def _title(cell: Cell, report: Report) -> str:
    if cell.classified is None:
        return f"{cell}: {_summary(cell.counts)}"
    entry = _entry(cell.classified, report)
    lines = (f"{cell}: {MARK_LABELS[cell.mark]}", entry.pod, entry.age and f"reserved {entry.age} ago", entry.why)
    return "\n".join(filter(None, lines))


def _summary(counts: Mapping[Mark, int]) -> str:
    """List counts, the most severe mark first; of one address only its label."""
    listed = sorted(counts.items(), key=lambda item: WEIGHT[item[0]], reverse=True)
    if sum(counts.values()) == 1:
        return MARK_LABELS[listed[0][0]]
    return ", ".join(f"{format_number(n)} {MARK_LABELS[mark]}" for mark, n in listed)


def _entry(classified: ClassifiedReservation, report: Report) -> AddressEntry:
    entry = classified.entry
    age = report.assessment.snapshot.taken_at - entry.mtime if isinstance(entry, Reservation) else None
    return AddressEntry(
        ip=escape(classified.name),
        marker=_marker(mark_of(classified)),
        state=classified.state.value,
        pod=escape(classified.pod),
        age="" if age is None else format_age(age),
        why=escape(classified.why),
    )
