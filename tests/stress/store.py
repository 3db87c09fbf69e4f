"""The store on disk, read file by file and without any of the agent's code."""

import time
from collections.abc import Iterable
from pathlib import Path

from tests.stress.ledger import Ledger
from tests.stress.oracle import KEPT


class Store:
    """One network's directory, in which only the addresses of one range are given out."""

    def __init__(self, directory: Path, addresses: Iterable[str], ledger: Ledger) -> None:
        self.directory, self.addresses = directory, tuple(addresses)
        self._ledger = ledger

    def look(self, *addresses: str) -> None:
        """Read the files of these addresses, each by its name, and tell what is in them."""
        for ip in addresses:
            since = time.monotonic()
            self._ledger.looked(since, ip, self._found(ip))

    def look_around(self) -> None:
        """Look at every address of the range."""
        self.look(*self.addresses)

    def left(self) -> dict[str, str]:
        """Return what is in the directory: ids by file name."""
        names = [entry.name for entry in self.directory.iterdir()] if self.directory.is_dir() else []
        return {name: found for name in names if (found := self._found(name)) is not None}

    def is_empty(self) -> bool:
        return not self.directory.is_dir() or {entry.name for entry in self.directory.iterdir()} <= KEPT

    def _found(self, name: str) -> str | None:
        try:
            return (self.directory / name).read_text(errors="replace").partition("\n")[0].strip()
        except FileNotFoundError:
            return None
        except IsADirectoryError:
            return "(a directory)"
