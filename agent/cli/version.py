"""version: which build this is."""

import argparse
from typing import Final

from agent.cli.exit_codes import DONE
from agent.cli.output import write

SUMMARY: Final = "print version and commit"
OPERANDS: Final = ""
SETTINGS: Final = ""
DESCRIPTION: Final = "Prints the version and, in an image, the commit.\n"
EPILOG: Final = ""


def add_arguments(_: argparse.ArgumentParser) -> None:
    """It has none."""


def execute(_: argparse.Namespace) -> int:
    from importlib.metadata import version

    from agent.app.build import commit

    write(f"nodeleak {version('nodeleak')}, commit {commit() or 'unknown (not built as an image)'}\n")
    return DONE
