"""What the daemon knows of its node, in short: the JSON document `nodeleak.status/v1`."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from agent.exporters.headline import Status, headline, status_of
from agent.model.assessment import State
from agent.model.finding import TrackedFinding, total
from agent.model.release import CleanupStatus
from agent.model.report import NetworkSummary, Report
from agent.model.status import SCHEMA, NodeState
from agent.model.text import rfc3339

_STATES: Final = {
    Status.HEALTHY: NodeState.OK,
    Status.UNCONFIRMED: NodeState.OK,
    Status.PROBLEM: NodeState.FINDINGS,
    Status.INCOMPLETE: NodeState.INCOMPLETE,
}


class StatusExporter:
    """Keeps the last report. Its document is made on request.

    `export` belongs to one thread, `document` to those of the HTTP server.
    """

    def __init__(
        self,
        version: str,
        interval: float,
        cleanup: Callable[[Report], CleanupStatus],
        alive: Callable[[], bool],
        clock: Callable[[], float],
    ) -> None:
        """`interval`: seconds between two syncs. `clock`: monotonic seconds."""
        self._version, self._interval = version, interval
        self._cleanup, self._alive, self._clock = cleanup, alive, clock
        self._last: tuple[Report, float] | None = None

    def export(self, report: Report, seconds: float) -> None:
        self._last = report, self._clock() - seconds

    def document(self) -> dict[str, Any] | None:
        """Return the document; None before the first report."""
        if (last := self._last) is None:
            return None
        report, begun = last
        times = {
            "taken_at": rfc3339(report.assessment.snapshot.taken_at),
            "age_seconds": round(self._clock() - begun, 1),
            "interval_seconds": self._interval,
        }
        return {**status_document(report, self._version, self._cleanup(report), alive=self._alive()), "report": times}


def status_document(report: Report, version: str, cleanup: CleanupStatus, *, alive: bool) -> dict[str, Any]:
    """Return the document without the times of the report. What is not known is null, never 0."""
    return {
        "schema": SCHEMA,
        "version": version,
        "node": report.assessment.snapshot.node_name,
        "state": (_STATES[status_of(report)] if alive else NodeState.STALLED).value,
        "headline": headline(report, alive=alive),
        "cleanup": {
            "mode": cleanup.mode,
            "networks": list(cleanup.networks),
            "release_possible": cleanup.release_possible,
            "why_not": list(cleanup.why_not),
            "halted": report.cleaning.halted if report.cleaning else "",
        },
        "networks": [_network(one) for one in report.networks if not one.not_in_use],
        "findings": list(_findings(report.sorted_findings)),
        "unavailable": [{"source": one.source, "why": one.why} for one in report.unavailable],
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
    for one in findings:
        if one.confirmed:
            groups.setdefault((one.finding.severity.value, one.finding.detector), []).append(one)
    for (severity, detector), group in groups.items():
        oldest = min(one.since for one in group)
        yield {"severity": severity, "detector": detector, "count": total(group), "oldest": rfc3339(oldest)}
