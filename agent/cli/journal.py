"""nodeleak journal: past releases."""

import argparse
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final

from agent.app.cleaning import read_journal
from agent.cleanup.journal import Journal
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


def _as_table(journal: Journal, state_dir: Path) -> str:
    is_missing = not (state_dir / "journal").is_dir()
    return journal_table(journal, missing_in=str(state_dir) if is_missing else None)


def _as_document(as_text: Callable[[object], str], journal: Journal, _: Path) -> str:
    return as_text(journal_document(journal))


_FORMATS: Final[Mapping[str, Callable[[Journal, Path], str]]] = {
    "table": _as_table,
    **{name: partial(_as_document, as_text) for name, as_text in DOCUMENTS.items()},
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_output(parser, _FORMATS)


def execute(arguments: argparse.Namespace) -> int:
    config = config_of(arguments)
    write(_FORMATS[arguments.output](read_journal(config), config.state_dir))
    return DONE
