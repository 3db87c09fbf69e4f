"""What kubelet, container runtimes and CNI plugins print, and what it means.

The entries are in `messages.toml`, read when first needed. A message of theirs wraps that of the
program below: `peel` takes the layers off, and `find` looks for the innermost that it knows.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from string import Formatter
from typing import Final

from agent.model.envelope import Peeled, events, peel, without_variable_parts
from agent.model.word import Word

__all__ = [
    "Addresses",
    "Entry",
    "Match",
    "Pattern",
    "Peeled",
    "entries",
    "events",
    "fill_in",
    "find",
    "lower_case",
    "matches",
    "peel",
    "without_quotes",
    "without_variable_parts",
]

_LOWER: Final = {ord(upper): upper.lower() for upper in "ABCDEFGHIJKLMNOPQRSTUVWXYZ"}
_NO_QUOTES: Final = {ord('"'): None, ord("'"): None}
_SAFE: Final = r"[\w/.:@%+][\w/.:@%+=-]{0,252}"
"""What a message may put into a command that somebody copies to a shell."""


class Addresses(Word):
    """What a message has to do with host-local's reservations."""

    DECIDE = "HL", "Look at host-local's reservations: they show the cause."
    CONFIGURED = "file", "It is about host-local, but not about a lack of addresses."
    LEAKING = "L", "It is not about addresses, but each retry can leak one."
    HELD = "H", "It is not about addresses, but pods keep theirs until they are torn down."
    BOTH = (
        "L, H",
        "It is not about addresses, but retries can leak some, and dead pods keep theirs.",
    )
    UNRELATED = "none", "It has nothing to do with host-local's addresses."


@dataclass(frozen=True, slots=True)
class Pattern:
    """Constant parts of a message, in their order, and the names of what stands between them."""

    text: str
    parts: tuple[str, ...]
    names: tuple[str, ...]
    at_start: bool
    at_end: bool

    def match(self, text: str, lower: str) -> dict[str, str] | None:
        """Return what stands in the variable parts, by name. None: the text is another message.

        `text` has no quotes; `lower` is the same in lower case. It takes one pass over the text,
        whatever the text is.
        """
        values: dict[str, str] = {}
        end = 0
        for index, part in enumerate(self.parts):
            start = self._start(lower, part, index, end)
            if start < end:
                return None
            if index:
                # Without a word before it, the variable part begins somewhere in the layer.
                value = text[end:start]
                is_first = index == 1 and not self.parts[0]
                values[self.names[index - 1]] = _last_word(value) if is_first else value
            end = start + len(part)
        if len(self.names) == len(self.parts):
            values[self.names[-1]] = _first_word(text[end:])
        return values

    def _start(self, lower: str, part: str, index: int, end: int) -> int:
        """Return where a part begins; -1: nowhere behind `end`."""
        is_last = index == len(self.parts) - 1 and self.at_end
        if index == 0 and self.at_start:
            start = 0
        elif is_last:
            start = max(end, len(lower) - len(part))
        else:
            return lower.find(part, end)

        if is_last and start + len(part) != len(lower):
            return -1
        return start if lower.startswith(part, start) else -1


@dataclass(frozen=True, slots=True)
class Entry:
    """One known message."""

    key: str
    group: str
    component: str
    """The program that prints it."""
    patterns: tuple[Pattern, ...]
    unless: tuple[str, ...]
    """Words, in lower case and without quotes, with which the whole text is another message."""
    addresses: Addresses
    meaning: str
    look: str
    """What to look at on this node; empty: nothing here proves or refutes it."""
    steps: tuple[str, ...]
    """`{names}` are variable parts of the patterns."""
    since: str
    """Version of the component; empty: not known, or long ago."""
    until: str
    samples: tuple[str, ...]

    def is_excluded(self, whole: str) -> bool:
        """Return whether a whole text, in lower case, is another message."""
        return any(words in whole for words in self.unless)

    def match(self, layer: str, lower: str) -> dict[str, str] | None:
        """Return the variable parts of a layer, or None if it is not this. `lower`: as above."""
        for pattern in self.patterns:
            values = pattern.match(layer, lower)
            if values is not None:
                return values
        return None


