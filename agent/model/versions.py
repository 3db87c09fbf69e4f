"""How versions of runtimes and of Kubernetes are compared."""

import re
from typing import Final, TypeAlias

Version: TypeAlias = tuple[int, int, int]
_VERSION: Final = re.compile(r"v?(\d{1,5})\.(\d{1,5})(?:\.(\d{1,5}))?(?!\d)", re.ASCII)


def version_numbers(version: str) -> Version | None:
    """Return the numbers that a version starts with; None: it has no such numbers."""
    numbers = _VERSION.match(version)
    return (int(numbers[1]), int(numbers[2]), int(numbers[3] or 0)) if numbers else None


def is_since(version: str, firsts: tuple[Version, ...]) -> bool | None:
    """Return whether a version is as new as the first of its branch, or as the last of all.

    None: it has no numbers, or there is no first.
    """
    parsed = version_numbers(version)
    if parsed is None or not firsts:
        return None
    in_branch = any(parsed[:2] == first[:2] and parsed >= first for first in firsts)
    return in_branch or parsed >= firsts[-1]
