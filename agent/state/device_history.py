"""The device history: in memory while the agent runs, and in its state directory for the next start."""

from collections.abc import Callable
from pathlib import Path
from typing import Final

from agent.model.report import Report
from agent.model.snapshot import InsufficientData
from agent.model.state_files import HISTORY_FILE, StoredHistory, dump_history, load_history
from agent.sources.host.cached_file import CachedFile
from agent.sources.source_error import SourceError
from agent.state.atomic_file import StateFile

MAX_HISTORY_BYTES: Final = 512 * 1024
"""Bytes. A full history has a tenth of that."""


class DeviceHistoryStore:
    """The history up to the last report. An unwritable state directory loses nothing until the next start."""

    def __init__(self, state_dir: Path, warn: Callable[[str], None] = lambda _: None) -> None:
        """`warn`: called with the reason when the history cannot be written, once for each reason."""
        self._file = StateFile(state_dir / HISTORY_FILE, warn)
        self._history: StoredHistory | None = None
        self._saved: tuple[int, ...] | None = None
        """What identifies the file that has what is in memory; None: no file has."""

    @property
    def failed(self) -> str:
        """Why the history could not be written the last time; empty: it was."""
        return self._file.failed

    def read(self) -> StoredHistory:
        """Return the history up to the last report, with the reason if the stored one is unreadable."""
        if self._history is None:
            self._history, self._saved = _loaded(self._file.path)
        return self._history

    def export(self, report: Report, seconds: float) -> None:  # noqa: ARG002 (the duration does not matter here)
        try:
            history = report.assessment.snapshot.device_plugins.known().history
        except InsufficientData:
            return
        before = self.read()
        if history == before.transitions and not before.trouble and (not history or self._is_saved()):
            return
        # The file may also have been lost or damaged since: then it is written again.
        written = self._file.write(dump_history(history).encode())
        self._saved = _identity(self._file.path) if written else None
        self._history = StoredHistory(history, "" if written else before.trouble)

    def _is_saved(self) -> bool:
        return self._saved is not None and _identity(self._file.path) == self._saved


def _identity(path: Path) -> tuple[int, ...] | None:
    """Return what changes when a file is replaced or written; None: there is no file, or it cannot be reached."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _loaded(path: Path) -> tuple[StoredHistory, tuple[int, ...] | None]:
    """Return the stored history, and what identifies its file if it is undamaged."""
    history = _load(path)
    return history, None if history.trouble else _identity(path)


def _load(path: Path) -> StoredHistory:
    """Read the stored history; none is empty, a damaged one is empty with the reason."""
    try:
        found = CachedFile(load_history, MAX_HISTORY_BYTES).read(path)
    except SourceError as error:
        return StoredHistory(trouble=str(error))
    if found is None:
        return StoredHistory()
    stored, _ = found
    return StoredHistory(stored.transitions, f"{path}: {stored.trouble}" if stored.trouble else "")
