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

FRESH: Final = timedelta(
    minutes=10
)  # how old the stored time of the Node may be, to spare the disk


class DeviceHistoryStore:
    """The history up to the last report. An unwritable state directory loses nothing until the next start."""

    def __init__(self, state_dir: Path, warn: Callable[[str], None] = lambda _: None) -> None:
        """`warn`: called with the reason when the history cannot be written, once for each reason."""
        self._file = StateFile(state_dir / documents.HISTORY_FILE, warn)
        self._history: StoredHistory | None = None

    @property
    def failed(self) -> str:
        return self._file.failed

    def read(self) -> StoredHistory:
        """Return the history up to the last report, with the reason if the stored one is unreadable."""
        if self._history is None:
            self._history = _load(self._file.path)
        return self._history

    def export(self, report: Report, seconds: float) -> None:  # noqa: ARG002 (the duration does not matter here)
        devices = known_or(report.assessment.snapshot.device_plugins, None)
        if devices is None:
            return
        before = self.read()
        if devices.history == before.transitions and not before.trouble and not self.failed:
            return
        written = self._file.write(documents.dump_history(devices.history).encode())
        self._history = StoredHistory(devices.history, None if written else before.trouble)


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
    stored = documents.load_history(content)
    return StoredHistory(
        stored.transitions, f"{path}: {stored.trouble}" if stored.trouble else None
    )


class LastSeenExporter:
    """Keeps the last seen Node: an agent that starts after its deletion has to know that there was one."""

    def __init__(self, state_dir: Path, warn: Callable[[str], None] = lambda _: None) -> None:
        self._file = StateFile(state_dir / documents.LAST_SEEN_FILE, warn)
        self._written: LastSeen | None = None

    def export(self, report: Report, seconds: float) -> None:  # noqa: ARG002 (the duration does not matter here)
        snapshot = report.assessment.snapshot
        registration = known_or(snapshot.registration, None)
        last = registration.last if registration else None
        gone = isinstance(snapshot.node, Known) and not snapshot.node.value
        if (
            last
            and self._is_news(last, gone=gone)
            and self._file.write(documents.dump_last_seen(last).encode())
        ):
            self._written = last

    def _is_news(self, last: LastSeen, *, gone: bool) -> bool:
        """Whether it is worth a write. If the Node is gone, its exact time is."""
        if self._written is None or gone:
            return last != self._written
        same = replace(last, at=self._written.at, in_use=self._written.in_use) == self._written
        return not same or abs(last.at - self._written.at) >= FRESH
