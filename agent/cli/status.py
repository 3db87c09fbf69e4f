"""nodeleak status: the last report of the daemon of this node."""

import argparse
import json
import sys
from collections.abc import Callable, Mapping
from threading import Event
from typing import Final, NamedTuple, NoReturn

from agent.cli.daemon_client import DaemonClient
from agent.cli.output import (
    DONE,
    FOUND,
    NO_DAEMON,
    UNAVAILABLE,
    as_json,
    as_yaml,
    terminal_columns,
    write,
)
from agent.cli.parser import add_output, config_of
from agent.exporters.json import Document
from agent.exporters.json.status import NodeState, no_report
from agent.exporters.text.status import status_line, status_table
from agent.sources.source_error import SourceError

HELP: Final = """\
Free and leaked addresses, findings, unavailable sources, and whether addresses can be released
from here. It asks the daemon ('nodeleak run') on loopback and does not read the node, so it costs
little. 'nodeleak scan' needs no daemon.

examples:
  kubectl exec -n kube-system POD -- nodeleak status
  nodeleak status --watch                 until Ctrl-C
  nodeleak status -o json --exit-code     for scripts

exit codes:
  0  the daemon's checks ran
  1  with --exit-code: there are findings
  2  wrong usage or configuration
  3  incomplete: data are unavailable, or the daemon has stopped checking
  69 no report: no daemon answers, or it has not finished its first sync
"""

_INTERVAL: Final = 2.0
"""Seconds between two requests of --watch."""

_CLEAR: Final = "\033[H\033[J"
"""Moves the cursor to the corner of the terminal, and clears what follows."""


class _Format(NamedTuple):
    text: Callable[[Document], str]
    line: Callable[[Document], str]
    """For --watch: one line for each change."""
    redraws: bool
    """Whether --watch redraws the text on a terminal instead."""


def _as_table(document: Document) -> str:
    return status_table(document, terminal_columns())


_FORMATS: Final[Mapping[str, _Format]] = {
    "table": _Format(_as_table, status_line, redraws=True),
    "json": _Format(as_json, lambda document: f"{json.dumps(document)}\n", redraws=False),
    "yaml": _Format(as_yaml, as_yaml, redraws=False),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_output(parser, _FORMATS)
    text = "repeat it until Ctrl-C; in a pipe: a line per change"
    parser.add_argument("--watch", action="store_true", help=text)
    text = "exit with 1 if there are findings"
    parser.add_argument("--exit-code", action="store_true", help=text)


def execute(arguments: argparse.Namespace) -> int:
    daemon = DaemonClient(config_of(arguments).listen)
    format_ = _FORMATS[arguments.output]
    if arguments.watch:
        _watch(daemon, format_)
    document = _status(daemon)
    write(format_.text(document))
    return _exit_code(document, arguments)


def _status(daemon: DaemonClient) -> Document:
    try:
        return daemon.status()
    except SourceError as error:
        return no_report(str(error))


def _exit_code(document: Document, arguments: argparse.Namespace) -> int:
    state = NodeState(document["state"])
    if state is NodeState.NO_REPORT:
        return NO_DAEMON
    if state in {NodeState.INCOMPLETE, NodeState.STALLED} or document["unavailable"]:
        return UNAVAILABLE
    return FOUND if arguments.exit_code and state is NodeState.FINDINGS else DONE


def _watch(daemon: DaemonClient, format_: _Format) -> NoReturn:
    """Print the status, or what changes, until Ctrl-C. A closed pipe or terminal raises OSError."""
    redraws = format_.redraws and sys.stdout.isatty()
    pause = Event()
    last = None

    while True:
        document = _status(daemon)
        without_age = document | {"report": None}
        if redraws:
            text = f"{_CLEAR}{format_.text(document)}\nEvery {_INTERVAL:g} s; Ctrl-C ends.\n"
            print(text, end="", flush=True)
        elif without_age != last:
            last = without_age
            print(format_.line(document), end="", flush=True)
        pause.wait(_INTERVAL)
