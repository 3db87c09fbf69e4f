"""A cleaner that is run again and again, as soon as its last run has ended."""

import json
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from threading import Event
from typing import Any, Final

from tests.stress import command
from tests.stress.command import Command
from tests.stress.course import Course
from tests.stress.ledger import Ledger
from tests.stress.place import Place

_FATAL: Final = {2: "it was wrongly used", 70: "it is broken", 126: "it cannot be run", 127: "it was not found"}
"""Exit codes after which another run would say nothing new."""
_LONGEST_RUN: Final = 60.0
_EVERY: Final = 0.01


class Cleaner:
    """One command's runs, and what became of them."""

    def __init__(
        self, given: Command, place: Place, number: int, history: Course, ledger: Ledger, pause: float
    ) -> None:
        """`pause`: seconds between one run and the next."""
        self.command = given
        self.codes: Counter[int] = Counter()
        self.complaints: dict[int, str] = {}
        """What it said last on its way to each exit code but 0."""
        self.verdicts: Counter[str] = Counter()
        self.run_seconds: list[float] = []
        self._place, self._course, self._ledger, self._pause = place, history, ledger, pause
        self._output = place.logs / f"cleaner-{number}.out"
        self._errors = place.logs / f"cleaner-{number}.err"
        self._may_run, self._at_rest = Event(), Event()
        self._may_run.set()

    def work(self) -> None:
        while not self._course.over.is_set():
            if self._may_run.is_set():
                self._run()
                self._course.over.wait(self._pause)
            else:
                self._at_rest.set()
                self._course.over.wait(_EVERY)
        self._at_rest.set()

    def go_on(self) -> None:
        self._at_rest.clear()
        self._may_run.set()

    def rest(self) -> None:
        """Return when the run that is under way has ended; there is no other until `go_on`."""
        self._may_run.clear()
        self._at_rest.wait()

    def _run(self) -> None:
        begun = time.monotonic()
        child = command.start(self.command, self._place, self._output, self._errors)
        try:
            while (
                child.poll() is None and time.monotonic() < begun + _LONGEST_RUN and not self._course.aborted.is_set()
            ):
                time.sleep(_EVERY)
            hangs = child.poll() is None
        finally:
            code = command.end(child, patience=5.0)
        self.run_seconds.append(time.monotonic() - begun)
        self.codes[code] += 1
        if code:
            self.complaints[code] = command.tail(self._errors)
        if self._course.aborted.is_set():
            pass  # its code says no more than that it was ended
        elif hangs:
            self._course.fail(f"cleaner {self.command.name}: a run took longer than {_LONGEST_RUN:.0f} s")
        elif code in _FATAL:
            self._course.fail(
                f"cleaner {self.command.name} exited with {code}, {_FATAL[code]}:\n{command.tail(self._errors)}"
            )
        self._tally()

    def _tally(self) -> None:
        for ip, verdict in _verdicts(self._output):
            self.verdicts[verdict] += 1
            self._ledger.said(ip, f"{self.command.name} said {verdict}")


def _verdicts(output: Path) -> Iterator[tuple[str, str]]:
    """Find what a run said of addresses, if it speaks JSON and says `verdict`."""
    try:
        document = json.loads(output.read_bytes())
    except ValueError:
        return
    yield from _said(document)


def _said(tree: Any) -> Iterator[tuple[str, str]]:
    if isinstance(tree, dict):
        if "ip" in tree and isinstance(tree.get("verdict"), str):
            yield str(tree["ip"]), tree["verdict"]
        for branch in tree.values():
            yield from _said(branch)
    elif isinstance(tree, list):
        for branch in tree:
            yield from _said(branch)
