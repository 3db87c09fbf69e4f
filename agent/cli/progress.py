"""A word on a terminal while something takes a moment."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def progress(text: str) -> Iterator[None]:
    """Say on a terminal what takes a moment, and take it back when it is done."""
    if not sys.stderr.isatty():
        yield
        return
    print(f"{text} …", end="", file=sys.stderr, flush=True)
    try:
        yield
    finally:
        print("\r\033[K", end="", file=sys.stderr, flush=True)
