"""timeline: list what happened on the node."""

import argparse
from typing import TYPE_CHECKING, Final

from agent.cli.exit_codes import DONE, UNAVAILABLE
from agent.cli.options import add_output, config_of
from agent.cli.output import write, write_json
from agent.cli.owners import assess
from agent.cli.snapshot import record_node
from agent.config import UsageError, duration, invalid

if TYPE_CHECKING:
    from datetime import timedelta

SUMMARY: Final = "list what happened on this node, oldest first"
OPERANDS: Final = ""
SETTINGS: Final = "scan"
DESCRIPTION: Final = """\
Lists what happened on the node, oldest first: starts of the node, the container runtime and the
kubelet, device plugins, rejected pods, leaks and releases. It changes nothing. A ~ before a time
means that it is approximate. Some of the history is known only if the daemon was running and kept
it in --state-dir.
"""
EPILOG: Final = """\
examples:
  kubectl exec -n kube-system POD -- nodeleak timeline --since 1h
  nodeleak timeline --node worker-1 --kubeconfig /etc/kubernetes/kubelet.conf
  nodeleak timeline --api=off         without credentials: no rejected pods
  nodeleak timeline -v                every event, also of long runs

exit codes:
  0  the timeline is complete, or nothing is known to have happened
  2  wrong usage or configuration
  3  incomplete: some data are unavailable
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_output(parser)
    parser.add_argument("-v", "--verbose", action="store_true", help="list every event on its own line")
    parser.add_argument("--since", metavar="DURATION", help="only the last DURATION, such as 1h (default: everything)")


def execute(arguments: argparse.Namespace) -> int:
    from agent.app import cleaning
    from agent.exporters.timeline import timeline_document

    since = _since(arguments.since)
    config = config_of("scan", arguments)
    report = assess(record_node(config), config)
    timeline = timeline_document(report, *cleaning.releases(config), since=since)
    if arguments.output == "json":
        write_json(timeline)
    else:
        from agent.exporters.text.timeline import timeline_table

        write(timeline_table(timeline, arguments.since or "", verbose=arguments.verbose))
    return UNAVAILABLE if timeline["unavailable"] else DONE


def _since(text: str | None) -> "timedelta | None":
    try:
        return None if text is None else duration(text)
    except ValueError as error:
        raise UsageError(invalid("--since", text or "", error)) from error
