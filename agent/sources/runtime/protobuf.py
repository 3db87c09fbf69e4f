"""Encodes and decodes the part of protobuf's wire format that the agent needs.

A message here is its fields by number: whoever reads one knows their names and types.
"""

from collections.abc import Iterator
from typing import Any, Final

_VARINT, _FIXED64, _LENGTH_DELIMITED, _FIXED32 = 0, 1, 2, 5
_FIXED: Final = {_FIXED64: 8, _FIXED32: 4}
_GREATEST_NUMBER: Final = (1 << 29) - 1
_LONGEST_VARINT: Final = 10
_MOST_FIELDS: Final = 500_000
"""Of a message and all that is read of those within: about ten thousand containers. Each field costs 80 bytes."""


class MalformedMessage(ValueError):
    """These bytes are no such message."""


class DecodedMessage:
    """One message. An absent field has the default value of its type, as in proto3."""

    def __init__(self, encoded: bytes, remaining: Iterator[int] | None = None) -> None:
        """Find the fields; raises MalformedMessage, as does every method. `remaining`: one for each field allowed."""
        self._fields: dict[int, list[tuple[int, Any]]] = {}
        self._remaining = iter(range(_MOST_FIELDS)) if remaining is None else remaining
        for number, wire_type, value in _fields(encoded):
            if next(self._remaining, None) is None:
                raise MalformedMessage(f"the message has more than {_MOST_FIELDS} fields")
            self._fields.setdefault(number, []).append((wire_type, value))

    def integer(self, number: int) -> int:
        """Return an int64, a bool or an enum."""
        value = int(self._values(number, _VARINT)[-1]) if number in self._fields else 0
        return value - (1 << 64) if value >> 63 else value

    def text(self, number: int) -> str:
        try:
            return str(b"".join(self._values(number, _LENGTH_DELIMITED)[-1:]), "utf-8")
        except UnicodeDecodeError as error:
            raise MalformedMessage(f"field {number} is not UTF-8") from error

    def message(self, number: int) -> "DecodedMessage":
        """Return an embedded message; several are merged, which means to read one after the other."""
        return DecodedMessage(b"".join(self._values(number, _LENGTH_DELIMITED)), self._remaining)

    def messages(self, number: int) -> list["DecodedMessage"]:
        return [DecodedMessage(one, self._remaining) for one in self._values(number, _LENGTH_DELIMITED)]

    def text_map(self, number: int) -> dict[str, str]:
        """Return a `map<string, string>`, which is a list of entries of a key (1) and a value (2)."""
        return {entry.text(1): entry.text(2) for entry in self.messages(number)}

    def _values(self, number: int, expected: int) -> list[Any]:
        found = self._fields.get(number, [])
        if any(wire_type != expected for wire_type, _ in found):
            raise MalformedMessage(f"field {number} has another type")
        return [value for _, value in found]


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


def _fields(encoded: bytes) -> Iterator[tuple[int, int, int | bytes]]:
    at = 0
    while at < len(encoded):
        tag, at = _varint(encoded, at)
        number, wire_type = tag >> 3, tag & 7
        if not 0 < number <= _GREATEST_NUMBER:
            raise MalformedMessage(f"invalid field number {number}")
        if wire_type not in {_VARINT, _LENGTH_DELIMITED, *_FIXED}:
            raise MalformedMessage(f"field {number} has the unsupported wire type {wire_type}")
        if wire_type in _FIXED:
            length = _FIXED[wire_type]
        else:
            length, at = _varint(encoded, at)
        if wire_type == _VARINT:
            yield number, wire_type, length
            continue
        if length > len(encoded) - at:
            raise MalformedMessage(f"field {number} is truncated")
        yield number, wire_type, encoded[at : at + length]
        at += length


def _varint(encoded: bytes, at: int) -> tuple[int, int]:
    """Decode the integer at a position, and return it with the position behind it."""
    # Most have one byte, and a list of pods has thousands of them.
    if at < len(encoded) and encoded[at] < 0x80:  # noqa: PLR2004 (the eighth bit)
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
