"""nodeleak timeline: what happened on this node."""

import argparse
from typing import Final

from agent.app import cleaning
from agent.cli.node import assess, record_node
from agent.cli.output import DOCUMENTS, DONE, UNAVAILABLE, terminal_columns, write
from agent.cli.parser import add_output, config_of, value
from agent.config import duration
from agent.exporters.text.timeline import timeline_table
from agent.exporters.timeline import timeline_document

HELP: Final = """\
Starts of the node, the container runtime and the kubelet, device plugins, rejected pods, leaks and
releases. It changes nothing. A ~ before a time means that it is approximate. Some of the history is
known only if the daemon was running and kept it in --state-dir.

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
    add_output(parser, ("table", *DOCUMENTS))
    text = "list every event on its own line"
    parser.add_argument("-v", "--verbose", action="store_true", help=text)
    text = "only the last DURATION, such as 1h (default: everything)"
    parser.add_argument("--since", type=value(duration), metavar="DURATION", help=text)


def execute(arguments: argparse.Namespace) -> int:
    config = config_of(arguments)
    report = assess(record_node(config), config)
    timeline = timeline_document(report, *cleaning.releases(config), since=arguments.since)
    if as_text := DOCUMENTS.get(arguments.output):
        write(as_text(timeline))
    else:
        columns = terminal_columns()
        write(timeline_table(timeline, arguments.since, verbose=arguments.verbose, columns=columns))
    return UNAVAILABLE if timeline["unavailable"] else DONE
