"""Settings as options of a command, and parsed options as a Config."""

import argparse
import os
import shlex
from collections.abc import Callable, Sequence
from typing import Any

from agent.cli.output import terminal_columns
from agent.config import Config, Setting, UsageError, load, option, quote, settings_of, variable
from agent.exporters.advice import release_commands
from agent.exporters.text.layout import TableView


def add_settings(parser: argparse.ArgumentParser, command: str, *, full: bool) -> None:
    """Add the settings of a command. Without `full`, the help shows only the common ones."""
    settings = settings_of(command)
    titles = dict.fromkeys(setting.group for setting in settings.values())
    groups = {title: parser.add_argument_group(title) if full else parser for title in titles}
    for name, setting in settings.items():
        groups[setting.group].add_argument(
            option(name),
            dest=name,
            metavar=setting.metavar,
            action="append" if setting.many else "store",
            help=_help(name, setting, full=full).replace("%", "%%") if full or setting.common else argparse.SUPPRESS,
        )


def _help(name: str, setting: Setting, *, full: bool) -> str:
    default = f" (default: {setting.default})" if setting.default else ""
    if full:
        return f"{setting.help}{default} [{variable(name)}]"
    return f"{setting.help.partition('. ')[0]}{default}"


def config_of(arguments: argparse.Namespace) -> Config:
    """Combine options, environment and defaults; raises UsageError with every mistake."""
    command = arguments.command
    return load(command, {name: getattr(arguments, name) for name in settings_of(command)}, os.environ)


def value(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """Make a type for argparse, whose errors say what was expected."""

    def read(text: str) -> Any:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"invalid value {quote(text)}: {error}") from error

    return read


def add_output(parser: argparse.ArgumentParser, formats: Sequence[str] = ("table", "json")) -> None:
    text = f"output format: {', '.join(formats[:-1])} or {formats[-1]} (default: table)"
    parser.add_argument("-o", "--output", choices=formats, default="table", metavar="FORMAT", help=text)


def add_address_table(parser: argparse.ArgumentParser, orders: Sequence[str]) -> None:
    """Add the options of a table of addresses. `orders`: the columns that it can be sorted by."""
    add_output(parser, ("table", "wide", "name", "json"))
    text = f"sort the addresses by {', '.join(orders[:-1])} or {orders[-1]} (default: {orders[0]})"
    parser.add_argument("--sort-by", choices=orders, metavar="COLUMN", help=text)


def view_of(arguments: argparse.Namespace) -> TableView:
    if arguments.sort_by and arguments.output == "json":
        raise UsageError("--sort-by and -o json cannot be combined: remove one of them")
    wide = arguments.output == "wide"
    columns = None if wide else terminal_columns()
    return TableView(arguments.sort_by or "ip", wide, columns, release_commands(os.environ, _given(arguments)))


def _given(arguments: argparse.Namespace) -> str:
    """Write the options that told a command about the node, for the next one. A short --grace would weaken a guard."""
    names = settings_of("clean").keys() - {"grace", "confirm_after"}
    given = ((name, getattr(arguments, name, None) or []) for name in sorted(names))
    options = ((name, text) for name, texts in given for text in ([texts] if isinstance(texts, str) else texts))
    return "".join(f" {option(name)}={shlex.quote(text)}" for name, text in options)


def add_apply(parser: argparse.ArgumentParser, text: str) -> None:
    """Add `--apply`. It is an option only, so that no environment variable can allow a change of the node."""
    either = parser.add_mutually_exclusive_group()
    either.add_argument("--apply", action="store_true", help=text)
    either.add_argument("--dry-run", action="store_true", help="only print what would be done (default)")
