"""A cleaner that runs as a daemon: started, supervised, scraped, and terminated."""

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
from tests.stress.metrics import Histogram, histogram, nothing
from tests.stress.run_state import RunState
from tests.stress.workspace import Workspace

_LOCK: Final = {"held": "nodeleak_lock_held_seconds", "waited for": "nodeleak_lock_wait_seconds"}
_TIMEOUT: Final = 10.0


class Daemon:
    """One daemon. It may be started and stopped several times; its lock histograms are summed."""

    def __init__(self, given: Command, workspace: Workspace, number: int, state: RunState) -> None:
        self.command = given
        self.codes: Counter[int] = Counter()
        self.locks: dict[str, Histogram] = {}
        """Use of host-local's lock, from the daemon's own metrics; empty if it exports none."""
        self._workspace, self._state = workspace, state
        self._output = workspace.logs / f"daemon-{number}.out"
        self._errors = workspace.logs / f"daemon-{number}.err"
        self._child: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it; for nodeleak, wait until it serves HTTP."""
        self._child = command.start(self.command, self._workspace, self._output, self._errors)
        if self.command.name != NODELEAK:
            return
        for _ in processes.until(time.monotonic() + _TIMEOUT):
            self.watch()
            if self._state.aborted.is_set() or self._port() is not None:
                return
        self._state.fail(f"daemon {self.command.name} did not start:\n{command.tail(self._errors)}")

    def watch(self) -> None:
        """Fail the run if the daemon exited on its own."""
        if self._child is not None and (code := self._child.poll()) is not None:
            self._child = None
            self._state.fail(f"daemon {self.command.name} exited on its own with {code}:\n{command.tail(self._errors)}")

    def end(self) -> None:
        """Scrape its metrics and terminate it."""
        self.watch()
        if self._child is None:
            return
        self._add_locks()
        begun = time.monotonic()
        child, self._child = self._child, None
        self.codes[command.end(child, _TIMEOUT)] += 1
        if time.monotonic() > begun + _TIMEOUT:
            self._state.fail(f"daemon {self.command.name} had to be killed:\n{command.tail(self._errors)}")

    def _add_locks(self) -> None:
        if (port := self._port()) is None:
            return
        try:
            opener: Any = build_opener(ProxyHandler({}))
            with opener.open(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
                text = answer.read().decode()
        except (URLError, OSError) as error:
            self._state.fail(f"daemon {self.command.name} did not serve /metrics: {error}")
            return
        for what, name in _LOCK.items():
            self.locks[what] = self.locks.get(what, nothing()) + histogram(text, name)

    def _port(self) -> int | None:
        """Find its port in its log."""
        return next((line["port"] for line in _events(self._errors) if line.get("event") == "agent.started"), None)


def _events(log: Path) -> list[dict[str, Any]]:
    found = []
    for line in log.read_text(errors="replace").splitlines():
        try:
            found.append(json.loads(line))
        except ValueError:
            continue  # an incomplete line, or not JSON
    return [line for line in found if isinstance(line, dict)]
