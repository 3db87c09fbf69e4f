"""The error of every source. Pure code may handle it."""


class SourceError(Exception):
    """A source could not be read; the text says why, and the library's error is its cause."""


class NotFound(SourceError):
    """What should be read does not exist."""
