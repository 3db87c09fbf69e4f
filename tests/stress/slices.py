"""Alternate slices of one run with and without cleaners, so that machine load affects both alike.

Without cleaners, leaks would fill the range and slow host-local down, which reads every file: in those slices the test
removes the leaks itself. An ADD that crosses a slice boundary is not counted.
"""

import time
from collections.abc import Sequence
from typing import Final

from tests.stress.cleaner import Cleaner
from tests.stress.daemon import Daemon
from tests.stress.node import Node
from tests.stress.stopwatch import Beside, Stopwatch

SECONDS: Final = 5.0


class Slices:
    """Switches cleaners and daemons off and on. `every`: seconds between two removals of leaks."""

    def __init__(
        self, cleaners: Sequence[Cleaner], daemons: Sequence[Daemon], adds: Stopwatch, node: Node, every: float
    ) -> None:
        self._cleaners, self._daemons, self._adds, self._node = cleaners, daemons, adds, node
        self._every = every
        self._beside = Beside.CLEANERS
        self._until = time.monotonic() + SECONDS
        self._next_removal = 0.0

    def turn(self) -> None:
        """Do what is due now; called in a loop."""
        now = time.monotonic()
        if self._beside is Beside.NOTHING and now >= self._next_removal:
            self._remove_leaks()
            self._next_removal = now + self._every
        if now >= self._until:
            self._adds.now(None)
            if self._beside is Beside.CLEANERS:
                self.stop_cleaning()
            else:
                self.resume()
            self._adds.now(self._beside)
            self._until = time.monotonic() + SECONDS

    def resume(self) -> None:
        """Start cleaning again."""
        if self._beside is Beside.CLEANERS:
            return
        for daemon in self._daemons:
            daemon.start()
        for cleaner in self._cleaners:
            cleaner.resume()
        self._beside = Beside.CLEANERS

    def stop_cleaning(self) -> None:
        """Stop all cleaners and wait until they stopped."""
        for cleaner in self._cleaners:
            cleaner.pause_runs()
        for daemon in self._daemons:
            daemon.end()
        self._beside = Beside.NOTHING

    def _remove_leaks(self) -> None:
        """Remove leaks without the lock: no cleaner runs now."""
        for ip, sandbox in self._node.ledger.leaks().items():
            (self._node.store.directory / ip).unlink(missing_ok=True)
            self._node.cache.forget(sandbox)
            self._node.store.read(ip)
