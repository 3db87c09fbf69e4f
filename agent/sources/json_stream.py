"""Reads JSON objects from a stream, one at a time, so that only one of them is in memory.

`json.JSONDecoder.raw_decode` on pieces of 64 KiB costs as much CPU as `json.loads` on the whole. ijson needs 1.4 times
as much with its C library, which is a compiled dependency, and 25 times without; json-stream needs 15 times as much.
"""

import json
import re
from codecs import getincrementaldecoder
from collections.abc import Iterable, Iterator
from typing import Any, Final

PIECE: Final = 64 * 1024
"""Bytes read at once: an object of usual size is rarely cut in two, and nobody notices the memory."""
LONGEST_OBJECT: Final = 4 * 1024 * 1024
"""Characters of one object. etcd takes 1.5 MiB, and a runtime copies a pod's annotations (256 KiB) into its labels."""
_SPACES: Final = re.compile(r"[ \t\n\r]*")


class JsonStream:
    """One JSON text. Every method raises ValueError if the text is anything else than what is asked for."""

    def __init__(self, pieces: Iterable[bytes], longest: int = LONGEST_OBJECT) -> None:
        """`longest`: how many characters are kept at most, give or take a piece. `pieces` may raise too."""
        self._pieces, self._longest = iter(pieces), longest
        self._to_text = getincrementaldecoder("utf-8")().decode
        self._parse = json.JSONDecoder().raw_decode
        self._text, self._at = "", 0

    def before(self, mark: str, within: int) -> str | None:
        """Read up to the end of a mark; return what is before it. None: it is not in the next `within` characters."""
        while (found := self._text.find(mark, self._at)) < 0 and len(self._text) - self._at < within:
            if not self._extend():
                break
        if not 0 <= found - self._at < within:
            return None
        start, self._at = self._at, found + len(mark)
        return self._text[start:found]

    def array(self) -> Iterator[dict[str, Any]]:
        """Read an array of objects, and the end of the text after it."""
        self._expect("[")
        yield from self.objects()
        if _SPACES.sub("", self.rest()):
            raise ValueError("text behind the end of the list")

    def objects(self) -> Iterator[dict[str, Any]]:
        """Read the objects of an array, whose opening bracket was read, and its closing bracket."""
        if self._next() == "]":
            self._at += 1
            return
        while True:
            yield self._object()
            if (mark := self._next()) not in {",", "]"}:
                raise ValueError(f"expected a comma between two objects, found {mark!r}")
            self._at += 1
            if mark == "]":
                return

    def rest(self) -> str:
        """Read what is left."""
        while self._extend():
            pass
        rest, self._text, self._at = self._text[self._at :], "", 0
        return rest

    def _object(self) -> dict[str, Any]:
        if (mark := self._next()) != "{":
            raise ValueError(f"expected an object, found {mark!r}")
        while True:
            try:
                found: dict[str, Any]
                found, self._at = self._parse(self._text, self._at)
            except json.JSONDecodeError:
                if not self._extend():
                    raise
            else:
                return found

    def _expect(self, mark: str) -> None:
        if (found := self._next()) != mark:
            raise ValueError(f"expected {mark!r}, found {found!r}")
        self._at += 1

    def _next(self) -> str:
        """Return the next character that is no space, without reading it."""
        while True:
            if found := _SPACES.match(self._text, self._at):
                self._at = found.end()
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._extend():
                raise ValueError("the text ends too early")

    def _extend(self) -> bool:
        """Read more, at least as much as is not yet used: so a long object is not parsed again for each piece of it."""
        kept = len(self._text) - self._at
        if kept > self._longest:
            raise ValueError(f"one part of it is longer than {self._longest:,} characters")
        texts, size = [self._text[self._at :]], 0
        for piece in self._pieces:
            texts.append(text := self._to_text(piece))
            size += len(text)
            if size > kept:
                break
        else:
            self._to_text(b"", final=True)
        self._text, self._at = "".join(texts), 0
        return size > 0
