"""Measure the time of calls in this process, and the resources of other processes from `/proc`."""

import gc
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

_TICK_MS = 1000 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Figure:
    """One table row of the page."""

    what: str
    measured: str
    target: str = ""
    met: bool = True

    def __str__(self) -> str:
        verdict = "" if not self.target else "yes" if self.met else "**no**"
        return f"| {self.what} | {self.measured} | {self.target} | {verdict} |"


def ratio(what: str, mine: float, theirs: float, most: float | None = None) -> Figure:
    """Compare two times of one run. `most`: the target."""
    found = mine / theirs
    return Figure(what, f"{found:.2f}x", "" if most is None else f"at most {most:g}x", most is None or found <= most)


def interleaved(calls: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, Sequence[float]]:
    """Time the calls alternately, `rounds` times, so that machine load affects all of them. In seconds."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            gc.collect()
            start = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - start)
    return {name: tuple(taken) for name, taken in times.items()}


def medians(times: Mapping[str, Sequence[float]]) -> dict[str, float]:
    return {name: median(taken) for name, taken in times.items()}


def minima(times: Mapping[str, Sequence[float]]) -> dict[str, float]:
    return {name: min(taken) for name, taken in times.items()}


@dataclass(frozen=True, slots=True)
class Footprint:
    """Resources that a process has used so far."""

    rss_mib: float
    peak_mib: float
    cpu_ms: float


def footprint(pid: int) -> Footprint:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    kib = {
        name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines) if rest.endswith("kB")
    }
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    # utime and stime: fields 14 and 15 of proc_pid_stat(5), counted here from the one after the command.
    return Footprint(kib["VmRSS"] / 1024, kib["VmHWM"] / 1024, (int(fields[11]) + int(fields[12])) * _TICK_MS)
