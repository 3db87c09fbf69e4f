"""`make bench`: measures, prints, and with --write keeps docs/figures.md."""

import argparse
import os
import platform
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path

from tests.bench import cleaning, resident, scan, store
from tests.bench.measure import Figure
from tests.bench.surroundings import ROOT, runtime

_PAGE = ROOT / "docs/figures.md"
_SECTIONS = {"store": store.__doc__, "scan": scan.__doc__, "daemon": resident.__doc__, "cleaning": cleaning.__doc__}


def main() -> int:
    """Measure; returns 1 where a target was missed."""
    parser = argparse.ArgumentParser(prog="hack/bench", description="The figures of docs/figures.md.")
    parser.add_argument("section", nargs="*", help=f"only these, of: {', '.join(_SECTIONS)}")
    parser.add_argument("--write", action="store_true", help="write docs/figures.md")
    given = parser.parse_args()
    chosen = given.section or list(_SECTIONS)
    if unknown := set(chosen) - set(_SECTIONS):
        parser.error(f"there is no section {', '.join(unknown)}")
    if given.write and given.section:
        parser.error("--write is for all sections together")
    text, missed, load_before = [], 0, os.getloadavg()[0]
    try:
        for name in chosen:
            print(f"measuring: {name} …", file=sys.stderr, flush=True)
            figures = list(_measure(name))
            missed += sum(not figure.met for figure in figures)
            section = "\n".join(_section(name, figures))
            print(section, flush=True)
            text.append(section)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except (OSError, subprocess.SubprocessError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    if given.write:
        _PAGE.write_text("\n".join([*_head(load_before), *text]) + "\n" + _by_other_means())
    return 1 if missed else 0


def _by_other_means() -> str:
    """Return the end of the page, which `hack/footprint` measures and people write."""
    _, heading, kept = _PAGE.read_text().partition("## In a pod\n")
    return heading + kept


def _measure(name: str) -> Iterator[Figure]:
    match name:
        case "store":
            return store.figures()
        case "scan":
            return scan.figures(runtime())
        case "daemon":
            return resident.figures(runtime())
        case _:
            return cleaning.figures(runtime())


def _section(name: str, figures: Iterable[Figure]) -> Iterator[str]:
    yield f"## {name.capitalize()}"
    yield ""
    yield (_SECTIONS[name] or "").strip()
    yield ""
    yield "| what | measured | target | met |"
    yield "|---|---|---|---|"
    yield from map(str, figures)
    yield ""


def _head(load_before: float) -> Iterator[str]:
    memory = int(Path("/proc/meminfo").read_text().split()[1]) / 1024**2
    yield "# Figures"
    yield ""
    yield (
        "Measured by `hack/bench --write`, in one run; `make bench` measures again. Times are ratios of what ran in "
        "turn on the same machine, because seconds say more of a machine than of a program; memory is what it is."
    )
    yield ""
    yield (
        f"{datetime.now(UTC):%Y-%m-%d}; {os.cpu_count()} cores, {memory:.0f} GiB, Linux {platform.release()} "
        f"{platform.machine()}, Python {platform.python_version()}. The command and the daemon ran in an environment "
        "with the versions of `constraints.txt` and without development tools, as in the image. Load average "
        f"before and after: {load_before:.1f} and {os.getloadavg()[0]:.1f}."
    )
    yield ""


if __name__ == "__main__":
    sys.exit(main())
