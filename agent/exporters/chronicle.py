"""The history of the device plugins, on disk: what files on the node cannot tell once it is over.

The file is replaced whole or not at all. Without it the agent knows less, and goes on: a state directory that cannot
be written is told through `failed`.
"""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from agent import history
from agent.history.clocks import plugins
from agent.model.chronicle import FILE, dumps
from agent.model.devices import Milestone
from agent.model.report import Report
from agent.model.snapshot import Blind


class ChronicleExporter:
    """Keeps one state directory's history up to the last report."""

    def __init__(self, state_dir: Path, warn: Callable[[str], None] = lambda _: None) -> None:
        """`warn`: told why a history could not be written, when that changes."""
        self._directory, self._warn = state_dir, warn
        self._written: tuple[Milestone, ...] | None = None
        self.failed = ""
        """Why the last history could not be written; empty where it was."""

    def tell(self, report: Report, seconds: float) -> None:  # noqa: ARG002 (it tells of no time)
        try:
            course, stored = history.of(report.scene.snapshot), plugins(report.scene.snapshot).history
        except Blind:
            return
        path = self._directory / FILE
        if course == stored:
            return
        try:
            # It may have been lost since; it is not written for ever where nobody can read it back.
            if course == self._written and path.exists():
                return
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            _replace(path, dumps(course).encode())
        except OSError as error:
            # Without the file's name, of which a part is new each time.
            why = f"{self._directory}: {error.strerror}"
            if why != self.failed:
                self._warn(why)
            self.failed = why
            return
        self._written, self.failed = course, ""


def _replace(path: Path, content: bytes) -> None:
    """Put the whole of it in its place, readable for us alone; after a power cut the one before is as good."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
