"""nodeleak explain: what the words mean that nodeleak prints."""

import argparse
import inspect
import re
import tomllib
from collections.abc import Iterator, Mapping
from importlib.resources import files
from typing import Final

from agent.checks.detector import Detector, Step
from agent.checks.registry import DETECTORS
from agent.cli.output import DONE, reflow, write
from agent.config import UsageError, all_settings, option, variable
from agent.exporters.json.status import NodeState
from agent.exporters.metrics import METRICS, PREFIX
from agent.exporters.rows import WHEN_HALTED
from agent.model.assessment import State
from agent.model.finding import Severity, WaitCause
from agent.model.release import BlockedBy, Reason, Verdict
from agent.model.text import did_you_mean, quote
from agent.model.volumes import Confidence
from agent.model.word import Word

HELP: Final = """\
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

Words = Mapping[str, Mapping[str, str]]
"""Texts by kind and word."""

_FINDING: Final = "finding"
_SETTING: Final = "setting"
_WRITTEN: Final[dict[str, dict[str, str]]] = tomllib.loads(
    files("agent.cli").joinpath("glossary.toml").read_text()
)
"""The words that are not explained where they are defined. `messages`: what kubelet, runtimes and
CNI plugins print, in lower case, and the word that explains it."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "nodeleak explain [WORD]"
    parser.add_argument("word", nargs="?", metavar="WORD", help="what to explain")


def execute(arguments: argparse.Namespace) -> int:
    words = dict(_kinds())
    if arguments.word is None:
        write("\n".join(_list(words)) + "\n")
        return DONE
    texts = _find(arguments.word, words)
    if not texts:
        suggestion = did_you_mean(arguments.word, set().union(*words.values()))
        hint = "run 'nodeleak explain' for a list of all words"
        raise UsageError(f"unknown word {quote(arguments.word)}{suggestion}", hint)
    write("\n\n".join(texts) + "\n")
    return DONE


def _find(word: str, words: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Return the texts about a word, however it is written.

    A metric is found by one of its samples too, and a known message of another program.
    """
    message = " ".join(word.lower().split())
    for part, explained_by in _WRITTEN["messages"].items():
        if part in message:
            word = explained_by
            break
    plain = _plain(word)
    without_suffix = re.sub(r"(bucket|count|sum)$", "", plain)
    for spelling in (plain, plain.removeprefix("nodeleak"), without_suffix):
        texts = [
            f"{name} ({kind})\n\n{reflow(text)}"
            for kind, of_kind in words.items()
            for name, text in of_kind.items()
            if _plain(name) == spelling
        ]
        if texts:
            return texts
    return []


def _plain(word: str) -> str:
    return re.sub(r"[-_]", "", word.lower())


def _list(words: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    for kind, texts in words.items():
        yield f"{kind}:"
        if kind == _FINDING:
            for word, text in texts.items():
                yield reflow(f"  {word:<24}{text.splitlines()[0]}", " " * 26)
        elif kind == _SETTING:
            yield "  every option of 'nodeleak run --help-all', such as grace"
        else:
            yield reflow(f"  {', '.join(texts)}", "  ")
    yield "\nRun 'nodeleak explain WORD' for one of them."


def _kinds() -> Iterator[tuple[str, Mapping[str, str]]]:
    """Yield the words of each kind with their texts. Some words have several meanings."""
    yield _FINDING, {detector.NAME: _page(detector) for detector in DETECTORS}
    yield "severity of a finding", _texts(Severity)
    yield _written("headline of a report")
    yield "state of a node in nodeleak status", _texts(NodeState)
    yield _written("phase of a finding")
    yield "state of a reservation", _texts(State)
    yield _written("likely cause of a leak")
    yield "reason why clean refuses an address", _texts(Reason)
    yield "blocker: why no release is possible here", _texts(BlockedBy)
    yield "result of clean for an address", _texts(Verdict)
    yield _written("likely cause of a pod rejection")
    yield "cause of waiting pods", _texts(WaitCause)
    yield _written("outcome of a rejected pod")
    yield "evidence that a volume is lost", _texts(Confidence)
    yield from map(_written, ("source", "Kubernetes condition or Event", "alert", "word"))
    yield "metric", {f"{PREFIX}{metric.name}": metric.help for metric in METRICS}
    yield _SETTING, {name: _setting(name) for name in all_settings()}


def _page(detector: Detector) -> str:
    steps = " ".join(map(_sentence, detector.ADVICE.steps))
    return f"{inspect.getdoc(detector)}\nDo: {steps}"


def _sentence(step: Step) -> str:
    if not step.commands:
        return step.text
    # A list of commands needs the colon; within a sentence, it does not follow a preposition.
    text = re.sub(r" (as|of|with):$", r" \1", step.text)
    return f"{text} `{'`, `'.join(step.commands)}`."


def _written(kind: str) -> tuple[str, dict[str, str]]:
    hints = _WRITTEN["hints"] | {"when_halted": WHEN_HALTED}
    return kind, {word: text.format(**hints) for word, text in _WRITTEN[kind].items()}


def _setting(name: str) -> str:
    setting = all_settings()[name]
    default = f"Default: {setting.default}\n" if setting.default else ""
    return (
        f"{setting.help[0].upper()}{setting.help[1:]}.\n{default}"
        f"Option: {option(name)}={setting.metavar} ({', '.join(sorted(setting.commands))})\n"
        f"Environment variable: {variable(name)}"
    )


def _texts(kind: type[Word]) -> dict[str, str]:
    return {word.value: word.text for word in kind}
