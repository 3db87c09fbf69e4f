"""Commands. Each is a module; only that of the given command is imported."""

import argparse
import errno
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from io import BufferedWriter, FileIO, TextIOWrapper
from typing import Any

from agent.cli.output import DONE, OUTPUT, UNAVAILABLE, USAGE, NoAnswer, discard_output, warn
from agent.config import UsageError
from agent.model import bug
from agent.sources.source_error import describe_os_error

_STANDARD_ERROR = 2
_CANNOT_WRITE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}


class _StandardError(FileIO):
    """Standard error without errors: a command, or the daemon, goes on if nobody reads it."""

    def write(self, text: Any) -> int:
        try:
            return super().write(text)
        except OSError:
            return len(text)


def main(arguments: Sequence[str] | None = None) -> int:
    return exit_code_of(_parse, arguments)


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    from agent.cli.parser import parse_arguments

    return parse_arguments(arguments)


def exit_code_of(
    parse: Callable[[Sequence[str]], argparse.Namespace], arguments: Sequence[str] | None
) -> int:
    """Execute a command, report what went wrong, and return the exit code."""
    _prepare_output()
    try:
        _require_docstrings()
        parsed = parse(sys.argv[1:] if arguments is None else arguments)
        code: int = parsed.execute(parsed)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except SystemExit as ended:  # after --help, and when SIGTERM ends the daemon
        return int(ended.code or DONE)
    except UsageError as error:
        warn(*str(error).splitlines(), hint=error.hint)
        return USAGE
    except NoAnswer as error:
        warn(str(error))
        return UNAVAILABLE
    except BrokenPipeError:
        discard_output()
        return DONE
    except Exception as error:  # noqa: BLE001 (Python would exit with 1, which means findings here)
        return _report(error)
    return code


def _require_docstrings() -> None:
    if sys.flags.optimize > 1:
        removed = "python -OO (PYTHONOPTIMIZE=2) removes docstrings"
        raise UsageError(f"{removed}, which describe the findings: use -O, or neither")


def _report(error: Exception) -> int:
    if isinstance(error, OSError) and error.errno in _CANNOT_WRITE:
        discard_output()
        warn(f"cannot write the output: {describe_os_error(error)}")
        return OUTPUT
    traceback.print_exception(error)
    return bug.EXIT_CODE


def _prepare_output() -> None:
    # Without this, the next file that is opened, perhaps the journal, takes the place of a closed
    # standard output.
    while (handle := os.open(os.devnull, os.O_RDWR)) <= _STANDARD_ERROR:
        pass
    os.close(handle)
    sys.stdout = sys.stdout or os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")

    if sys.stderr is sys.__stderr__:
        errors = BufferedWriter(_StandardError(_STANDARD_ERROR, "w", closefd=False))
        sys.stderr = TextIOWrapper(errors, errors="backslashreplace", line_buffering=True)

    # File names have any characters, and a terminal may be limited to ASCII.
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
