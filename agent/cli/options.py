"""A setting as an option of a command, and back: from what was given to a Config."""

import argparse
import os

from agent.config import Config, knobs, load, option, variable


def add_options(parser: argparse.ArgumentParser, command: str) -> None:
    """Add a command's settings, by group."""
    settings = knobs(command)
    groups = {
        group: parser.add_argument_group(group) for group in dict.fromkeys(one.group for one in settings.values())
    }
    for field, knob in settings.items():
        default = f" (default: {knob.default})" if knob.default else ""
        groups[knob.group].add_argument(
            option(field),
            dest=field,
            metavar=knob.metavar,
            action="append" if knob.many else "store",
            help=f"{knob.help}{default} [{variable(field)}]".replace("%", "%%"),
        )


def config_of(command: str, given: argparse.Namespace) -> Config:
    """Read options, the environment and defaults; raises UsageError with all that is wrong."""
    return load(command, {field: getattr(given, field) for field in knobs(command)}, os.environ)
