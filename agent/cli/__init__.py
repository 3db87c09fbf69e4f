"""The front door: run, scan, timeline, clean, restore, journal, record, explain.

What a command does not need is not imported: a scan through `kubectl exec` shares the daemon's memory limit.
"""

import argparse
import errno
import gc
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from io import TextIOWrapper
from pathlib import Path
from typing import Final, NoReturn

from agent.cli.exit_codes import DONE, OUTPUT, USAGE
from agent.cli.parser import make_parser
from agent.cli.progress import say_no_more
from agent.cli.scan import run
from agent.config import BUG, UsageError

_STANDARD_ERROR: Final = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    # At once, and before the imports of a command: as a container's first process we must not ignore it.
    signal.signal(signal.SIGTERM, _leave)
    # Imports are most of a command's life, and collecting garbage a sixth of them; the daemon turns it on again.
    gc.disable()
    _prepare_output()
    try:
        given = make_parser().parse_args(arguments)
        if given.command is not run:
            # Half a look must not look like a whole one.
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        command: Callable[[argparse.Namespace], int] = given.command
        code = command(given)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except Exception as error:  # noqa: BLE001 (Python's own exit code for a bug, 1, means findings here)
        return _excuse(error)
    return code


def _excuse(error: Exception) -> int:
    """Tell the user what went wrong, as far as it is theirs to mend, and return the exit code."""
    match error:
        case UsageError():
            print("\n".join(f"nodeleak: {line}" for line in str(error).splitlines()), file=sys.stderr)
            return USAGE
        case BrokenPipeError():
            # Whoever read our output (head, less) has seen enough.
            say_no_more()
            return DONE
        case OSError(errno=errno.ENOSPC | errno.EDQUOT | errno.EFBIG | errno.EIO):
            say_no_more()
            print(f"nodeleak: cannot write the output: {error.strerror}", file=sys.stderr)
            return OUTPUT
        case _:
            traceback.print_exception(error)
            return BUG


def _prepare_output() -> None:
    # What was closed by whoever started us is opened to nowhere: else the next file opened, which may be the journal,
    # is taken for standard output.
    while (handle := os.open(os.devnull, os.O_RDWR)) <= _STANDARD_ERROR:
        pass
    os.close(handle)
    if sys.stdout is None:
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115 (for as long as the process lives)
    if sys.stderr is None:
        sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115 (as above)
    # Names of files may be anything, and a terminal may know ASCII only.
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def _leave(_signal: int, _frame: object) -> NoReturn:
    sys.exit(DONE)
