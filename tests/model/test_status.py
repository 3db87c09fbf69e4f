"""A document of a process that may be anybody is taken only in its exact shape, and without control characters."""

import json
from typing import Any

import pytest

from agent.model.status import SHAPE, Malformed, NodeState, checked, no_report

GOOD: dict[str, Any] = {
    "schema": "nodeleak.status/v1",
    "version": "0.1.0",
    "node": "worker-1",
    "state": "findings",
    "headline": "Warning: 7 leaked pod addresses on worker-1",
    "report": {"taken_at": "2026-03-26T20:00:00Z", "age_seconds": 12.3, "interval_seconds": 60},
    "cleanup": {
        "mode": "off", "networks": ["cbr0"], "release_possible": None, "why_not": ["read-only mount"], "halted": ""
    },
    "networks": [{"name": "cbr0", "usable": 253, "free": None, "leaked": 7, "unknown": 0}],
    "findings": [
        {"severity": "warning", "detector": "leaked_reservation", "count": 7, "oldest": "2026-03-26T20:00:00Z"}
    ],
    "unavailable": [{"source": "containers", "why": "no answer"}],
}  # fmt: skip


def test_the_shape_is_kept() -> None:
    assert checked(GOOD) == GOOD
    assert set(SHAPE) == set(GOOD)


def test_unknown_keys_are_dropped() -> None:
    assert checked({**GOOD, "apply": True, "networks": [{**GOOD["networks"][0], "verdict": "released"}]}) == GOOD


@pytest.mark.parametrize(
    "changed",
    [
        None, 7, "x", [], {}, [GOOD],
        {**GOOD, "schema": "nodeleak.status/v2"}, {**GOOD, "state": "fine"}, {**GOOD, "state": None},
        {**GOOD, "state": "no_report"}, no_report("it lies"),
        {**GOOD, "networks": {}}, {**GOOD, "networks": ["cbr0"]}, {**GOOD, "report": None}, {**GOOD, "headline": 7},
        {**GOOD, "unavailable": [{"source": "containers"}]}, {**GOOD, "cleanup": {**GOOD["cleanup"], "networks": [1]}},
        {**GOOD, "report": {**GOOD["report"], "age_seconds": float("nan")}},
        {**GOOD, "report": {**GOOD["report"], "age_seconds": float("-inf")}},
        {**GOOD, "report": {**GOOD["report"], "age_seconds": 10**400}},
    ],
)  # fmt: skip
def test_anything_else_is_malformed(changed: Any) -> None:
    with pytest.raises(Malformed):
        checked(changed)


@pytest.mark.parametrize("hostile", ["\x1b[2J", "\r", "\x9b31m", "a\nb", "\u202e"])
def test_control_characters_are_escaped_everywhere(hostile: str) -> None:
    tree = checked(json.loads(json.dumps(GOOD).replace("cbr0", json.dumps(hostile)[1:-1])))
    assert tree["networks"][0]["name"].isprintable()
    assert tree["cleanup"]["networks"][0].isprintable()
    assert no_report(hostile)["why"].isprintable()


def test_a_missing_report_has_a_reason() -> None:
    assert no_report("it is down") == {
        "schema": "nodeleak.status/v1",
        "state": NodeState.NO_REPORT,
        "why": "it is down",
    }
