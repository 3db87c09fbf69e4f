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


class PodOutcome(Enum):
    """How far a sandbox comes."""

    WHOLE_LIFE = auto()
    LEAKED = auto()
    KILLED_BEFORE_ADD = auto()
    KILLED_IN_ADD = auto()
    KILLED_AFTER_ADD = auto()
    KILLED_AFTER_DEL = auto()


_KILLED: Final = (
    PodOutcome.KILLED_BEFORE_ADD,
    PodOutcome.KILLED_IN_ADD,
    PodOutcome.KILLED_AFTER_ADD,
    PodOutcome.KILLED_AFTER_DEL,
)


@dataclass(frozen=True, slots=True)
class Habits:
    """Of a hundred sandboxes: how many are leaked, and in how many the kubelet is killed."""

    leak: float
    kill: float

    def pod_outcome(self, chance: Random) -> PodOutcome:
        drawn = chance.uniform(0, 100)
        if drawn < self.leak:
            return PodOutcome.LEAKED
        return chance.choice(_KILLED) if drawn < self.leak + self.kill else PodOutcome.WHOLE_LIFE


class Worker:
    """One thread of a kubelet. A killed one begins anew with the next sandbox; what it had is somebody else's."""

    def __init__(
        self, node: Node, habits: Habits, chance: Random, history: Course, abandoned: Abandoned, adds: Stopwatch
    ) -> None:
        self._node, self._habits, self._chance = node, habits, chance
        self._course, self._abandoned, self._adds = history, abandoned, adds
        self._usual_add = 0.01
        self._exhausted = False

    def work(self) -> None:
        while not self._course.winding_down.is_set():
            pod_outcome = self._habits.pod_outcome(self._chance)
            sandbox = self._node.create()
            if self._survives(sandbox, pod_outcome):
                self._node.remove(sandbox)
                self._wait_if_exhausted()
            else:
                self._abandoned.leave(sandbox)

    def _survives(self, sandbox: str, pod_outcome: PodOutcome) -> bool:
        """Take a sandbox as far as it comes before its removal; tells whether the kubelet lives to remove it."""
        if pod_outcome is PodOutcome.KILLED_BEFORE_ADD:
            return False
        if pod_outcome is PodOutcome.KILLED_IN_ADD:
            self._node.add_killed(sandbox, self._chance.uniform(0, 1.5 * self._usual_add))
            return False
        if not self._add(sandbox):
            return True
        if pod_outcome is PodOutcome.KILLED_AFTER_ADD:
            return False
        self._hold(sandbox)
        if pod_outcome is not PodOutcome.LEAKED:
            self._node.delete(sandbox)
        return pod_outcome is not PodOutcome.KILLED_AFTER_DEL

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
