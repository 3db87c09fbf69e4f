"""Lines and columns of text for a terminal, and the tables of addresses that scan and clean show."""

import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from functools import wraps
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final, NamedTuple, ParamSpec, TypeAlias

from agent.exporters.release_commands import ON_NODE
from agent.model.ranges import numbered
from agent.model.text import escape, format_age

if TYPE_CHECKING:  # `status` needs no detector
    from agent.checks.detector import Step

_P = ParamSpec("_P")

WIDTH: Final = 100
"""Longer lines of prose are hard to read. Tables are as wide as the terminal."""
WHOLE_WORDS: Final[dict[str, Any]] = {"break_long_words": False, "break_on_hyphens": False}
_UNBROKEN: Final = re.compile(r"`[^`]*`|\d{4}-\d\d-\d\d \d\d:")
"""Commands and times, which stay on one line."""

_FLEXIBLE: Final = {"CAUSE", "POD", "RESOURCE", "SOCKET", "STATES", "WHY"}
"""Columns that are shortened on a narrow terminal."""
_SHORTEST: Final = 8
"""Characters that are left of them."""
AddressRow: TypeAlias = dict[str, Any]
"""One of the `reservations` in the document of scan, or of the `addresses` in that of clean."""
_HEADS: Final = {
    "ip": "ADDRESS",
    "age_seconds": "AGE",
    "container_id": "CONTAINER",
    "entry": "JOURNAL ENTRY",
}
"""Of the other columns, the key is the head."""


def as_text(lines: Callable[_P, Iterable[str]]) -> Callable[_P, str]:
    """Let a function that yields lines return their text, with control characters escaped."""

    @wraps(lines)
    def text(*args: _P.args, **more: _P.kwargs) -> str:
        return "".join(f"{escape(line)}\n" for line in lines(*args, **more))

    return text


def section(lines: Iterable[str], *head: str) -> Iterator[str]:
    """Write lines below an empty line and a head, if there are any."""
    if listed := list(lines):
        yield from ("", *head, *listed)


def fill(text: str, columns: int | None = None, *, first: str = "", rest: str = "") -> list[str]:
    """Break prose into lines that fit a terminal. `first`, `rest`: what the first line and the others begin with."""
    if columns is None:
        return [f"{first}{escape(text)}"]
    joined = _UNBROKEN.sub(lambda found: found[0].replace(" ", "\N{NO-BREAK SPACE}"), escape(text))
    lines = textwrap.wrap(
        joined, min(columns, WIDTH), initial_indent=first, subsequent_indent=rest, **WHOLE_WORDS
    )
    return [line.replace("\N{NO-BREAK SPACE}", " ") for line in lines]


def fill_each(
    texts: Iterable[str], columns: int | None = None, *, indent: str = "  "
) -> Iterator[str]:
    return (
        line for text in texts for line in fill(text, columns, first=indent, rest=f"{indent}  ")
    )


def numbered_steps(steps: "Iterable[Step]", columns: int | None) -> Iterator[str]:
    for number, step in enumerate(steps, 1):
        if number == 1:
            yield "  Do:"
        yield from fill(step.text, columns, first=f"    {number}. ", rest="       ")
        yield from (f"         {command}" for command in step.commands)


def explain(words: Iterable[str], head: str, *first: str, indent: str = "  ") -> Iterator[str]:
    """Write the commands that explain these words, after `first`."""
    lines = (*first, *(f"nodeleak explain {word}" for word in dict.fromkeys(words)))
    yield from (f"{indent}{head}", *(f"{indent}  {line}" for line in lines))


def by_reason(unavailable: Iterable[Mapping[str, str]]) -> Iterator[str]:
    """List each reason with its sources: if a server does not answer, all that it would have said is missing."""
    sources: dict[str, list[str]] = {}
    for source in unavailable:
        sources.setdefault(source["why"], []).append(source["source"])
    return (f"{', '.join(names)}: {why}" for why, names in sources.items())


def what_to_do(
    unavailable: Sequence[Mapping[str, str]], columns: int | None = None
) -> Iterator[str]:
    yield from fill_each(by_reason(unavailable), columns)
    if unavailable:
        yield from explain((source["source"] for source in unavailable), "Do:")


