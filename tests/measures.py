"""`hack/measure`: the shape of the code. How far data travels, duplicate names and sizes, each beside its goal.

hack/measure         measures this tree
hack/measure TREE    measures another tree, for example the one before the new layout:
                     git archive --prefix=before/ 120efba | tar -x -C /tmp && hack/measure /tmp/before

Rows marked "by hand" are counted from the lists in tests/measures.py. Review them when the code changes; a listed file
that does not exist is an error. `make check` installs what this needs.
"""

import ast
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from radon.complexity import cc_visit  # type: ignore[import-untyped]

ROOT = Path(__file__).resolve().parents[1]

TO_METRIC = (
    "agent/sources/host/reservations.py",  # reads host-local's directory
    "agent/app/sources.py",  # names this reader
    "agent/sources/collector.py",  # takes the snapshot
    "agent/sources/crosscheck.py",  # compares the sources
    "agent/app/loop.py",  # passes the snapshot on
    "agent/checks/engine.py",  # classify, confirm, detect
    "agent/checks/addresses/classify.py",  # gives the reservation its state
    "agent/exporters/metrics.py",  # exports the states
)
"""The files that a reservation passes from host-local's directory to a metric. By hand."""

TO_UNLINK = (
    "agent/app/loop.py",  # passes the report to the cleaner
    "agent/cleanup/cleaner.py",  # the cleanup of one sync
    "agent/cleanup/session.py",  # what lasts from sync to sync
    "agent/cleanup/guard_context.py",  # what the guards decide on
    "agent/cleanup/guards.py",  # the guards
    "agent/cleanup/release.py",  # the steps of a release
    "agent/sources/recheck.py",  # asks the node again
    "agent/cleanup/journal.py",  # the journal entry
    "agent/cleanup/journal_store.py",  # writes it
    "agent/cleanup/files.py",  # unlinks the file
)
"""The files from a classified reservation to unlink(2). By hand."""

NEW_SOURCE = (
    "agent/model/snapshot.py",  # its field
    "agent/sources/collector.py",  # when it is read
    "agent/app/sources.py",  # its reader
)
"""The files to edit for a new source, besides its own module. By hand."""

NEW_DETECTOR = ("agent/checks/registry.py", "pyproject.toml")
"""The files to edit for a new detector, besides its own module: the list, and the contract of independence. By hand."""

PROTOCOL = {
    *("NAME", "SEVERITIES", "find"),
    *("SUMMARY", "OPERANDS", "SETTINGS", "DESCRIPTION", "EPILOG", "add_arguments", "execute"),
}
"""What every detector (agent/checks/registry.py) and every command (agent/cli/parser.py) must define."""


@dataclass(frozen=True)
class Row:
    what: str
    found: int
    goal: str
    before: str
    """At commit 120efba."""


def main(arguments: Sequence[str]) -> int:
    if {"-h", "--help"} & set(arguments):
        print((__doc__ or "").strip())
        return 0
    tree = Path(arguments[0]).resolve() if arguments else ROOT
    rows = [*(_by_hand() if tree == ROOT else ()), *measured(tree)]
    print(f"{'measure':64} {'now':>6}  {'goal':>8}  {'before':>6}")
    for row in rows:
        print(f"{row.what:64} {row.found:>6}  {row.goal:>8}  {row.before:>6}")
    if tree != ROOT:
        return 0
    for title, files in (("directory to metric", TO_METRIC), ("verdict to unlink", TO_UNLINK)):
        print(f"\n{title}:", *files, sep="\n  ")
    missing = [name for name in (*TO_METRIC, *TO_UNLINK, *NEW_SOURCE, *NEW_DETECTOR) if not (ROOT / name).exists()]
    if missing:
        print(
            "\nthese files do not exist, update the lists in tests/measures.py:", *missing, sep="\n  ", file=sys.stderr
        )
    return 1 if missing else 0


def _by_hand() -> Iterator[Row]:
    yield Row("files a reservation passes, directory to metric (by hand)", len(TO_METRIC), "<= 9", "15")
    yield Row("files from verdict to unlink (by hand)", len(TO_UNLINK), "<= 10", "14")
    yield Row("files to edit for a new source (by hand)", len(NEW_SOURCE), "<= 3", "9")
    yield Row("files to edit for a new detector (by hand)", len(NEW_DETECTOR), "<= 2", "3")


def measured(tree: Path) -> Iterator[Row]:
    lengths = function_lengths(tree)
    complexities = function_complexities(tree)
    yield Row("public names defined in more than one module", len(duplicate_names(tree)), "< 10", "44")
    yield Row("lines in agent/, blank ones included", _lines((tree / "agent").rglob("*.py")), "<= 13500", "14963")
    yield Row("lines in hack/", _lines(_texts(tree / "hack")), "<= 2000", "5274")
    yield Row("longest function in agent/, in lines", max(lengths.values()), "<= 40", "67")
    yield Row("highest cyclomatic complexity in agent/ (radon)", max(complexities.values()), "<= 12", "34")


def function_lengths(tree: Path = ROOT) -> dict[str, int]:
    """Return the lines of each function, from `def` to its last line; decorators do not count."""
    return {
        f"{path.relative_to(tree)}:{node.lineno} {node.name}": (node.end_lineno or node.lineno) - node.lineno + 1
        for path, module in _modules(tree)
        for node in ast.walk(module)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def function_complexities(tree: Path = ROOT) -> dict[str, int]:
    """Return radon's cyclomatic complexity of each function and method."""
    return {
        f"{path.relative_to(tree)}:{block.lineno} {block.name}": block.complexity
        for path, _ in _modules(tree)
        for block in cc_visit(path.read_text())
        if block.letter in {"F", "M"}  # a class's own value is only the mean of its methods
    }


def duplicate_names(tree: Path = ROOT) -> dict[str, list[str]]:
    """Return public names that several modules define at the top level: classes, functions and assigned names.

    An import is no definition, and what every detector module must define does not count.
    """
    found = defaultdict(set)
    for path, module in _modules(tree):
        for name in _defined(module):
            if not name.startswith("_") and name not in PROTOCOL:
                found[name].add(str(path.relative_to(tree)))
    return {name: sorted(places) for name, places in sorted(found.items()) if len(places) > 1}


def _defined(module: ast.Module) -> Iterator[str]:
    for node in module.body:
        match node:
            case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                yield node.name
            case ast.Assign():
                yield from (
                    name.id for target in node.targets for name in ast.walk(target) if isinstance(name, ast.Name)
                )
            case ast.AnnAssign(target=ast.Name(id=name)):
                yield name
            case _:
                pass


def _modules(tree: Path) -> Iterator[tuple[Path, ast.Module]]:
    for path in sorted((tree / "agent").rglob("*.py")):
        yield path, ast.parse(path.read_text())


def _texts(directory: Path) -> Iterator[Path]:
    return (path for path in directory.rglob("*") if path.is_file() and "__pycache__" not in path.parts)


def _lines(paths: Iterator[Path]) -> int:
    return sum(len(path.read_text().splitlines()) for path in paths)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
