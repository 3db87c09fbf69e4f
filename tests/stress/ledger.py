"""What threads do and see, recorded one at a time; and the store on disk, read without any code of the agent."""

import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from threading import Event, Lock
from typing import Final, TypeVar

from tests.stress.checker import Action, ActionEvent, Checker, FileRead, Violation

_T = TypeVar("_T")
_EVERY: Final = 0.02


class Ledger:
    """The checker and its lock."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self._checker = Checker(self.began)
        self._lock = Lock()

    def action(self, action: Action, sandbox: str, ip: str = "") -> None:
        """Record an action: a call before it starts, a result after it returned."""
        with self._lock:
            self._checker.record(ActionEvent(time.monotonic(), action, sandbox, ip))

    def file_read(self, since: float, ip: str, found: str | None) -> None:
        """Record what was found at an address. `since`: when the read began, monotonic clock."""
        with self._lock:
            self._checker.record(FileRead(time.monotonic(), since, ip, found))

    def finish(self, left: Mapping[str, str]) -> None:
        """Check the final content of the store."""
        with self._lock:
            self._checker.finish(time.monotonic(), left)

    def owned(self, sandbox: str) -> tuple[str, ...]:
        return self._asked(lambda checker: checker.owned(sandbox))

    def reclaim_seconds(self) -> list[float]:
        return self._asked(lambda checker: list(checker.reclaim_seconds))

    def violations(self) -> tuple[Violation, ...]:
        return self._asked(lambda checker: tuple(checker.violations))

    def counts(self) -> dict[str, int]:
        return self._asked(
            lambda checker: {
                "allocations": checker.actions[Action.ADDED],
                "exhausted": checker.actions[Action.EXHAUSTED],
                "adds_killed": checker.actions[Action.KILLED],
                "half_added": checker.half_added,
                "leaked": checker.leaked,
                "reclaimed": len(checker.reclaim_seconds),
            }
        )

    def _asked(self, question: Callable[[Checker], _T]) -> _T:
        with self._lock:
            return question(self._checker)


class Store:
    """One network's directory with the addresses of one range."""

    def __init__(self, directory: Path, addresses: Iterable[str], ledger: Ledger) -> None:
        self.directory, self.addresses = directory, tuple(addresses)
        self._ledger = ledger

    def read(self, *addresses: str) -> None:
        """Read the files of these addresses by name and record their content."""
        for ip in addresses:
            since = time.monotonic()
            self._ledger.file_read(since, ip, self._found(ip))

    def watch(self, over: Event) -> None:
        """Read every address in a loop."""
        while not over.wait(_EVERY):
            self.read(*self.addresses)

    def left(self) -> dict[str, str]:
        """Return the container ids in the directory by file name."""
        names = (
            [entry.name for entry in self.directory.iterdir()] if self.directory.is_dir() else []
        )
        return {name: found for name in names if (found := self._found(name)) is not None}

    def _found(self, name: str) -> str | None:
        try:
            return (self.directory / name).read_text(errors="replace").partition("\n")[0].strip()
        except FileNotFoundError:
            return None
        except IsADirectoryError:
            return "(a directory)"
