"""What a shell may write next on a command line: commands, options, and values, from the parser."""

import argparse
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from agent.model.text import truncate

Values = Mapping[str, Callable[[Sequence[str]], Iterable[str]]]
"""How to list the values of an argument of the parser, by its `dest`, after the words before it."""

COMPLETE: Final = "__complete"
"""The command that shells call, with the words up to the cursor: cobra's, which kubectl has."""

_FILES: Final = 0
_NO_FILES: Final = 4
"""Whether a shell may complete names of files instead, as cobra numbers it."""

_PATHS: Final = {"FILE", "DIR", "DIR|off"}
"""The metavars of arguments that are names of files."""

_ABOUT: Final = 60
"""Characters of what a shell says about an option."""


class Candidate(NamedTuple):
    text: str
    about: str = ""
    """What a shell shows beside it; empty: nothing."""


class Candidates(NamedTuple):
    """What a shell may offer in place of one word."""

    found: Sequence[Candidate] = ()
    files: bool = False
    """Whether the word may be the name of a file."""

    def lines(self) -> str:
        """Write them as kubectl reads them: one a line, and whether files may follow."""
        lines = ["\t".join(filter(None, candidate)) for candidate in self.found]
        lines.append(f":{_FILES if self.files else _NO_FILES}")
        return "".join(f"{line}\n" for line in lines)


def commands_with(prefix: str, commands: Mapping[str, str]) -> Candidates:
    """Return the commands that begin so. `commands`: summaries by name."""
    return Candidates(
        [Candidate(name, about) for name, about in commands.items() if name.startswith(prefix)]
    )


def next_words(parser: argparse.ArgumentParser, words: Sequence[str], values: Values) -> Candidates:
    """Return what may stand in place of the last word, which may be empty.

    `words`: those after the command.
    """
    *before, current = words
    options = parser._option_string_actions  # noqa: SLF001 (there is no other way)
    action = _expecting(options, before)

    if action is None and current.startswith("-"):
        name, has_value, prefix = current.partition("=")
        if not has_value:
            return Candidates(list(_options(parser, before, current)))
        action = options.get(name)
        if action is None:
            return Candidates()
        found, files = _values(action, prefix, before, values)
        return Candidates([each._replace(text=f"{name}={each.text}") for each in found], files)

    positional = (each for each in parser._actions if not each.option_strings)  # noqa: SLF001
    action = action or next(positional, None)
    return _values(action, current, before, values) if action else Candidates()


def _expecting(
    options: Mapping[str, argparse.Action], before: Sequence[str]
) -> argparse.Action | None:
    """Return the option whose value follows these words, or None."""
    for distance, word in enumerate(reversed(before)):
        if word.startswith("-"):
            action = options.get(word)
            if action is None or action.nargs == 0 or (distance and action.nargs != "+"):
                return None
            return action
    return None


def _options(
    parser: argparse.ArgumentParser, before: Sequence[str], prefix: str
) -> Iterator[Candidate]:
    """Yield the options that begin so, except those that are used and may not be repeated."""
    used = {word.partition("=")[0] for word in before}
    for action in parser._actions:  # noqa: SLF001 (there is no other way)
        repeats = isinstance(action, argparse._AppendAction)  # noqa: SLF001 (and of its subclasses)
        if not action.option_strings or (used & {*action.option_strings} and not repeats):
            continue
        # The rare ones, which only --help-all shows, are for those who know how they begin.
        if action.help == argparse.SUPPRESS and prefix in {"-", "--"}:
            continue

        name = action.option_strings[-1]
        if name.startswith(prefix):
            yield Candidate(name, _about(action))


def _about(action: argparse.Action) -> str:
    if not action.help or action.help == argparse.SUPPRESS:
        return ""
    return truncate(action.help.replace("%%", "%"), _ABOUT)


def _values(
    action: argparse.Action, prefix: str, before: Sequence[str], values: Values
) -> Candidates:
    """Return the values of an argument that begin so, and were not written before."""
    metavar = str(action.metavar or "")
    texts: Iterable[str]
    if action.choices is not None:
        texts = action.choices
    elif action.dest in values:
        texts = values[action.dest](before)
    else:
        words = metavar.split("|")
        texts = words if len(words) > 1 and all(map(str.islower, words)) else ()

    matching = [Candidate(text) for text in texts if text.startswith(prefix) and text not in before]
    return Candidates(matching, files=metavar in _PATHS)
