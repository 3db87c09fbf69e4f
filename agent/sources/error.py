"""The one way in which reading fails."""

_LONGEST = 200


class SourceError(Exception):
    """A source could not be read; the text says why, and the library's error is its cause."""


def in_short(said: object) -> str:
    """Make a line of what somebody else said: an HTML page is no message."""
    text = " ".join(str(said).split())
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
