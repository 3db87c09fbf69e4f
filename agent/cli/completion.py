"""completion: write a script with which a shell completes commands, options and values."""

import argparse
from typing import Final

from agent.cli.exit_codes import DONE
from agent.cli.output import write
from agent.config import UsageError

SUMMARY: Final = "print a script that completes commands in bash or zsh"
OPERANDS: Final = "(bash | zsh)"
SETTINGS: Final = ""
DESCRIPTION: Final = """\
Prints a script for the shell. It completes commands, options, their values, and the words that
'nodeleak explain' knows. It needs the Python package shtab.
"""
EPILOG: Final = """\
examples:
  source <(nodeleak completion bash)              in this shell
  nodeleak completion zsh > ~/.zfunc/_nodeleak    zsh, with ~/.zfunc in fpath

exit codes:
  0  printed
  2  wrong usage, or the package shtab is missing
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=("bash", "zsh"), metavar="bash|zsh", help="which shell the script is for")


def execute(arguments: argparse.Namespace) -> int:
    try:
        import shtab
    except ImportError as error:
        remedy = "run 'python -m pip install shtab' with the Python that runs nodeleak"
        raise UsageError("completion needs the Python package shtab, which is not installed", remedy) from error
    write(f"{shtab.complete(_whole_parser(shtab.FILE, shtab.DIRECTORY), arguments.shell)}\n")
    return DONE


def _whole_parser(files: object, directories: object) -> argparse.ArgumentParser:
    """Return one parser with all commands. `files`, `directories`: how shtab is told to complete a path."""
    from agent.cli.glossary import entries
    from agent.cli.parser import COMMANDS, HELP, make_parser

    values = {"FILE": files, "DIR": directories, "DIR|off": directories}
    words = {"WORD": sorted({entry.word for entry in entries()})}
    whole = argparse.ArgumentParser(prog="nodeleak", add_help=False)
    commands = whole.add_subparsers()
    for name, command in COMMANDS.items():
        own = make_parser(name, full=True)
        for action in own._actions:  # noqa: SLF001 (argparse has no way to ask)
            metavar = str(action.metavar)
            action.choices = action.choices or words.get(metavar) or _alternatives(metavar)
            if metavar in values:
                action.complete = values[metavar]  # type: ignore[attr-defined] # shtab's own attribute
        commands.add_parser(name, help=command.SUMMARY, parents=[own], add_help=False)
    of_help = commands.add_parser(HELP, help="print the help of a command", add_help=False)
    of_help.add_argument("command", choices=tuple(COMMANDS))
    return whole


def _alternatives(metavar: str) -> list[str] | None:
    """Return the values of an option such as `on|off`; None for `NAME|auto`, which has others."""
    return metavar.split("|") if metavar.islower() and "|" in metavar else None
