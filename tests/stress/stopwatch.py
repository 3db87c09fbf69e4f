"""ADD latency, with and without cleaners."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from threading import Lock
from typing import Final

_NINETY_NINE: Final = 0.99


class Beside(StrEnum):
    """Whether cleaners ran while an ADD was timed."""

    CLEANERS = "with cleaners"
    NOTHING = "without cleaners"


@dataclass(frozen=True, slots=True)
class Timing:
    """The start of one ADD."""

    slice: int
    occupied: int


class Stopwatch:
    """Times of ADDs that began and ended in the same slice."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._slice = 0
        self._beside: Beside | None = None
        self._times: defaultdict[Beside, list[tuple[float, int]]] = defaultdict(list)

    def now(self, beside: Beside | None) -> None:
        """Begin another slice. None: do not count ADDs."""
        with self._lock:
            self._slice += 1
            self._beside = beside

    def begin(self, occupied: int) -> Timing:
        """`occupied`: number of addresses in use."""
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
    """ADD latency of some slices, in seconds."""

    count: int
    p50: float
    p99: float
    occupied: float
    """Mean number of addresses in use at the start of an ADD: host-local reads all of them."""


def _latency(times: Sequence[tuple[float, int]]) -> Latency:
    taken = sorted(seconds for seconds, _ in times)
    mean = sum(occupied for _, occupied in times) / len(times)
    return Latency(len(taken), quantile(taken, 0.5), quantile(taken, _NINETY_NINE), mean)


def quantile(ordered: Sequence[float], share: float) -> float:
    """Return the smallest value that covers this share; 0 for no values."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0
