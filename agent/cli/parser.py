"""The command line of nodeleak: commands, options, and errors of one line with a suggestion."""

import argparse
import os
import textwrap
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from importlib import import_module
from typing import Any, Final, NoReturn

from agent.cli.candidates import COMPLETE
from agent.cli.output import DOCUMENTS, DONE, reflow, terminal_columns, width, write
from agent.config import (
    Config,
    Setting,
    UsageError,
    load,
    option,
    settings_of,
    variable,
)
from agent.exporters.release_commands import Release
from agent.exporters.release_here import release_here
from agent.exporters.text.layout import TableView
from agent.model.text import did_you_mean, quote

COMMANDS: Final[Mapping[str, str]] = {
    "scan": "Report leaked addresses and other problems of this node",
    "status": "Print what the daemon of this node found in its last sync",
    "explain": "Explain a word that nodeleak prints, such as a finding or an alert",
    "timeline": "List what happened on this node, oldest first",
    "clean": "List leaked addresses that can be released; --apply releases them",
    "restore": "Undo a release: reserve the address again",
    "resume": "Let cleanup go on after it halted",
    "journal": "List past releases",
    "record": "Write a snapshot of this node as JSON, to scan it elsewhere",
    "run": "Run the agent: check the node continuously, serve metrics",
    "version": "Print the version and, in an image, the commit",
    "completion": "Print a script with which bash, zsh or fish completes commands",
}
"""What each command does. It is a module of this package, which only that command imports.

The module has `execute`, and if there is more to say, `HELP` and `add_arguments`.
"""

HELP_OPTIONS: Final = ("-h", "--help", "--help-all")

