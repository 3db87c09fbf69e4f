"""The wire format of protobuf, compared with protobuf's own library, and with bytes that are no message."""

from collections.abc import Callable
from typing import Any

import pytest
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from hypothesis import given
from hypothesis import strategies as st

from agent.sources.runtime.protobuf import DecodedMessage
from tests.fakes.protobuf import messages

_CLASSES = messages(
    "wire",
    {
        "Inner": {"text": (1, "string"), "number": (2, "int64"), "inner": (3, "Inner")},
        "Outer": {
            "text": (1, "string"), "number": (2, "int64"), "flag": (3, "bool"), "inner": (4, "Inner"),
            "list": (5, "*Inner"), "labels": (6, "map"), "fixed": (7, "fixed64"), "half": (8, "float"),
            "raw": (9, "bytes"), "small": (10, "int32"), "far": (536_870_911, "string"),
        },
    },
)  # fmt: skip
Outer, Inner = _CLASSES["Outer"], _CLASSES["Inner"]

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
INNER = st.builds(Inner, text=TEXTS, number=INT64)
OUTER = st.builds(
    Outer,
    text=TEXTS, number=INT64, flag=st.booleans(), inner=INNER, list=st.lists(INNER, max_size=4),
    labels=st.dictionaries(TEXTS, TEXTS, max_size=4), fixed=st.integers(0, (1 << 64) - 1), half=st.floats(width=32),
    raw=st.binary(max_size=40), small=st.integers(-(1 << 31), (1 << 31) - 1), far=TEXTS,
)  # fmt: skip


def assert_same(decoded: DecodedMessage, expected: Any) -> None:
    assert (decoded.text(1), decoded.integer(2), decoded.integer(3)) == (
        expected.text,
        expected.number,
        expected.flag,
    )
    inner = decoded.message(4)
    assert (inner.text(1), inner.integer(2)) == (expected.inner.text, expected.inner.number)
    assert [(one.text(1), one.integer(2)) for one in decoded.messages(5)] == [
        (one.text, one.number) for one in expected.list
    ]
    assert decoded.text_map(6) == dict(expected.labels)
    assert (decoded.integer(10), decoded.text(536_870_911)) == (expected.small, expected.far)


@given(OUTER, st.data())
def test_what_protobuf_encodes_is_decoded_and_what_it_refuses_is_refused(
    outer: Any, data: st.DataObject
) -> None:
    encoded = outer.SerializeToString()
    assert_same(DecodedMessage(encoded), outer)
    part = encoded[: data.draw(st.integers(0, len(encoded)))]
    try:
        Outer.FromString(part)
    except DecodeError:
        with pytest.raises(ValueError, match=r"truncated|64 bits"):
            DecodedMessage(part)


def test_what_protobuf_accepts_is_decoded_alike() -> None:
    twice = Outer(text="a", number=1, inner=Inner(text="a", number=1)).SerializeToString()
    twice += Outer(text="b", number=2, inner=Inner(text="b")).SerializeToString()
    for encoded in (
        b"", twice, b"\x32\x00\x32\x03\x0a\x01a\x32\x03\x12\x01b", b"\x10\x80\x80\x80\x80\x80\x80\x80\x80\x80\x00",
        b"\x10" + b"\xff" * 9 + b"\x01", b"\x10\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01", b"\x90\x00\x07",
    ):  # fmt: skip
        assert_same(DecodedMessage(encoded), Outer.FromString(encoded))


def test_what_is_no_message_or_of_another_type_is_refused_and_not_absent() -> None:
    readers: list[Callable[[DecodedMessage], object]] = [
        lambda message: message.text(1),
        lambda message: message.message(1),
        lambda message: message.messages(1),
        lambda message: message.text_map(1),
    ]
    for encoded in (b"\x08\x01", b"\x0d\0\0\0\0", b"\x0a\x01a\x08\x01"):
        for read in readers:
            with pytest.raises(ValueError, match=r"another type|truncated"):
                read(DecodedMessage(encoded))
    for encoded in (b"\x0a\x00", b"\x09\0\0\0\0\0\0\0\0"):
        with pytest.raises(ValueError, match="another type"):
            DecodedMessage(encoded).integer(1)
    with pytest.raises(ValueError, match="codec"):
        DecodedMessage(b"\x0a\x01\xff").text(1)
    with pytest.raises(ValueError, match="codec"):
        DecodedMessage(b"\x0a\x03\x0a\x01\xff").text_map(1)
    for encoded in (
        b"\x10", b"\x10\x80", b"\x80", b"\x10" + b"\xff" * 9 + b"\x02", b"\x10" + b"\x80" * 10 + b"\x00",
        b"\x10" + b"\x80" * 1_000_000, b"\x0a", b"\x0a\x02x", b"\x0a" + b"\xff" * 9 + b"\x01", b"\x39\0\0\0\0\0\0\0",
        b"\x45\0\0\0", b"\x0b\x0c", b"\x0c", b"\x0e\x00", b"\x0f\x00",
    ):  # fmt: skip
        with pytest.raises(ValueError, match=r"truncated|64 bits|unsupported wire type"):
            DecodedMessage(encoded)
