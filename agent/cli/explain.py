"""explain: what a word that nodeleak prints means, and what to do about it."""

import argparse
import re
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Final

from agent.cli.exit_codes import DONE
from agent.cli.output import reflow, write
from agent.config import UsageError, quote

if TYPE_CHECKING:
    from agent.cli.glossary import Term

SUMMARY: Final = "explain a word that nodeleak prints, such as a finding or an alert"
OPERANDS: Final = "[WORD]"
SETTINGS: Final = ""
DESCRIPTION: Final = (
    "Explains a word that nodeleak prints, and what to do about it. Without a word it lists all of them.\n"
)
EPILOG: Final = """\
examples:
  nodeleak explain leaked_reservation      a finding
  nodeleak explain not_confirmed           why an address is not released
  nodeleak explain NodeleakRangeExhausted  an alert
  nodeleak explain                         all words

exit codes:
  0  explained
  2  there is no such word
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("word", nargs="?", metavar="WORD", help="what to explain")


def execute(arguments: argparse.Namespace) -> int:
    from agent.cli.glossary import entries

    known = entries()
    if arguments.word is None:
        write("\n".join(_list(known)) + "\n")
        return DONE
    found = _find(arguments.word, known)
    if not found:
        raise _unknown(arguments.word, known)
    write("\n\n".join(f"{entry.word} ({entry.kind})\n\n{reflow(entry.text)}" for entry in found) + "\n")
    return DONE


def _find(word: str, known: Sequence["Term"]) -> list["Term"]:
    """Find a word however it is written: a setting as option or variable, a metric by one of its samples."""
    plain = _plain(word)
    for one in (plain, plain.removeprefix("nodeleak"), re.sub(r"(bucket|count|sum)$", "", plain)):
        if found := [entry for entry in known if _plain(entry.word) == one]:
            return found
    return []


def _plain(word: str) -> str:
    return re.sub(r"[-_]", "", word.lower())


def _unknown(word: str, known: Sequence["Term"]) -> UsageError:
    from agent.cli.parser import did_you_mean

    suggestion = did_you_mean(word, (entry.word for entry in known))
    return UsageError(f"unknown word {quote(word)}{suggestion}", "run 'nodeleak explain' for a list of all words")


def _list(known: Sequence["Term"]) -> Iterator[str]:
    from agent.cli.glossary import FINDING, SETTING

    for kind, group in groupby(known, key=lambda entry: entry.kind):
        yield f"{kind}:"
        if kind == FINDING:
            yield from (reflow(f"  {entry.word:<24}{entry.text.splitlines()[0]}", " " * 26) for entry in group)
        elif kind == SETTING:
            yield "  every option of 'nodeleak run --help-all', such as grace"
        else:
            yield reflow(f"  {', '.join(entry.word for entry in group)}", "  ")
    yield "\nRun 'nodeleak explain WORD' for one of them."
