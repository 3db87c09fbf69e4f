"""run: the daemon."""

import argparse
from typing import Final

from agent.cli.options import config_of

SUMMARY: Final = "run the agent, a daemon: check the node continuously, serve metrics"
OPERANDS: Final = ""
SETTINGS: Final = "run"
DESCRIPTION: Final = """\
Checks the node every --interval, logs changes, and serves metrics and a status page. The DaemonSet
runs this command: the agent of a node is this daemon. It releases leaked addresses only with
--cleanup=auto.
"""
EPILOG: Final = """\
examples:
  nodeleak run --node worker-1 --kubeconfig /etc/kubernetes/kubelet.conf
  nodeleak run --node worker-1 --cleanup=dry-run      log what would be released

exit codes:
  0  ended by SIGTERM
  2  wrong usage or configuration
"""


def add_arguments(_: argparse.ArgumentParser) -> None:
    """It has settings only."""


def execute(arguments: argparse.Namespace) -> int:
    from agent.app import daemon

    return daemon.run_daemon(config_of("run", arguments))
