"""The device history: in memory while the agent runs, and in its state directory for the next start."""

from collections.abc import Callable
from pathlib import Path

from agent.model.documents import HISTORY_FILE, StoredHistory, dump_history, load_history
from agent.model.report import Report
from agent.model.snapshot import InsufficientData
from agent.sources.host.files import read_file
from agent.sources.source_error import SourceError, cannot_read
from agent.state.atomic_file import StateFile


class DeviceHistoryStore:
    """The history up to the last report. An unwritable state directory loses nothing until the next start."""

    def __init__(self, state_dir: Path, warn: Callable[[str], None] = lambda _: None) -> None:
        """`warn`: called with the reason when the history cannot be written, once for each reason."""
        self._file = StateFile(state_dir / HISTORY_FILE, warn)
        self._history: StoredHistory | None = None

    @property
    def failed(self) -> str:
        """Why the history could not be written the last time; empty: it was."""
        return self._file.failed

    def read(self) -> StoredHistory:
        """Return the history up to the last report, with the reason if the stored one is unreadable."""
        if self._history is None:
            self._history = _load(self._file.path)
        return self._history

    def export(self, report: Report, seconds: float) -> None:  # noqa: ARG002 (the duration does not matter here)
        try:
            history = report.assessment.snapshot.device_plugins.known().history
        except InsufficientData:
            return
        before = self.read()
        if history == before.transitions and not before.trouble and not self.failed:
            return
        written = self._file.write(dump_history(history).encode())
        self._history = StoredHistory(history, "" if written else before.trouble)


def _load(path: Path) -> StoredHistory:
    """Read the stored history; none is empty, a damaged one is empty with the reason."""
    try:
        content, _ = read_file(path)
    except FileNotFoundError:
        return StoredHistory()
    except OSError as error:
        return StoredHistory(trouble=cannot_read(path, error))
    except SourceError as error:
        return StoredHistory(trouble=str(error))
    stored = load_history(content)
    return StoredHistory(stored.transitions, f"{path}: {stored.trouble}" if stored.trouble else "")
