"""The part of the protobuf wire format that the agent needs.

See protobuf.dev/programming-guides/encoding.

A message here is its fields by number: whoever reads a message knows their names and types.
"""

from collections.abc import Iterator
from typing import Any, Final, TypeAlias

Encoded: TypeAlias = bytes | memoryview
"""A message as it arrived. A view, because a copy of the largest one would be 16 MiB more."""

_VARINT: Final = 0  # the wire types of the fields that are read
_LENGTH_DELIMITED: Final = 2
_FIXED: Final = {1: 8, 5: 4}  # the lengths of the wire types that no field read here has
_MAX_VARINT: Final = 10  # bytes


class DecodedMessage:
    """One message. An absent field has the default value of its type, as in proto3."""

    def __init__(self, encoded: Encoded) -> None:
        """Find the fields; raises ValueError if they are no message.

        So does every method for a field of another type.
        """
        self._fields: dict[int, list[tuple[int, Any]]] = {}
        """By number, each with its wire type."""
        position = 0
        while position < len(encoded):
            tag, position = _varint(encoded, position)
            value, position = _value(encoded, position, tag)
            self._fields.setdefault(tag >> 3, []).append((tag & 7, value))

    def integer(self, number: int) -> int:
        """Return an int64, a bool or an enum."""
        value: int = (self._values(number, _VARINT) or [0])[-1]
        return value - (1 << 64) if value >> 63 else value

    def text(self, number: int) -> str:
        value: Encoded = (self._values(number, _LENGTH_DELIMITED) or [b""])[-1]
        return bytes(value).decode()

    def message(self, number: int) -> "DecodedMessage":
        """Return an embedded message.

        Several are merged, which means to read one after the other.
        """
        return DecodedMessage(b"".join(self._values(number, _LENGTH_DELIMITED)))

    def messages(self, number: int) -> Iterator["DecodedMessage"]:
        """Return a list's messages; each is decoded, and raises ValueError, when its turn comes."""
        values = self._values(number, _LENGTH_DELIMITED)
        return (DecodedMessage(bytes(value)) for value in values)

    def text_map(self, number: int) -> dict[str, str]:
        """Return a `map<string, string>`, a list of entries of a key (1) and a value (2)."""
        return {entry.text(1): entry.text(2) for entry in self.messages(number)}

    def _values(self, number: int, expected: int) -> list[Any]:
        """Return every value of a field. `expected`: its wire type."""
        fields = self._fields.get(number, [])
        if any(wire_type != expected for wire_type, _ in fields):
            raise ValueError(f"field {number} has another type")
        return [value for _, value in fields]


def encode_texts(*texts: str) -> bytes:
    """Return a message whose field 1 has these texts, each of less than 128 bytes."""
    message = b""
    for text in texts:
        content = text.encode()
        message += bytes((1 << 3 | _LENGTH_DELIMITED, len(content))) + content
    return message


def _value(encoded: Encoded, position: int, tag: int) -> tuple[int | Encoded, int]:
    """Return the value at a position, and the position behind it."""
    number = tag >> 3
    wire_type = tag & 7
    if wire_type == _VARINT:
        return _varint(encoded, position)
    if wire_type == _LENGTH_DELIMITED:
        length, position = _varint(encoded, position)
    elif wire_type in _FIXED:
        length = _FIXED[wire_type]
    else:
        raise ValueError(f"field {number} has the unsupported wire type {wire_type}")

    end = position + length
    if end > len(encoded):
        raise ValueError(f"field {number} is truncated")
    return encoded[position:end], end


def _varint(encoded: Encoded, position: int) -> tuple[int, int]:
    """Return the integer at a position, and the position behind it."""
    # Nearly every one is a single byte.
    if position < len(encoded) and encoded[position] < 0x80:  # noqa: PLR2004
        return encoded[position], position + 1

    value = 0
    for index, byte in enumerate(encoded[position : position + _MAX_VARINT]):
        value |= (byte & 0x7F) << 7 * index
        # The last byte has no eighth bit. Ten of them could hold more than 64 bits.
        if not byte & 0x80 and not value >> 64:
            return value, position + index + 1
    raise ValueError("an integer is truncated or has more than 64 bits")
