"""`make bench`: measure and print the figures; --write updates docs/figures.md."""

import argparse
import os
import platform
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path

from agent.sources.source_error import SourceError
from tests.bench import cleaning, containerd, namespaces, page, resident, scan, store, worst_node
from tests.bench.measure import Figure
from tests.bench.surroundings import ROOT, runtime

_PAGE = ROOT / "docs/figures.md"
_SECTIONS = {
    "store": store.__doc__,
    "scan": scan.__doc__,
    "daemon": resident.__doc__,
    "containerd": containerd.__doc__,
    "namespaces": namespaces.__doc__,
    "cleaning": cleaning.__doc__,
    "worst node": worst_node.__doc__,
}


def main() -> int:
    """Measure and return the exit code: 1 if a target was missed."""
    parser = argparse.ArgumentParser(prog="hack/bench", description="Measure the figures of docs/figures.md.")
    parser.add_argument("section", nargs="*", help=f"only these sections: {', '.join(_SECTIONS)}")
    parser.add_argument("--write", action="store_true", help="write docs/figures.md, or only these sections of it")
    options = parser.parse_args()
    chosen = options.section or list(_SECTIONS)
    if unknown := set(chosen) - set(_SECTIONS):
        parser.error(f"unknown section: {', '.join(unknown)}")
    text, missed, load_before = dict[str, str](), 0, os.getloadavg()[0]
    try:
        for name in chosen:
            print(f"measuring: {name} …", file=sys.stderr, flush=True)
            figures = list(_measure(name))
            missed += sum(not figure.met for figure in figures)
            text[name] = "\n".join(_section(name, figures))
            print(text[name], flush=True)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except (OSError, SourceError, subprocess.SubprocessError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    if options.write and not options.section:
        _PAGE.write_text(page.whole(_head(_conditions(load_before)), text.values(), _PAGE.read_text()))
    elif options.write:
        alone = {name: page.measured_alone(section, _conditions(load_before)) for name, section in text.items()}
        _PAGE.write_text(page.replaced(_PAGE.read_text(), alone, list(_SECTIONS)))
    return 1 if missed else 0


def _measure(name: str) -> Iterator[Figure]:
    match name:
        case "store":
            return store.figures()
        case "scan":
            return scan.figures(runtime())
        case "daemon":
            return resident.figures(runtime())
        case "containerd":
            return containerd.figures(runtime())
        case "namespaces":
            return namespaces.figures()
        case "worst node":
            return worst_node.figures(runtime())
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


def _head(conditions: str) -> str:
    return f"""# Figures

Measured by `hack/bench --write` in one run; `make bench` measures again. Times are ratios between programs that ran \
alternately on the same machine, because absolute times depend on the machine. Memory is absolute.

{conditions}
"""


def _conditions(load_before: float) -> str:
    memory = int(Path("/proc/meminfo").read_text().split()[1]) / 1024**2
    return (
        f"{datetime.now(UTC):%Y-%m-%d}; {os.cpu_count()} cores, {memory:.0f} GiB, Linux {platform.release()} "
        f"{platform.machine()}, Python {platform.python_version()}. The command and the daemon ran with the "
        "versions of `constraints.txt` and without development tools, as in the image. Load average "
        f"before and after: {load_before:.1f} and {os.getloadavg()[0]:.1f}."
    )


if __name__ == "__main__":
    sys.exit(main())
