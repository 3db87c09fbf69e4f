"""Mutations of real samples: what damage, other versions and malice make of them.

`NESTED` in a content stands for a list, or an object, that is nested as deep as JSON can be parsed where the parser is
called, and somewhat less deep: `expanded` returns each of these contents.
"""

import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import reduce
from operator import getitem
from typing import Any, Final

from hypothesis import strategies as st

NESTED: Final = b"\0[", b"\0{"
_LESS_DEEP: Final = range(40)
"""What reads the content has frames of its own, and whoever walks the tree again needs more than `json.loads` did."""

TEXTS: Final = (
    "", " ", "/", "..", "a/b/c", "\0", "\ud800", "\udcff", "\ufeff", "\x1b[2J", "²", "٣", "x" * 5000, "é",
    "9999-12-31T23:59:59-12:00", "0001-01-01T00:00:00+14:00", "2026-01-01T00:00:00", "10.0.0.9", "::ffff:10.0.0.9",
    "fe80::1%eth0", "10.0.0.0/33", "fd00::/1", "0.0.0.0/0", "-1", "1e999", "9" * 400, "9" * 5000, "True", "\u2028",
    "\r\n",
)  # fmt: skip
_NUMBERS: Final = (
    "0", "-1", "1.5", "1e308", "1e999", "-1e999", "NaN", "-Infinity", "9" * 19, "-" + "9" * 19, "9" * 400, "9" * 4300,
    "9" * 100_000, "9007199254740993", "0.1e-400",
)  # fmt: skip
_VALUES: Final = (
    *_NUMBERS, *map(json.dumps, TEXTS), *(one.decode() for one in NESTED), "null", "true", "false", "[]", "{}", "[[]]",
    "[null]", "[{}]", '{"":""}', '{"a":1,"a":[]}', '["a","b"]', "[" + "{}," * 2000 + "{}]",
)  # fmt: skip
_PIECES: Final = (
    b"\0", b"\xff", b"\xed\xa0\x80", b"\xc3", b"\n", b"\r\n", b"\x1c", b" ", b"\t", b"-", b"/", b"..", b":", b"=", b",",
    b'"', b"\\", b"{", b"}", b"[", b"]", b"%", b"\x1b[2J", b"9" * 5000, b" " * 5000, b"-1", b"0x", b"\xef\xbb\xbf",
    b"\\u0000", b"\\ud800", b"\\000", b"\\777", b"\\UFFFFFFFF", b"\xff" * 9 + b"\x01", b"\x80" * 12, *NESTED,
)  # fmt: skip
_PLACES: Final = st.integers(0, 10_000)
"""Where in a content, in ten-thousandths: it fits any length, so an example can shrink."""


def mutated(seeds: Sequence[bytes], *, as_json: bool) -> st.SearchStrategy[bytes]:
    """Return mutations of these samples. `as_json`: most of them are still JSON, with other values."""
    of_bytes = _bytes_mutated(seeds) | st.binary(max_size=80)
    return (_json_mutated(seeds) | _json_mutated(seeds) | of_bytes) if as_json else of_bytes


def expanded(content: bytes, *, in_thread: bool = False) -> Iterator[bytes]:
    """Return the contents that one with `NESTED` stands for; to be called where the content is read, or `in_thread`."""
    if not any(one in content for one in NESTED):
        yield content
        return
    with ThreadPoolExecutor(1) as pool:
        deepest = pool.submit(_deepest).result() if in_thread else _deepest()
    for depth in (*(deepest - less for less in _LESS_DEEP), deepest + 1000):
        lists = content.replace(NESTED[0], b"[" * depth + b"]" * depth)
        yield lists.replace(NESTED[1], b'{"a":' * depth + b"1" + b"}" * depth)


def _deepest() -> int:
    """Return how deep a list may be nested to be parsed here."""
    low, high = 1, sys.getrecursionlimit() + 1
    while low + 1 < high:
        middle = (low + high) // 2
        try:
            json.loads("[" * middle + "]" * middle)
        except RecursionError:
            high = middle
        else:
            low = middle
    return low


@st.composite
def _json_mutated(draw: st.DrawFn, seeds: Sequence[bytes]) -> bytes:
    tree = json.loads(draw(st.sampled_from(seeds)))
    raw: dict[str, str] = {}
    for number in range(draw(st.integers(1, 4))):
        paths = list(_paths(tree))
        path = draw(st.sampled_from(paths))
        key = f"\u241f{number}\u241f"
        raw[json.dumps(key)] = draw(st.sampled_from(_VALUES))
        tree = _changed(
            tree,
            path,
            draw(st.sampled_from(("replace", "replace", "replace", "remove", "repeat"))),
            key,
        )
    text = json.dumps(tree, separators=draw(st.sampled_from([(",", ":"), (", ", ": ")])))
    for placeholder, value in raw.items():
        text = text.replace(placeholder, value)
    return text.encode()


def _paths(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    parts = (
        tree.items()
        if isinstance(tree, dict)
        else enumerate(tree)
        if isinstance(tree, list)
        else ()
    )
    for key, part in parts:
        yield from _paths(part, (*path, key))


def _changed(tree: Any, path: tuple[Any, ...], change: str, key: str) -> Any:
    """Change a value; to repeat: a list gets its item once more, an object the same value under another name."""
    if not path:
        return key
    *way, at = path
    above = reduce(getitem, way, tree)
    if change == "remove":
        del above[at]
    elif change == "replace":
        above[at] = key
    elif isinstance(above, list):
        above.insert(at, above[at])
    else:
        above[key] = above[at]
    return tree


@st.composite
def _bytes_mutated(draw: st.DrawFn, seeds: Sequence[bytes]) -> bytes:
    content = draw(st.sampled_from(seeds))
    for _ in range(draw(st.integers(1, 4))):
        first, second = sorted((draw(_PLACES), draw(_PLACES)))
        start, end = len(content) * first // 10_000, len(content) * second // 10_000
        change, piece = draw(st.sampled_from(_BYTE_CHANGES)), draw(st.sampled_from(_PIECES))
        content = change(content, start, end, piece)
    return content


_BYTE_CHANGES: Final[Sequence[Callable[[bytes, int, int, bytes], bytes]]] = (
    lambda content, start, _, piece: content[:start] + piece + content[start:],
    lambda content, start, _, piece: content[:start] + piece + content[start + len(piece) :],
    lambda content, start, end, piece: content[:start] + piece + content[end:],
    lambda content, start, _, __: content[:start],
    lambda content, start, end, _: content[:start] + content[end:],
    lambda content, start, end, _: content[:end] + content[start:],
    lambda content, start, _, piece: (
        content[:start] + bytes([content[start] ^ 1 << piece[0] % 8]) + content[start + 1 :]
        if start < len(content)
        else content
    ),
    lambda content, start, _, piece: (
        content[:start] + re.sub(rb"[0-9]+", lambda _: piece, content[start:], count=1)
    ),
    lambda content, start, _, piece: (
        content[:start] + re.sub(rb"[0-9]+", b"9" * (1 << piece[0] % 12), content[start:], count=1)
    ),
    lambda content, start, _, __: re.sub(
        rb"(?m)^.*\n", lambda line: line[0] * 3, content, count=1 + start % 7
    ),
)