def refer(text: str, unavailable: Iterable[Mapping[str, str]]) -> str:
    """Write only the name of a source where a text repeats why it is unavailable."""
    for source in unavailable:
        text = text.replace(f"{source['source']}: {source['why']}", f"needs {source['source']}")
    return text


def table(
    heads: Sequence[str], rows: Sequence[Sequence[str]], columns: int | None = None
) -> Iterator[str]:
    """Align a table, without the columns that have no value in any row."""
    kept = [n for n in range(len(heads)) if any(row[n] for row in rows)]
    filled = ([row[n] or ("-" if n != kept[-1] else "") for n in kept] for row in rows)
    return grid([[heads[n] for n in kept], *filled], columns)


def grid(rows: Sequence[Sequence[str]], columns: int | None = None) -> Iterator[str]:
    """Align columns; the last one has no width. `columns`: of the terminal; None: there is none, and nothing is cut."""
    printable = [[escape(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*printable, strict=True)]
    if columns is not None:
        _shrink(widths, [n for n, head in enumerate(rows[0]) if head in _FLEXIBLE], columns)
    for row in printable:
        cells = (_cut(cell, width).ljust(width) for cell, width in zip(row, widths, strict=True))
        yield _cut("  ".join(cells).rstrip(), columns)


def _shrink(widths: list[int], flexible: Sequence[int], columns: int) -> None:
    while sum(widths) + 2 * (len(widths) - 1) > columns and any(
        widths[n] > _SHORTEST for n in flexible
    ):
        widths[max(flexible, key=widths.__getitem__)] -= 1


def _cut(text: str, width: int | None) -> str:
    return text if width is None or len(text) <= width else f"{text[: width - 1]}…"


class TableView(NamedTuple):
    sort_by: str = "ip"
    wide: bool = False
    """Every row and column, and IDs in full."""
    columns: int | None = None
    """Of the terminal, which the lines fit; None: nothing is cut."""
    release: tuple[str, ...] = ON_NODE
    """The commands that release addresses here."""


def sorted_rows(rows: Iterable[AddressRow], sort_by: str) -> list[AddressRow]:
    """Sort rows that are in the order of addresses: the oldest first, and what is not known last."""
    if sort_by == "age":
        return sorted(
            rows, key=lambda row: (row["age_seconds"] is None, -(row["age_seconds"] or 0))
        )
    return (
        list(rows)
        if sort_by == "ip"
        else sorted(rows, key=lambda row: (not row[sort_by], row[sort_by] or ""))
    )


def grouped(rows: Iterable[AddressRow]) -> list[AddressRow]:
    """Make one row, with the age of the oldest, of consecutive addresses that have the same cause and verdict."""

    def run(item: tuple[int, AddressRow]) -> tuple[object, ...]:
        index, row = item
        return numbered(row["ip"])[1] - index, row["network"], row["cause"], row["verdict"]

    return [_as_one([row for _, row in group]) for _, group in groupby(enumerate(rows), run)]


def _as_one(rows: Sequence[AddressRow]) -> AddressRow:
    first, last, count = rows[0], rows[-1], len(rows)
    same = {
        key: value if all(row[key] == value for row in rows) else "…"
        for key, value in first.items()
    }
    ip = first["ip"] if count == 1 else f"{first['ip']} to {last['ip']} ({count})"
    return {**same, "ip": ip, "age_seconds": max(row["age_seconds"] for row in rows)}


def address_table(
    keys: Sequence[str], rows: Iterable[AddressRow], columns: int | None
) -> Iterator[str]:
    heads = [_HEADS.get(key, key.upper()) for key in keys]
    return table(heads, [[_cell(key, row[key]) for key in keys] for row in rows], columns)


def _cell(key: str, value: Any) -> str:
    if key == "age_seconds":
        return "" if value is None else format_age(timedelta(seconds=value))
    return value or ("-" if key == "pod" else "")


def name_lines(rows: Iterable[AddressRow]) -> str:
    return "".join(f"{escape(row['network'])}/{escape(row['ip'])}\n" for row in rows)
