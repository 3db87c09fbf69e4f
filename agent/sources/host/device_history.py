"""The stored history of the device plugins: read, and never written here.

Without it nothing is lost that the node's files tell; so what is missing is none, and what is damaged is none with
the reason beside it.
"""

from pathlib import Path

from agent.model.device_history import FILE, StoredHistory, loads
from agent.sources.error import SourceError
from agent.sources.host.cached_file import CachedFile

LARGEST = 512 * 1024
"""Bytes. A full one has a fifth of that."""


class HistoryFile:
    """The file in one state directory."""

    def __init__(self, state_dir: Path) -> None:
        self._path = state_dir / FILE
        self._file = CachedFile(loads, LARGEST)

    def read(self) -> StoredHistory:
        """Return what is stored. The history of an earlier boot is history too."""
        try:
            found = self._file.read(self._path)
        except SourceError as error:
            return StoredHistory(trouble=str(error))
        if found is None:
            return StoredHistory()
        chronicle, _ = found
        return StoredHistory(chronicle.transitions, f"{self._path}: {chronicle.trouble}" if chronicle.trouble else "")
