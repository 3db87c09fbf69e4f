"""What is known after a restart: the device history, and the Node as last seen."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Final

from agent.model import documents
from agent.model.documents import StoredHistory
from agent.model.registration import LastSeen
from agent.model.report import Report
from agent.model.snapshot import Known, known_or
from agent.sources.host.files import read_file
from agent.sources.source_error import SourceError, cannot_read
from agent.state.directory import StateFile

MAX_AGE: Final = timedelta(minutes=10)
"""Of the stored time of the Node: it is not written in each sync, to spare the disk."""


class DeviceHistoryStore:
    """The history up to the last report.

    An unwritable state directory loses nothing until the next start.
    """

    def __init__(self, state_dir: Path, warn: Callable[[str], None] = lambda _: None) -> None:
        """`warn`: called with the reason when a write fails, once for each reason."""
        self._file = StateFile(state_dir / documents.HISTORY_FILE, warn)
        self._history: StoredHistory | None = None

    @property
    def write_error(self) -> str | None:
        return self._file.write_error

    def read(self) -> StoredHistory:
        """Return the history up to the last report, and why the stored one is unreadable, if so."""
        if self._history is None:
            self._history = _load(self._file.path)
        return self._history

    def export(self, report: Report, seconds: float) -> None:  # noqa: ARG002 (unused)
        """Store the history of the report, if it has changed or could not be stored before."""
        devices = known_or(report.assessment.snapshot.device_plugins, None)
        if devices is None:
            return

        before = self.read()
        is_stored = devices.history == before.transitions and not before.trouble
        if is_stored and self.write_error is None:
            return

        written = self._file.write(documents.dump_history(devices.history).encode())
        self._history = StoredHistory(devices.history, None if written else before.trouble)


def _load(path: Path) -> StoredHistory:
    """Return the stored history. A missing one is empty; a damaged one is empty with the reason."""
    try:
        content, _ = read_file(path)
    except FileNotFoundError:
        return StoredHistory()
    except OSError as error:
        return StoredHistory(trouble=cannot_read(path, error))
    except SourceError as error:
        return StoredHistory(trouble=str(error))

    stored = documents.load_history(content)
    if stored.trouble:
        return replace(stored, trouble=f"{path}: {stored.trouble}")
    return stored


class LastSeenExporter:
    """Keeps the Node as last seen: an agent that starts after its deletion needs to know it."""

    def __init__(self, state_dir: Path, warn: Callable[[str], None] = lambda _: None) -> None:
        self._file = StateFile(state_dir / documents.LAST_SEEN_FILE, warn)
        self._written: LastSeen | None = None

    def export(self, report: Report, seconds: float) -> None:  # noqa: ARG002 (unused)
        """Store the Node that the report has seen last, if there is news."""
        snapshot = report.assessment.snapshot
        registration = known_or(snapshot.registration, None)
        last = registration.last if registration else None
        gone = isinstance(snapshot.node, Known) and not snapshot.node.value
        if last is None or not self._needs_write(last, gone=gone):
            return
        if self._file.write(documents.dump_last_seen(last).encode()):
            self._written = last

    def _needs_write(self, last: LastSeen, *, gone: bool) -> bool:
        """Return whether there is news. If the Node is gone, its exact time is."""
        if self._written is None or gone:
            return last != self._written

        unchanged = replace(last, at=self._written.at, in_use=self._written.in_use)
        return unchanged != self._written or abs(last.at - self._written.at) >= MAX_AGE
