"""nodeleak version."""

import argparse
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version

from agent.app import commit
from agent.cli.output import DONE, write


def execute(_: argparse.Namespace) -> int:
    write(f"nodeleak {_version()}, commit {commit() or 'unknown (not built as an image)'}\n")
    return DONE


def _version() -> str:
    with suppress(PackageNotFoundError):
        return version("nodeleak")
    return version("kubectl-nodeleak")  # the plugin alone
