"""The stored history of the device plugins: read, and never written here.

Without it nothing is lost that the node's files tell; so what is missing is none, and what is damaged is none with
the reason beside it.
"""

from pathlib import Path

from agent.model.device_history import FILE, Chronicle, loads
from agent.sources.error import Unavailable
from agent.sources.host.cached_file import ParsedOnce

LARGEST = 512 * 1024
"""Bytes. A full one has a fifth of that."""


class StoredChronicle:
    """The file in one state directory."""

    def __init__(self, state_dir: Path) -> None:
        self._path = state_dir / FILE
        self._file = ParsedOnce(loads, LARGEST)

    def read(self) -> Chronicle:
        """Return what is stored. The history of an earlier boot is history too."""
        try:
            found = self._file.read(self._path)
        except Unavailable as error:
            return Chronicle(trouble=str(error))
        if found is None:
            return Chronicle()
        chronicle, _ = found
        return Chronicle(chronicle.milestones, f"{self._path}: {chronicle.trouble}" if chronicle.trouble else "")
