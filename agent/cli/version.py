"""nodeleak version."""

import argparse
from importlib.metadata import version

from agent.app import commit
from agent.cli.output import DONE, write


def execute(_: argparse.Namespace) -> int:
    write(
        f"nodeleak {version('nodeleak')}, commit {commit() or 'unknown (not built as an image)'}\n"
    )
    return DONE
