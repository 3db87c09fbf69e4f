"""nodeleak explain: what the words of nodeleak mean, and the messages of other programs."""

import argparse
import inspect
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.resources import files
from typing import Final, TypeAlias

from agent.checks.detector import Detector, Step
from agent.checks.registry import DETECTORS
from agent.cli.output import DONE, reflow, write
from agent.cli.parser import COMMANDS
from agent.config import UsageError, all_settings, option, variable
from agent.exporters.json.status import NodeState
from agent.exporters.metrics import METRICS, PREFIX
from agent.exporters.rows import WHEN_HALTED
from agent.model import catalog
from agent.model.assessment import State
from agent.model.finding import Severity, WaitCause
from agent.model.release import BlockedBy, Reason, Verdict
from agent.model.text import LONGEST_LIST, did_you_mean, escape, quote, truncate
from agent.model.volumes import Confidence
from agent.model.word import Word

HELP: Final = """\
It says what to do about it, too. Without a word it lists all of them.

A message can be what kubectl prints, with or without the columns before it: why a pod waits, cannot
be removed, or is refused. Put it in single quotes, or give it on standard input.

examples:
  nodeleak explain leaked_reservation      a finding
  nodeleak explain not_confirmed           why an address is not released
  nodeleak explain NodeleakRangeExhausted  an alert
  nodeleak explain 'no IP addresses available in range set'
  kubectl describe pod POD | grep Warning | nodeleak explain -
  nodeleak explain                         all words

exit codes:
  0  explained, or at least its parts
  2  there is no such word, and nothing in the message is known
"""

_Words: TypeAlias = Mapping[str, Mapping[str, str]]
"""Texts by kind and word."""

_FINDING: Final = "finding"
_SETTING: Final = "setting"
_WRITTEN: Final[dict[str, dict[str, str]]] = tomllib.loads(
    files("agent.cli").joinpath("glossary.toml").read_text()
)
"""The words that are not explained where they are defined."""

_LONGEST_INPUT: Final = 65536
"""Characters of standard input."""

