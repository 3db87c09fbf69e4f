"""What may follow `kubectl nodeleak` on a command line."""

import argparse
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from agent.cli import completion as on_node
from agent.cli.candidates import Candidates, Values, commands_with, next_words
from agent.cli.parser import COMMANDS, make_parser
from agent.fleet.kubectl import Kubectl

_TIMEOUT: Final = 3.0
"""Seconds: somebody waits at a prompt."""


def candidates(
    words: Sequence[str],
    commands: Mapping[str, str],
    parser_of: Callable[[str], argparse.ArgumentParser],
) -> Candidates:
    """Return what may stand in place of the last of the words after the program.

    `commands`: summaries by name. `parser_of`: that of `agent.fleet.command`, which imports this
    module.
    """
    command, *rest = words or [""]
    if not rest:
        return commands_with(command, commands)
    if command not in commands:
        return Candidates()

    if "--" in rest[:-1]:
        after = rest[rest.index("--") + 1 :]
        return on_node.candidates([command.removesuffix("-job"), *after], COMMANDS, make_parser)
    return next_words(parser_of(command), rest, _VALUES)


def _list_of(*command: str) -> Callable[[Sequence[str]], list[str]]:
    """Return how to list names with kubectl: none if it does not answer."""

    def names(before: Sequence[str]) -> list[str]:
        kubectl = Kubectl(*_cluster(before), timeout=_TIMEOUT)
        return [line.rpartition("/")[2] for line in kubectl.quiet(*command).splitlines()]

    return names


def _cluster(before: Sequence[str]) -> list[str]:
    """Return the options that name a cluster, wherever they stand."""
    reader = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for name in ("context", "kubeconfig"):
        reader.add_argument(f"--{name}", nargs="?")
    found, _ = reader.parse_known_args(before)
    return [f"--{name}={value}" for name, value in vars(found).items() if value]


_VALUES: Final[Values] = {
    "nodes": _list_of("get", "nodes", "--output=name"),
    "namespace": _list_of("get", "namespaces", "--output=name"),
    "context": _list_of("config", "get-contexts", "--output=name"),
}
