"""How every output writes names, numbers and times."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from math import log2
from typing import Final, Literal

LONGEST_LIST: Final = 40
"""Names in one line, and lines of one kind."""
FEW: Final = 15
"""Pods, or other names, in one sentence."""
_LEGIBLE: Final = 10**9
_TEN: Final = 10


def escape(text: str) -> str:
    """Escape what is not printable: a name must not control the reader's terminal."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )


def quote(text: str) -> str:
    """Return a text in double quotes, with escapes for what is not printable."""
    return f'"{repr(text)[1:-1]}"'


def did_you_mean(word: str, words: Iterable[str]) -> str:
    """Return a suggestion to end an error with; empty if nothing is similar."""
    from difflib import get_close_matches  # noqa: PLC0415 (only for a mistake)

    similar = get_close_matches(word, sorted(words), n=1)
    return f": did you mean {quote(similar[0])}?" if similar else ""


def truncate(text: object, longest: int = 200) -> str:
    """Write a foreign message on one line of bounded length: an HTML page is no error message."""
    line = " ".join(str(text).split())
    return line if len(line) <= longest else f"{line[: longest - 3]}..."


def format_time(at: datetime) -> str:
    """Write a time as messages do: UTC, to the second."""
    return rfc3339(at).replace("T", " ")


def rfc3339(at: datetime, timespec: Literal["seconds", "milliseconds"] = "seconds") -> str:
    """Write a time in UTC. The year has four digits: of `%Y`, that depends on Python's version."""
    return at.astimezone(UTC).isoformat(timespec=timespec).replace("+00:00", "Z")


def format_age(age: timedelta) -> str:
    """Write an age as `kubectl` does.

    That is in the greatest unit, and in the next too where the first is a single digit.
    """
    seconds = int(age.total_seconds())
    if seconds < 0:
        return f"-{format_age(-age)}"
    for unit, name, smaller, smaller_name in (
        (86400, "d", 3600, "h"),
        (3600, "h", 60, "m"),
        (60, "m", 1, "s"),
    ):
        if seconds >= unit:
            whole, rest = divmod(seconds, unit)
            more = f"{rest // smaller}{smaller_name}" if whole < _TEN and rest >= smaller else ""
            return f"{whole}{name}{more}"
    return f"{seconds}s"


def format_number(number: int | None) -> str:
    """Write a count; an IPv6 range has more addresses than anybody reads. None: not known."""
    if number is None:
        return "?"
    # Only a prefix length gives out so many.
    return f"{number:,}" if number < _LEGIBLE else f"~2^{round(log2(number))}"


def join_names(names: Sequence[str], unlisted: int = 0) -> str:
    """Write names in one line, and how many more there are. `unlisted`: those not in `names`."""
    more = max(0, len(names) - LONGEST_LIST) + unlisted
    return ", ".join(names[:LONGEST_LIST]) + (f" and {more} more" if more > 0 else "")


def join_few(names: Sequence[str]) -> str:
    """Write the first names, as many as are read at a glance, and how many more there are."""
    return join_names(names[:FEW], max(0, len(names) - FEW))


def count_of(count: int, noun: str, plural: str = "") -> str:
    """Write a count with its noun: `1 address`, `7 addresses`."""
    return f"{format_number(count)} {noun if count == 1 else plural or f'{noun}s'}"
