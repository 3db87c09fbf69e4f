"""No modules of agent/ import each other in a circle: neither in functions nor only for types."""

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
MODULES: Final = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in (ROOT / "agent").rglob("*.py")
}


def imports_of(path: Path) -> Iterator[str]:
    """Yield the modules of agent/ that a file imports, anywhere in it."""
    for statement in ast.walk(ast.parse(path.read_text())):
        if isinstance(statement, ast.Import):
            yield from (alias.name for alias in statement.names if alias.name in MODULES)
        elif isinstance(statement, ast.ImportFrom) and statement.module in MODULES:
            for alias in statement.names:
                submodule = f"{statement.module}.{alias.name}"
                yield submodule if submodule in MODULES else statement.module


def test_no_modules_import_each_other_in_a_circle() -> None:
    graph = {name: set(imports_of(path)) for name, path in MODULES.items()}
    assert "agent.model.snapshot" in graph["agent.sources.collector"]
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        raise AssertionError(" -> ".join(error.args[1])) from error