@dataclass(frozen=True, slots=True)
class Match:
    """An entry that a message is."""

    entry: Entry
    values: Mapping[str, str]
    """The variable parts, by name."""
    is_innermost: bool
    """Whether the innermost words of the message are this, and not what is around them."""

    def fill_in(self, text: str) -> str:
        """Return a text of the entry with the values of this message, for a reader's shell."""
        return fill_in(text, self.values)


def find(text: str) -> Entry | None:
    """Return the entry of the innermost layer of a message that has one."""
    found = matches(text)
    return found[0].entry if found else None


def matches(text: str) -> list[Match]:
    """Return the entries of that layer: more than one is a mistake of the catalog."""
    layers = [without_quotes(layer) for layer in peel(text).layers]
    whole = lower_case(layers[-1])
    possible = [entry for entry in entries() if not entry.is_excluded(whole)]
    for layer in layers:
        lower = lower_case(layer)
        found = [
            Match(entry, values, is_innermost=layer is layers[0])
            for entry in possible
            if (values := entry.match(layer, lower)) is not None
        ]
        if found:
            return found
    return []


def fill_in(text: str, values: Mapping[str, str]) -> str:
    """Return a text of an entry with values; in capitals the name of what has none that is safe."""
    parts = []
    for literal, name, _, _ in Formatter().parse(text):
        parts.append(literal)
        if name is not None:
            value = values.get(name, "")
            parts.append(value if re.fullmatch(_SAFE, value, re.ASCII) else name.upper())
    return "".join(parts)


@cache
def entries() -> tuple[Entry, ...]:
    """Return all entries, in the order of the file."""
    import tomllib  # noqa: PLC0415 (most commands need no entries)

    tree = tomllib.loads(files("agent.model").joinpath("messages.toml").read_text())
    return tuple(
        _entry(key=key, group=group, row=row)
        for group, of_group in tree.items()
        for key, row in of_group.items()
    )


def without_quotes(text: str) -> str:
    """Return a text without quotes: a shell takes them off, and other programs escape them."""
    return text.translate(_NO_QUOTES)


def lower_case(text: str) -> str:
    """Return a text of the same length, which `str.lower` alone does not promise."""
    return text.lower() if text.isascii() else text.translate(_LOWER)


def _entry(*, key: str, group: str, row: Mapping[str, object]) -> Entry:
    unless = _strings(row.get("unless"))
    return Entry(
        key=key,
        group=group,
        component=str(row["component"]),
        patterns=tuple(map(_pattern, _strings(row["patterns"]))),
        unless=tuple(lower_case(without_quotes(words)) for words in unless),
        addresses=Addresses(str(row["addresses"])),
        meaning=_paragraph(row["meaning"]),
        look=_paragraph(row.get("look", "")),
        steps=_strings(row["steps"]),
        since=str(row.get("since", "")),
        until=str(row.get("until", "")),
        samples=_strings(row["samples"]),
    )


def _strings(value: object) -> tuple[str, ...]:
    if not isinstance(value, list):
        return ()
    return tuple(map(_paragraph, value))


def _paragraph(value: object) -> str:
    return " ".join(str(value).split())


def _pattern(text: str) -> Pattern:
    """Read a pattern: `{name}` is variable; `^` and `$` are the ends of a layer."""
    inner = text.removeprefix("^").removesuffix("$")
    fields = list(Formatter().parse(inner))
    return Pattern(
        text=text,
        parts=tuple(lower_case(without_quotes(literal)) for literal, *_ in fields),
        names=tuple(name for _, name, *_ in fields if name is not None),
        at_start=text.startswith("^"),
        at_end=text.endswith("$"),
    )


def _last_word(text: str) -> str:
    return text[-300:].rpartition(" ")[2]


def _first_word(text: str) -> str:
    """Return what a variable part at the end of a pattern stands for."""
    return re.split(r"[\s,;\]]", text[:300], maxsplit=1)[0].rstrip(".:)")
