"""Parses a list in JSON as it arrives, so that only one object of a long list is in memory."""

import json
import re
from codecs import iterdecode
from collections.abc import Iterable, Iterator
from typing import Any, Final

_SPACE: Final = re.compile(r"[ \t\r\n]*")


def objects_of(pieces: Iterable[bytes], limit: int, end: str = "") -> Iterator[dict[str, Any]]:
    """Yield the objects of a list, and read to the end; raises ValueError or RecursionError.

    `limit`: characters of one object. `end`: what follows the list.
    """
    text = _Arriving(pieces)

    _expect("[", text.next())
    text.at += 1
    if text.next() != "]":
        yield text.take_object(limit)
        while text.next() == ",":
            text.at += 1
            yield text.take_object(limit)

    for char in f"]{end}":
        _expect(char, text.next())
        text.at += 1
    _expect("", text.next())


def _expect(expected: str, character: str) -> None:
    if character != expected:
        raise ValueError(f"expected {expected!r} in a list of objects, found {character!r}")


class _Arriving:
    """A text of which the next piece is read only when it is needed."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._texts = iterdecode(pieces, "utf-8")
        self._decode = json.JSONDecoder().raw_decode
        self._text = ""
        self.at = 0
        """Where the part begins that has not been parsed."""

    def next(self) -> str:
        """Return the next character that is no space, and stop before it; empty: there is none."""
        while True:
            gap = _SPACE.match(self._text, self.at)
            self.at = gap.end() if gap else self.at

            if self.at < len(self._text):
                return self._text[self.at]
            if not self._read(1):
                return ""

    def take_object(self, limit: int) -> dict[str, Any]:
        """Return the object that comes next, and stop behind it.

        `limit`: its characters. Raises ValueError or RecursionError.
        """
        _expect("{", self.next())

        while True:
            try:
                tree, self.at = self._decode(self._text, self.at)
            except json.JSONDecodeError:
                available = len(self._text) - self.at
                if available > limit:
                    raise ValueError(f"an object is longer than {limit:,} characters") from None
                # Twice as much each time: to parse it anew with each piece would be quadratic.
                if not self._read(min(2 * available, limit + 1)):
                    raise
            else:
                return dict(tree)

    def _read(self, wanted: int) -> bool:
        """Read until so many characters are available, or all; return whether any were added."""
        parts = [self._text[self.at :]]
        available = before = len(parts[0])
        while available < wanted and (more := next(self._texts, "")):
            parts.append(more)
            available += len(more)

        self._text = "".join(parts)
        self.at = 0
        return available > before
