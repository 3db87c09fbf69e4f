"""How deep a JSON document is nested. Python parses about a thousand levels, and can read few of them again. Pure."""

import json
from collections.abc import Collection
from typing import Any, Final

MAX_LEVELS: Final = 20
"""Levels of a document of nodeleak's own; none has more than ten."""


def parse_json(text: str | bytes) -> Any:
    """Parse a document; raises ValueError, also if it is nested too deeply."""
    try:
        tree = json.loads(text)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if is_deeper(tree, MAX_LEVELS):
        raise ValueError("nested too deeply")
    return tree


def is_deeper(tree: Any, levels: int) -> bool:
    if not isinstance(tree, (dict, list)):
        return False
    parts: Collection[Any] = tree.values() if isinstance(tree, dict) else tree
    return levels == 0 or any(is_deeper(one, levels - 1) for one in parts)