_INTRO: Final = (
    "nodeleak finds pod IP addresses that a Kubernetes node has leaked: they are still reserved, "
    "but no container uses them. It also finds related problems with device plugins, volumes and "
    "the Node object. It changes nothing unless you ask for it: 'clean --apply', "
    "'restore --apply', 'run --cleanup=auto'."
)
_EPILOG: Final = """\
examples:
  kubectl get pods -n kube-system -l app.kubernetes.io/name=nodeleak -o wide
  kubectl exec -n kube-system POD -- nodeleak scan    (POD: the one on the node)
  nodeleak scan --api=off                             (on the node, as root)
  nodeleak clean --api=off                            (the same; changes nothing)
  nodeleak explain ContainerCreating
  nodeleak scan --node worker-1 --kubeconfig /etc/kubernetes/kubelet.conf

exit codes:
  0  success                                4  a release or a restore failed
  1  --exit-code: there are findings        5  interrupted between releases
  2  wrong usage or configuration           6  clean: no release possible here
  3  incomplete: some data are unavailable  69 status: no daemon answers
  70 bug in nodeleak                        74 cannot write output or journal

Every setting is also an environment variable: --grace is NODELEAK_GRACE.
Run 'nodeleak COMMAND --help' for the options of a command.
"""


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the parsed arguments, with `command` and `execute`.

    Raises UsageError, and SystemExit after a help.
    """
    if list(arguments[:1]) == ["--version"]:
        arguments = ["version"]
    if list(arguments[:1]) == [COMPLETE]:
        return argparse.Namespace(execute=_complete, words=arguments[1:])

    command, *rest = with_command("nodeleak", arguments, COMMANDS)
    root = make_parser(command if command in COMMANDS else None, full="--help-all" in rest)
    parsed, unexpected = root.parse_known_args([command, *rest])
    if unexpected:
        raise _unexpected_argument(command, unexpected[0])
    return parsed


def _complete(arguments: argparse.Namespace) -> int:
    from agent.cli import completion

    write(completion.candidates(arguments.words, COMMANDS, make_parser).lines())
    return DONE


def with_command(program: str, arguments: Sequence[str], known: Iterable[str]) -> list[str]:
    """Write `help COMMAND` as `COMMAND --help`; raises UsageError for an unknown command."""
    first, *rest = arguments or ["--help"]
    if first == "help":
        first, *rest = [*rest[:1], "--help"]
    if first in {*known, *HELP_OPTIONS}:
        return [first, *rest]

    if first.startswith("-"):
        text = f"unknown option {quote(first)}: options follow the command: {program} scan ..."
        raise UsageError(text, see_help(program))
    raise UsageError(
        f"unknown command {quote(first)}{did_you_mean(first.lower(), known)}", see_help(program)
    )


def make_parser(command: str | None, *, full: bool = False) -> argparse.ArgumentParser:
    """Return a parser of a command; None: one that only lists the commands.

    `full`: the help of the command shows every setting.
    """
    root = Parser(
        prog="nodeleak",
        usage="nodeleak COMMAND [options]",
        description=reflow(_INTRO),
        epilog=_EPILOG,
    )
    root.add_argument(*HELP_OPTIONS, action="help", help=argparse.SUPPRESS)

    commands = root.add_subparsers(
        dest="command", title="commands", metavar="COMMAND", prog="nodeleak"
    )
    if command is None:
        for name, summary in COMMANDS.items():
            commands.add_parser(name, help=summary)
    else:
        _add_command(commands, command, full=full)

    root.set_defaults(parsers=commands.choices)
    return root


def _add_command(commands: Any, name: str, *, full: bool) -> None:
    """Import the module of a command, and add its parser."""
    module = import_module(f"agent.cli.{name}")
    description, _, examples = getattr(module, "HELP", "").partition("\n\nexamples:")
    parser = commands.add_parser(
        name,
        usage=f"nodeleak {name} [options]",
        description=reflow(f"{COMMANDS[name]}.\n\n{description}".rstrip()),
        epilog=f"examples:{examples}" if examples else None,
    )

    if hasattr(module, "add_arguments"):
        module.add_arguments(parser)
    parser.add_argument("-h", "--help", action="help", help="print this help")
    if settings_of(name):
        parser.add_argument("--help-all", action="help", help="print this help with all settings")
        add_settings(parser, name, full=full)
    parser.set_defaults(execute=module.execute)


class Parser(argparse.ArgumentParser):
    """Raises UsageError where argparse ends the process."""

    def __init__(self, **more: object) -> None:
        # An abbreviation becomes ambiguous with another option, and --app must not mean --apply.
        super().__init__(
            formatter_class=_Formatter,
            allow_abbrev=False,
            add_help=False,
            **more,  # type: ignore[arg-type]
        )

    def error(self, message: str) -> NoReturn:
        raise UsageError(message.removeprefix("argument "), see_help(self.prog))


class _Formatter(argparse.RawDescriptionHelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=32, width=width())

    def _format_action(self, action: argparse.Action) -> str:
        # Of the list of commands only the commands, at the indentation of options: argparse would
        # break after longer names.
        lines = list(self._iter_indented_subactions(action)) or [action]
        return "".join(map(super()._format_action, lines))

    def _iter_indented_subactions(
        self, action: argparse.Action
    ) -> Generator[argparse.Action, None, None]:
        commands: Iterable[argparse.Action] = getattr(action, "_get_subactions", tuple)()
        yield from commands

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(text, width, break_on_hyphens=False, break_long_words=False)


def see_help(program: str) -> str:
    """Return the hint of an error about usage. `program`: with the command, if there is one."""
    return f"run '{program} --help' for usage"


def _unexpected_argument(command: str, argument: str) -> UsageError:
    """Return the error for what a command does not take, with the closest that it does."""
    see = see_help(f"nodeleak {command}")
    if not argument.startswith("-"):
        return UsageError(f"unexpected argument {quote(argument)}", see)

    name = argument.partition("=")[0]
    options = {other: options_of(other) for other in COMMANDS}
    having = ", ".join(other for other in COMMANDS if name in options[other])
    if having:
        text = f"unknown option {quote(name)} of {command}: it is an option of {having}"
        return UsageError(text, see)
    suggestion = did_you_mean(name.lower(), options[command])
    return UsageError(f"unknown option {quote(name)}{suggestion}", see)


def options_of(command: str) -> list[str]:
    """Return every option of a command, long and short, such as `--apply` and `-v`."""
    parsers = make_parser(command).get_default("parsers")
    return list(parsers[command]._option_string_actions)  # noqa: SLF001 (there is no other way)


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
            help=_help(name, setting, full=full),
        )


def _help(name: str, setting: Setting, *, full: bool) -> str:
    """Return the help of a setting, for argparse, which formats it with `%`."""
    if not full and not setting.common:
        return argparse.SUPPRESS

    default = f" (default: {setting.default})" if setting.default else ""
    text = f"{setting.help.partition('. ')[0]}{default}"
    if full:
        text = f"{setting.help}{default} [{variable(name)}]"
    return text.replace("%", "%%")


def config_of(arguments: argparse.Namespace) -> Config:
    """Combine options, environment and defaults; raises UsageError with every mistake."""
    command = arguments.command
    options = {name: getattr(arguments, name) for name in settings_of(command)}
    return load(command, options, os.environ)


def value(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """Make a type for argparse, whose errors say what was expected."""

    def read(text: str) -> Any:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"invalid value {quote(text)}: {error}") from error

    return read


def add_output(parser: argparse.ArgumentParser, formats: Iterable[str]) -> None:
    """Add `--output`. `formats`: the keys of the command's table of formats."""
    *others, last = formats
    text = f"output format: {', '.join(others)} or {last} (default: table)"
    parser.add_argument(
        "-o", "--output", choices=[*others, last], default="table", metavar="FORMAT", help=text
    )


