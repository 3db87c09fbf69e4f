"""Lines and columns of text for a terminal, and the tables of addresses of scan and clean."""

import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from functools import wraps
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final, NamedTuple, ParamSpec, TypeAlias

from agent.exporters.json import Document
from agent.exporters.release_commands import ON_NODE, Release
from agent.model.ranges import numbered
from agent.model.text import escape, format_age

if TYPE_CHECKING:  # `status` needs no detector
    from agent.checks.detector import Step

_P = ParamSpec("_P")

_MAX_WIDTH: Final = 100
"""Longer lines of prose are hard to read, also in a file. Tables are as wide as the terminal."""

_NO_BREAK: Final = "\N{NO-BREAK SPACE}"
_ERRORS: Final = (
    "cni plugin not initialized",
    "connection refused",
    "context deadline exceeded",
    "device or resource busy",
    "file exists",
    "no IP addresses available in range set",
    "no route to host",
    "no space left on device",
    "no such file or directory",
    "permission denied",
    "read-only file system",
    "too many open files",
)
"""The ends of messages of others: what people search for."""

_UNBROKEN: Final = re.compile(
    r"`[^`]*`|'(?:nodeleak|kubectl) [^']*'|\d{4}-\d\d-\d\d \d\d:|[^\s;]+=(?:'[^']*'|\"[^\"]*\")"
    f"|{'|'.join(_ERRORS)}"
)
"""Commands, their quoted options, times and known errors, which stay on one line."""

_YEAR: Final = 365 * 86400  # seconds

_FLEXIBLE: Final = {"CAUSE", "POD", "RESOURCE", "SOCKET", "STATES", "WHY"}
"""Columns that are shortened on a narrow terminal."""

_MIN_WIDTH: Final = 8
"""Characters that are left of them."""

AddressRow: TypeAlias = Document
"""One of the `reservations` in the document of scan, or of the `addresses` in that of clean."""

