"""The diagnosis of each recorded node is the one in the file next to it."""

import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from agent.checks import engine
from agent.checks.addresses import leaked_reservation
from agent.exporters.json.scan import scan_document
from agent.exporters.text.scan import scan_table
from agent.model.anonymize import anonymous
from agent.model.assessment import State
from agent.model.documents import dumps, loads
from agent.model.report import Report

HERE = Path(__file__).parent
NODES = sorted(HERE.glob("*.json"))

NOT_YET = "the snapshot was taken by a version that did not read it"
"""The reason of a source that is newer than the recording."""

each = pytest.mark.parametrize("path", NODES, ids=lambda path: path.stem)


def replayed(text: str) -> Report:
    recording = loads(text)
    return engine.replay(recording.snapshots, grace=recording.grace, confirm_after=recording.confirm_after)


def diagnosis(report: Report) -> dict[str, Any]:
    networks = {
        one.name: {"usable": one.usable, "reserved": one.reserved, "free": one.free}
        | {state.value: n for state, n in (one.states or {}).items() if n}
        for one in report.networks
    }
    findings = (
        (one.detector, one.subject, one.cause, one.pod, one.resource, one.pod_outcome, one.confidence)
        for one in (tracked.finding for tracked in report.findings)
    )
    return {
        **networks,
        "complete": report.complete,
        "findings": sorted(" ".join(str(part) for part in parts if part) for parts in findings),
        "unavailable": [one.source for one in report.unavailable],
        "insufficient_data": sorted(gap.detector for gap in report.gaps if not gap.why.endswith(NOT_YET)),
    }


def test_there_are_recorded_nodes_each_with_its_diagnosis() -> None:
    """An empty glob would pass silently."""
    assert len(NODES) >= 8
    assert {path.stem for path in NODES} == {path.stem for path in HERE.glob("*.toml")}


@each
def test_the_diagnosis_is_the_expected_one(path: Path) -> None:
    expected = tomllib.loads(path.with_suffix(".toml").read_text())
    says = expected.pop("says")
    report = replayed(path.read_text())
    assert diagnosis(report) == {"unavailable": [], "insufficient_data": []} | expected
    text = scan_table(report)
    assert [words for words in says if words not in text] == []


@each
def test_leaked_findings_are_the_reservations_in_state_leaked_in_every_snapshot(path: Path) -> None:
    recording = loads(path.read_text())
    state = None
    for snapshot in recording.snapshots:
        report, state = engine.run(snapshot, state, grace=recording.grace, confirm_after=recording.confirm_after)
        leaked = [f"{one.network}/{one.name}" for one in report.assessment.reservations if one.state is State.LEAKED]
        found = [one.finding.subject for one in report.findings if one.finding.detector == leaked_reservation.NAME]
        counted = sum((one.states or {}).get(State.LEAKED, 0) for one in report.networks)
        assert sorted(found) == sorted(leaked) == sorted(map(str, report.confirmed_leaks))
        assert counted == len(leaked)
        assert [one["ip"] for one in scan_document(report)["reservations"] if one["state"] == "leaked"] == [
            one["subject"].partition("/")[2]
            for one in scan_document(report)["findings"]
            if one["detector"] == leaked_reservation.NAME
        ]


@each
def test_without_names_the_diagnosis_is_the_same(path: Path) -> None:
    def verdicts(text: str) -> Any:
        report = replayed(text)
        findings = [one.finding for one in report.sorted_findings]
        return (
            [(one.state, one.blocks, bool(one.pod)) for one in report.assessment.reservations],
            Counter(
                (one.detector, one.severity, one.cause, one.pod_outcome, one.confidence, one.since, len(one.pods))
                for one in findings
            ),
            [(one.usable, one.reserved, one.free, one.states) for one in report.networks],
            [(gap.detector, gap.broken, gap.chosen) for gap in report.gaps],
            [one.source for one in report.unavailable],
        )

    text = path.read_text()
    assert verdicts(dumps(anonymous(loads(text)))) == verdicts(text)
