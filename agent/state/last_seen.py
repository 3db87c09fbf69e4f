"""The last seen Node, on disk: an agent that starts after its deletion has to know that there was one."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Final

from agent.model.documents import LAST_SEEN_FILE, dump_last_seen
from agent.model.registration import LastSeen
from agent.model.report import Report
from agent.model.snapshot import Known
from agent.state.atomic_file import StateFile

FRESH: Final = timedelta(minutes=10)
"""How old the stored time may be while nothing else changes, to spare the disk."""


class LastSeenExporter:
    def __init__(self, state_dir: Path, warn: Callable[[str], None] = lambda _: None) -> None:
        """`warn`: called with the reason when it cannot be written, once for each reason."""
        self._file = StateFile(state_dir / LAST_SEEN_FILE, warn)
        self._written: LastSeen | None = None

    def export(self, report: Report, seconds: float) -> None:  # noqa: ARG002 (the duration does not matter here)
        snapshot = report.assessment.snapshot
        reading = snapshot.registration
        last = reading.value.last if isinstance(reading, Known) else None
        gone = isinstance(snapshot.node, Known) and not snapshot.node.value
        if last is None or not self._is_news(last, gone=gone):
            return
        if self._file.write(dump_last_seen(last).encode()):
            self._written = last

    def _is_news(self, last: LastSeen, *, gone: bool) -> bool:
        """Whether it is worth a write. If the Node is gone, its exact time is."""
        if self._written is None or gone:
            return last != self._written
        same = replace(last, at=self._written.at, in_use=self._written.in_use) == self._written
        return not same or abs(last.at - self._written.at) >= FRESH
