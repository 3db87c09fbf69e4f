"""The one way in which reading fails."""


class SourceError(Exception):
    """A source could not be read; the text says why, and the library's error is its cause."""
