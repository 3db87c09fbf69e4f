"""Encodes and decodes the part of protobuf's wire format that the agent needs.

A message here is its fields by number: whoever reads one knows their names and types.
"""

from typing import Any, Final

_VARINT, _FIXED64, _LENGTH_DELIMITED, _FIXED32 = 0, 1, 2, 5
_FIXED: Final = {_FIXED64: 8, _FIXED32: 4}
_GREATEST_NUMBER: Final = (1 << 29) - 1
_LONGEST_VARINT: Final = 10


class MalformedMessage(ValueError):
    """These bytes are no such message."""


class DecodedMessage:
    """One message. An absent field has the default value of its type, as in proto3."""

    def __init__(self, encoded: bytes) -> None:
        """Find the fields; raises MalformedMessage, as does every method."""
        self._fields = _fields(encoded)

    def integer(self, number: int) -> int:
        """Return an int64, a bool or an enum."""
        value: int = (self._values(number, _VARINT) or [0])[-1]
        return value - (1 << 64) if value >> 63 else value

    def text(self, number: int) -> str:
        return _text((self._values(number, _LENGTH_DELIMITED) or [b""])[-1])

    def message(self, number: int) -> "DecodedMessage":
        """Return an embedded message; several are merged, which means to read one after the other."""
        return DecodedMessage(b"".join(self._values(number, _LENGTH_DELIMITED)))

    def messages(self, number: int) -> list["DecodedMessage"]:
        return [DecodedMessage(one) for one in self._values(number, _LENGTH_DELIMITED)]

    def text_map(self, number: int) -> dict[str, str]:
        """Return a `map<string, string>`, which is a list of entries of a key (1) and a value (2)."""
        return {entry.text(1): entry.text(2) for entry in self.messages(number)}

    def _values(self, number: int, expected: int) -> list[Any]:
        wire_type, values = self._fields.get(number, (expected, []))
        if wire_type != expected:
            raise MalformedMessage(f"field {number} has another type")
        return values


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


def _fields(encoded: bytes) -> dict[int, tuple[int, list[Any]]]:
    """Return the wire type and the values of each field by its number."""
    fields: dict[int, tuple[int, list[Any]]] = {}
    at = 0
    while at < len(encoded):
        tag, at = _varint(encoded, at)
        number, wire_type = tag >> 3, tag & 7
        if not 0 < number <= _GREATEST_NUMBER:
            raise MalformedMessage(f"invalid field number {number}")
        value, at = _value(encoded, at, number, wire_type)
        known, values = fields.setdefault(number, (wire_type, []))
        if known != wire_type:
            raise MalformedMessage(f"field {number} has another type")
        values.append(value)
    return fields


def _value(encoded: bytes, at: int, number: int, wire_type: int) -> tuple[int | bytes, int]:
    """Decode the value at a position, and return it with the position behind it."""
    if wire_type == _VARINT:
        return _varint(encoded, at)
    if wire_type == _LENGTH_DELIMITED:
        length, at = _varint(encoded, at)
    elif wire_type in _FIXED:
        length = _FIXED[wire_type]
    else:
        raise MalformedMessage(f"field {number} has the unsupported wire type {wire_type}")
    if length > len(encoded) - at:
        raise MalformedMessage(f"field {number} is truncated")
    return encoded[at : at + length], at + length


def _varint(encoded: bytes, at: int) -> tuple[int, int]:
    """Decode the integer at a position, and return it with the position behind it."""
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


def _text(encoded: bytes) -> str:
    try:
        return encoded.decode()
    except UnicodeDecodeError as error:
        raise MalformedMessage("a text is not UTF-8") from error
