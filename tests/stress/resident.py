"""A cleaner that stays: started once, watched, asked for its metrics, and told to end."""

import json
import subprocess
import time
from collections import Counter
from pathlib import Path
from typing import Any, Final
from urllib.error import URLError
from urllib.request import ProxyHandler, build_opener

from tests import processes
from tests.stress import command
from tests.stress.command import NODELEAK, Command
from tests.stress.course import Course
from tests.stress.metrics import Histogram, histogram, nothing
from tests.stress.place import Place

_LOCK: Final = {"held": "nodeleak_lock_held_seconds", "waited for": "nodeleak_lock_wait_seconds"}
_PATIENCE: Final = 10.0


class Resident:
    """One daemon. It may be started and ended several times; what it said of its locks is added up."""

    def __init__(self, given: Command, place: Place, number: int, history: Course) -> None:
        self.command = given
        self.codes: Counter[int] = Counter()
        self.locks: dict[str, Histogram] = {}
        """What became of host-local's lock, as the daemon's own metrics tell it; empty where it tells nothing."""
        self._place, self._course = place, history
        self._output = place.logs / f"daemon-{number}.out"
        self._errors = place.logs / f"daemon-{number}.err"
        self._child: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it; nodeleak is waited for until it serves."""
        self._child = command.start(self.command, self._place, self._output, self._errors)
        if self.command.name != NODELEAK:
            return
        for _ in processes.until(time.monotonic() + _PATIENCE):
            self.watch()
            if self._course.aborted.is_set() or self._port() is not None:
                return
        self._course.fail(f"daemon {self.command.name} has not started:\n{command.tail(self._errors)}")

    def watch(self) -> None:
        """Fail if it has ended by itself."""
        if self._child is not None and (code := self._child.poll()) is not None:
            self._child = None
            self._course.fail(f"daemon {self.command.name} ended by itself with {code}:\n{command.tail(self._errors)}")

    def end(self) -> None:
        """Ask it for its metrics, and tell it to end."""
        self.watch()
        if self._child is None:
            return
        self._add_locks()
        begun = time.monotonic()
        child, self._child = self._child, None
        self.codes[command.end(child, _PATIENCE)] += 1
        if time.monotonic() > begun + _PATIENCE:
            self._course.fail(f"daemon {self.command.name} had to be killed:\n{command.tail(self._errors)}")

    def _add_locks(self) -> None:
        if (port := self._port()) is None:
            return
        try:
            opener: Any = build_opener(ProxyHandler({}))
            with opener.open(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
                text = answer.read().decode()
        except (URLError, OSError) as error:
            self._course.fail(f"daemon {self.command.name} did not serve /metrics: {error}")
            return
        for what, name in _LOCK.items():
            self.locks[what] = self.locks.get(what, nothing()) + histogram(text, name)

    def _port(self) -> int | None:
        """Find the port that it serves at in its log."""
        return next((line["port"] for line in _events(self._errors) if line.get("event") == "agent.started"), None)


def _events(log: Path) -> list[dict[str, Any]]:
    found = []
    for line in log.read_text(errors="replace").splitlines():
        try:
            found.append(json.loads(line))
        except ValueError:
            continue  # it is being written, or is none of ours
    return [line for line in found if isinstance(line, dict)]
