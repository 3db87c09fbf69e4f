"""Settings as options of a command, and parsed options as a Config."""

import argparse
import os

from agent.config import Config, Setting, load, option, settings_of, variable


def add_settings(parser: argparse.ArgumentParser, command: str, *, full: bool) -> None:
    """Add the settings of a command. Without `full`, the help shows only the common ones."""
    for name, setting in settings_of(command).items():
        _group(parser, setting.group if full else "").add_argument(
            option(name),
            dest=name,
            metavar=setting.metavar,
            action="append" if setting.many else "store",
            help=_help(name, setting, full=full).replace("%", "%%") if full or setting.common else argparse.SUPPRESS,
        )


def _group(parser: argparse.ArgumentParser, title: str) -> argparse._ActionsContainer:
    """Return the group of options with a title; without a title, the parser itself."""
    if not title:
        return parser
    groups = {group.title: group for group in parser._action_groups}  # noqa: SLF001 (argparse has no way to ask)
    return groups.get(title) or parser.add_argument_group(title)


def _help(name: str, setting: Setting, *, full: bool) -> str:
    default = f" (default: {setting.default})" if setting.default else ""
    if full:
        return f"{setting.help}{default} [{variable(name)}]"
    return f"{setting.help.partition('. ')[0]}{default}"


def config_of(command: str, arguments: argparse.Namespace) -> Config:
    """Combine options, environment and defaults; raises UsageError with every mistake."""
    return load(command, {name: getattr(arguments, name) for name in settings_of(command)}, os.environ)


def add_output(parser: argparse.ArgumentParser) -> None:
    text = "output format (default: table)"
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table", metavar="table|json", help=text)


def add_apply(parser: argparse.ArgumentParser, text: str) -> None:
    """Add `--apply`. It is an option only, so that no environment variable can allow a change of the node."""
    either = parser.add_mutually_exclusive_group()
    either.add_argument("--apply", action="store_true", help=text)
    either.add_argument("--dry-run", action="store_true", help="only print what would be done (default)")
