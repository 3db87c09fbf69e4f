"""A setting as an option of a command, and back: from what was given to a Config."""

import argparse
import os

from agent.config import Config, load, option, settings_of, variable


def add_options(parser: argparse.ArgumentParser, command: str) -> None:
    """Add a command's settings, by group."""
    settings = settings_of(command)
    groups = {
        group: parser.add_argument_group(group) for group in dict.fromkeys(one.group for one in settings.values())
    }
    for field, setting in settings.items():
        default = f" (default: {setting.default})" if setting.default else ""
        groups[setting.group].add_argument(
            option(field),
            dest=field,
            metavar=setting.metavar,
            action="append" if setting.many else "store",
            help=f"{setting.help}{default} [{variable(field)}]".replace("%", "%%"),
        )


def config_of(command: str, given: argparse.Namespace) -> Config:
    """Read options, the environment and defaults; raises UsageError with all that is wrong."""
    return load(command, {field: getattr(given, field) for field in settings_of(command)}, os.environ)
