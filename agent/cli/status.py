"""Print what the daemon of this node found in its last sync.

Free and leaked addresses, findings, unavailable sources, and whether addresses can be released from
here. It asks the daemon ('nodeleak run') on loopback and does not read the node, so it costs little.
'nodeleak scan' needs no daemon.

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

import argparse
import json
import sys
from threading import Event
from typing import Any, Final, NoReturn

from agent.cli.daemon_client import DaemonClient
from agent.cli.output import DONE, FOUND, NO_DAEMON, UNAVAILABLE, as_json, write
from agent.cli.parser import add_output, config_of
from agent.exporters.json.status import NodeState, no_report
from agent.exporters.text.status import status_line, status_table
from agent.sources.source_error import SourceError

_EVERY: Final = 2.0
"""Seconds between two requests of --watch."""
_CLEAR: Final = "\033[H\033[J"
"""Moves the cursor to the corner of the terminal, and clears what follows."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_output(parser)
    parser.add_argument(
        "--watch", action="store_true", help="repeat it until Ctrl-C; in a pipe: a line per change"
    )
    parser.add_argument(
        "--exit-code", action="store_true", help="exit with 1 if there are findings"
    )


def execute(arguments: argparse.Namespace) -> int:
    daemon = DaemonClient(config_of(arguments).listen)
    if arguments.watch:
        _watch(daemon, arguments.output)
    document = _status(daemon)
    write(as_json(document) if arguments.output == "json" else status_table(document))
    return _exit_code(document, arguments)


def _status(daemon: DaemonClient) -> dict[str, Any]:
    try:
        return daemon.status()
    except SourceError as error:
        return no_report(str(error))


def _exit_code(document: dict[str, Any], arguments: argparse.Namespace) -> int:
    state = NodeState(document["state"])
    if state is NodeState.NO_REPORT:
        return NO_DAEMON
    if state in {NodeState.INCOMPLETE, NodeState.STALLED} or document["unavailable"]:
        return UNAVAILABLE
    return FOUND if arguments.exit_code and state is NodeState.FINDINGS else DONE


def _watch(daemon: DaemonClient, output: str) -> NoReturn:
    """Redraw the table on a terminal. Elsewhere, and as JSON, print one line for each change. Ends with Ctrl-C."""
    pause, last = Event(), None
    while True:
        document = _status(daemon)
        if output == "table" and sys.stdout.isatty():
            # Not `write`: a closed pipe or terminal has to end this.
            print(f"{_CLEAR}{status_table(document)}\nEvery {_EVERY:g} s; Ctrl-C ends.", flush=True)
        elif (now := {**document, "report": None}) != last:
            last = now
            print(
                json.dumps(document) if output == "json" else status_line(document).rstrip(),
                flush=True,
            )
        pause.wait(_EVERY)
