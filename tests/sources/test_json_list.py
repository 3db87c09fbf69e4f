"""A list that arrives in pieces is what `json` makes of the whole, however it is cut; anything else is refused."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agent.sources.json_list import objects_of

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip
OBJECTS = st.dictionaries(st.text(max_size=4), VALUES, max_size=4)


def cut(text: bytes, size: int) -> Iterator[bytes]:
    return (text[at : at + size] for at in range(0, len(text), size))


@given(st.lists(OBJECTS, max_size=4), st.integers(1, 9), st.booleans(), st.sampled_from([None, 1]))
@example([{"a": "é\U0001f600"}, {}], 1, False, 1)
def test_a_list_is_read_however_it_is_cut(
    listed: list[dict[str, Any]], size: int, ascii_only: bool, indent: int | None
) -> None:
    text = json.dumps(listed, ensure_ascii=ascii_only, indent=indent)
    assert list(objects_of(cut(f" {text}\n".encode(), size), 10_000)) == listed
    for end in range(len(text)):
        with pytest.raises(ValueError, match=r"."):
            list(objects_of(cut(text[:end].encode(), size), 10_000))


def test_what_is_no_list_of_objects_is_refused() -> None:
    for text in (
        "", "null", "{}", '"[]"', "[1]", "[[]]", "[null]", '["a"]', '[{"a": 1} {"b": 2}]', '[{"a": 1},]', "[,]",
        '[{"a": 1}]]', "[]{}", '[{"a": 1}, 7]', "[{]", "[{}", "[{}x]", '[{"a"}]', "[" * 99_999, "\ufeff[]",
    ):  # fmt: skip
        for size in (1, 3, 99_999):
            with pytest.raises(ValueError, match=r"."):
                list(objects_of(cut(text.encode(), size), 10_000))
    for damaged in (b"[{\xff}]", b'[{"a": "\xc3"}]', b'[{"a": "\xe2\x82'):
        with pytest.raises(ValueError, match=r"."):
            list(objects_of(cut(damaged, 2), 10_000))
    with pytest.raises(RecursionError):
        list(objects_of([b'[{"a":' + b"[" * 99_999], 10**6))


def test_only_the_next_object_is_read_and_one_that_is_too_long_is_refused() -> None:
    read = list[int]()

    def pieces() -> Iterator[bytes]:
        yield b"["
        for number in range(1_000):
            read.append(number)
            yield b"%s{}" % (b"," if number else b"")
        yield b"]"

    objects = objects_of(pieces(), 100)
    for number in range(3):
        next(objects)
        assert len(read) <= number + 2
    assert len(list(objects)) == 997
    long = b'[{"a": "' + b"x" * 200 + b'"}, {}]'
    assert list(objects_of([long], 10)) == [{"a": "x" * 200}, {}], "all of it is here"
    with pytest.raises(ValueError, match="longer than 10 characters"):
        list(objects_of(cut(long, 5), 10))
