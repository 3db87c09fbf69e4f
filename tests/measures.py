"""`hack/measure [--check] [PATH...]`: the shape of the code, each figure beside what it should hold.

With paths, such as `agent/checks`, it prints a row for each module below them.
`--check` fails for what a reader feels at once: a function that does not fit on a screen. Columns and
complexity are held by ruff. The other figures say where the code stands; nobody has to make room in a
budget to add something.
"""

import ast
import io
import signal
import sys
import tokenize
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parents[1]
LONGEST_FUNCTION: Final = 50
COLUMNS: Final = 100
_NOT_CODE: Final = frozenset(
    {
        tokenize.COMMENT,
        tokenize.NL,
        tokenize.NEWLINE,
        tokenize.INDENT,
        tokenize.DEDENT,
        tokenize.ENDMARKER,
    }
)
"""Tokens that are no size: comments, line ends and indentation."""


class Module(NamedTuple):
    """One module of agent/, measured."""

    path: Path
    lines: int
    wide: int
    """Lines of more than `COLUMNS` columns."""
    tokens: int
    statements: int
    packed: int
    """Assignments such as `a, b = x, y`."""
    functions: tuple[tuple[int, str], ...]
    """The lines of each function, and where it is."""


class Measure(NamedTuple):
    name: str
    value: str
    hold: str


def main(arguments: Sequence[str]) -> int:
    if {"-h", "--help"} & set(arguments):
        print((__doc__ or "").strip())
        return 0
    paths = [Path(argument).resolve() for argument in arguments if argument != "--check"]
    modules = [
        measure(module) for path in paths or [ROOT / "agent"] for module in _modules_below(path)
    ]
    if not modules:
        print(f"hack/measure: no Python files below {' '.join(arguments)}", file=sys.stderr)
        return 2
    if paths:
        _print_modules(modules)
    elif "--check" not in arguments:
        _print_measures(modules)
    long = [
        found for module in modules for found in module.functions if found[0] > LONGEST_FUNCTION
    ]
    for lines, where in long:
        print(
            f"hack/measure: {where} has {lines} lines, more than {LONGEST_FUNCTION}",
            file=sys.stderr,
        )
    return 1 if long else 0


def _modules_below(path: Path) -> list[Path]:
    return sorted(path.rglob("*.py")) if path.is_dir() else [path] if path.is_file() else []


def _print_modules(modules: Sequence[Module]) -> None:
    print(f"{'module':52} {'lines':>6} {'tokens':>7} {'a line':>7} {'a statement':>12}")
    for module in modules:
        per_line = module.tokens / max(module.lines, 1)
        per_statement = module.tokens / max(module.statements, 1)
        print(
            f"{module.path!s:52} {module.lines:6} {module.tokens:7} "
            f"{per_line:7.1f} {per_statement:12.1f}"
        )


def _print_measures(modules: Sequence[Module]) -> None:
    print(f"{'measure of agent/':44} {'now':>9} {'hold':>9}")
    for name, value, hold in measures(modules):
        print(f"{name:44} {value:>9} {hold:>9}")


def measure(path: Path) -> Module:
    text = path.read_text()
    lines = text.splitlines()
    nodes = list(ast.walk(ast.parse(text)))
    where = path.relative_to(ROOT)
    return Module(
        path=where,
        lines=len(lines),
        wide=sum(len(line) > COLUMNS for line in lines),
        tokens=sum(
            token.type not in _NOT_CODE
            for token in tokenize.generate_tokens(io.StringIO(text).readline)
        ),
        statements=sum(isinstance(node, ast.stmt) for node in nodes),
        packed=sum(map(_is_packed, nodes)),
        functions=tuple(
            (node.end_lineno - node.lineno + 1, f"{where}:{node.lineno} {node.name}")
            for node in nodes
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno
        ),
    )


def _is_packed(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Tuple)
        and isinstance(node.value, ast.Tuple)
    )


def measures(modules: Sequence[Module]) -> Iterator[Measure]:
    lines = sum(module.lines for module in modules)
    tokens = sum(module.tokens for module in modules)
    statements = sum(module.statements for module in modules)
    wide = sum(module.wide for module in modules)
    packed = sum(module.packed for module in modules)
    longest = max(function for module in modules for function in module.functions)
    yield Measure("tokens (what size really is)", f"{tokens:,}", "142,957")
    yield Measure("tokens a line", f"{tokens / lines:.1f}", "5.5")
    yield Measure("tokens a statement", f"{tokens / statements:.1f}", "9.5")
    yield Measure(f"lines over {COLUMNS} columns, in 100", f"{100 * wide / lines:.1f}", "0")
    yield Measure(
        "packed assignments, in 1,000 statements", f"{1000 * packed / statements:.0f}", "2"
    )
    yield Measure("lines of the longest function", f"{longest[0]}", f"{LONGEST_FUNCTION}")
    yield Measure("lines", f"{lines:,}", "")
    yield Measure("modules", f"{len(modules)}", "")


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `hack/measure | head` ends quietly
    sys.exit(main(sys.argv[1:]))
