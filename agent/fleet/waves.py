"""A cleanup of many nodes: which nodes are next, and whether a result was expected. Pure."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from agent.fleet.answers import Answer
from agent.model.text import count_of, format_number, truncate

CLEAN_SCHEMA: Final = "nodeleak.clean/v1"
_EXPECTED: Final = {"released", "refused"}


class State(StrEnum):
    PENDING = "pending"
    """Not asked yet."""
    DONE = "done"
    SURPRISE = "surprise"
    """Anything but released, refused, and nothing to release."""
    LEFT_OUT = "left_out"
    """It could not be asked."""


@dataclass(slots=True)
class NodeResult:
    node: str
    state: State = State.PENDING
    result: Mapping[str, Any] | None = None
    """Its part of a merged document."""
    text: str = ""


class CleanReport:
    """The nodes of one cleanup, each with its result."""

    def __init__(self, nodes: Iterable[str]) -> None:
        self.nodes = {node: NodeResult(node) for node in nodes}

    def __iter__(self) -> Iterator[NodeResult]:
        return iter(self.nodes.values())

    def named(self, *states: State) -> list[str]:
        return [one.node for one in self if one.state in states]

    def leave_out(self, node: str, why: str) -> None:
        self.nodes[node] = NodeResult(node, State.LEFT_OUT, {"node": node, "exit_code": None, "error": why}, why)

    def answered(self, answer: Answer) -> NodeResult:
        state, text = judge(answer)
        found = NodeResult(answer.node, state, answer.entry(), text)
        self.nodes[answer.node] = found
        return found

    def released(self) -> int:
        documents = ((one.result or {}).get("document") or {} for one in self)
        return sum(map(_released, documents))


def waves(nodes: Sequence[str], size: int) -> list[Sequence[str]]:
    return [nodes[start : start + size] for start in range(0, len(nodes), size)]


def judge(answer: Answer) -> tuple[State, str]:
    """Describe a result on one line. It is expected if every address was released or refused, or there was none."""
    if answer.exit_code is None:
        text = f"{answer.reason}; it is not known what it released: kubectl nodeleak journal {answer.node}"
        return State.SURPRISE, text
    document = answer.document
    if document is None:
        return State.SURPRISE, answer.reason
    if (schema := document.get("schema")) != CLEAN_SCHEMA:
        text = f"answered with schema {truncate(schema)}, and this command reads {CLEAN_SCHEMA}: use one version"
        return State.SURPRISE, text
    try:
        if surprise := _surprise(answer.exit_code, document):
            return State.SURPRISE, surprise
        return State.DONE, _outcome(document)
    except (LookupError, TypeError, AttributeError, ValueError, ArithmeticError) as error:
        return State.SURPRISE, f"cannot read its {CLEAN_SCHEMA}: {truncate(repr(error))}"


def _surprise(exit_code: int, document: Mapping[str, Any]) -> str:
    if document["halted"]:
        return f"cleanup halted: {document['halted']}"
    if document["unavailable"]:
        return ", ".join(f"{one['source']} unavailable: {one['why']}" for one in document["unavailable"])
    for address in document["addresses"]:
        if address["verdict"] not in _EXPECTED:
            why = address["why"] or "no reason given"
            return f"{address['ip']} in {address['network']}: {address['verdict']}: {why}"
    if document["applied"] is not True:
        return "it was a dry run"
    return f"exit code {exit_code}" if exit_code else ""


def _released(document: Mapping[str, Any]) -> int:
    """Count released addresses; 0 if the document cannot be read."""
    try:
        return sum(one["verdict"] == "released" for one in document["addresses"])
    except (LookupError, TypeError):
        return 0


def _outcome(document: Mapping[str, Any]) -> str:
    addresses = document["addresses"]
    reasons = Counter(str(one["reason"]) for one in addresses if one["verdict"] == "refused")
    refused = ", ".join(f"{reason} ({format_number(n)})" for reason, n in sorted(reasons.items()))
    released = f"{format_number(_released(document))} released"
    free = "; ".join(
        f"free addresses in {one['network']}: {format_number(one['free_before'])} before, "
        f"{format_number(one['free_after'])} after"
        for one in document["networks"]
    )
    if not addresses:
        return "nothing to release"
    return "; ".join(filter(None, [released, refused and f"refused: {refused}", free]))


def conclusion(report: CleanReport) -> str:
    """Say on one line how far the cleanup came."""
    done, pending = len(report.named(State.DONE)), len(report.named(State.PENDING))
    parts = [f"{count_of(report.released(), 'address', 'addresses')} released", f"{count_of(done, 'node')} done"]
    for count, what in (
        (len(report.named(State.SURPRISE)), "unexpected"),
        (len(report.named(State.LEFT_OUT)), "skipped"),
        (pending, "not asked"),
    ):
        if count:
            parts.append(f"{format_number(count)} {what}")
    return ", ".join(parts)
