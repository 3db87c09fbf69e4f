"""The command line: a parser per command, `--help` and `--help-all`, and errors of one line with a suggestion."""

import argparse
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NoReturn, Protocol

from agent.cli import clean, completion, explain, journal, record, restore, resume, run, scan, status, timeline, version
from agent.cli.options import add_settings
from agent.cli.output import reflow, width
from agent.config import RENAMED, UsageError, all_settings, option, quote


class Command(Protocol):
    """What a module of this package has to be a command."""

    @property
    def SUMMARY(self) -> str:
        """One line for the list of commands."""

    @property
    def OPERANDS(self) -> str:
        """What stands before the options in the usage line."""

    @property
    def SETTINGS(self) -> str:
        """The command whose settings it takes; empty: none."""

    @property
    def DESCRIPTION(self) -> str:
        """What the help says before the options."""

    @property
    def EPILOG(self) -> str:
        """What the help says after the options: examples and exit codes."""

    def add_arguments(self, parser: argparse.ArgumentParser, /) -> None: ...

    def execute(self, arguments: argparse.Namespace, /) -> int: ...


COMMANDS: Final[Mapping[str, Command]] = {
    "scan": scan,
    "status": status,
    "explain": explain,
    "timeline": timeline,
    "clean": clean,
    "restore": restore,
    "resume": resume,
    "journal": journal,
    "record": record,
    "run": run,
    "completion": completion,
    "version": version,
}

HELP: Final = "help"
_ALIASES: Final = {"-h": HELP, "--help": HELP, "--help-all": HELP, "--version": "version"}
_RENAMED: Final = {option(old).lstrip("-"): option(new) for old, new in RENAMED.items()}
_SYNONYMS: Final = {
    **_RENAMED,
    "json": "--output=json",
    "yes": "--apply",
    "force": "--apply",
    "no-api": "--api=off",
}
"""What people may write instead of an option: its former name, or its name in other tools."""
_SHORTEST: Final = 3
"""Letters of a name that can be recognized when it is misspelled."""

_INTRO: Final = (
    "nodeleak finds pod IP addresses that a Kubernetes node has leaked: they are still reserved, but no container uses "
    "them. It also finds related problems with device plugins, volumes and the Node object. It changes nothing unless "
    "you ask for it: 'clean --apply', 'restore --apply', 'run --cleanup=auto'."
)
_OVERVIEW: Final = """\
{intro}

usage: nodeleak COMMAND [options]

commands:
{commands}

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
    """Return the parsed arguments, with `command`; for the command `help` they have the `page` to print."""
    name, rest = _command(arguments)
    if name == HELP:
        return argparse.Namespace(command=HELP, page=overview())
    if name not in COMMANDS:
        raise _unknown_command(name)
    if {"-h", "--help", "--help-all"} & set(rest):
        full = "--help-all" in rest and not {"-h", "--help"} & set(rest)
        return argparse.Namespace(command=HELP, page=make_parser(name, full=full).format_help())
    if name == "explain":
        rest = [one.removeprefix("--") if one.partition("=")[0] in _every_setting() else one for one in rest]
    for one in rest:  # argparse would read -output as -o utput
        if re.match(r"-\w\w", one) and f"-{one.partition('=')[0]}" in _options(name):
            raise _unexpected_argument(name, one)
    parser = make_parser(name)
    parsed, unexpected = parser.parse_known_args(rest, argparse.Namespace(command=name))
    if unexpected:
        raise _unexpected_argument(name, unexpected[0])
    return parsed


def _command(arguments: Sequence[str]) -> tuple[str, list[str]]:
    """Return the command and its arguments; `help scan` is `scan --help`."""
    name, *rest = arguments or [HELP]
    name = _ALIASES.get(name, name)
    if name != HELP:
        return name, rest
    if not rest or rest[0] == HELP or rest[0].startswith("-"):
        return HELP, []
    name, *more = rest
    if more and not more[0].startswith("-"):
        raise UsageError(f"unexpected argument {quote(more[0])}", _see_help())
    return name, [*more, "--help"]


def _every_setting() -> set[str]:
    return {option(one) for one in all_settings()}


def overview() -> str:
    lines = [f"  {name:<11}{command.SUMMARY}" for name, command in COMMANDS.items()]
    lines.append(f"  {HELP:<11}print this help, or the help of a command")
    return _OVERVIEW.format(intro=reflow(_INTRO), commands="\n".join(lines))


def make_parser(name: str, *, full: bool = False) -> argparse.ArgumentParser:
    """Return the parser of a command. `full`: its help shows every setting."""
    command = COMMANDS[name]
    epilog = command.EPILOG
    if command.SETTINGS and not full:
        epilog += f"\nRun 'nodeleak {name} --help-all' for all settings and their variables.\n"
    parser = _Parser(
        prog=f"nodeleak {name}",
        usage=" ".join(filter(None, [f"nodeleak {name}", command.OPERANDS, "[options]"])),
        description=reflow(command.DESCRIPTION),
        epilog=epilog.strip(),
        formatter_class=_Formatter,
        # An abbreviation is ambiguous as soon as an option is added, and --app must not mean --apply.
        allow_abbrev=False,
        add_help=False,
    )
    command.add_arguments(parser)
    if command.SETTINGS:
        add_settings(parser, command.SETTINGS, full=full)
    parser.add_argument("-h", "--help", action="store_true", help="print this help")
    if command.SETTINGS:
        parser.add_argument("--help-all", action="store_true", help="print this help with all settings")
    return parser


class _Formatter(argparse.RawDescriptionHelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=28, width=width())

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False, break_long_words=False)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if action.option_strings and action.metavar:
            # As Python 3.13 does: the value once, not after each name.
            return f"{', '.join(action.option_strings)} {action.metavar}"
        return super()._format_action_invocation(action)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(_reworded(message.removeprefix("argument ")), _see_help(self.prog))


_REWORDED: Final = (
    (
        re.compile(r"(?:-o/)?([\w|-]+): invalid choice: '(.*)' \(choose from '?(.*?)'?\)"),
        r'\1: invalid value "\2": expected one of: \3',
    ),
    (re.compile(r"(.+): not allowed with argument (.+)"), r"\2 and \1 cannot be combined: remove one of them"),
    (re.compile(r"(?:-o/)?(.+): expected one argument"), r"\1: missing value"),
    (re.compile(r"(.+): ignored explicit argument '(.*)'"), r'\1: takes no value, got "\2"'),
)


def _reworded(message: str) -> str:
    """Write argparse's messages in the form of all others."""
    for pattern, text in _REWORDED:
        if matched := pattern.fullmatch(message):
            return matched.expand(text).replace("', '", ", ")
    return message


