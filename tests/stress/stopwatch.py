"""How long ADD takes, kept apart by what ran beside it."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from threading import Lock
from typing import Final

_NINETY_NINE: Final = 0.99


class Beside(StrEnum):
    """What ran while an ADD was timed."""

    CLEANERS = "beside the cleaners"
    NOTHING = "without any cleaner"


@dataclass(frozen=True, slots=True)
class Timing:
    """The begin of one ADD."""

    slice: int
    occupied: int


class Stopwatch:
    """Times of ADDs that began and ended in one and the same slice of the run."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._slice = 0
        self._beside: Beside | None = None
        self._times: defaultdict[Beside, list[tuple[float, int]]] = defaultdict(list)

    def now(self, beside: Beside | None) -> None:
        """Begin another slice. None: what is timed is not to be counted."""
        with self._lock:
            self._slice += 1
            self._beside = beside

    def begin(self, occupied: int) -> Timing:
        """`occupied`: how many addresses are taken."""
        with self._lock:
            return Timing(self._slice, occupied)

    def end(self, timing: Timing, seconds: float) -> None:
        with self._lock:
            if timing.slice == self._slice and self._beside is not None:
                self._times[self._beside].append((seconds, timing.occupied))

    def latencies(self) -> Mapping[Beside, "Latency"]:
        with self._lock:
            return {beside: _latency(times) for beside, times in self._times.items()}


@dataclass(frozen=True, slots=True)
class Latency:
    """Of the ADDs of some slices, in seconds."""

    count: int
    p50: float
    p99: float
    occupied: float
    """How many addresses were taken on average when one began: host-local reads them all."""


def _latency(times: Sequence[tuple[float, int]]) -> Latency:
    taken = sorted(seconds for seconds, _ in times)
    mean = sum(occupied for _, occupied in times) / len(times)
    return Latency(len(taken), quantile(taken, 0.5), quantile(taken, _NINETY_NINE), mean)


def quantile(ordered: Sequence[float], share: float) -> float:
    """Return the smallest value that at least this share of them does not exceed; 0 of none."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0
