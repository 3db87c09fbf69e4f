"""A worker: one sandbox after another in the kubelet's order, some leaked, some left where the kubelet was killed."""

from dataclasses import dataclass
from enum import Enum, auto
from random import Random
from typing import Final

from tests.stress.abandoned import Abandoned
from tests.stress.course import Course
from tests.stress.node import Node
from tests.stress.stopwatch import Stopwatch

_LONGEST_HOLD: Final = 0.5
_BETWEEN_LOOKS: Final = (0.01, 0.06)
_BEFORE_RETRY: Final = (0.02, 0.2)


class Fate(Enum):
    """How far a sandbox comes."""

    WHOLE_LIFE = auto()
    LEAKED = auto()
    KILLED_BEFORE_ADD = auto()
    KILLED_IN_ADD = auto()
    KILLED_AFTER_ADD = auto()
    KILLED_AFTER_DEL = auto()


_KILLED: Final = (Fate.KILLED_BEFORE_ADD, Fate.KILLED_IN_ADD, Fate.KILLED_AFTER_ADD, Fate.KILLED_AFTER_DEL)


@dataclass(frozen=True, slots=True)
class Habits:
    """Of a hundred sandboxes: how many are leaked, and in how many the kubelet is killed."""

    leak: float
    kill: float

    def fate(self, chance: Random) -> Fate:
        drawn = chance.uniform(0, 100)
        if drawn < self.leak:
            return Fate.LEAKED
        return chance.choice(_KILLED) if drawn < self.leak + self.kill else Fate.WHOLE_LIFE


class Worker:
    """One thread of a kubelet. A killed one begins anew with the next sandbox; what it had is somebody else's."""

    def __init__(
        self, node: Node, habits: Habits, chance: Random, course: Course, abandoned: Abandoned, adds: Stopwatch
    ) -> None:
        self._node, self._habits, self._chance = node, habits, chance
        self._course, self._abandoned, self._adds = course, abandoned, adds
        self._usual_add = 0.01
        self._exhausted = False

    def work(self) -> None:
        while not self._course.winding_down.is_set():
            fate = self._habits.fate(self._chance)
            sandbox = self._node.create()
            if self._survives(sandbox, fate):
                self._node.remove(sandbox)
                self._wait_if_exhausted()
            else:
                self._abandoned.leave(sandbox)

    def _survives(self, sandbox: str, fate: Fate) -> bool:
        """Take a sandbox as far as it comes before its removal; tells whether the kubelet lives to remove it."""
        if fate is Fate.KILLED_BEFORE_ADD:
            return False
        if fate is Fate.KILLED_IN_ADD:
            self._node.add_killed(sandbox, self._chance.uniform(0, 1.5 * self._usual_add))
            return False
        if not self._add(sandbox):
            return True
        if fate is Fate.KILLED_AFTER_ADD:
            return False
        self._hold(sandbox)
        if fate is not Fate.LEAKED:
            self._node.delete(sandbox)
        return fate is not Fate.KILLED_AFTER_DEL

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
            self._course.winding_down.wait(self._chance.uniform(*_BEFORE_RETRY))
        self._exhausted = False

    def _hold(self, sandbox: str) -> None:
        left = self._chance.uniform(0, _LONGEST_HOLD)
        while left > 0:
            self._node.look(sandbox)
            span = min(left, self._chance.uniform(*_BETWEEN_LOOKS))
            self._course.over.wait(span)
            left -= span
