"""The map of the page, as plain values: words, and the places of cells in a drawing."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from os.path import commonprefix
from typing import Final

from agent.checks.addresses.classify import made_at
from agent.exporters.json.scan import in_order
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
from agent.exporters.text.map import LETTERS
from agent.exporters.text.scan import escape
from agent.model.assessment import ClassifiedReservation, State
from agent.model.report import NetworkSummary, Report
from agent.model.snapshot import Reservation

LONGEST_LIST: Final = 1000
"""Rows of a table: the page is bounded, and `-o json` is not."""
_PITCH: Final = 22
"""From one cell to the next, in the units of the drawing; a cell is two less."""
_DIGIT: Final = 6
"""How wide a character of a row's label is."""
_SILENT_LETTERS: Final = frozenset({Mark.IN_USE, Mark.UNAVAILABLE})
"""Marks that are a plain or a hatched square; the others have their letter on it."""


@dataclass(frozen=True, slots=True)
class Marker:
    """How a mark is shown wherever it is: a colour or a pattern, by its name, and a letter."""

    name: str
    letter: str
    words: str
    count: str = ""


@dataclass(frozen=True, slots=True)
class Square:
    x: int
    y: int
    sign: Marker
    title: str


@dataclass(frozen=True, slots=True)
class Label:
    y: int
    text: str


@dataclass(frozen=True, slots=True)
class Drawing:
    """One range, laid out in units of its own."""

    name: str
    summary: str
    rule: tuple[str, ...]
    width: int
    height: int
    left: int
    """Where the first column begins."""
    labels: tuple[Label, ...]
    squares: tuple[Square, ...]
    rest: Square | None


@dataclass(frozen=True, slots=True)
class Entry:
    ip: str
    sign: Marker
    state: str
    pod: str
    age: str
    why: str


@dataclass(frozen=True, slots=True)
class Listing:
    rows: tuple[Entry, ...]
    total: int
    """How many there are, should they be more than the rows."""


@dataclass(frozen=True, slots=True)
class Network:
    name: str
    read: bool
    figures: tuple[tuple[str, str], ...]
    drawings: tuple[Drawing, ...] | None
    elsewhere: Listing
    legend: tuple[Marker, ...]
    odd: Listing
    """What is not plainly in use."""
    entries: Listing


def networks(report: Report) -> tuple[Network, ...]:
    return tuple(_network(one, drawn, report) for one, drawn in zip(report.networks, network_maps(report), strict=True))


def _network(network: NetworkSummary, drawn: NetworkMap, report: Report) -> Network:
    mine = [one for one in in_order(report.assessment.classified_reservations) if one.network == network.name]
    return Network(
        name=network.name,
        read=drawn.read,
        figures=(
            ("usable", _number(network.usable)),
            ("reserved", _number(network.reserved)),
            ("free", _number(network.free)),
        ),
        drawings=None if drawn.maps is None else tuple(_drawing(one, report) for one in drawn.maps),
        elsewhere=_listing(drawn.elsewhere, report),
        legend=tuple(_legend(drawn.counts)),
        odd=_listing([one for one in mine if one.state is not State.IN_USE], report),
        entries=_listing(mine, report),
    )


def _listing(classified_reservations: Sequence[ClassifiedReservation], report: Report) -> Listing:
    return Listing(
        tuple(_entry(one, report) for one in classified_reservations[:LONGEST_LIST]), len(classified_reservations)
    )


def _legend(counts: Counter[Mark]) -> Iterator[Marker]:
    for mark in sorted(counts, key=WEIGHT.__getitem__, reverse=True):
        yield _sign(mark, in_figures(counts[mark]))


def _sign(mark: Mark, count: str = "") -> Marker:
    return Marker(mark.value, "" if mark in _SILENT_LETTERS else LETTERS[mark], IN_WORDS[mark], count)


def _drawing(one: RangeMap, report: Report) -> Drawing:
    names = _short([str(row.first) for row in one.rows])
    left = max(map(len, names)) * _DIGIT + 8
    counted: Counter[Mark] = Counter()
    for cell in one.cells:
        counted.update(cell.counts)
    rows = len(one.rows)
    return Drawing(
        name=str(one.range),
        summary=_in_words(counted),
        rule=tuple(one.rule),
        width=left + one.columns * _PITCH,
        height=(rows + (one.rest is not None)) * _PITCH,
        left=left,
        labels=tuple(Label(y * _PITCH, name) for y, name in enumerate(names)),
        squares=tuple(
            Square(left + x * _PITCH, y * _PITCH, _sign(cell.mark), _title(cell, report))
            for y, row in enumerate(one.rows)
            for x, cell in _present(row)
        ),
        rest=None if one.rest is None else Square(left, rows * _PITCH, _sign(one.rest.mark), _title(one.rest, report)),
    )


def _present(row: Row) -> Iterator[tuple[int, Cell]]:
    return ((x, cell) for x, cell in enumerate(row.cells) if cell is not None)


def _short(names: list[str]) -> list[str]:
    """Leave out of addresses what all have in common; the range's name says it."""
    common = commonprefix(names)  # noqa: RUF071 (they are no paths)
    keep = max(common.rfind("."), common.rfind(":"))
    return names if keep < 0 else [f"{name[keep:]}{'' if name[keep + 1 :] else '0'}" for name in names]


def _title(cell: Cell, report: Report) -> str:
    if cell.classified is None:
        return f"{cell}: {_in_words(cell.counts)}"
    entry = _entry(cell.classified, report)
    lines = (f"{cell}: {IN_WORDS[cell.mark]}", entry.pod, entry.age and f"reserved {entry.age} ago", entry.why)
    return "\n".join(filter(None, lines))


def _in_words(counts: Mapping[Mark, int]) -> str:
    """Tell counts, the weightiest first; of one address only what it is."""
    listed = sorted(counts.items(), key=lambda item: WEIGHT[item[0]], reverse=True)
    if sum(counts.values()) == 1:
        return IN_WORDS[listed[0][0]]
    return ", ".join(f"{in_figures(n)} {IN_WORDS[mark]}" for mark, n in listed)


def _entry(classified: ClassifiedReservation, report: Report) -> Entry:
    entry = classified.entry
    age = report.assessment.snapshot.taken_at - made_at(entry) if isinstance(entry, Reservation) else None
    return Entry(
        ip=escape(classified.name),
        sign=_sign(mark_of(classified)),
        state=classified.state.value,
        pod=escape(classified.pod),
        age="" if age is None else in_short(age),
        why=escape(classified.why),
    )


def in_short(span: timedelta) -> str:
    """Write a span as `kubectl` does: the greatest unit, or two where the first is small."""
    seconds = int(span.total_seconds())
    if seconds < 0:
        return f"-{in_short(-span)}"
    for unit, name, less, smaller in (
        (86400, "d", 3600, "h"),
        (3600, "h", 60, "m"),
        (60, "m", 1, "s"),
    ):
        if seconds >= unit:
            whole, left = divmod(seconds, unit)
            return f"{whole}{name}{left // less}{smaller}" if whole < 10 and left >= less else f"{whole}{name}"  # noqa: PLR2004 (a digit)
    return f"{seconds}s"


def _number(value: int | None) -> str:
    return "?" if value is None else in_figures(value)
