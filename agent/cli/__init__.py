"""Commands. Each is a module whose docstring is its help; only that of the given command is imported."""

import errno
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from io import TextIOWrapper

from agent.cli.exit_codes import DONE, OUTPUT, USAGE
from agent.cli.output import discard, warn
from agent.config import BUG, UsageError
from agent.sources.os_error import describe_os_error

_STANDARD_ERROR = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    return exit_code_of(lambda: _execute(sys.argv[1:] if arguments is None else arguments))


def _execute(arguments: Sequence[str]) -> int:
    from agent.cli.parser import parse_arguments

    parsed = parse_arguments(arguments)
    code: int = parsed.execute(parsed)
    return code


def exit_code_of(execute: Callable[[], int]) -> int:
    """Execute a command, report what went wrong, and return the exit code."""
    _prepare_output()
    try:
        code = execute()
        sys.stdout.flush()
    except KeyboardInterrupt:
        return 128 + 2  # as a shell has it for SIGINT
    except SystemExit as ended:  # after --help, and when SIGTERM ends the daemon
        return int(ended.code or DONE)
    except UsageError as error:
        warn(*str(error).splitlines(), hint=error.hint)
        return USAGE
    except BrokenPipeError:
        discard(sys.stdout)
        return DONE
    except Exception as error:  # noqa: BLE001 (Python's own exit code for a bug is 1, which means findings here)
        return _report(error)
    return code


def _report(error: Exception) -> int:
    if isinstance(error, OSError) and error.errno in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}:
        discard(sys.stdout)
        warn(f"cannot write the output: {describe_os_error(error)}")
        return OUTPUT
    traceback.print_exception(error)
    return BUG


def _prepare_output() -> None:
    # Without this, the next file that is opened, perhaps the journal, takes the place of a closed standard output.
    while (handle := os.open(os.devnull, os.O_RDWR)) <= _STANDARD_ERROR:
        pass
    os.close(handle)
    sys.stdout = sys.stdout or os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
    sys.stderr = sys.stderr or os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
    # File names have any characters, and a terminal may be limited to ASCII.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
