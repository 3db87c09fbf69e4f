"""Which results of a cleanup stop it."""

import json
from typing import Any

import pytest

from agent.fleet.answers import Answer
from agent.fleet.cleaning import State, judge
from tests.fleet.kubectl import clean


def of(document: Any, code: int | None = 0, error: str = "") -> tuple[State, str]:
    result = judge(Answer("worker-1", code, json.dumps(document), error))
    return result.state, result.text


@pytest.mark.parametrize(
    ("document", "text"),
    [
        (clean(), "nothing to release"),
        (clean("released"), "1 released; free addresses in cbr0: 0 before, 1 after"),
        (
            clean("refused", "refused"),
            "0 released; refused: not_confirmed (2); free addresses in cbr0: 0 before, 0 after",
        ),
        (
            clean("released", "refused", reason="over_budget"),
            "1 released; refused: over_budget (1); free addresses in cbr0: 0 before, 1 after",
        ),
    ],
)
def test_released_refused_and_nothing_are_expected(document: dict[str, Any], text: str) -> None:
    assert of(document) == (State.DONE, text)


@pytest.mark.parametrize("verdict", ["changed", "gone", "busy", "interrupted", "failed", "would_release", "something"])
def test_every_other_verdict_stops(verdict: str) -> None:
    state, text = of(clean("released", verdict))
    assert (state, text) == (State.UNEXPECTED, f"10.244.1.3 in cbr0: {verdict}: why {verdict}")


@pytest.mark.parametrize(
    ("document", "code", "text"),
    [
        (clean(halted="container 950b9e02 reappeared"), 0, "cleanup halted: container 950b9e02 reappeared"),
        (clean(unavailable=[{"source": "pods", "why": "timed out"}]), 3, "pods unavailable: timed out"),
        (clean("refused", applied=False), 0, "it was a dry run"),
        (clean("released"), 74, "exit code 74"),
        ({"schema": "nodeleak.clean/v2"}, 0, "answered with schema nodeleak.clean/v2, and this command reads"),
        ({"schema": "nodeleak.clean/v1"}, 0, "cannot read its nodeleak.clean/v1"),
        (
            clean("released") | {"networks": [{"network": "cbr0", "free_before": "x", "free_after": 0}]},
            0,
            "cannot read",
        ),
        ([], 2, "nodeleak: --cleanup-network: not set"),
        (clean("released"), None, "nodeleak: --cleanup-network: not set; it is not known what it released"),
    ],
)
def test_a_result_that_is_not_understood_stops(document: Any, code: int | None, text: str) -> None:
    state, found = of(document, code, "nodeleak: --cleanup-network: not set")
    assert state is State.UNEXPECTED
    assert text in found


def test_a_document_that_cannot_be_read_counts_no_release() -> None:
    assert judge(Answer("a", 0, json.dumps(clean("released") | {"addresses": 1, "verdicts": []}))).released == 0
