"""What the page shows, as plain values. How they look is the template's business."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from inspect import cleandoc
from itertools import groupby
from typing import Final

from agent.checks.registry import DETECTORS, Detector
from agent.exporters.json.scan import findings_in_order, moment
from agent.exporters.text.clean import WHEN_HALTED
from agent.exporters.text.scan import device_rows, escape
from agent.exporters.text.timeline import when
from agent.exporters.timeline import Timeline
from agent.exporters.web import page_map, status
from agent.exporters.web.page_map import LONGEST_LIST, Network
from agent.exporters.web.status import NodeStatus
from agent.model.finding import TrackedFinding
from agent.model.release import Cleaning
from agent.model.report import Report
from agent.model.snapshot import InsufficientData, NotRequested, SourceDisabled

_FINDINGS_OF_ONE: Final = 40
_EVENTS: Final = 60


@dataclass(frozen=True, slots=True)
class FindingGroup:
    """The findings of one detector."""

    detector: str
    count: int
    what: str
    do: str
    messages: tuple[tuple[str, bool], ...]
    """Each with whether it is confirmed."""


@dataclass(frozen=True, slots=True)
class TimelineRow:
    when: str
    exact: bool
    what: str
    text: str


@dataclass(frozen=True, slots=True)
class Release:
    addresses: str
    pod: str
    verdict: str
    why: str


@dataclass(frozen=True, slots=True)
class Round:
    """What the last round of cleaning did."""

    applied: bool
    halted: str
    do: str
    releases: tuple[Release, ...]
    more: int
    """How many are not listed."""


@dataclass(frozen=True, slots=True)
class View:
    node: str
    looked: str
    verdict: NodeStatus
    unavailable: tuple[tuple[str, str], ...]
    blind: tuple[tuple[str, str], ...]
    left_alone: str
    networks: tuple[Network, ...]
    findings: tuple[FindingGroup, ...]
    devices: tuple[tuple[str, ...], ...]
    devices_unread: str
    devices_chosen: bool
    """Whether they were left alone by choice."""
    events: tuple[TimelineRow, ...]
    """The newest first."""
    older: int
    timeline_lacks: tuple[str, ...]
    round: Round | None


def build_view(report: Report, timeline: Timeline, *, alive: bool) -> View:
    snapshot = report.assessment.snapshot
    devices, devices_unread, devices_chosen = _devices(report)
    return View(
        node=escape(snapshot.node_name),
        looked=moment(snapshot.taken_at),
        verdict=status.node_status(report, alive=alive),
        unavailable=tuple((one.source, escape(one.why)) for one in report.unavailable),
        blind=tuple((gap.detector, escape(gap.why)) for gap in report.gaps if not gap.chosen),
        left_alone=snapshot.pods.why if isinstance(snapshot.pods, NotRequested) else "",
        networks=page_map.networks(report),
        findings=tuple(_findings(report)),
        devices=devices,
        devices_unread=devices_unread,
        devices_chosen=devices_chosen,
        events=tuple(
            TimelineRow(when(one).strip(" ~"), one.exact, one.what.value.replace("_", " "), escape(one.text))
            for one in reversed(timeline.events[-_EVENTS:])
        ),
        older=max(0, len(timeline.events) - _EVENTS),
        timeline_lacks=(
            *(escape(f"{one.source}: {one.why}") for one in timeline.unavailable),
            *map(escape, timeline.warnings),
        ),
        round=None if report.cleaning is None else _round(report.cleaning),
    )


def _findings(report: Report) -> Iterator[FindingGroup]:
    detectors = {detector.NAME: detector for detector in DETECTORS}
    for name, found in groupby(findings_in_order(report), key=lambda judged: judged.finding.detector):
        judged = list(found)
        yield FindingGroup(
            detector=name,
            count=len(judged),
            what=cleandoc(detectors[name].__doc__ or "").partition("\n")[0],
            do=advice(detectors[name]),
            messages=tuple(_said(judged[:_FINDINGS_OF_ONE])),
        )


def advice(detector: Detector) -> str:
    """Return what follows `Do:` on a detector's page."""
    return " ".join(cleandoc(detector.__doc__ or "").partition("\nDo: ")[2].split())


def _said(found: Iterable[TrackedFinding]) -> Iterator[tuple[str, bool]]:
    return ((escape(one.finding.message), one.confirmed) for one in found)


def _devices(report: Report) -> tuple[tuple[tuple[str, ...], ...], str, bool]:
    """Return the rows, or why there are none, and whether that is by choice."""
    try:
        rows = device_rows(report.assessment.snapshot)
    except SourceDisabled as alone:
        return (), str(alone), True
    except InsufficientData as blind:
        return (), escape(str(blind)), False
    return tuple(tuple(map(escape, row)) for row in rows), "", False


def _round(cleaning: Cleaning) -> Round:
    return Round(
        applied=cleaning.applied,
        halted=escape(cleaning.halted),
        do=WHEN_HALTED,
        releases=tuple(
            Release(
                addresses=", ".join(one.ip for one in outcome.request.reservations),
                pod=escape(outcome.request.pod),
                verdict=outcome.verdict.value.replace("_", " "),
                why=escape(outcome.why or "; ".join(refusal.why for refusal in outcome.refusals)),
            )
            for outcome in cleaning.outcomes[:LONGEST_LIST]
        ),
        more=max(0, len(cleaning.outcomes) - LONGEST_LIST),
    )