def _see_help(command: str = "nodeleak") -> str:
    return f"run '{command} --help' for usage"


def _unknown_command(name: str) -> UsageError:
    if not name.startswith("-"):
        return UsageError(f"unknown command {quote(name)}{did_you_mean(name.lower(), (*COMMANDS, HELP))}", _see_help())
    if (plain := f"--{_plain(name)}") in _ALIASES:
        return UsageError(f"unknown option {quote(name)}: did you mean {quote(plain)}?", _see_help())
    return UsageError(f"unknown option {quote(name)}: options follow the command: nodeleak scan ...", _see_help())


def _unexpected_argument(command: str, argument: str) -> UsageError:
    see = _see_help(f"nodeleak {command}")
    if not argument.startswith("-"):
        return UsageError(f"unexpected argument {quote(argument)}", see)
    name = argument.partition("=")[0]
    if others := _commands_with(name):
        return UsageError(f"unknown option {quote(name)} of {command}: it is an option of {others}", see)
    return UsageError(f"unknown option {quote(name)}{_suggestion(_plain(name), command)}", see)


def _plain(name: str) -> str:
    """Return the name of an option without dashes, however it is written."""
    return name.lstrip("-").replace("_", "-").lower()


def _suggestion(name: str, command: str) -> str:
    """Suggest an option of the command, also where one name begins with the other, or else of another command."""
    if len(name) < _SHORTEST:
        return ""
    if suggestion := did_you_mean(name, _meant(name, _options(command))):
        return suggestion
    found = _closest(name, {_plain(one): one for other in COMMANDS for one in _options(other)} | _RENAMED)
    return f": did you mean {quote(found)} of {_commands_with(found)}?" if found else ""


def _meant(name: str, own: Sequence[str]) -> dict[str, str]:
    """Return a command's options by what people may write: `name` itself stands for an option that it extends."""
    related = [one for one in own if one.startswith(f"--{name}") or f"--{name}".startswith(f"{one}-")]
    synonyms = {word: one for word, one in _SYNONYMS.items() if one.partition("=")[0] in own}
    return dict(zip([name], related, strict=False)) | {_plain(one): one for one in own} | synonyms


def _commands_with(name: str) -> str:
    return ", ".join(other for other in COMMANDS if name.partition("=")[0] in _options(other))


def _options(command: str) -> list[str]:
    parser = make_parser(command)
    return list(parser._option_string_actions)  # noqa: SLF001 (argparse has no way to ask)


def did_you_mean(word: str, meant: Iterable[str] | Mapping[str, str]) -> str:
    """Return a suggestion to end an error with; empty if nothing is similar. `meant`: words, or suggestions by word."""
    found = _closest(word, meant if isinstance(meant, Mapping) else {one: one for one in meant})
    return f": did you mean {quote(found)}?" if found else ""


def _closest(word: str, meant: Mapping[str, str]) -> str:
    from difflib import get_close_matches

    return next((meant[one] for one in get_close_matches(word, list(meant), n=1, cutoff=0.6)), "")
