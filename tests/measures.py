"""`hack/measure`: the size and the shape of the code, each figure beside its budget and its goal.

A budget is a line that fails `make lint` (`hack/measure --check`). It only goes down: whoever needs more room takes it
from somewhere else, and says so in the commit.
"""

import ast
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from radon.complexity import cc_visit  # type: ignore[import-untyped]

ROOT: Final = Path(__file__).resolve().parents[1]
DESTROYING: Final = ("guards", "journal", "recheck", "restore", "run", "unlink")  # From `clean --apply` to unlink
_PROSE: Final = ("docs", "deploy", "tests", "hack")
BUDGETS: Final = {
    "agent/sources: lines": (5_107, 4_300),
    "agent/exporters: lines": (2_759, 2_400),
    "agent/checks: lines": (3_048, 2_100),
    "agent/model: lines": (2_423, 1_500),
    "agent/cleanup: lines": (1_744, 1_000),
    "agent/fleet: lines": (1_366, 1_250),
    "agent/cli: lines": (1_109, 950),
    "agent/kube_events: lines": (497, 400),
    "agent/app, state and others: lines": (1_307, 1_050),
    "agent: lines": (19_360, 15_000),
    "agent: modules": (152, 150),
    "the destroying path: lines": (1_591, 1_000),
    "the longest function": (40, 40),
    "the highest complexity": (10, 10),
    "tests: lines": (39_500, 40_000),
    "names that tests import from agent": (193, 250),
    "words in *.md": (27_289, 30_000),
    "words in README.md": (1_292, 1_300),
    "hack: lines, without go.mod and go.sum": (2_600, 2_600),
}
"""The budget of today, and the goal."""


class Figure(NamedTuple):
    what: str
    found: int
    budget: int
    goal: int

    @property
    def met(self) -> bool:
        return self.found <= self.budget


def main(arguments: Sequence[str]) -> int:
    if {"-h", "--help"} & set(arguments):
        print((__doc__ or "").strip())
        return 0
    figures = list(measured(ROOT))
    over = [one for one in figures if not one.met]
    if "--check" not in arguments:
        print(f"{'measure':40} {'now':>8} {'budget':>8} {'goal':>8}")
        for one in figures:
            print(f"{one.what:40} {one.found:>8,} {one.budget:>8,} {one.goal:>8,}")
    for one in over:
        print(f"hack/measure: {one.what}: {one.found:,} is over the budget of {one.budget:,}", file=sys.stderr)
    return 1 if over else 0


def measured(tree: Path) -> Iterator[Figure]:
    agent = [path.relative_to(tree) for path in _files(tree, "agent", ".py")]
    lines = {path: _lines(tree / path) for path in agent}
    found = dict.fromkeys(BUDGETS, 0)
    for path, count in lines.items():
        package = f"agent/{path.parts[1]}: lines"
        found[package if package in found else "agent/app, state and others: lines"] += count
        if path.parts[1] == "cleanup" and path.stem in DESTROYING:
            found["the destroying path: lines"] += count
    found["agent: lines"], found["agent: modules"] = sum(lines.values()), len(lines)
    functions = [block for path in agent for block in cc_visit((tree / path).read_text()) if block.letter in "FM"]
    found["the longest function"] = max(block.endline - block.lineno + 1 for block in functions)
    found["the highest complexity"] = max(block.complexity for block in functions)
    tests = list(_files(tree, "tests", ".py"))
    found["tests: lines"] = sum(map(_lines, tests))
    found["names that tests import from agent"] = len({name for path in tests for name in _imported(path)})
    pages = [*tree.glob("*.md"), *(path for place in _PROSE for path in _files(tree, place, ".md"))]
    found["words in *.md"] = sum(len(path.read_text().split()) for path in pages)
    found["words in README.md"] = len((tree / "README.md").read_text().split())
    hack = (path for path in _files(tree, "hack", "") if path.name not in {"go.mod", "go.sum"})  # Go writes these
    found["hack: lines, without go.mod and go.sum"] = sum(map(_lines, hack))
    return (Figure(what, found[what], *limits) for what, limits in BUDGETS.items())


def _imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "agent":
            yield from (f"{node.module}.{one.name}" for one in node.names)


def _files(tree: Path, place: str, suffix: str) -> Iterator[Path]:
    found = (tree / place).rglob(f"*{suffix}")
    return (path for path in found if path.is_file() and "__pycache__" not in path.parts)


def _lines(path: Path) -> int:
    return len(path.read_text(errors="replace").splitlines())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
