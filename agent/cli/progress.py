"""A word on a terminal while something takes a moment, and silence where nobody listens."""

import os
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


def say_no_more() -> None:
    """Give what is still to be written to nobody, so that the interpreter does not try once more at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
