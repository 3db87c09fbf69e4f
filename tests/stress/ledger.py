"""Thread-safe event log: threads record what they do and see, and the checker processes each event at once."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from threading import Lock

from tests.stress.checker import Checker
from tests.stress.events import Action, ActionEvent, Claim, FileRead, Violation


@dataclass(frozen=True, slots=True)
class Counts:
    """Counters of the run so far."""

    allocations: int
    exhausted: int
    adds_killed: int
    half_added: int
    """Killed ADDs that had already reserved an address."""
    leaked: int
    reclaimed: int
    violations: int

    def __str__(self) -> str:
        return (
            f"{self.allocations} allocations, {self.exhausted} exhausted, {self.adds_killed} ADDs killed, "
            f"{self.leaked} leaked, {self.reclaimed} reclaimed, {self.violations} violations"
        )


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

    def claim(self, ip: str, claim: str) -> None:
        """Record what a cleaner claims, to show it beside the observations."""
        with self._lock:
            self._checker.record(Claim(time.monotonic(), ip, claim))

    def finish(self, left: Mapping[str, str]) -> None:
        """Check the final content of the store."""
        with self._lock:
            self._checker.finish(time.monotonic(), left)

    def owned(self, sandbox: str) -> tuple[str, ...]:
        with self._lock:
            return self._checker.owned(sandbox)

    def leaks(self) -> dict[str, str]:
        with self._lock:
            return self._checker.leaks

    def occupied(self) -> int:
        with self._lock:
            return self._checker.occupied

    def reclaim_seconds(self) -> list[float]:
        with self._lock:
            return list(self._checker.reclaim_seconds)

    def violations(self) -> tuple[Violation, ...]:
        with self._lock:
            return tuple(self._checker.violations)

    def counts(self) -> Counts:
        with self._lock:
            actions = self._checker.actions
            return Counts(
                actions[Action.ADDED],
                actions[Action.EXHAUSTED],
                actions[Action.KILLED],
                self._checker.half_added,
                self._checker.leaked,
                len(self._checker.reclaim_seconds),
                len(self._checker.violations),
            )
