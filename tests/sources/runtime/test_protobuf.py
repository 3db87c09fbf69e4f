"""The wire format of protobuf, compared with protobuf's own library, and with bytes that are no message."""

from contextlib import suppress
from typing import Any

import pytest
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from hypothesis import given
from hypothesis import strategies as st

from agent.sources.runtime.protobuf import DecodedMessage, MalformedMessage, encode
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


@given(OUTER)
def test_what_protobuf_encodes_is_decoded(outer: Any) -> None:
    decoded = DecodedMessage(outer.SerializeToString())
    assert decoded.text(1) == outer.text
    assert decoded.integer(2) == outer.number
    assert decoded.integer(3) == outer.flag
    assert decoded.message(4).text(1) == outer.inner.text
    assert decoded.message(4).integer(2) == outer.inner.number
    assert [(one.text(1), one.integer(2)) for one in decoded.messages(5)] == [
        (one.text, one.number) for one in outer.list
    ]
    assert decoded.text_map(6) == dict(outer.labels)
    assert decoded.integer(10) == outer.small
    assert decoded.text(536_870_911) == outer.far


@given(TEXTS, st.integers(0, (1 << 63) - 1), st.booleans(), TEXTS)
def test_what_is_encoded_protobuf_decodes(text: str, number: int, flag: bool, far: str) -> None:
    decoded = Outer.FromString(encode((1, text), (2, number), (3, flag), (536_870_911, far)))
    assert (decoded.text, decoded.number, decoded.flag, decoded.far) == (text, number, flag, far)


def test_an_absent_field_has_the_default_of_its_type() -> None:
    empty = DecodedMessage(b"")
    assert (empty.integer(1), empty.text(2), empty.messages(3), empty.text_map(4)) == (0, "", [], {})
    assert empty.message(5).message(6).text(7) == ""


def test_the_last_of_several_scalars_counts_and_messages_are_merged() -> None:
    twice = Outer(text="a", number=1, inner=Inner(text="a", number=1)).SerializeToString()
    twice += Outer(text="b", number=2, inner=Inner(text="b")).SerializeToString()
    decoded, expected = DecodedMessage(twice), Outer.FromString(twice)
    assert (decoded.text(1), decoded.integer(2)) == (expected.text, expected.number) == ("b", 2)
    inner = decoded.message(4)
    assert (inner.text(1), inner.integer(2)) == (expected.inner.text, expected.inner.number) == ("b", 1)


def test_a_map_entry_without_key_or_value_has_empty_ones() -> None:
    encoded = b"\x32\x00\x32\x03\x0a\x01a\x32\x03\x12\x01b"
    assert DecodedMessage(encoded).text_map(6) == dict(Outer.FromString(encoded).labels) == {"a": "", "": "b"}


VARINT_OF_64_BITS = b"\xff" * 9 + b"\x01"


@pytest.mark.parametrize(
    ("encoded", "number"),
    [
        (b"\x10\x00", 0),
        (b"\x10\x80\x00", 0),
        (b"\x10\x80\x80\x80\x80\x80\x80\x80\x80\x80\x00", 0),
        (b"\x10" + VARINT_OF_64_BITS, -1),
        (b"\x10\xff\xff\xff\xff\xff\xff\xff\xff\x7f", (1 << 63) - 1),
        (b"\x10\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01", -(1 << 63)),
        (b"\x90\x00\x07", 7),
    ],
)
def test_an_integer_may_be_written_in_up_to_ten_bytes(encoded: bytes, number: int) -> None:
    assert DecodedMessage(encoded).integer(2) == Outer.FromString(encoded).number == number


@pytest.mark.parametrize(
    ("encoded", "text"),
    [
        (b"\x10", "an integer is truncated"),
        (b"\x10\x80", "an integer is truncated"),
        (b"\x80", "an integer is truncated"),
        (b"\x10" + b"\xff" * 9 + b"\x02", "more than 64 bits"),
        (b"\x10" + b"\x80" * 10 + b"\x00", "more than 64 bits"),
        (b"\x10" + b"\x80" * 1_000_000, "more than 64 bits"),
        (b"\x0a", "an integer is truncated"),
        (b"\x0a\x02x", "field 1 is truncated"),
        (b"\x0a" + VARINT_OF_64_BITS, "field 1 is truncated"),
        (b"\x39\0\0\0\0\0\0\0", "field 7 is truncated"),
        (b"\x45\0\0\0", "field 8 is truncated"),
        (b"\x00\x00", "invalid field number 0"),
        (b"\x02\x00", "invalid field number 0"),
        (b"\x80\x80\x80\x80\x10\x00", "invalid field number 536870912"),
        (b"\x0b\x0c", "field 1 has the unsupported wire type 3"),
        (b"\x0c", "field 1 has the unsupported wire type 4"),
        (b"\x0e\x00", "field 1 has the unsupported wire type 6"),
        (b"\x0f\x00", "field 1 has the unsupported wire type 7"),
    ],
)
def test_bytes_that_are_no_message_are_refused(encoded: bytes, text: str) -> None:
    with pytest.raises(MalformedMessage, match=text):
        DecodedMessage(encoded)


@pytest.mark.parametrize(
    ("encoded", "read"),
    [
        (b"\x08\x01", lambda message: message.text(1)),
        (b"\x08\x01", lambda message: message.message(1)),
        (b"\x08\x01", lambda message: message.messages(1)),
        (b"\x08\x01", lambda message: message.text_map(1)),
        (b"\x0a\x00", lambda message: message.integer(1)),
        (b"\x09\0\0\0\0\0\0\0\0", lambda message: message.integer(1)),
        (b"\x0d\0\0\0\0", lambda message: message.text(1)),
        (b"\x0a\x01a\x08\x01", lambda message: message.text(1)),
        (b"\x0a\x01\xff", lambda message: message.text(1)),
        (b"\x0a\x03\x0a\x01\xff", lambda message: message.text_map(1)),
        (b"\x0a\x01\x0a", lambda message: message.message(1)),
    ],
)
def test_a_field_of_another_type_is_refused_and_not_absent(encoded: bytes, read: Any) -> None:
    with pytest.raises(MalformedMessage):
        read(DecodedMessage(encoded))


@given(st.binary(max_size=200))
def test_any_bytes_are_a_message_or_malformed(encoded: bytes) -> None:
    with suppress(MalformedMessage):
        message = DecodedMessage(encoded)
        for number in range(1, 4):
            assert isinstance(message.message(number).text_map(1), dict)
            assert isinstance(message.text(number), str)


@given(OUTER, st.data())
def test_a_truncated_message_is_malformed_wherever_protobuf_refuses_it(outer: Any, data: st.DataObject) -> None:
    encoded = outer.SerializeToString()
    part = encoded[: data.draw(st.integers(0, len(encoded)))]
    try:
        Outer.FromString(part)
    except DecodeError:
        with pytest.raises(MalformedMessage):
            DecodedMessage(part)
