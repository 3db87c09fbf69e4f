"""record: write a snapshot of the node as JSON."""

import argparse
from typing import Final

from agent.cli.exit_codes import DONE
from agent.cli.options import config_of
from agent.cli.output import write
from agent.cli.snapshot import record_node

SUMMARY: Final = "write a snapshot of this node as JSON, to scan it elsewhere"
OPERANDS: Final = ""
SETTINGS: Final = "record"
DESCRIPTION: Final = """\
Writes a snapshot of the node to standard output. 'nodeleak scan --recording FILE' reports on it, on
any machine. It changes nothing. With --anonymous, only listed words are kept (docs/reference.md).
"""
EPILOG: Final = """\
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
    parser.add_argument("--anonymous", action="store_true", help="replace all names and addresses by others")


def execute(arguments: argparse.Namespace) -> int:
    from agent.model import recording
    from agent.model.anonymize import anonymous

    recorded = record_node(config_of("record", arguments))
    text = recording.dumps(anonymous(recorded) if arguments.anonymous else recorded)
    write(f"{text}\n")
    return DONE
