"""What the sections have in common: rows with targets, times measured alternately, and the resources of processes."""

import gc
import os
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from urllib.request import ProxyHandler, build_opener

_PAGE = Path(__file__).parents[2] / "docs/figures.md"
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


@dataclass(frozen=True, slots=True)
class Compared:
    """One table row of a section that has columns of its own, and no target."""

    what: str
    values: tuple[str, ...]
    met: bool = True

    def __str__(self) -> str:
        return f"| {' | '.join((self.what, *self.values))} |"


def at_most(what: str, measured: float, unit: str, limit: float) -> Figure:
    return Figure(what, f"{measured:.1f} {unit}", f"at most {limit:g} {unit}", measured <= limit)


def ratio(what: str, mine: float, theirs: float, limit: float | None = None) -> Figure:
    """Compare two times of one run."""
    found = mine / theirs
    return Figure(
        what,
        f"{found:.2f}x",
        "" if limit is None else f"at most {limit:g}x",
        limit is None or found <= limit,
    )


def alternating(calls: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Time the calls alternately, so that machine load affects all of them; return the median of each in seconds."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            gc.collect()
            start = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - start)
    return {name: median(taken) for name, taken in times.items()}


@dataclass(frozen=True, slots=True)
class Footprint:
    """Resources that a process has used so far."""

    rss_mib: float
    peak_mib: float
    cpu_ms: float


def footprint(pid: int) -> Footprint:
    kib = dict(
        re.findall(r"^(\w+):\s+(\d+) kB$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    )
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    # utime and stime: fields 14 and 15 of proc_pid_stat(5), counted here from the one after the command.
    cpu_ms = (int(fields[11]) + int(fields[12])) * _TICK_MS
    return Footprint(int(kib["VmRSS"]) / 1024, int(kib["VmHWM"]) / 1024, cpu_ms)


def values(metrics: str, start: str, label: str = "") -> list[float]:
    """Return the values of the samples that start like this and have the label."""
    lines = [line.rsplit(None, 1) for line in metrics.splitlines() if line.startswith(start)]
    return [float(value) for name, value in lines if label in name]


def get(url: str) -> str:
    with build_opener(ProxyHandler({})).open(url, timeout=5) as answer:
        return str(answer.read().decode())


def write_section(section: str) -> None:
    """Put a section into the page in place of its own; a new one goes to the end.

    What somebody wrote below the table stays, to be read again.
    """
    title = section.partition("\n")[0]
    head, *parts = re.split(r"^(?=## )", _PAGE.read_text(), flags=re.MULTILINE)
    sections = {part.partition("\n")[0]: part for part in parts}
    below = re.split(r"^\|.*\n", sections.get(title, ""), flags=re.MULTILINE)[1:][-1:]
    sections[title] = f"{section.rstrip()}\n\n{''.join(below).strip()}"
    page = [head, *sections.values()]
    _PAGE.write_text("\n\n".join(part.strip() for part in page) + "\n")
