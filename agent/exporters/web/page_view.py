"""The content of the page as plain values; the template decides how it looks."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from inspect import cleandoc
from typing import Final

from agent.checks.registry import DETECTORS
from agent.exporters.advice import advice
from agent.exporters.devices import HEADS, device_rows
from agent.exporters.finding_lines import LONGEST_LIST, finding_lines
from agent.exporters.headline import Status, headline, incomplete, status_of
from agent.exporters.text.clean import WHEN_HALTED
from agent.exporters.text.timeline import when
from agent.exporters.timeline import Timeline
from agent.exporters.web import page_map
from agent.exporters.web.page_map import MAX_LISTED, NetworkSection
from agent.exporters.web.runbooks import runbook
from agent.model.finding import total
from agent.model.release import Cleaning
from agent.model.report import NetworkSummary, Report
from agent.model.snapshot import InsufficientData, NotRequested, SourceDisabled
from agent.model.text import count_of, escape, format_number, rfc3339

_EVENTS: Final = 60


@dataclass(frozen=True, slots=True)
class StatusBanner:
    status: Status
    partly: bool
    """Whether something is unavailable, whatever else is known."""
    headline: str
    details: tuple[str, ...]
    """Sentences."""


@dataclass(slots=True)
class FindingGroup:
    """The findings of one detector."""

    detector: str
    severity: str
    """Of its most urgent finding."""
    description: str
    do: str
    runbook: str = ""
    """The URL of its runbook, if there is one."""
    count: int = 0
    messages: list[tuple[str, bool]] = field(default_factory=list)
    """Each with whether it is confirmed."""
    more: int = 0
    """How many messages are not listed."""


@dataclass(frozen=True, slots=True)
class TimelineRow:
    when: str
    exact: bool
    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class ReleaseRow:
    addresses: str
    pod: str
    verdict: str
    why: str


@dataclass(frozen=True, slots=True)
class Cleanup:
    """The cleanup of the last sync."""

    applied: bool
    halted: str
    do: str
    releases: tuple[ReleaseRow, ...]
    more: int
    """How many are not listed."""


@dataclass(frozen=True, slots=True)
class DeviceTable:
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    why: str = ""
    """Why there are no rows; empty: the node has no device plugin."""
    disabled: bool = False
    """Whether that is by configuration."""


@dataclass(frozen=True, slots=True)
class PageView:
    node: str
    taken_at: str
    status: StatusBanner
    unavailable: tuple[tuple[str, str], ...]
    not_evaluated: tuple[tuple[str, str], ...]
    api_disabled: str
    networks: tuple[NetworkSection, ...]
    findings: tuple[FindingGroup, ...]
    devices: DeviceTable
    events: tuple[TimelineRow, ...]
    """The newest first."""
    older: int
    missing_events: tuple[str, ...]
    cleanup: Cleanup | None


def build_view(report: Report, timeline: Timeline, *, alive: bool) -> PageView:
    snapshot = report.assessment.snapshot
    return PageView(
        node=escape(snapshot.node_name),
        taken_at=rfc3339(snapshot.taken_at),
        status=_status(report, alive=alive),
        unavailable=tuple((one.source, escape(one.why)) for one in report.unavailable),
        not_evaluated=tuple((gap.detector, escape(gap.why)) for gap in report.gaps if not gap.chosen),
        api_disabled=snapshot.pods.why if isinstance(snapshot.pods, NotRequested) else "",
        networks=page_map.map_networks(report),
        findings=tuple(_findings(report)),
        devices=_devices(report),
        events=tuple(
            TimelineRow(when(one).strip(" ~"), one.exact, one.kind.value.replace("_", " "), escape(one.text))
            for one in reversed(timeline.events[-_EVENTS:])
        ),
        older=max(0, len(timeline.events) - _EVENTS),
        missing_events=(
            *(escape(f"{one.source}: {one.why}") for one in timeline.unavailable),
            *map(escape, timeline.warnings),
        ),
        cleanup=None if report.cleaning is None else _cleanup(report.cleaning),
    )


def _status(report: Report, *, alive: bool) -> StatusBanner:
    return StatusBanner(
        status_of(report, alive=alive),
        bool(report.unavailable) or not report.complete or not alive,
        escape(headline(report, alive=alive)),
        tuple(map(escape, _details(report, alive=alive))),
    )


def _details(report: Report, *, alive: bool) -> Iterator[str]:
    if not alive:
        yield "No sync has finished for too long: this page shows old data."
    missing = incomplete(report)
    if missing and (not alive or status_of(report) is not Status.INCOMPLETE):
        yield f"Incomplete: {missing}."
    if sources := list(dict.fromkeys(one.source for one in report.unavailable)):
        yield f"Unavailable: {', '.join(sources)}."
    if failed := [gap.detector for gap in report.gaps if gap.broken]:
        yield f"Failed checks: {', '.join(failed)}."
    yield from map(_free_addresses, report.networks)


def _free_addresses(network: NetworkSummary) -> str:
    if network.not_in_use:
        return f"{network.name}: not in use."
    if network.free is None or network.usable is None:
        return f"{network.name}: the number of free addresses is unknown."
    return f"{network.name}: {format_number(network.free)} of {count_of(network.usable, 'address', 'addresses')} free."


def _findings(report: Report) -> Iterator[FindingGroup]:
    """Group the findings by detector; the group with the most urgent finding comes first."""
    descriptions = {one.NAME: cleandoc(one.__doc__ or "").partition("\n")[0] for one in DETECTORS}
    groups: dict[str, FindingGroup] = {}
    for line in finding_lines(report):
        name = line.detector
        severity = line.severity.value.capitalize()
        first = FindingGroup(name, severity, descriptions[name], advice(name, report), runbook(name, line.severity))
        group = groups.setdefault(name, first)
        if len(group.messages) < LONGEST_LIST:
            group.messages.append((escape(line.text), line.confirmed))
        else:
            group.more += 1
    for group in groups.values():
        group.count = total(one for one in report.findings if one.finding.detector == group.detector)
    yield from groups.values()


def _devices(report: Report) -> DeviceTable:
    try:
        rows = device_rows(report.assessment.snapshot)
    except SourceDisabled as disabled:
        return DeviceTable(HEADS, (), str(disabled), disabled=True)
    except InsufficientData as missing:
        return DeviceTable(HEADS, (), escape(str(missing)))
    return DeviceTable(HEADS, tuple(tuple(map(escape, row)) for row in rows))


def _cleanup(cleaning: Cleaning) -> Cleanup:
    return Cleanup(
        applied=cleaning.applied,
        halted=escape(cleaning.halted),
        do=WHEN_HALTED,
        releases=tuple(
            ReleaseRow(
                addresses=", ".join(one.ip for one in outcome.request.reservations),
                pod=escape(outcome.request.pod),
                verdict=outcome.verdict.value.replace("_", " "),
                why=escape(outcome.why or "; ".join(refusal.why for refusal in outcome.refusals)),
            )
            for outcome in cleaning.outcomes[:MAX_LISTED]
        ),
        more=max(0, len(cleaning.outcomes) - MAX_LISTED),
    )
