"""What the daemon knows of its node, in short: the JSON document `nodeleak.status/v1`."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from agent.exporters.headline import Status, headline, status_of
from agent.exporters.json.scan import unavailable_sources
from agent.model.assessment import State
from agent.model.finding import TrackedFinding, total
from agent.model.report import NetworkSummary, Report
from agent.model.status import SCHEMA, NodeState
from agent.model.text import rfc3339

_STATES: Final = {
    Status.HEALTHY: NodeState.OK,
    Status.UNCONFIRMED: NodeState.OK,
    Status.PROBLEM: NodeState.FINDINGS,
    Status.INCOMPLETE: NodeState.INCOMPLETE,
}


def status_document(
    report: Report, cleanup: Mapping[str, object], version: str, *, age: float, interval: float, alive: bool
) -> dict[str, Any]:
    """Return the document. What is not known is null, never 0.

    `age`: seconds since the snapshot was begun; `interval`: between two syncs; `alive`: whether they go on.
    """
    return {
        "schema": SCHEMA,
        "version": version,
        "node": report.assessment.snapshot.node_name,
        "state": (_STATES[status_of(report)] if alive else NodeState.STALLED).value,
        "headline": headline(report, alive=alive),
        "cleanup": {**cleanup, "halted": report.cleaning.halted if report.cleaning else ""},
        "networks": [_network(network) for network in report.networks if not network.not_in_use],
        "findings": list(_findings(report.sorted_findings)),
        "unavailable": unavailable_sources(report.unavailable),
        "report": {
            "taken_at": rfc3339(report.assessment.snapshot.taken_at),
            "age_seconds": round(age, 1),
            "interval_seconds": interval,
        },
    }


def _network(network: NetworkSummary) -> dict[str, Any]:
    states = network.states or {}
    return {
        "name": network.name,
        "usable": network.usable,
        "free": network.free,
        "leaked": states.get(State.LEAKED),
        "unknown": states.get(State.UNKNOWN),
    }


def _findings(findings: Iterable[TrackedFinding]) -> Iterator[dict[str, Any]]:
    """Count the confirmed findings of each detector and severity, the worst first."""
    groups: dict[tuple[str, str], list[TrackedFinding]] = {}
    for tracked in findings:
        if tracked.confirmed:
            groups.setdefault((tracked.finding.severity.value, tracked.finding.detector), []).append(tracked)
    for (severity, detector), group in groups.items():
        oldest = min(tracked.since for tracked in group)
        yield {"severity": severity, "detector": detector, "count": total(group), "oldest": rfc3339(oldest)}