_HEADS: Final = {
    "ip": "ADDRESS",
    "age_seconds": "RESERVED FOR",
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
    """Yield lines below an empty line and a head; nothing if there are no lines."""
    if listed := list(lines):
        yield from ("", *head, *listed)


def fill(text: str, columns: int | None = None, *, first: str = "", rest: str = "  ") -> list[str]:
    """Break prose into lines that fit a terminal; a command in it stays on one line.

    `columns`: those of the terminal; None: the output goes elsewhere. `first`, `rest`: the
    indentation of the first line, and of the others.
    """
    joined = _UNBROKEN.sub(lambda match: match[0].replace(" ", _NO_BREAK), escape(text))

    lines = textwrap.wrap(
        joined,
        min(columns or _MAX_WIDTH, _MAX_WIDTH),
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [line.replace(_NO_BREAK, " ") for line in lines]


def fill_each(
    texts: Iterable[str], columns: int | None = None, *, indent: str = "  "
) -> Iterator[str]:
    """Yield each text below an indentation, which grows after its first line."""
    for text in texts:
        yield from fill(text, columns, first=indent, rest=f"{indent}  ")


def fill_labeled(label: str, texts: Iterable[str], columns: int | None = None) -> Iterator[str]:
    """Yield each text behind a label, such as `warning`."""
    for text in texts:
        yield from fill(f"{label}: {text}", columns)


def numbered_steps(steps: "Iterable[Step]", columns: int | None) -> Iterator[str]:
    """Yield `Do:` and the steps, each with its commands on lines of their own; nothing without any."""
    for number, step in enumerate(steps, 1):
        if number == 1:
            yield "  Do:"
        yield from fill(step.text, columns, first=f"    {number}. ", rest="       ")
        yield from (f"         {command}" for command in step.commands)


def explain_commands(words: Iterable[str]) -> list[str]:
    """Return the command that explains each word, once."""
    return [f"nodeleak explain {word}" for word in dict.fromkeys(words)]


def command_list(head: str, commands: Iterable[str], indent: str = "  ") -> Iterator[str]:
    """Yield a head and commands to copy, which are never broken."""
    yield f"{indent}{head}"
    yield from (f"{indent}  {command}" for command in commands)


def by_reason(unavailable: Iterable[Document]) -> Iterator[str]:
    """Yield each reason with its sources: several are missing if one server does not answer."""
    sources: dict[str, list[str]] = {}
    for source in unavailable:
        sources.setdefault(source["why"], []).append(source["source"])

    for reason, names in sources.items():
        yield f"{', '.join(names)}: {reason}"


def what_to_do(unavailable: Sequence[Document], columns: int | None) -> Iterator[str]:
    """Yield each reason with its sources, then the commands that explain them."""
    yield from fill_each(by_reason(unavailable), columns)
    if unavailable:
        yield from command_list("Do:", explain_commands(each["source"] for each in unavailable))


def refer(text: str, unavailable: Iterable[Document]) -> str:
    """Write only the name of a source where a text repeats why it is unavailable."""
    for source in unavailable:
        text = text.replace(f"{source['source']}: {source['why']}", f"needs {source['source']}")
    return text


def table(
    heads: Sequence[str], rows: Sequence[Sequence[str]], columns: int | None = None
) -> Iterator[str]:
    """Align a table, without the columns that have no value in any row.

    `columns`: those of the terminal; None: nothing is cut.
    """
    kept = [n for n in range(len(heads)) if any(row[n] for row in rows)]
    aligned = [[heads[n] for n in kept]]
    for row in rows:
        cells = [row[n] or "-" for n in kept]
        # Nothing has to be aligned behind the last column.
        if kept and not row[kept[-1]]:
            cells[-1] = ""
        aligned.append(cells)
    return grid(aligned, columns)


def grid(rows: Sequence[Sequence[str]], columns: int | None = None) -> Iterator[str]:
    """Align columns. `columns`: those of the terminal; None: there is none, and nothing is cut."""
    printable = [[escape(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*printable, strict=True)]
    if columns is not None:
        flexible = [n for n, head in enumerate(rows[0]) if head in _FLEXIBLE]
        _shrink(widths, flexible, columns)

    for row in printable:
        cells = (_cut(cell, width).ljust(width) for cell, width in zip(row, widths, strict=True))
        yield _cut("  ".join(cells).rstrip(), columns)


def _shrink(widths: list[int], flexible: Sequence[int], columns: int) -> None:
    """Take characters from the widest flexible columns until the row fits the terminal."""
    spaces = 2 * (len(widths) - 1)
    while sum(widths) + spaces > columns:
        widest = max(flexible, key=widths.__getitem__, default=None)
        if widest is None or widths[widest] <= _MIN_WIDTH:
            return
        widths[widest] -= 1


def _cut(text: str, width: int | None) -> str:
    """Return a text within a number of characters; None: any number."""
    if width is None or len(text) <= width:
        return text
    return f"{text[: width - 1]}…"


class TableView(NamedTuple):
    """How a table of addresses is printed."""

    sort_by: str = "ip"
    wide: bool = False
    """Every row and column, and IDs in full."""
    columns: int | None = None
    """Of the terminal, which the lines fit; None: nothing is cut."""
    release: Release = ON_NODE


def sorted_rows(rows: Iterable[AddressRow], sort_by: str) -> list[AddressRow]:
    """Sort rows that are in the order of addresses, by `ip`, `age` or another key of theirs.

    By age the oldest come first; what is unknown comes last.
    """
    if sort_by == "ip":
        return list(rows)
    if sort_by == "age":
        return sorted(rows, key=_by_age)
    return sorted(rows, key=lambda row: (not row[sort_by], row[sort_by] or ""))


def _by_age(row: AddressRow) -> tuple[bool, float]:
    seconds = row["age_seconds"]
    return seconds is None, -(seconds or 0)


def grouped(rows: Iterable[AddressRow]) -> list[AddressRow]:
    """Join consecutive addresses with the same cause and verdict in a row with the oldest age."""

    def group_key(item: tuple[int, AddressRow]) -> tuple[object, ...]:
        # In a run of consecutive addresses, the number and the index grow by one each.
        index, row = item
        return numbered(row["ip"])[1] - index, row["network"], row["cause"], row["verdict"]

    groups = groupby(enumerate(rows), group_key)
    return [_as_one([row for _, row in group]) for _, group in groups]


def _as_one(rows: Sequence[AddressRow]) -> AddressRow:
    """Return a row for several; "…" stands for values that differ."""
    row = dict(rows[0])
    for key, value in row.items():
        if any(other[key] != value for other in rows):
            row[key] = "…"
    row["age_seconds"] = max(other["age_seconds"] for other in rows)
    if len(rows) > 1:
        row["ip"] = f"{rows[0]['ip']} to {rows[-1]['ip']} ({len(rows)})"
    return row


def address_table(
    keys: Sequence[str], rows: Iterable[AddressRow], columns: int | None
) -> Iterator[str]:
    """Align addresses in a table. `keys`: of the rows, those with a column."""
    heads = [_HEADS.get(key, key.upper()) for key in keys]
    cells = [[_cell(key, row[key]) for key in keys] for row in rows]
    return table(heads, cells, columns)


def _cell(key: str, value: Any) -> str:
    if key == "age_seconds":
        return age_cell(value)
    return value or ("-" if key == "pod" else "")


def bounded_age(seconds: float) -> str:
    """Write an age that another process claims, which can be any: from 0 to a year."""
    return format_age(timedelta(seconds=min(max(seconds, 0), _YEAR)))


def age_cell(seconds: float | None) -> str:
    """Return an age; empty if it is unknown, or negative: the clock was set, as the reason says."""
    return "" if seconds is None or seconds < 0 else format_age(timedelta(seconds=seconds))


def name_lines(rows: Iterable[AddressRow]) -> str:
    """Return a line `network/address` for each row, for scripts."""
    return "".join(f"{escape(row['network'])}/{escape(row['ip'])}\n" for row in rows)
