"""explain: what a finding, a reason or a verdict means."""

import argparse
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from agent.cli.exit_codes import DONE
from agent.config import UsageError

if TYPE_CHECKING:
    from enum import StrEnum


def explain(given: argparse.Namespace) -> int:
    import inspect

    from agent.checks.registry import DETECTORS
    from agent.model.release import Reason, Verdict

    findings = {detector.NAME: inspect.getdoc(detector) or "" for detector in DETECTORS}
    reasons, verdicts = _members(Reason), _members(Verdict)
    pages = findings | reasons | verdicts
    if given.word is None:
        for heading, some in (
            ("", findings),
            ("\nWhy `nodeleak clean` refuses an address:", reasons),
            ("\nWhat it says of an address:", verdicts),
        ):
            print(*filter(None, [heading]), *_first_lines(some), sep="\n")
        print("\n`nodeleak explain DETECTOR` says what it means and what to do.")
    elif given.word in pages:
        print(f"{given.word}\n\n{pages[given.word]}")
        if given.word in reasons:
            print("\n`nodeleak clean` says why it holds for an address, and which setting would lift it, if one may.")
    else:
        raise UsageError(f"there is nothing called {given.word!r} to explain; there are: {', '.join(pages)}")
    return DONE


def _first_lines(pages: Mapping[str, str]) -> Iterator[str]:
    return (f"{name}\n  {page.splitlines()[0]}" for name, page in pages.items())


def _members(kind: "type[StrEnum]") -> dict[str, str]:
    """Read what is written below each member of an enum: Python itself does not keep it."""
    import ast
    import inspect
    from itertools import pairwise

    (tree,) = ast.parse(inspect.getsource(kind)).body
    pages = {}
    for member, text in pairwise(tree.body if isinstance(tree, ast.ClassDef) else ()):
        match member, text:
            case ast.Assign(value=ast.Constant(value=str(name))), ast.Expr(value=ast.Constant(value=str(page))):
                pages[name] = page
            case _:
                pass
    return pages
