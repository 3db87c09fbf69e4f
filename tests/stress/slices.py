"""Slices of one run, with and without the cleaners: what slows the machine meets both alike.

Leaks would fill the range while nobody cleans, and host-local reads every file: so in a slice without cleaners leaks
are given back for nothing, by whoever made them. An ADD that is under way while a slice begins or ends is not counted.
"""

import time
from collections.abc import Sequence
from typing import Final

from tests.stress.cleaner import Cleaner
from tests.stress.node import Node
from tests.stress.resident import Resident
from tests.stress.stopwatch import Beside, Stopwatch

SECONDS: Final = 5.0


class Slices:
    """Turns cleaners and daemons off and on again. `every`: seconds between two gifts of leaks."""

    def __init__(
        self, cleaners: Sequence[Cleaner], daemons: Sequence[Resident], adds: Stopwatch, node: Node, every: float
    ) -> None:
        self._cleaners, self._daemons, self._adds, self._node = cleaners, daemons, adds, node
        self._every = every
        self._beside = Beside.CLEANERS
        self._until = time.monotonic() + SECONDS
        self._next_gift = 0.0

    def turn(self) -> None:
        """Do what is due now; called again and again."""
        now = time.monotonic()
        if self._beside is Beside.NOTHING and now >= self._next_gift:
            self._give_back()
            self._next_gift = now + self._every
        if now >= self._until:
            self._adds.now(None)
            if self._beside is Beside.CLEANERS:
                self.rest()
            else:
                self.go_on()
            self._adds.now(self._beside)
            self._until = time.monotonic() + SECONDS

    def go_on(self) -> None:
        """Have all clean again."""
        if self._beside is Beside.CLEANERS:
            return
        for daemon in self._daemons:
            daemon.start()
        for cleaner in self._cleaners:
            cleaner.go_on()
        self._beside = Beside.CLEANERS

    def rest(self) -> None:
        """Have nobody clean, and return when nobody does."""
        for cleaner in self._cleaners:
            cleaner.rest()
        for daemon in self._daemons:
            daemon.end()
        self._beside = Beside.NOTHING

    def _give_back(self) -> None:
        """Release leaks without a process, a lock or a question: nobody else cleans, and only a cleaner would."""
        for ip, sandbox in self._node.ledger.leaks().items():
            (self._node.store.directory / ip).unlink(missing_ok=True)
            self._node.cache.forget(sandbox)
            self._node.store.look(ip)
