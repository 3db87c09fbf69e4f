"""Where every thread tells what it does and sees: one at a time, stamped with the time, and judged at once."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from threading import Lock

from tests.stress.history import Deed, Did, Looked, Said, Violation
from tests.stress.oracle import Oracle


@dataclass(frozen=True, slots=True)
class Counts:
    """What has happened so far."""

    allocations: int
    exhausted: int
    adds_killed: int
    half_added: int
    """Of the killed ADDs: those that had reserved an address."""
    leaked: int
    reclaimed: int
    violations: int

    def __str__(self) -> str:
        return (
            f"{self.allocations} allocations, {self.exhausted} exhausted, {self.adds_killed} ADDs killed, "
            f"{self.leaked} leaked, {self.reclaimed} reclaimed, {self.violations} violations"
        )


class Ledger:
    """The oracle, and the one lock around it."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self._oracle = Oracle(self.began)
        self._lock = Lock()

    def did(self, deed: Deed, sandbox: str, ip: str = "") -> None:
        """Tell a deed: what is called before the call, what returned after it."""
        with self._lock:
            self._oracle.hear(Did(time.monotonic(), deed, sandbox, ip))

    def looked(self, since: float, ip: str, found: str | None) -> None:
        """Tell what was found at an address. `since`: when the look began, by the monotonic clock."""
        with self._lock:
            self._oracle.hear(Looked(time.monotonic(), since, ip, found))

    def said(self, ip: str, claim: str) -> None:
        """Keep what a cleaner claims, to be shown beside what was seen."""
        with self._lock:
            self._oracle.hear(Said(time.monotonic(), ip, claim))

    def settle(self, left: Mapping[str, str]) -> None:
        """Have the end judged."""
        with self._lock:
            self._oracle.settle(time.monotonic(), left)

    def owned(self, sandbox: str) -> tuple[str, ...]:
        with self._lock:
            return self._oracle.owned(sandbox)

    def leaks(self) -> dict[str, str]:
        with self._lock:
            return self._oracle.leaks

    def occupied(self) -> int:
        with self._lock:
            return self._oracle.occupied

    def reclaim_seconds(self) -> list[float]:
        with self._lock:
            return list(self._oracle.reclaim_seconds)

    def violations(self) -> tuple[Violation, ...]:
        with self._lock:
            return tuple(self._oracle.violations)

    def counts(self) -> Counts:
        with self._lock:
            deeds = self._oracle.deeds
            return Counts(
                deeds[Deed.ADDED],
                deeds[Deed.EXHAUSTED],
                deeds[Deed.KILLED],
                self._oracle.half_added,
                self._oracle.leaked,
                len(self._oracle.reclaim_seconds),
                len(self._oracle.violations),
            )