_RUNTIMES: Final = {"containerd": "containerd", "crio": "CRI-O", "docker": "docker"}
_OPERATIONS: Final = {
    "add": "CNI ADD: the pod's network was being set up",
    "delete": "CNI DEL: the pod's network was being taken down",
}
_HOW_TO_PASTE: Final = """
Or paste a message of the kubelet, a container runtime or a CNI plugin, in single quotes:
  nodeleak explain 'Failed to create pod sandbox: ...'
  kubectl describe pod POD | grep Warning | nodeleak explain -"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "nodeleak explain [WORD | 'MESSAGE' | -]"
    parser.add_argument(
        "word", nargs="?", metavar="WORD", help="what to explain; -: standard input"
    )


def _every_word(_: Sequence[str]) -> list[str]:
    return sorted({word for _kind, words in _kinds() for word in words})


CANDIDATES: Final = {"word": _every_word}


def execute(arguments: argparse.Namespace) -> int:
    words = dict(_kinds())
    if arguments.word is None:
        write("\n".join(_list(words)) + "\n")
        return DONE

    word = sys.stdin.read(_LONGEST_INPUT) if arguments.word == "-" else arguments.word
    texts = _find(word, words) or _explain_entry(word) or _explain_events(word)
    if not texts:
        raise _unknown(word, words)
    write("\n\n".join(texts) + "\n")
    return DONE


def _unknown(word: str, words: _Words) -> UsageError:
    if len(word.split()) > 1:
        hint = "run 'nodeleak scan' on the node: it says what is wrong with its pod addresses"
        return UsageError(f"unknown message {quote(truncate(word))}", hint)
    keys = {entry.key for entry in catalog.entries()}
    suggestion = did_you_mean(word, keys.union(*words.values()))
    hint = "run 'nodeleak explain' for a list of all words"
    return UsageError(f"unknown word {quote(truncate(word))}{suggestion}", hint)


def _find(word: str, words: _Words) -> list[str]:
    """Return the texts about a word, however it is written.

    A metric is found by one of its samples too.
    """
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


def _explain_entry(key: str) -> list[str]:
    """Return the page of an entry of the catalog that is asked for by its key."""
    return [
        _message_page(catalog.Match(entry, values={}, is_innermost=True), peeled=None)
        for entry in catalog.entries()
        if _plain(entry.key) == _plain(key)
    ]


def _explain_events(text: str) -> list[str]:
    """Return what is known of each message: of several, of those in the catalog."""
    peeled = [catalog.peel(event) for event in catalog.events(text)[:LONGEST_LIST]]
    known = [
        _message_page(found[0], message)
        for message in peeled
        if (found := catalog.matches(message.layers[-1]))
    ]
    return list(dict.fromkeys(known)) or [
        _parts_page(message) for message in peeled if message.understood
    ]


def _message_page(match: catalog.Match, peeled: catalog.Peeled | None) -> str:
    """Return the page of an entry, with the values of a message if it was found by one."""
    entry = match.entry
    since = f", since {entry.since}" if entry.since else ""
    until = f", until {entry.until}" if entry.until else ""
    lines = [
        f"{entry.key} (message of {entry.component}{since}{until})",
        "",
        match.fill_in(entry.meaning),
        "",
    ]

    if peeled:
        lines += _named_parts(peeled)
        if not match.is_innermost:
            lines.append(f"It ends with: {escape(truncate(peeled.words))}")
    lines.append(f"Addresses: {entry.addresses.text}")
    if entry.look:
        lines.append(f"Check: {match.fill_in(entry.look)}")

    return _as_page(lines, map(match.fill_in, entry.steps))


def _parts_page(peeled: catalog.Peeled) -> str:
    """Return what the parts of a message mean that is not in the catalog."""
    plugin = f" of the CNI plugin {peeled.plugin}" if peeled.plugin else ""
    log = catalog.fill_in(
        "`journalctl -u {runtime} --since -1h | grep {word}`",
        {
            "runtime": peeled.runtime or "containerd",
            "word": peeled.sandbox_id or peeled.plugin or "sandbox",
        },
    )

    lines = [
        f"unknown message{escape(plugin)}: only its parts can be explained",
        "",
        *_named_parts(peeled),
        f"It ends with: {escape(truncate(peeled.words))}",
    ]
    steps = (
        "Run `nodeleak scan` on this node: it says whether pod addresses are short or leaked.",
        f"Read the runtime's log: {log}.",
    )
    return _as_page(lines, steps)


def _named_parts(peeled: catalog.Peeled) -> list[str]:
    """Return lines that say what the message names: who failed, and for what."""
    runtime = _RUNTIMES.get(peeled.runtime or "")
    named = {
        "Event": peeled.reason,
        "CNI plugin": peeled.plugin,
        "network": peeled.network,
        "container runtime": runtime,
        "pod": peeled.pod,
        "sandbox": peeled.sandbox_id,
    }
    parts = ", ".join(f"{name} {escape(value)}" for name, value in named.items() if value)

    operation = _OPERATIONS.get(peeled.operation or "")
    lines = []
    if parts:
        lines.append(f"It names: {parts}.")
    if operation:
        lines.append(f"During: {operation}.")
    return lines


def _as_page(lines: Iterable[str], steps: Iterable[str]) -> str:
    """Fill the lines, and below them number what to do."""
    numbered = (reflow(f"{number}. {step}", "   ") for number, step in enumerate(steps, start=1))
    return "\n".join([*map(reflow, lines), "Do:", *numbered])


def _plain(word: str) -> str:
    """Return how a word is compared: without case, hyphens, underscores and spaces."""
    return re.sub(r"[-_ ]", "", word.lower())


def _list(words: _Words) -> Iterator[str]:
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
    yield _HOW_TO_PASTE


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
    yield (
        "command",
        {name: f"{text}.\nRun: nodeleak {name} --help" for name, text in COMMANDS.items()},
    )
    yield "metric", {f"{PREFIX}{metric.name}": metric.help for metric in METRICS}
    yield _SETTING, {name: _setting(name) for name in all_settings()}


def _page(detector: Detector) -> str:
    """Return the docstring of a detector, with what it advises."""
    steps = " ".join(map(_sentence, detector.ADVICE.steps))
    return f"{inspect.getdoc(detector)}\nDo: {steps}"


def _sentence(step: Step) -> str:
    if not step.commands:
        return step.text
    # A list of commands needs the colon; within a sentence, it does not follow a preposition.
    text = re.sub(r" (as|of|with):$", r" \1", step.text)
    return f"{text} `{'`, `'.join(step.commands)}`."


def _written(kind: str) -> tuple[str, dict[str, str]]:
    """Return the words of a kind that the glossary explains."""
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
