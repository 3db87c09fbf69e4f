"""The history of the device plugins, on disk: what files on the node cannot tell once it is over."""

from collections.abc import Callable
from pathlib import Path

from agent.checks.devices.clocks import plugins
from agent.checks.devices.history import device_history
from agent.model.device_history import FILE, dumps
from agent.model.devices import DeviceTransition
from agent.model.report import Report
from agent.model.snapshot import InsufficientData
from agent.state.atomic_file import StateFile


class DeviceHistoryExporter:
    """Keeps one state directory's history up to the last report."""

    def __init__(self, state_dir: Path, warn: Callable[[str], None] = lambda _: None) -> None:
        """`warn`: told why a history could not be written, when that changes."""
        self._file = StateFile(state_dir / FILE, warn)
        self._written: tuple[DeviceTransition, ...] | None = None

    @property
    def failed(self) -> str:
        """Why the last history could not be written; empty where it was."""
        return self._file.failed

    def export(self, report: Report, seconds: float) -> None:  # noqa: ARG002 (it tells of no time)
        try:
            history, stored = device_history(report.assessment.snapshot), plugins(report.assessment.snapshot).history
        except InsufficientData:
            return
        # It may have been lost since; it is not written for ever where nobody can read it back.
        if history == stored or (history == self._written and self._file.path.exists()):
            return
        if self._file.write(dumps(history).encode()):
            self._written = history
