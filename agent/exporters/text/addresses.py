"""The tables of addresses, as scan and clean show them: columns, order, and how they fit a terminal."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from agent.exporters.order import address_order
from agent.exporters.text.table import table
from agent.model.text import escape, format_age


@dataclass(frozen=True, slots=True)
class TableView:
    """How the user wants to see a table."""

    sort_by: str = "ip"
    wide: bool = False
    """Every row and column, and IDs in full."""
    columns: int | None = None
    """Of the terminal, which the lines fit; None: nothing is cut."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AddressRow:
    network: str
    ip: str
    """Of an unrecognized entry, its name."""
    is_address: bool = True
    state: str
    """Or the verdict of a cleanup."""
    age: timedelta | None = None
    cause: str = ""
    """Of a leak, where it is known."""
    container_id: str = ""
    pod: str = ""
    why: str = ""
    """Or the journal entry of a release."""

    @property
    def cells(self) -> Mapping[str, str]:
        """Return the text of each column."""
        return {
            "NETWORK": self.network,
            "ADDRESS": self.ip,
            "STATE": self.state,
            "VERDICT": self.state,
            "AGE": "" if self.age is None else format_age(self.age),
            "CAUSE": self.cause,
            "CONTAINER": self.container_id,
            "POD": self.pod or "-",
            "WHY": self.why,
            "JOURNAL ENTRY": self.why,
        }


_ORDERS: Final[Mapping[str, Callable[[AddressRow], Any]]] = {
    "ip": lambda _: (),
    "age": lambda row: (row.age is None, -(row.age or timedelta(0))),
    "state": lambda row: row.state,
    "verdict": lambda row: row.state,
    "cause": lambda row: (not row.cause, row.cause),
    "pod": lambda row: (not row.pod, row.pod),
}
"""Sort keys by the value of `--sort-by`: the oldest first, and what is not known last."""


def sorted_rows(rows: Iterable[AddressRow], sort_by: str) -> list[AddressRow]:
    by_address = sorted(rows, key=lambda row: address_order(row.network, row.ip, is_address=row.is_address))
    return sorted(by_address, key=_ORDERS[sort_by])


def address_table(heads: Sequence[str], rows: Iterable[AddressRow], columns: int | None) -> Iterator[str]:
    return table(heads, [[row.cells[head] for head in heads] for row in rows], columns)


def name_lines(rows: Iterable[AddressRow]) -> str:
    """Write the name of each address, for scripts."""
    return "".join(f"{escape(row.network)}/{escape(row.ip)}\n" for row in rows)
