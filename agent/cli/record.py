"""nodeleak record: a snapshot of this node as a file."""

import argparse
from typing import Final

from agent.cli.anonymize import anonymous
from agent.cli.node import record_node
from agent.cli.output import DONE, write
from agent.cli.parser import config_of
from agent.model import documents

HELP: Final = """\
It writes to standard output and changes nothing. 'nodeleak scan --recording FILE' reports on it, on
any machine. With --anonymous, only listed words are kept (docs/reference.md).

examples:
  kubectl exec -n kube-system POD -- nodeleak record > node.json
  nodeleak record --node worker-1 --kubeconfig kubeconfig > node.json
  nodeleak record --anonymous --api=off > node.json
  nodeleak scan --recording node.json

exit codes:
  0  written
  2  wrong usage or configuration
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--anonymous", action="store_true", help="replace all names and addresses with others"
    )


def execute(arguments: argparse.Namespace) -> int:
    recorded = record_node(config_of(arguments))
    text = documents.dumps(anonymous(recorded) if arguments.anonymous else recorded)
    write(f"{text}\n")
    return DONE
