"""Encodes and decodes the part of protobuf's wire format that the agent needs.

A message here is its fields by number: whoever reads one knows their names and types.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import chain
from typing import Any, Final

from agent.model.input_limit import InputLimit

_VARINT, _FIXED64, _LENGTH_DELIMITED, _FIXED32 = 0, 1, 2, 5
_FIXED: Final = {_FIXED64: 8, _FIXED32: 4}
_GREATEST_NUMBER: Final = (1 << 29) - 1
_LONGEST_VARINT: Final = 10
_ONE_BYTE: Final = 0x80
"""Integers below this have one byte."""
_SHORT: Final = frozenset(number << 3 | _LENGTH_DELIMITED for number in range(1, 16))
"""The tags of one byte of texts and messages."""
_INTEGERS: Final = frozenset(number << 3 | _VARINT for number in range(1, 16))
"""And of integers."""
_KEY, _VALUE, _SHORT_HEAD = 1 << 3 | _LENGTH_DELIMITED, 2 << 3 | _LENGTH_DELIMITED, 2
"""The tags of an entry of a map, each followed by a length."""
MOST_FIELDS: Final[InputLimit] = 100_000
"""Of a message and all that is read of those within: about two thousand networks. Each field costs 80 bytes."""
LARGEST_FIELD: Final[InputLimit] = 4 * 1024 * 1024
"""Bytes of one field of a message that is decoded as it arrives. A pod has at most 256 KiB of annotations."""
_LONGEST_HEAD: Final = 2 * _LONGEST_VARINT
"""Bytes of a tag and a length."""


class MalformedMessage(ValueError):
    """These bytes are no such message."""


class _Allowance:
    """How many fields may still be decoded."""

    def __init__(self, fields: int) -> None:
        self.fields = fields


class DecodedMessage:
    """One message. An absent field has the default value of its type, as in proto3."""

    def __init__(self, encoded: bytes, allowance: _Allowance | None = None) -> None:
        """Find the fields; raises MalformedMessage, as does every method. `allowance`: of the message around it."""
        self._allowance = allowance or _Allowance(MOST_FIELDS)
        self._fields = _fields(encoded, self._allowance)

    def integer(self, number: int) -> int:
        """Return an int64, a bool or an enum."""
        value: int = (self._values(number, _VARINT) or (0,))[-1]
        return value - (1 << 64) if value >> 63 else value

    def text(self, number: int) -> str:
        try:
            return str((self._values(number, _LENGTH_DELIMITED) or (b"",))[-1], "utf-8")
        except UnicodeDecodeError as error:
            raise MalformedMessage(f"field {number} is not UTF-8") from error

    def message(self, number: int) -> "DecodedMessage":
        """Return an embedded message; several are merged, which means to read one after the other."""
        return DecodedMessage(b"".join(self._values(number, _LENGTH_DELIMITED)), self._allowance)

    def messages(self, number: int) -> list["DecodedMessage"]:
        return [DecodedMessage(one, self._allowance) for one in self._values(number, _LENGTH_DELIMITED)]

    def text_map(self, number: int) -> dict[str, str]:
        """Return a `map<string, string>`, which is a list of entries of a key (1) and a value (2)."""
        return dict(map(self._entry, self._values(number, _LENGTH_DELIMITED)))

    def _entry(self, encoded: bytes) -> tuple[str, str]:
        short = _short_entry(encoded)
        if short and self._allowance.fields >= len(short):
            self._allowance.fields -= len(short)
            return short
        entry = DecodedMessage(encoded, self._allowance)
        return entry.text(1), entry.text(2)

    def _values(self, number: int, expected: int) -> Sequence[Any]:
        if not self._fields.keys().isdisjoint(_other_tags(number, expected)):
            raise MalformedMessage(f"field {number} has another type")
        return self._fields.get(number << 3 | expected, ())


def repeated(pieces: Iterable[bytes], number: int) -> Iterator[DecodedMessage]:
    """Decode the messages of one field while the message around them arrives; raises MalformedMessage."""
    rest, wanted = bytearray(), _LONGEST_HEAD
    for piece in chain(pieces, [None]):
        rest += piece or b""
        if piece is not None and len(rest) < wanted:
            continue
        at, wanted = 0, _LONGEST_HEAD if piece is not None else 1
        while len(rest) - at >= wanted:
            tag, start, end = _extent(rest, at)
            if end > len(rest) and piece is None:
                raise MalformedMessage(f"field {tag >> 3} is truncated")
            if end > len(rest):
                wanted = end - at
                break
            if tag >> 3 == number:
                yield _embedded(tag, bytes(rest[start:end]))
            at = end
        del rest[:at]


def _extent(encoded: bytearray, at: int) -> tuple[int, int, int]:
    """Return the tag of the field at a position, and where its value begins and ends: that may not have arrived."""
    tag, start = _varint(encoded, at)
    length, start = _length(encoded, start, tag)
    end = start if tag & 7 == _VARINT else start + length
    if end - at > LARGEST_FIELD:
        raise MalformedMessage(f"field {tag >> 3} is larger than {LARGEST_FIELD:,} bytes")
    return tag, start, end


def _embedded(tag: int, encoded: bytes) -> DecodedMessage:
    if tag & 7 != _LENGTH_DELIMITED:
        raise MalformedMessage(f"field {tag >> 3} has another type")
    return DecodedMessage(encoded)


def _short_entry(encoded: bytes) -> tuple[str, str] | None:
    """Decode an entry of a short key and a short value, as almost all are; None: it is another one."""
    size = len(encoded)
    if size <= _SHORT_HEAD or encoded[0] != _KEY or encoded[1] >= _ONE_BYTE:
        return None
    value = _SHORT_HEAD + encoded[1]
    start = value + _SHORT_HEAD
    if (
        start > size
        or encoded[value] != _VALUE
        or encoded[value + 1] >= _ONE_BYTE
        or start + encoded[value + 1] != size
    ):
        return None
    try:
        return str(encoded[_SHORT_HEAD:value], "utf-8"), str(encoded[start:], "utf-8")
    except UnicodeDecodeError:
        return None


@cache
def _other_tags(number: int, expected: int) -> tuple[int, ...]:
    return tuple(number << 3 | other for other in (_VARINT, _LENGTH_DELIMITED, *_FIXED) if other != expected)


def encode(*fields: tuple[int, int | str]) -> bytes:
    """Encode a message of strings and of integers that are not negative."""
    encoded = b""
    for number, value in fields:
        if isinstance(value, str):
            content = value.encode()
            encoded += _encode_varint(number << 3 | _LENGTH_DELIMITED) + _encode_varint(len(content)) + content
        else:
            encoded += _encode_varint(number << 3 | _VARINT) + _encode_varint(value)
    return encoded


def _fields(encoded: bytes, allowance: _Allowance) -> dict[int, list[Any]]:
    """Return the values of each field by its tag: its number and its type."""
    fields: dict[int, list[Any]] = {}
    at, end, left = 0, len(encoded), allowance.fields
    while at < end:
        tag = encoded[at]
        # Almost every field is a short text or message: a list of pods has thousands.
        if tag in _SHORT and at + 1 < end and (length := encoded[at + 1]) < _ONE_BYTE and at + 1 + length < end:
            at += 2 + length
            value: Any = encoded[at - length : at]
        elif tag in _INTEGERS:
            value, at = _varint(encoded, at + 1)
        else:
            tag, at = _varint(encoded, at)
            value, at = _value(encoded, at, tag)
        left -= 1
        if left < 0:
            raise MalformedMessage(f"the message has more than {MOST_FIELDS:,} fields")
        if tag in fields:
            fields[tag].append(value)
        else:
            fields[tag] = [value]
    allowance.fields = left
    return fields


def _value(encoded: bytes, at: int, tag: int) -> tuple[int | bytes, int]:
    """Decode the value at a position, and return it with the position behind it."""
    length, at = _length(encoded, at, tag)
    if tag & 7 == _VARINT:
        return length, at
    if length > len(encoded) - at:
        raise MalformedMessage(f"field {tag >> 3} is truncated")
    return encoded[at : at + length], at + length


def _length(encoded: bytes | bytearray, at: int, tag: int) -> tuple[int, int]:
    """Return the length of the value at a position, and where it begins; of an integer, itself and where it ends."""
    number, wire_type = tag >> 3, tag & 7
    if not 0 < number <= _GREATEST_NUMBER:
        raise MalformedMessage(f"invalid field number {number}")
    if wire_type in _FIXED:
        return _FIXED[wire_type], at
    if wire_type in {_VARINT, _LENGTH_DELIMITED}:
        return _varint(encoded, at)
    raise MalformedMessage(f"field {number} has the unsupported wire type {wire_type}")


def _varint(encoded: bytes | bytearray, at: int) -> tuple[int, int]:
    """Decode the integer at a position, and return it with the position behind it."""
    if at < len(encoded) and encoded[at] < _ONE_BYTE:
        return encoded[at], at + 1
    value = 0
    for place, byte in enumerate(encoded[at : at + _LONGEST_VARINT]):
        value |= (byte & 0x7F) << 7 * place
        # The last byte has no eighth bit. Ten of them could hold more than 64 bits.
        if not byte & 0x80 and not value >> 64:
            return value, at + place + 1
    raise MalformedMessage("an integer is truncated or has more than 64 bits")


def _encode_varint(value: int) -> bytes:
    encoded = bytearray()
    while value >> 7:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*encoded, value))
