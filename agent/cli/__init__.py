"""Commands. A command imports what it needs: a scan through `kubectl exec` shares the memory limit of the daemon."""

import gc
import os
import signal
import sys
from collections.abc import Sequence
from io import BufferedWriter, FileIO, TextIOWrapper
from typing import Any

_STANDARD_ERROR = 2


class _StandardError(FileIO):
    """Perhaps nobody reads it: the command matters more, and its exit code."""

    def write(self, text: Any) -> int:
        try:
            return super().write(text)
        except OSError:
            return len(text)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    given = sys.argv[1:] if arguments is None else arguments
    # First of all: the first process of a container ignores SIGTERM unless it has a handler. An interrupted command
    # must not end like a complete one.
    signal.signal(signal.SIGTERM, _exit if "run" in given[:1] else signal.SIG_DFL)
    # Imports take most of the time of a command, a sixth of it in the garbage collector. The daemon enables it again.
    gc.disable()
    prepare_output()
    try:
        code = _execute(given)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except Exception as error:  # noqa: BLE001 (Python's own exit code for a bug is 1, which means findings here)
        return report_error(error)
    return code


def _execute(arguments: Sequence[str]) -> int:
    from agent.cli.exit_codes import DONE
    from agent.cli.output import write
    from agent.cli.parser import COMMANDS, HELP, parse_arguments

    parsed = parse_arguments(arguments)
    if parsed.command == HELP:
        write(parsed.page)
        return DONE
    return COMMANDS[parsed.command].execute(parsed)


def report_error(error: Exception) -> int:
    """Print what went wrong and return the exit code."""
    import errno
    import traceback

    from agent.cli.exit_codes import DONE, OUTPUT, USAGE
    from agent.cli.output import discard_output
    from agent.config import BUG, UsageError

    match error:
        case UsageError():
            lines = [f"nodeleak: {line}" for line in str(error).splitlines()]
            print("\n".join([*lines, *filter(None, [error.hint])]), file=sys.stderr)
            return USAGE
        case BrokenPipeError():
            discard_output()
            return DONE
        case OSError(errno=errno.ENOSPC | errno.EDQUOT | errno.EFBIG | errno.EIO):
            discard_output()
            print(f"nodeleak: cannot write the output: {_lower(error.strerror)}", file=sys.stderr)
            return OUTPUT
        case _:
            traceback.print_exception(error)
            return BUG


def _lower(text: str | None) -> str:
    return f"{text[:1].lower()}{text[1:]}" if text else "unknown error"


def prepare_output() -> None:
    # Without this, the next file that is opened, perhaps the journal, takes the place of a closed standard output.
    while (handle := os.open(os.devnull, os.O_RDWR)) <= _STANDARD_ERROR:
        pass
    os.close(handle)
    if sys.stdout is None:
        sys.stdout = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
    if sys.stderr is sys.__stderr__:
        errors = BufferedWriter(_StandardError(_STANDARD_ERROR, "w", closefd=False))
        sys.stderr = TextIOWrapper(errors, errors="backslashreplace", line_buffering=True)
    # File names have any characters, and a terminal may be limited to ASCII.
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def _exit(_signal: int, _frame: object) -> None:
    sys.exit(0)
