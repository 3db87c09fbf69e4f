"""Words that people read, each with its text, which `nodeleak explain` prints."""

from enum import StrEnum
from inspect import cleandoc
from typing import Self


class Word(StrEnum):
    """An enum whose members are declared with their texts: `NAME = "value", "text"`."""

    _value_: str
    text: str

    def __new__(cls, value: str, text: str = "") -> Self:
        """`text`: what the word means, and what to do."""
        member = str.__new__(cls, value)
        member._value_ = value
        member.text = cleandoc(text)
        return member
