"""The error of every source. It is apart from `error.py`, so that pure code can handle it."""


class SourceError(Exception):
    """A source could not be read; the text says why, and the library's error is its cause."""
