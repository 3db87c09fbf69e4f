"""nodeleak journal: past releases."""

import argparse
from typing import Final

from agent.app.cleaning import read_journal
from agent.cli.output import DOCUMENTS, DONE, write
from agent.cli.parser import add_output, config_of
from agent.exporters.json.clean import journal_document
from agent.exporters.text.clean import journal_table

HELP: Final = """\
When, by which command, which addresses, and the result: from the journal in --state-dir.

examples:
  kubectl exec -n kube-system POD -- nodeleak journal
  nodeleak journal -o json            with the content of every removed file

exit codes:
  0  done, also if nothing was ever released
  2  wrong usage or configuration, or the journal cannot be read
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_output(parser, ("table", *DOCUMENTS))


def execute(arguments: argparse.Namespace) -> int:
    config = config_of(arguments)
    journal = read_journal(config)
    if as_text := DOCUMENTS.get(arguments.output):
        write(as_text(journal_document(journal)))
    else:
        is_missing = not (config.state_dir / "journal").is_dir()
        write(journal_table(journal, missing_in=str(config.state_dir) if is_missing else None))
    return DONE
