"""What the daemon of the soak uses, measured all the time: memory, threads, descriptors, and bytes on disk."""

import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

_EVERY: Final = 15.0
_WARM: Final = 300.0
"""Seconds after which a daemon has seen every kind of answer at least once."""
_FEWEST: Final = 40
_MOST_GROWTH: Final = {"memory": 2 * 1024, "threads": 1, "descriptors": 2}
"""KiB, and numbers: what a median may have more in the last third of a run than in the first third after the start."""


class Sample(NamedTuple):
    """The daemon at one time."""

    seconds: float
    """Since its start."""
    memory: int
    """KiB, resident."""
    threads: int
    descriptors: int
    journal: int
    """Bytes, with everything else in the state directory."""
    log: int
    """Bytes since its start."""


class Meter:
    """Samples of one daemon."""

    def __init__(self, pid: int, state: Path, log: Path) -> None:
        self._proc, self._state, self._log = Path(f"/proc/{pid}"), state, log
        self._began = time.monotonic()
        self._samples: list[Sample] = []

    @contextmanager
    def running(self) -> Iterator["Meter"]:
        stop = threading.Event()
        thread = threading.Thread(target=self._run, args=(stop,), daemon=True)
        thread.start()
        try:
            yield self
        finally:
            stop.set()
            thread.join()

    def taken(self) -> tuple[Sample, ...]:
        """Return what was measured since the last call."""
        taken, self._samples = self._samples, []
        return tuple(taken)

    def _run(self, stop: threading.Event) -> None:
        while not stop.wait(_EVERY):
            self._samples.append(self._sample())

    def _sample(self) -> Sample:
        lines = (self._proc / "status").read_text().splitlines()
        status = dict(line.split(":", 1) for line in lines)
        return Sample(
            round(time.monotonic() - self._began, 1),
            int(status["VmRSS"].split()[0]),
            int(status["Threads"]),
            len(os.listdir(self._proc / "fd")),
            sum(one.stat().st_size for one in self._state.rglob("*") if one.is_file()),
            self._log.stat().st_size,
        )


def runs(samples: Sequence[Sample]) -> list[list[Sample]]:
    """Return the samples of each daemon: its time starts at 0."""
    found: list[list[Sample]] = []
    for one in samples:
        if not found or one.seconds < found[-1][-1].seconds:
            found.append([])
        found[-1].append(one)
    return found


def growth(run: Sequence[Sample], what: str) -> float | None:
    """Return by how much the median of the last third of a run exceeds that of the first; None: it was too short."""
    warm = [one for one in run if one.seconds > _WARM]
    if len(warm) < _FEWEST:
        return None
    third = len(warm) // 3
    first, last = ([getattr(one, what) for one in part] for part in (warm[:third], warm[-third:]))
    return float(median(last) - median(first))


def grown(run: Sequence[Sample]) -> list[str]:
    """Say what became more and more during a run; nothing where it was too short to tell."""
    found = {what: growth(run, what) for what in _MOST_GROWTH}
    return [f"{what}: {by:+g}" for what, by in found.items() if by is not None and by > _MOST_GROWTH[what]]
