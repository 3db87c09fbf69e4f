"""Writes processes into the table of a node."""

import os
from pathlib import Path

from agent.model.snapshot import ProcessStartTimes
from agent.sources.host.processes import ProcessTable

TICKS = os.sysconf("SC_CLK_TCK")


def process(proc: Path, pid: int, command: str, seconds: int, *words: str) -> Path:
    """Write a process that started so many seconds after boot, without words one whose command line is unreadable."""
    stat = proc / f"{pid}/stat"
    stat.parent.mkdir(exist_ok=True)
    fields = ["S", *["0"] * 18, str(seconds * TICKS), *["0"] * 30]
    stat.write_text(f"{pid} ({command}) {' '.join(fields)}\n")
    if words:
        (proc / f"{pid}/cmdline").write_text("".join(f"{word}\0" for word in words))
    return stat


def read(proc: Path) -> ProcessStartTimes:
    return ProcessTable(proc).read()
