"""A document of a process that may be anybody is taken only in its exact shape, and without control characters."""

import json
from typing import Any

import pytest

from agent.cli.daemon_client import DaemonClient
from agent.exporters.json.status import no_report
from agent.sources.source_error import SourceError
from tests.wire import FakeServer, http

GOOD: dict[str, Any] = {
    "schema": "nodeleak.status/v1",
    "version": "0.1.0",
    "node": "worker-1",
    "state": "findings",
    "headline": "Warning: 7 leaked pod addresses on worker-1",
    "report": {"taken_at": "2026-03-26T20:00:00Z", "age_seconds": 12.3, "interval_seconds": 60},
    "cleanup": {
        "mode": "off", "networks": ["cbr0"], "release_possible": None, "why_not": ["read-only mount"], "halted": "",
        "brake": None,
    },
    "networks": [{"name": "cbr0", "usable": 253, "free": None, "leaked": 7, "unknown": 0, "releasable": None}],
    "findings": [
        {"severity": "warning", "detector": "leaked_reservation", "count": 7, "oldest": "2026-03-26T20:00:00Z"}
    ],
    "unavailable": [{"source": "containers", "why": "no answer"}],
}  # fmt: skip


def accepted(document: Any) -> Any:
    """Return what the client of a daemon takes of its answer; raises SourceError."""
    with FakeServer(lambda _: [http(json.dumps(document))]) as server:
        return DaemonClient(("", int(server.url.rpartition(":")[2]))).status()


def test_the_shape_is_kept_and_unknown_keys_are_dropped() -> None:
    assert accepted(GOOD) == GOOD
    assert (
        accepted(
            {**GOOD, "apply": True, "networks": [{**GOOD["networks"][0], "verdict": "released"}]}
        )
        == GOOD
    )


def test_anything_else_is_malformed() -> None:
    for document in (
        None, 7, "x", [], {}, [GOOD],
        *({key: value for key, value in GOOD.items() if key != missing} for missing in GOOD),
        {**GOOD, "schema": "nodeleak.status/v2"}, {**GOOD, "state": "fine"}, {**GOOD, "state": None},
        {**GOOD, "state": "no_report"}, no_report("it lies"),
        {**GOOD, "networks": {}}, {**GOOD, "networks": ["cbr0"]}, {**GOOD, "report": None}, {**GOOD, "headline": 7},
        {**GOOD, "unavailable": [{"source": "containers"}]}, {**GOOD, "cleanup": {**GOOD["cleanup"], "networks": [1]}},
        {**GOOD, "report": {**GOOD["report"], "age_seconds": float("nan")}},
        {**GOOD, "report": {**GOOD["report"], "age_seconds": float("-inf")}},
        {**GOOD, "report": {**GOOD["report"], "age_seconds": 10**400}},
    ):  # fmt: skip
        with pytest.raises(SourceError):
            accepted(document)


def test_control_characters_are_escaped_everywhere() -> None:
    for hostile in ("\x1b[2J", "\r", "\x9b31m", "a\nb", "\u202e"):
        tree = accepted(json.loads(json.dumps(GOOD).replace("cbr0", json.dumps(hostile)[1:-1])))
        assert tree["networks"][0]["name"].isprintable()
        assert tree["cleanup"]["networks"][0].isprintable()
        assert no_report(hostile)["why"].isprintable()
    assert no_report("it is down") == {
        "schema": "nodeleak.status/v1",
        "state": "no_report",
        "why": "it is down",
    }
