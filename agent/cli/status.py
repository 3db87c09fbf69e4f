"""status: what the daemon of this node knows, without reading the node."""

import argparse
import gc
import sys
from typing import TYPE_CHECKING, Any, Final, NoReturn

from agent.cli.exit_codes import DONE, FOUND, NO_DAEMON, UNAVAILABLE
from agent.cli.options import add_output, config_of
from agent.cli.output import write, write_json

if TYPE_CHECKING:
    from agent.sources.daemon import DaemonClient

SUMMARY: Final = "print what the daemon of this node found in its last sync"
OPERANDS: Final = ""
SETTINGS: Final = "status"
DESCRIPTION: Final = """\
Prints what the daemon ('nodeleak run') found in its last sync: free and leaked addresses, findings,
unavailable sources, and whether addresses can be released from here. It asks the daemon on
loopback and does not read the node, so it costs little. 'nodeleak scan' needs no daemon.
"""
EPILOG: Final = """\
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

_EVERY: Final = 2.0
"""Seconds between two requests of --watch."""
_CLEAR: Final = "\033[H\033[J"
"""Moves the cursor to the corner of the terminal, and clears what follows."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_output(parser)
    parser.add_argument("--watch", action="store_true", help="repeat it until Ctrl-C; in a pipe: a line per change")
    parser.add_argument("--exit-code", action="store_true", help="exit with 1 if there are findings")


def execute(arguments: argparse.Namespace) -> int:
    # http.client loads ssl if it is there. Nothing here uses TLS, and it is a quarter of this command's memory.
    sys.modules.setdefault("ssl", None)  # type: ignore[arg-type]
    from agent.sources.daemon import DaemonClient

    daemon = DaemonClient(config_of("status", arguments).listen)
    if arguments.watch:
        _watch(daemon, arguments.output)
    document = _status(daemon)
    if arguments.output == "json":
        write_json(document)
    else:
        from agent.exporters.text.status import status_table

        write(status_table(document))
    return _exit_code(document, arguments)


def _status(daemon: "DaemonClient") -> dict[str, Any]:
    from agent.model.status import no_report
    from agent.sources.source_error import SourceError

    try:
        return daemon.status()
    except SourceError as error:
        return no_report(str(error))


def _exit_code(document: dict[str, Any], arguments: argparse.Namespace) -> int:
    from agent.model.status import NodeState

    match NodeState(document["state"]):
        case NodeState.NO_REPORT:
            return NO_DAEMON
        case NodeState.INCOMPLETE | NodeState.STALLED:
            return UNAVAILABLE
        case NodeState.FINDINGS if document["unavailable"]:
            return UNAVAILABLE
        case NodeState.FINDINGS if arguments.exit_code:
            return FOUND
        case _:
            return DONE


def _watch(daemon: "DaemonClient", output: str) -> NoReturn:
    """Redraw the table on a terminal. Elsewhere, and as JSON, print one line for each change. Ends with Ctrl-C."""
    import json
    from threading import Event

    from agent.exporters.text.status import status_line, status_table

    gc.enable()  # see `agent.cli.main`
    pause, last = Event(), None
    while True:
        document = _status(daemon)
        if output == "table" and sys.stdout.isatty():
            # Not `write`: a closed pipe or terminal has to end this.
            print(f"{_CLEAR}{status_table(document)}\nEvery {_EVERY:g} s; Ctrl-C ends.", flush=True)
        elif (now := {**document, "report": None}) != last:
            last = now
            print(json.dumps(document) if output == "json" else status_line(document).rstrip(), flush=True)
        pause.wait(_EVERY)
