"""Output shared by the commands."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from agent.model.text import escape


def write(text: str) -> None:
    """Write to standard output. A closed pipe is no error here: the exit code still says what was done."""
    try:
        print(text, end="", flush=True)
    except BrokenPipeError:
        discard_output()


def warn(*lines: str) -> None:
    """Write to standard error what the output has no place for."""
    for line in lines:
        print(f"nodeleak: {escape(line)}", file=sys.stderr)


def write_json(document: object) -> None:
    import json

    write(f"{json.dumps(document, indent=1)}\n")


def width() -> int:
    """Return the columns of the terminal, 80 without one; longer lines than 100 are hard to read."""
    from shutil import get_terminal_size

    return max(40, min(100, get_terminal_size().columns))


def terminal_columns() -> int | None:
    """Return the columns of the terminal; None where the output goes elsewhere, and nothing may be cut."""
    return os.get_terminal_size(sys.stdout.fileno()).columns or None if sys.stdout.isatty() else None


def reflow(text: str, indent: str = "") -> str:
    """Fill paragraphs to the width of the terminal. A blank line, or a line such as `Do: ...`, begins another one."""
    import re
    import textwrap

    joined = re.sub(r"(?<!\n)\n(?!\n|[A-Z][a-z ]*: |$)", " ", text)
    return "\n".join(
        textwrap.fill(line, width(), subsequent_indent=indent, break_on_hyphens=False, break_long_words=False)
        for line in joined.splitlines()
    )


def discard_output() -> None:
    """Send remaining output to /dev/null, so that the interpreter does not try to flush it at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def has_color() -> bool:
    # https://no-color.org: set to anything but the empty string.
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def has_unicode() -> bool:
    return (sys.stdout.encoding or "").lower().startswith("utf")


@contextmanager
def progress(text: str) -> Iterator[None]:
    """Show on a terminal what takes a moment, and remove it at the end."""
    if not sys.stderr.isatty():
        yield
        return
    print(f"{text} …", end="", file=sys.stderr, flush=True)
    try:
        yield
    finally:
        print("\r\033[K", end="", file=sys.stderr, flush=True)
