"""Findings as lines of text: the leaks of one cause are one line with their number and addresses."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, TypeAlias

from agent.checks.addresses import leaked_reservation
from agent.model.finding import LeakCause, Severity, TrackedFinding
from agent.model.report import Report
from agent.model.text import count_of, format_time

LONGEST_LIST: Final = 40
"""Addresses in one line, and lines of one detector."""

_RESTARTS: Final = {LeakCause.KUBELET_RESTART, LeakCause.RUNTIME_RESTART, LeakCause.NODE_REBOOT}

_Group: TypeAlias = tuple[str, LeakCause, datetime | None, bool] | TrackedFinding


@dataclass(frozen=True, slots=True)
class FindingLine:
    detector: str
    severity: Severity
    text: str
    confirmed: bool


def finding_lines(report: Report, *, verbose: bool = False) -> list[FindingLine]:
    """Return the lines, the most urgent first. `verbose`: one line for each finding."""
    groups: dict[_Group, list[TrackedFinding]] = {}
    for tracked in report.sorted_findings:
        groups.setdefault(tracked if verbose else _group(tracked), []).append(tracked)
    return [_line(group) for group in groups.values()]


def _group(tracked: TrackedFinding) -> _Group:
    finding = tracked.finding
    if finding.detector != leaked_reservation.NAME or not isinstance(finding.cause, LeakCause):
        return tracked
    # A restart has one time; without one, each leak has the time of its file.
    since = tracked.since if finding.cause in _RESTARTS else None
    return finding.network, finding.cause, since, tracked.confirmed


def _line(group: Sequence[TrackedFinding]) -> FindingLine:
    first = group[0]
    text = first.finding.message if len(group) == 1 else _leaks(group)
    return FindingLine(first.finding.detector, first.finding.severity, text, first.confirmed)


def _leaks(group: Sequence[TrackedFinding]) -> str:
    first = group[0]
    cause = first.finding.cause if isinstance(first.finding.cause, LeakCause) else LeakCause.UNKNOWN
    since = format_time(first.since)
    if any(one.since != first.since for one in group):
        since += " (the oldest)"
    addresses = [one.finding.subject.rpartition("/")[2] for one in group]
    more = len(addresses) - LONGEST_LIST
    listed = ", ".join(addresses[:LONGEST_LIST]) + (f" and {more} more" if more > 0 else "")
    count = count_of(len(group), "address", "addresses")
    return (
        f"{count} in {first.finding.network} leaked, {leaked_reservation.CAUSES[cause].format(since=since)}: {listed}"
    )
