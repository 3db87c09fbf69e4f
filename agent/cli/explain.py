"""Explain a word that nodeleak prints, such as a finding or an alert.

It says what to do about it, too. Without a word it lists all of them.

examples:
  nodeleak explain leaked_reservation      a finding
  nodeleak explain not_confirmed           why an address is not released
  nodeleak explain NodeleakRangeExhausted  an alert
  nodeleak explain 'no IP addresses available in range set'
  nodeleak explain                         all words

exit codes:
  0  explained
  2  there is no such word
"""

import argparse
import re
from collections.abc import Iterator, Sequence
from itertools import groupby

from agent.cli.glossary import FINDING, MESSAGES, SETTING, Term, entries
from agent.cli.output import DONE, reflow, write
from agent.config import UsageError, did_you_mean, quote


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "nodeleak explain [WORD]"
    parser.add_argument("word", nargs="?", metavar="WORD", help="what to explain")


def execute(arguments: argparse.Namespace) -> int:
    known = entries()
    if arguments.word is None:
        write("\n".join(_list(known)) + "\n")
        return DONE
    if not (found := _find(arguments.word, known)):
        suggestion = did_you_mean(arguments.word, {entry.word for entry in known})
        hint = "run 'nodeleak explain' for a list of all words"
        raise UsageError(f"unknown word {quote(arguments.word)}{suggestion}", hint)
    write("\n\n".join(f"{entry.word} ({entry.kind})\n\n{reflow(entry.text)}" for entry in found) + "\n")
    return DONE


def _find(word: str, known: Sequence[Term]) -> list[Term]:
    """Find a word however it is written, a metric by one of its samples, or a known message of another program."""
    message = " ".join(word.lower().split())
    plain = _plain(next((known_as for part, known_as in MESSAGES.items() if part in message), word))
    for spelling in (plain, plain.removeprefix("nodeleak"), re.sub(r"(bucket|count|sum)$", "", plain)):
        if found := [entry for entry in known if _plain(entry.word) == spelling]:
            return found
    return []


def _plain(word: str) -> str:
    return re.sub(r"[-_]", "", word.lower())


def _list(known: Sequence[Term]) -> Iterator[str]:
    for kind, group in groupby(known, key=lambda entry: entry.kind):
        yield f"{kind}:"
        if kind == FINDING:
            yield from (reflow(f"  {entry.word:<24}{entry.text.splitlines()[0]}", " " * 26) for entry in group)
        elif kind == SETTING:
            yield "  every option of 'nodeleak run --help-all', such as grace"
        else:
            yield reflow(f"  {', '.join(entry.word for entry in group)}", "  ")
    yield "\nRun 'nodeleak explain WORD' for one of them."
