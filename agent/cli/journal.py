"""journal: list past releases."""

import argparse
from typing import Final

from agent.cli.exit_codes import DONE
from agent.cli.options import add_output, config_of
from agent.cli.output import write, write_json

SUMMARY: Final = "list past releases"
OPERANDS: Final = ""
SETTINGS: Final = "journal"
DESCRIPTION: Final = """\
Lists every release: when, by which command, which addresses, and the result.
It reads the journal in --state-dir.
"""
EPILOG: Final = """\
examples:
  kubectl exec -n kube-system POD -- nodeleak journal
  nodeleak journal -o json            with the content of every removed file

exit codes:
  0  done, also if nothing was ever released
  2  wrong usage or configuration, or the journal cannot be read
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_output(parser)


def execute(arguments: argparse.Namespace) -> int:
    from agent.app.cleaning import read_journal

    config = config_of("journal", arguments)
    journal = read_journal(config)
    if arguments.output == "json":
        from agent.exporters.json.clean import journal_document

        write_json(journal_document(journal))
    else:
        from agent.exporters.text.clean import journal_table

        write(journal_table(journal, "" if (config.state_dir / "journal").is_dir() else str(config.state_dir)))
    return DONE
