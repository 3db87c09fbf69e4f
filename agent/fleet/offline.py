"""Commands of kubectl nodeleak that ask no cluster."""

import argparse
from typing import Final

from agent.cli import version
from agent.cli.candidates import COMPLETE
from agent.cli.output import DONE, write

_COMPLETION_PROGRAM: Final = f"""\
#!/bin/sh
exec kubectl nodeleak {COMPLETE} "$@"
"""


print_version = version.execute


def print_completion(_: argparse.Namespace) -> int:
    write(_COMPLETION_PROGRAM)
    return DONE
