"""A worker: creates one sandbox after another as a kubelet does; some leak, some are abandoned by a killed kubelet."""

from dataclasses import dataclass
from enum import Enum, auto
from random import Random
from typing import Final

from tests.stress.garbage_collector import Abandoned
from tests.stress.node import Node
from tests.stress.run_state import RunState
from tests.stress.stopwatch import Stopwatch

_LONGEST_HOLD: Final = 0.5
_BETWEEN_READS: Final = (0.01, 0.06)
_BEFORE_RETRY: Final = (0.02, 0.2)


class Lifecycle(Enum):
    """How far a sandbox gets."""

    COMPLETE = auto()
    LEAKED = auto()
    KILLED_BEFORE_ADD = auto()
    KILLED_IN_ADD = auto()
    KILLED_AFTER_ADD = auto()
    KILLED_AFTER_DEL = auto()


_KILLED: Final = (
    Lifecycle.KILLED_BEFORE_ADD,
    Lifecycle.KILLED_IN_ADD,
    Lifecycle.KILLED_AFTER_ADD,
    Lifecycle.KILLED_AFTER_DEL,
)


@dataclass(frozen=True, slots=True)
class Rates:
    """Percentages: sandboxes that leak, and sandboxes during which the kubelet is killed."""

    leak: float
    kill: float

    def lifecycle(self, chance: Random) -> Lifecycle:
        drawn = chance.uniform(0, 100)
        if drawn < self.leak:
            return Lifecycle.LEAKED
        return chance.choice(_KILLED) if drawn < self.leak + self.kill else Lifecycle.COMPLETE


class Worker:
    """One thread of a kubelet. After a kill it goes on with a new sandbox; the garbage collector gets the old one."""

    def __init__(
        self, node: Node, rates: Rates, chance: Random, state: RunState, abandoned: Abandoned, adds: Stopwatch
    ) -> None:
        self._node, self._rates, self._chance = node, rates, chance
        self._state, self._abandoned, self._adds = state, abandoned, adds
        self._usual_add = 0.01
        self._exhausted = False

    def work(self) -> None:
        while not self._state.stopping.is_set():
            lifecycle = self._rates.lifecycle(self._chance)
            sandbox = self._node.create()
            if self._survives(sandbox, lifecycle):
                self._node.remove(sandbox)
                self._wait_if_exhausted()
            else:
                self._abandoned.leave(sandbox)

    def _survives(self, sandbox: str, lifecycle: Lifecycle) -> bool:
        """Take a sandbox through its lifecycle; return whether the kubelet survives to remove it."""
        if lifecycle is Lifecycle.KILLED_BEFORE_ADD:
            return False
        if lifecycle is Lifecycle.KILLED_IN_ADD:
            self._node.add_killed(sandbox, self._chance.uniform(0, 1.5 * self._usual_add))
            return False
        if not self._add(sandbox):
            return True
        if lifecycle is Lifecycle.KILLED_AFTER_ADD:
            return False
        self._hold(sandbox)
        if lifecycle is not Lifecycle.LEAKED:
            self._node.delete(sandbox)
        return lifecycle is not Lifecycle.KILLED_AFTER_DEL

    def _add(self, sandbox: str) -> bool:
        timing = self._adds.begin(self._node.ledger.occupied())
        added = self._node.add(sandbox)
        self._exhausted = added is None
        if added is None:
            return False
        self._adds.end(timing, added.seconds)
        self._usual_add = added.seconds
        return True

    def _wait_if_exhausted(self) -> None:
        if self._exhausted:
            self._state.stopping.wait(self._chance.uniform(*_BEFORE_RETRY))
        self._exhausted = False

    def _hold(self, sandbox: str) -> None:
        left = self._chance.uniform(0, _LONGEST_HOLD)
        while left > 0:
            self._node.read(sandbox)
            seconds = min(left, self._chance.uniform(*_BETWEEN_READS))
            self._state.over.wait(seconds)
            left -= seconds
