"""explain: what a word that nodeleak prints means, and what to do about it."""

import argparse
import re
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Final

from agent.cli.exit_codes import DONE
from agent.cli.output import write
from agent.config import UsageError, quote

if TYPE_CHECKING:
    from agent.cli.glossary import Term

SUMMARY: Final = "explain a word that nodeleak prints: a finding, state, reason, alert, metric or setting"
OPERANDS: Final = "[WORD]"
SETTINGS: Final = ""
DESCRIPTION: Final = (
    "Explains a word that nodeleak prints, and what to do about it. Without a word it lists all of them.\n"
)
EPILOG: Final = """\
examples:
  nodeleak explain leaked_reservation         a finding
  nodeleak explain not_confirmed              a reason why an address is not released
  nodeleak explain NodeleakRangeExhausted     an alert
  nodeleak explain                            all words

exit codes:
  0  explained
  2  there is no such word
"""

_WIDTH: Final = 100
_LONGEST: Final = 120


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
    write("\n\n".join(f"{entry.word} ({entry.kind})\n\n{_wrap(entry.text)}" for entry in found) + "\n")
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

    suggestion = did_you_mean(word, {entry.word: entry.word for entry in known})
    return UsageError(f"unknown word {quote(word)}{suggestion}", "run 'nodeleak explain' for a list of all words")


def _wrap(text: str) -> str:
    """Break long lines. The text of a finding is wrapped already."""
    import textwrap

    return "\n".join(
        line if len(line) <= _LONGEST else textwrap.fill(line, _WIDTH, break_on_hyphens=False)
        for line in text.splitlines()
    )


def _list(known: Sequence["Term"]) -> Iterator[str]:
    import textwrap

    from agent.cli.glossary import FINDING, SETTING

    for kind, group in groupby(known, key=lambda entry: entry.kind):
        yield f"{kind}:"
        if kind == FINDING:
            yield from (f"  {entry.word:<24}{entry.text.splitlines()[0]}" for entry in group)
        elif kind == SETTING:
            yield "  every option of 'nodeleak run --help-all', such as grace"
        else:
            words = ", ".join(entry.word for entry in group)
            yield textwrap.fill(words, _WIDTH, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False)
    yield "\nRun 'nodeleak explain WORD' for one of them."
