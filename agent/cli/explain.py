"""explain: what a word that nodeleak prints means, and what to do about it."""

import argparse
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Final

from agent.cli.exit_codes import DONE
from agent.cli.output import write
from agent.config import UsageError, quote

if TYPE_CHECKING:
    from agent.cli.glossary import Entry

SUMMARY: Final = "explain a word that nodeleak prints: a finding, state, reason, alert or metric"
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
    found = [entry for entry in known if entry.word.lower() == _normal(arguments.word, known)]
    if not found:
        raise _unknown(arguments.word, known)
    write("\n\n".join(f"{entry.word} ({entry.kind})\n\n{_wrap(entry.text)}" for entry in found) + "\n")
    return DONE


def _normal(word: str, known: Iterable["Entry"]) -> str:
    """Return the word as it is listed: an option by its setting, a sample by its metric."""
    words = {entry.word.lower() for entry in known}
    plain = word.lower().lstrip("-").replace("-", "_")
    for one in (plain, plain.removeprefix("nodeleak_"), re.sub(r"_(bucket|count|sum)$", "", plain)):
        if one in words:
            return one
    return plain


def _unknown(word: str, known: Sequence["Entry"]) -> UsageError:
    from agent.cli.parser import did_you_mean

    suggestion = did_you_mean(word, {entry.word: entry.word for entry in known})
    return UsageError(f"nothing is called {quote(word)}{suggestion}", "run 'nodeleak explain' for a list of all words")


def _wrap(text: str) -> str:
    """Break long lines. The text of a finding is wrapped already."""
    import textwrap

    return "\n".join(
        line if len(line) <= _LONGEST else textwrap.fill(line, _WIDTH, break_on_hyphens=False)
        for line in text.splitlines()
    )


def _list(known: Sequence["Entry"]) -> Iterator[str]:
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
