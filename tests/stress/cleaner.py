"""A cleaner command that is run in a loop."""

import json
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from threading import Event
from typing import Any, Final

from tests.stress import command
from tests.stress.command import Command
from tests.stress.ledger import Ledger
from tests.stress.run_state import RunState
from tests.stress.workspace import Workspace

_FATAL: Final = {2: "wrong usage", 70: "internal error", 126: "not executable", 127: "command not found"}
"""Exit codes after which another run is pointless."""
_LONGEST_RUN: Final = 60.0
_EVERY: Final = 0.01


class Cleaner:
    """The runs of one command and their results."""

    def __init__(
        self, given: Command, workspace: Workspace, number: int, state: RunState, ledger: Ledger, pause: float
    ) -> None:
        """`pause`: seconds between two runs."""
        self.command = given
        self.codes: Counter[int] = Counter()
        self.last_errors: dict[int, str] = {}
        """The end of stderr by exit code, for codes other than 0."""
        self.verdicts: Counter[str] = Counter()
        self.run_seconds: list[float] = []
        self._workspace, self._state, self._ledger, self._pause = workspace, state, ledger, pause
        self._output = workspace.logs / f"cleaner-{number}.out"
        self._errors = workspace.logs / f"cleaner-{number}.err"
        self._may_run, self._paused = Event(), Event()
        self._may_run.set()

    def work(self) -> None:
        while not self._state.over.is_set():
            if self._may_run.is_set():
                self._run()
                self._state.over.wait(self._pause)
            else:
                self._paused.set()
                self._state.over.wait(_EVERY)
        self._paused.set()

    def resume(self) -> None:
        self._paused.clear()
        self._may_run.set()

    def pause_runs(self) -> None:
        """Wait for the current run to end; the next one starts after `resume`."""
        self._may_run.clear()
        self._paused.wait()

    def _run(self) -> None:
        begun = time.monotonic()
        child = command.start(self.command, self._workspace, self._output, self._errors)
        try:
            while child.poll() is None and time.monotonic() < begun + _LONGEST_RUN and not self._state.aborted.is_set():
                time.sleep(_EVERY)
            hangs = child.poll() is None
        finally:
            code = command.end(child, timeout=5.0)
        self.run_seconds.append(time.monotonic() - begun)
        self.codes[code] += 1
        if code:
            self.last_errors[code] = command.tail(self._errors)
        if self._state.aborted.is_set():
            pass  # the code only says that it was terminated
        elif hangs:
            self._state.fail(f"cleaner {self.command.name}: a run took longer than {_LONGEST_RUN:.0f} s")
        elif code in _FATAL:
            self._state.fail(
                f"cleaner {self.command.name} exited with {code}, {_FATAL[code]}:\n{command.tail(self._errors)}"
            )
        self._count_verdicts()

    def _count_verdicts(self) -> None:
        for ip, verdict in _verdicts(self._output):
            self.verdicts[verdict] += 1
            self._ledger.claim(ip, f"{self.command.name} said {verdict}")


def _verdicts(output: Path) -> Iterator[tuple[str, str]]:
    """Find the verdict for each address, with its reason, in the JSON output of a run, if it has any."""
    try:
        document = json.loads(output.read_bytes())
    except ValueError:
        return
    yield from _find(document)


def _find(tree: Any) -> Iterator[tuple[str, str]]:
    if isinstance(tree, dict):
        if "ip" in tree and isinstance(tree.get("verdict"), str):
            reason = tree.get("reason")
            yield str(tree["ip"]), f"{tree['verdict']}: {reason}" if reason else tree["verdict"]
        for branch in tree.values():
            yield from _find(branch)
    elif isinstance(tree, list):
        for branch in tree:
            yield from _find(branch)
