"""A list of JSON objects, in pieces of any size: what is read is what `json.loads` reads, or an error."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.sources.json_stream import JsonStream

_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
_OBJECTS = st.lists(st.dictionaries(st.text(max_size=4), _VALUES, max_size=3), max_size=6)
_PIECES = st.integers(1, 40)


def pieces(text: bytes, size: int) -> Iterator[bytes]:
    return (text[start : start + size] for start in range(0, len(text), size))


def read(text: bytes, size: int = 1 << 16, longest: int = 1 << 20) -> list[dict[str, Any]]:
    return list(JsonStream(pieces(text, size), longest).array())


def refuse(text: bytes, size: int = 1 << 16) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 (of the decoder of JSON, of UTF-8, or of the stream)
        read(text, size)


@given(_OBJECTS, _PIECES, st.sampled_from([None, 1]), st.booleans())
def test_a_list_in_any_pieces_is_the_list(objects: list[Any], size: int, indent: int | None, ascii_only: bool) -> None:
    assert read(json.dumps(objects, indent=indent, ensure_ascii=ascii_only).encode(), size) == objects


@given(_OBJECTS, _PIECES, st.data())
def test_a_truncated_list_is_no_list(objects: list[Any], size: int, data: st.DataObject) -> None:
    text = json.dumps(objects, ensure_ascii=False).encode()
    refuse(text[: data.draw(st.integers(0, len(text) - 1))], size)


@given(st.text('[]{}", :1a\n', max_size=12), _PIECES)
def test_any_text_is_read_as_json_reads_it_or_refused(text: str, size: int) -> None:
    try:
        found = read(text.encode(), size)
    except ValueError:
        return
    assert found == json.loads(text)


@pytest.mark.parametrize(
    "text", ["", "null", "{}", "[1]", "[null]", "[{},]", "[,{}]", "[{}{}]", "[{}]]", "[{}] x", "[["]
)
def test_anything_but_a_list_of_objects_is_refused(text: str) -> None:
    refuse(text.encode())


def test_bytes_that_are_no_text_are_refused() -> None:
    for text in (b'[{"a": "\xff"}]', b'[{"a": 1}]\xc3'):
        refuse(text)


def test_only_the_object_that_is_read_is_kept() -> None:
    taken = 0

    def endless() -> Iterator[bytes]:
        nonlocal taken
        yield b"["
        while True:
            taken += 1
            yield b'{"a": "' + b"x" * 100 + b'"},'

    objects = JsonStream(endless(), 1000).array()
    for _ in range(10_000):
        assert next(objects)["a"]
    assert taken < 11_000


@pytest.mark.parametrize("start", [b'[{"a": "', b'[{"a": [', b"[{}] "])
def test_an_object_that_never_ends_is_refused_at_the_bound(start: bytes) -> None:
    taken = 0

    def endless() -> Iterator[bytes]:
        nonlocal taken
        yield start
        while True:
            taken += 1
            yield b"1," * 50

    with pytest.raises(ValueError, match="longer than 1,000 characters"):
        list(JsonStream(endless(), 1000).array())
    assert taken <= 40


@given(_PIECES)
def test_what_stands_before_a_mark_is_read_only_if_the_mark_is_near(size: int) -> None:
    text = b'{"kind":"List","items":[{"a":1},{"b":2}],"more":true}'
    stream = JsonStream(pieces(text, size))
    assert stream.before('"items":[', 10) is None
    assert stream.before('"items":[', 4096) == '{"kind":"List",'
    assert list(stream.objects()) == [{"a": 1}, {"b": 2}]
    assert stream.rest() == ',"more":true}'
    assert stream.before("x", 4096) is None
