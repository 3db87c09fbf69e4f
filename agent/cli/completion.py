"""Print a script that completes commands in bash or zsh.

It completes commands, options, their values, and the words that 'nodeleak explain' knows. It needs
the Python package shtab.

examples:
  source <(nodeleak completion bash)              in this shell
  nodeleak completion zsh > ~/.zfunc/_nodeleak    zsh, with ~/.zfunc in fpath

exit codes:
  0  printed
  2  wrong usage, or the package shtab is missing
"""

import argparse

from agent.cli.exit_codes import DONE
from agent.cli.glossary import entries
from agent.cli.output import write
from agent.config import UsageError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "nodeleak completion (bash | zsh)"
    parser.add_argument("shell", choices=("bash", "zsh"), help="which shell the script is for")


def execute(arguments: argparse.Namespace) -> int:
    from agent.cli.parser import COMMANDS, make_parser

    try:
        import shtab
    except ImportError as error:
        remedy = "run 'python -m pip install shtab' with the Python that runs nodeleak"
        raise UsageError("completion needs the Python package shtab, which is not installed", remedy) from error
    root = make_parser(*COMMANDS, full=True)
    paths = {"FILE": shtab.FILE, "DIR": shtab.DIRECTORY, "DIR|off": shtab.DIRECTORY}
    for parser in root.get_default("parsers").values():
        for action in parser._actions:  # noqa: SLF001 (argparse has no way to ask)
            metavar = str(action.metavar)
            if metavar in paths:
                action.complete = paths[metavar]
            elif metavar == "WORD":
                action.choices = sorted({entry.word for entry in entries()})
            elif metavar.islower() and "|" in metavar:  # such as on|off, but not NAME|auto
                action.choices = metavar.split("|")
    write(f"{shtab.complete(root, arguments.shell)}\n")
    return DONE
