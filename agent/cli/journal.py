"""List past releases.

When, by which command, which addresses, and the result: from the journal in --state-dir.

examples:
  kubectl exec -n kube-system POD -- nodeleak journal
  nodeleak journal -o json            with the content of every removed file

exit codes:
  0  done, also if nothing was ever released
  2  wrong usage or configuration, or the journal cannot be read
"""

import argparse

from agent.app.cleaning import read_journal
from agent.cli.output import DONE, as_json, write
from agent.cli.parser import add_output, config_of
from agent.exporters.json.clean import journal_document
from agent.exporters.text.clean import journal_table

add_arguments = add_output


def execute(arguments: argparse.Namespace) -> int:
    config = config_of(arguments)
    journal = read_journal(config)
    missing_in = "" if (config.state_dir / "journal").is_dir() else str(config.state_dir)
    as_table = arguments.output == "table"
    write(journal_table(journal, missing_in) if as_table else as_json(journal_document(journal)))
    return DONE
