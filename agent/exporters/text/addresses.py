"""The tables of addresses, as scan and clean show them: columns, order, and how they fit a terminal."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import groupby
from typing import Any, Final, TypeAlias

from agent.exporters.advice import ON_NODE
from agent.exporters.text.table import table
from agent.model.ranges import numbered
from agent.model.text import escape, format_age

AddressRow: TypeAlias = dict[str, Any]
"""One of the `reservations` in the document of scan, or of the `addresses` in that of clean."""

_HEADS: Final = {"ip": "ADDRESS", "age_seconds": "AGE", "container_id": "CONTAINER", "entry": "JOURNAL ENTRY"}
"""Of the other columns, the key is the head."""


@dataclass(frozen=True, slots=True)
class TableView:
    """How the user wants to see a table."""

    sort_by: str = "ip"
    wide: bool = False
    """Every row and column, and IDs in full."""
    columns: int | None = None
    """Of the terminal, which the lines fit; None: nothing is cut."""
    release: tuple[str, ...] = ON_NODE
    """The commands that release addresses here."""


def sorted_rows(rows: Iterable[AddressRow], sort_by: str) -> list[AddressRow]:
    """Sort rows that are in the order of addresses: the oldest first, and what is not known last."""
    match sort_by:
        case "ip":
            return list(rows)
        case "age":
            return sorted(rows, key=lambda row: (row["age_seconds"] is None, -(row["age_seconds"] or 0)))
        case _:
            return sorted(rows, key=lambda row: (not row[sort_by], row[sort_by] or ""))


def grouped(rows: Iterable[AddressRow]) -> list[AddressRow]:
    """Make one row, with the age of the oldest, of consecutive addresses that have the same cause and verdict."""

    def run(index: int, row: AddressRow) -> tuple[object, ...]:
        return numbered(row["ip"])[1] - index, row["network"], row["cause"], row["verdict"]

    return [_as_one([row for _, row in group]) for _, group in groupby(enumerate(rows), lambda item: run(*item))]


def _as_one(rows: Sequence[AddressRow]) -> AddressRow:
    first, last, count = rows[0], rows[-1], len(rows)
    same = {key: value if all(row[key] == value for row in rows) else "…" for key, value in first.items()}
    ip = first["ip"] if count == 1 else f"{first['ip']} to {last['ip']} ({count})"
    return {**same, "ip": ip, "age_seconds": max(row["age_seconds"] for row in rows)}


def address_table(keys: Sequence[str], rows: Iterable[AddressRow], columns: int | None) -> Iterator[str]:
    heads = [_HEADS.get(key, key.upper()) for key in keys]
    return table(heads, [[_cell(key, row[key]) for key in keys] for row in rows], columns)


def _cell(key: str, value: Any) -> str:
    if key == "age_seconds":
        return "" if value is None else format_age(timedelta(seconds=value))
    return value or ("-" if key == "pod" else "")


def name_lines(rows: Iterable[AddressRow]) -> str:
    """Write the name of each address, for scripts."""
    return "".join(f"{escape(row['network'])}/{escape(row['ip'])}\n" for row in rows)
