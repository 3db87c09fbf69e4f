"""Output and exit codes of all commands.

`nodeleak --help` explains the codes. That of a bug is `bug.EXIT_CODE`.
"""

import json
import os
import re
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from agent.model.text import escape

DONE: Final = 0
FOUND: Final = 1
USAGE: Final = 2
UNAVAILABLE: Final = 3
FAILED: Final = 4
INTERRUPTED: Final = 5
BLOCKED: Final = 6
NO_DAEMON: Final = 69  # EX_UNAVAILABLE of sysexits.h
OUTPUT: Final = 74  # EX_IOERR of sysexits.h


class NoAnswer(Exception):
    """The server that a command needs did not answer. The command ends with UNAVAILABLE."""


def write(text: str) -> None:
    """Write to standard output. A closed pipe is no error: the exit code says what was done."""
    try:
        print(text, end="", flush=True)
    except BrokenPipeError:
        discard_output()


def as_json(document: object) -> str:
    return f"{json.dumps(document, indent=1)}\n"


def as_yaml(document: object) -> str:
    """Write the same document as `as_json`. It begins with `---`: several can follow one another.

    A value that another reader could take for a number is in quotes, such as the ID 950123e4.
    """
    import yaml  # type: ignore[import-untyped]

    # The dumper in C is ten times faster, and an installation may lack it.
    fastest: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)

    class Dumper(fastest):  # type: ignore[misc]
        pass

    def quoted(dumper: Any, text: str) -> Any:
        style = None if _PLAIN.fullmatch(text) else '"'
        # YAML cannot have the half of a surrogate pair, which JSON from elsewhere may have.
        valid = text.encode(errors="backslashreplace").decode()
        return dumper.represent_scalar("tag:yaml.org,2002:str", valid, style=style)

    Dumper.add_representer(str, quoted)
    plain = json.loads(json.dumps(document))
    return str(yaml.dump(plain, Dumper=Dumper, sort_keys=False, explicit_start=True, width=_WIDE))


_WIDE: Final = 2**31 - 1
"""Columns: no line is folded, as a folded one cannot be searched for a message."""

_PLAIN: Final = re.compile(r"[A-Za-z][A-Za-z_/-]*( [A-Za-z_/-]+)*")
DOCUMENTS: Final[Mapping[str, Callable[[object], str]]] = {"json": as_json, "yaml": as_yaml}
"""The output formats of every command that has a document."""


def warn(*lines: str, hint: str = "", prefix: str = "nodeleak: ") -> None:
    """Write to standard error what the output has no place for."""
    printed = [f"{prefix}{escape(line)}\n" for line in lines]
    if hint:
        printed.append(f"{hint}\n")
    print("".join(printed), end="", file=sys.stderr, flush=True)


def discard_output() -> None:
    """Send remaining output to /dev/null: the interpreter would try to flush it at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def show_progress(text: str) -> None:
    """Replace the line on a terminal that says what takes a moment. Empty: remove it."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


@contextmanager
def progress(text: str) -> Iterator[None]:
    show_progress(f"{text} …")
    try:
        yield
    finally:
        show_progress("")


def width() -> int:
    """Return the columns of the terminal, at most 100; 100 if the output goes elsewhere."""
    try:
        columns = int(os.environ.get("COLUMNS") or 0) or os.get_terminal_size().columns
    except (ValueError, OSError):  # standard output is no terminal
        columns = 0
    return max(40, min(100, columns or 100))


def terminal_columns() -> int | None:
    """Return the columns of the terminal; None if the output goes elsewhere: nothing is cut."""
    if not sys.stdout.isatty():
        return None
    return os.get_terminal_size(sys.stdout.fileno()).columns or None


def has_color() -> bool:
    # https://no-color.org: set to anything but the empty string.
    is_refused = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return sys.stdout.isatty() and not is_refused


def has_unicode() -> bool:
    return (sys.stdout.encoding or "").lower().startswith("utf")


def reflow(text: str, indent: str = "") -> str:
    """Fill paragraphs to the width of the terminal.

    A blank line begins another one, and so does a line such as `Do: ...`.
    """
    joined = re.sub(r"(?<!\n)\n(?!\n|[A-Z][a-z ]*: |$)", " ", text)
    return "\n".join(
        textwrap.fill(
            line, width(), subsequent_indent=indent, break_on_hyphens=False, break_long_words=False
        )
        for line in joined.splitlines()
    )
