"""Reads the store on disk without any code of the agent."""

import time
from collections.abc import Iterable
from pathlib import Path

from tests.stress.checker import KEPT
from tests.stress.ledger import Ledger


class Store:
    """One network's directory with the addresses of one range."""

    def __init__(self, directory: Path, addresses: Iterable[str], ledger: Ledger) -> None:
        self.directory, self.addresses = directory, tuple(addresses)
        self._ledger = ledger

    def read(self, *addresses: str) -> None:
        """Read the files of these addresses by name and record their content."""
        for ip in addresses:
            since = time.monotonic()
            self._ledger.file_read(since, ip, self._found(ip))

    def read_all(self) -> None:
        """Read every address of the range."""
        self.read(*self.addresses)

    def left(self) -> dict[str, str]:
        """Return the container ids in the directory by file name."""
        names = [entry.name for entry in self.directory.iterdir()] if self.directory.is_dir() else []
        return {name: found for name in names if (found := self._found(name)) is not None}

    def has_only(self, ip: str) -> bool:
        """Tell whether no other address is reserved."""
        return {entry.name for entry in self.directory.iterdir()} <= {ip, *KEPT}

    def _found(self, name: str) -> str | None:
        try:
            return (self.directory / name).read_text(errors="replace").partition("\n")[0].strip()
        except FileNotFoundError:
            return None
        except IsADirectoryError:
            return "(a directory)"