def add_address_table(
    parser: argparse.ArgumentParser, formats: Iterable[str], orders: Sequence[str]
) -> None:
    """Add the options of a command with a table of addresses. `orders`: its values of `--sort-by`.

    The first one is the default.
    """
    add_output(parser, formats)
    text = f"sort the addresses by {', '.join(orders[:-1])} or {orders[-1]} (default: {orders[0]})"
    parser.add_argument("--sort-by", choices=orders, metavar="COLUMN", help=text)


def view_of(arguments: argparse.Namespace) -> TableView:
    """Return how a table is shown. The next command has this one's options and environment."""
    if arguments.sort_by and arguments.output in DOCUMENTS:
        text = f"--sort-by and -o {arguments.output} cannot be combined: remove one of them"
        raise UsageError(text)

    wide = arguments.output == "wide"
    return TableView(
        sort_by=arguments.sort_by or "ip",
        wide=wide,
        columns=None if wide else terminal_columns(),
        release=_next_release(arguments),
    )


def _next_release(arguments: argparse.Namespace) -> Release:
    """Return how to release with the options that say which node and how to read it.

    A short --grace of another command would weaken a guard of `clean`.
    """
    if getattr(arguments, "recording", None) is not None:
        return release_here(os.environ)

    kept = settings_of("clean").keys() - {"confirm_after"}
    if arguments.command != "clean":
        kept -= {"grace"}
    values = {name: getattr(arguments, name, None) for name in sorted(kept)}
    options: list[str] = []
    for name, texts in values.items():
        each = [texts] if isinstance(texts, str) else texts or []
        options += [f"{option(name)}={text}" for text in each]

    if only := getattr(arguments, "ip", None):
        options.append(f"--ip={','.join(only)}")
    if limit := getattr(arguments, "max", None):
        options.append(f"--max={limit}")

    config = load("version", values, os.environ)
    return release_here(os.environ, tuple(options), config=config)


def add_apply(parser: argparse.ArgumentParser, text: str) -> None:
    """Add `--apply`. It is no setting: no environment variable can allow a change of the node."""
    either = parser.add_mutually_exclusive_group()
    either.add_argument("--apply", action="store_true", help=text)
    either.add_argument(
        "--dry-run", action="store_true", help="only print what would be done (default)"
    )
