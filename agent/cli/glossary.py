"""Every word that nodeleak prints, with what it means and what to run next. Some words have several meanings.

`glossary.toml` explains the words that are not explained where they are defined.
"""

import inspect
import re
import tomllib
from collections.abc import Iterator, Mapping
from enum import StrEnum
from importlib.resources import files
from typing import Final, NamedTuple

from agent.checks.registry import DETECTORS
from agent.config import all_settings, option, variable
from agent.exporters.metric_help import HELP, PREFIX
from agent.exporters.text.clean import WHEN_HALTED
from agent.model.assessment import State
from agent.model.finding import Severity
from agent.model.release import BlockedBy, Reason, Verdict
from agent.model.status import NodeState
from agent.model.volumes import Confidence


class Term(NamedTuple):
    word: str
    kind: str
    text: str


FINDING: Final = "finding"
SETTING: Final = "setting"
_WRITTEN: Final[dict[str, dict[str, str]]] = tomllib.loads(files("agent.cli").joinpath("glossary.toml").read_text())
MESSAGES: Final = _WRITTEN["messages"]
"""What kubelet, runtimes and CNI plugins print, in lower case, and the word that explains it."""


def entries() -> tuple[Term, ...]:
    """Return every word of every kind, in the order of the list that `explain` prints."""
    return tuple(Term(word, kind, text) for kind, texts in _kinds() for word, text in texts.items())


def _kinds() -> Iterator[tuple[str, Mapping[str, str]]]:
    yield FINDING, {detector.NAME: inspect.getdoc(detector) or "" for detector in DETECTORS}
    yield "severity of a finding", _documented(Severity)
    yield _written("headline of a report")
    yield "state of a node in nodeleak status", _documented(NodeState)
    yield _written("phase of a finding")
    yield "state of a reservation", _documented(State)
    yield _written("likely cause of a leak")
    yield "reason why clean refuses an address", _documented(Reason)
    yield "blocker: why no release is possible here", _documented(BlockedBy)
    yield "result of clean for an address", _documented(Verdict)
    yield _written("likely cause of a pod rejection")
    yield _written("outcome of a rejected pod")
    yield "evidence that a volume is lost", _documented(Confidence)
    yield from map(_written, ("source", "Kubernetes condition or Event", "alert", "word"))
    yield "metric", {f"{PREFIX}{name}": text for name, text in HELP.items()}
    yield _written("metric")
    yield SETTING, {name: _setting(name) for name in all_settings()}


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


def _documented(kind: type[StrEnum]) -> dict[str, str]:
    """Return the text below each member of an enum. Python does not keep it, so it is read from the source."""
    members = re.findall(r'^    \w+ = "(\w+)"\n    """(.*?)"""$', inspect.getsource(kind), re.MULTILINE | re.DOTALL)
    return {name: inspect.cleandoc(text) for name, text in members}
