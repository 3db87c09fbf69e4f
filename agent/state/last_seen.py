"""The Node as it was last seen, on disk: an agent that starts after it was deleted must know that there was one."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Final

from agent.model.last_seen import FILE, dumps
from agent.model.registration import LastSeen
from agent.model.report import Report
from agent.model.snapshot import Known
from agent.state.atomic_file import StateFile

FRESH: Final = timedelta(minutes=10)
"""How old what is stored may be while nothing but the time changes: a disk is not worn out for a time."""


class LastSeenExporter:
    """Keeps one state directory's memory of the Node."""

    def __init__(self, state_dir: Path, warn: Callable[[str], None] = lambda _: None) -> None:
        """`warn`: told why it could not be written, when that changes."""
        self._file = StateFile(state_dir / FILE, warn)
        self._written: LastSeen | None = None

    def export(self, report: Report, seconds: float) -> None:  # noqa: ARG002 (it tells of no time)
        snapshot = report.assessment.snapshot
        reading = snapshot.registration
        last = reading.value.last if isinstance(reading, Known) else None
        gone = isinstance(snapshot.node, Known) and not snapshot.node.value
        if last is None or not self._is_news(last, gone=gone):
            return
        if self._file.write(dumps(last).encode()):
            self._written = last

    def _is_news(self, last: LastSeen, *, gone: bool) -> bool:
        """Tell whether it is worth a write; a Node that is gone is written down as exactly as it is known."""
        if self._written is None or gone:
            return last != self._written
        same = replace(last, at=self._written.at) == self._written
        return not same or abs(last.at - self._written.at) >= FRESH
