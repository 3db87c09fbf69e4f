"""A worker makes one sandbox after another, and loses some of them."""

from random import Random
from typing import Final

from tests.stress.containerd.outages import Outages
from tests.stress.containerd.sandboxes import Sandboxes

_LONGEST_HOLD: Final = 0.6
_BETWEEN_READS: Final = 0.03


class Worker:
    """One thread of a kubelet."""

    def __init__(self, number: int, sandboxes: Sandboxes, outages: Outages, lose: float, chance: Random) -> None:
        """`lose`: percentage of the sandboxes whose records somebody deletes."""
        self._number, self._sandboxes, self._outages = number, sandboxes, outages
        self._lose, self._chance = lose, chance

    def work(self) -> None:
        made = 0
        self._sandboxes.join(1)
        try:
            while not self._sandboxes.state.stopping.is_set():
                made += 1
                if (one := self._sandboxes.run(f"worker-{self._number}-{made}")) is None:
                    self._sandboxes.state.stopping.wait(self._chance.uniform(0.02, 0.2))
                    continue
                self._hold(one[0])
                if self._chance.uniform(0, 100) < self._lose:
                    self._outages.lose(*one)
                else:
                    self._sandboxes.delete(one[0])
        finally:
            self._sandboxes.join(-1)

    def _hold(self, sandbox: str) -> None:
        left = self._chance.uniform(0, _LONGEST_HOLD)
        while left > 0:
            self._sandboxes.store.read(*self._sandboxes.ledger.owned(sandbox))
            self._sandboxes.state.over.wait(_BETWEEN_READS)
            left -= _BETWEEN_READS
