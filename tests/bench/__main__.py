"""`make bench`: measure and print the figures; --write puts the measured sections into docs/figures.md."""

import argparse
import os
import platform
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

from tests.bench import cleaning, daemon, fleet, namespaces, scale, scan
from tests.bench.measure import Compared, Figure, write_section
from tests.bench.surroundings import runtime

_SECTIONS: dict[str, tuple[str | None, Callable[[], Iterator[Figure | Compared]]]] = {
    "daemon": (daemon.__doc__, lambda: daemon.figures(runtime())),
    "worst node": (daemon.worst.__doc__, lambda: daemon.worst(runtime())),
    "scan": (scan.__doc__, lambda: scan.figures(runtime())),
    "namespaces": (namespaces.__doc__, namespaces.figures),
    "cleaning": (cleaning.__doc__, lambda: cleaning.figures(runtime())),
    "scale": (scale.__doc__, scale.figures),
    "fleet": (fleet.__doc__, fleet.figures),
}
_COLUMNS = {"fleet": fleet.COLUMNS}
_OF_TARGETS = ("what", "measured", "target", "met")


def main() -> int:
    """Measure and return the exit code: 1 if a target was missed."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench", description="Measure the figures of docs/figures.md."
    )
    parser.add_argument("section", nargs="*", help=f"only these sections: {', '.join(_SECTIONS)}")
    parser.add_argument(
        "--write", action="store_true", help="write what was measured to docs/figures.md"
    )
    options = parser.parse_args()
    if unknown := set(options.section) - set(_SECTIONS):
        parser.error(f"unknown section: {', '.join(unknown)}")
    missed = 0
    try:
        for name in options.section or _SECTIONS:
            print(f"measuring: {name} …", file=sys.stderr, flush=True)
            load, figures = os.getloadavg()[0], list(_SECTIONS[name][1]())
            missed += sum(not figure.met for figure in figures)
            section = _section(name, figures, load)
            print(section, flush=True)
            if options.write:
                write_section(section)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except (OSError, subprocess.SubprocessError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    return 1 if missed else 0


def _section(name: str, figures: list[Figure | Compared], load: float) -> str:
    memory = int(Path("/proc/meminfo").read_text().split()[1]) / 1024**2
    conditions = (
        f"{datetime.now(UTC):%Y-%m-%d}; {os.cpu_count()} cores, {memory:.0f} GiB, Linux {platform.release()}, "
        f"Python {platform.python_version()}; load average before and after: {load:.1f} and {os.getloadavg()[0]:.1f}."
    )
    head = [f"## {name.capitalize()}", "", (_SECTIONS[name][0] or "").strip(), "", conditions, ""]
    columns = _COLUMNS.get(name, _OF_TARGETS)
    table = [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}", *map(str, figures)]
    return "\n".join([*head, *table, ""])


if __name__ == "__main__":
    sys.exit(main())
