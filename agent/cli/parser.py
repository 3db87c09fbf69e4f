"""The command line of nodeleak: a subparser for each command, and errors of one line with a suggestion."""

import argparse
import textwrap
from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import Final, NoReturn

from agent.cli.options import add_settings
from agent.cli.output import reflow, width
from agent.config import UsageError, did_you_mean, quote, settings_of

COMMANDS: Final = (
    *("scan", "status", "explain", "timeline", "clean", "restore", "resume", "journal", "record", "run"),
    "version",
)
"""Modules of this package. Only that of the given command is imported, and its docstring is its help."""
HELP: Final = ("-h", "--help", "--help-all")

_INTRO: Final = (
    "nodeleak finds pod IP addresses that a Kubernetes node has leaked: they are still reserved, but no container uses "
    "them. It also finds related problems with device plugins, volumes and the Node object. It changes nothing unless "
    "you ask for it: 'clean --apply', 'restore --apply', 'run --cleanup=auto'."
)
_EPILOG: Final = """\
examples:
  kubectl get pods -n kube-system -l app.kubernetes.io/name=nodeleak -o wide
  kubectl exec -n kube-system POD -- nodeleak scan    (POD: the one on the node)
  nodeleak scan --node worker-1 --kubeconfig /etc/kubernetes/kubelet.conf
  nodeleak explain leaked_reservation
  nodeleak clean --node worker-1 --kubeconfig /etc/kubernetes/kubelet.conf

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
    """Return the parsed arguments, with `command` and `execute`; raises UsageError, and SystemExit after a help."""
    if list(arguments[:1]) == ["--version"]:
        arguments = ["version"]
    command, *rest = with_command("nodeleak", arguments, COMMANDS)
    root = make_parser(*([command] if command in COMMANDS else COMMANDS), full="--help-all" in rest)
    parsed, unexpected = root.parse_known_args([command, *rest])
    if unexpected:
        raise _unexpected_argument(command, unexpected[0])
    return parsed


def with_command(program: str, arguments: Sequence[str], known: Iterable[str]) -> list[str]:
    """Write `help COMMAND` as `COMMAND --help`; raises UsageError if the first argument is no known command."""
    first, *rest = arguments or ["--help"]
    if first == "help":
        first, *rest = [*rest[:1], "--help"]
    if first in {*known, *HELP}:
        return [first, *rest]
    if first.startswith("-"):
        text = f"unknown option {quote(first)}: options follow the command: {program} scan ..."
        raise UsageError(text, see_help(program))
    raise UsageError(f"unknown command {quote(first)}{did_you_mean(first.lower(), known)}", see_help(program))


def make_parser(*names: str, full: bool = False) -> argparse.ArgumentParser:
    """Return a parser of these commands. `full`: their help shows every setting."""
    root = Parser(prog="nodeleak", usage="nodeleak COMMAND [options]", description=reflow(_INTRO), epilog=_EPILOG)
    root.add_argument(*HELP, action="help", help=argparse.SUPPRESS)
    commands = root.add_subparsers(dest="command", title="commands", metavar="COMMAND", prog="nodeleak")
    for name in names:
        module = import_module(f"agent.cli.{name}")
        description, _, epilog = (module.__doc__ or "").partition("\n\nexamples:")
        parser = commands.add_parser(
            name,
            help=description.splitlines()[0].rstrip("."),
            usage=f"nodeleak {name} [options]",
            description=reflow(description),
            epilog=f"examples:{epilog}" if epilog else None,
        )
        if hasattr(module, "add_arguments"):
            module.add_arguments(parser)
        parser.add_argument("-h", "--help", action="help", help="print this help")
        if settings_of(name):
            parser.add_argument("--help-all", action="help", help="print this help with all settings")
            add_settings(parser, name, full=full)
        parser.set_defaults(execute=module.execute)
    root.set_defaults(parsers=commands.choices)
    return root


class Parser(argparse.ArgumentParser):
    def __init__(self, **more: object) -> None:
        # An abbreviation is ambiguous as soon as an option is added, and --app must not mean --apply.
        super().__init__(formatter_class=_Formatter, allow_abbrev=False, add_help=False, **more)  # type: ignore[arg-type]

    def error(self, message: str) -> NoReturn:
        raise UsageError(message.removeprefix("argument "), see_help(self.prog))


class _Formatter(argparse.RawDescriptionHelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=32, width=width())

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(text, width, break_on_hyphens=False, break_long_words=False)


def see_help(program: str) -> str:
    return f"run '{program} --help' for usage"


def _unexpected_argument(command: str, argument: str) -> UsageError:
    see = see_help(f"nodeleak {command}")
    if not argument.startswith("-"):
        return UsageError(f"unexpected argument {quote(argument)}", see)
    name = argument.partition("=")[0]
    options = {other: options_of(other) for other in COMMANDS}
    if others := [other for other in COMMANDS if name in options[other]]:
        return UsageError(f"unknown option {quote(name)} of {command}: it is an option of {', '.join(others)}", see)
    return UsageError(f"unknown option {quote(name)}{did_you_mean(name.lower(), options[command])}", see)


def options_of(command: str) -> list[str]:
    parsers = make_parser(command).get_default("parsers")
    return list(parsers[command]._option_string_actions)  # noqa: SLF001 (argparse has no way to ask)
