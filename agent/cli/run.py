"""nodeleak run: the agent of a node."""

import argparse
import signal
import sys
from typing import Final

from agent.cli.parser import config_of

HELP: Final = """\
It checks the node every --interval, logs changes, and serves metrics and a status page. The
DaemonSet runs this command: the agent of a node is this daemon. It releases leaked addresses only
with --cleanup=auto.

examples:
  nodeleak run --node worker-1 --kubeconfig /etc/kubernetes/kubelet.conf
  nodeleak run --node worker-1 --cleanup=dry-run      log what would be released

exit codes:
  0  ended by SIGTERM
  2  wrong usage or configuration
"""


def execute(arguments: argparse.Namespace) -> int:
    # First of all: the first process of a container ignores SIGTERM unless it has a handler.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    from agent.app import daemon

    return daemon.run_daemon(config_of(arguments))
