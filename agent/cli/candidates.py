"""What a shell may write next on a command line: commands, options, and values, from the parser."""

import argparse
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

Values = Mapping[str, Callable[[Sequence[str]], Iterable[str]]]
"""How to list the values of an argument of the parser, by its `dest`, after the words before it."""

COMPLETE: Final = "__complete"
"""The command that shells call, with the words up to the cursor: cobra's, which kubectl has."""
_FILES: Final = 0
_NO_FILES: Final = 4
"""Whether a shell may complete names of files instead, as cobra numbers it."""
_PATHS: Final = {"FILE", "DIR", "DIR|off"}
_ABOUT: Final = 60


class Candidate(NamedTuple):
    text: str
    about: str = ""


class Candidates(NamedTuple):
    found: Sequence[Candidate] = ()
    files: bool = False
    """Whether the word may be the name of a file."""

    def lines(self) -> str:
        """Write them as kubectl reads them: one a line, and whether files may follow."""
        lines = ["\t".join(filter(None, candidate)) for candidate in self.found]
        return "".join(f"{line}\n" for line in (*lines, f":{_FILES if self.files else _NO_FILES}"))


def commands_with(prefix: str, commands: Mapping[str, str]) -> Candidates:
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
    """Return the option whose value follows these words."""
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
    text = action.help.replace("%%", "%")
    return text if len(text) <= _ABOUT else f"{text[: _ABOUT - 3]}..."


def _values(
    action: argparse.Action, prefix: str, before: Sequence[str], values: Values
) -> Candidates:
    metavar = action.metavar if isinstance(action.metavar, str) else ""
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
