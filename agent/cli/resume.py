"""nodeleak resume: end a halt of cleanup."""

import argparse
from typing import Final

from agent.app.cleaning import resume
from agent.cli.output import DONE, write
from agent.cli.parser import config_of
from agent.config import UsageError

HELP: Final = """\
Cleanup halts on a node when a released container reappears, and stays halted until you run this
command, which the journal records. Cleanup halts again while a record of the container exists
that was not restored.

examples:
  kubectl exec -n kube-system POD -- nodeleak resume

exit codes:
  0  cleanup goes on
  2  wrong usage or configuration; or cleanup is not halted
"""


def execute(arguments: argparse.Namespace) -> int:
    config = config_of(arguments)
    if not (resumed := resume(config)):
        raise UsageError(
            f"cleanup is not halted, according to the journal in {config.state_dir}",
            "a daemon that could not write its halt to the journal tries again in every sync",
        )
    write("".join(f"resumed: {entry.reappearance}\n" for entry in resumed))
    return DONE
