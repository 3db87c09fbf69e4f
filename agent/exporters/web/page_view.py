"""What the page shows, as plain values. How they look is the template's business."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from inspect import cleandoc
from itertools import groupby
from typing import Final

from agent.checks.registry import DETECTORS, Detector
from agent.exporters.json.scan import findings_in_order, moment
from agent.exporters.text.clean import WHEN_STOPPED
from agent.exporters.text.scan import device_rows, printable
from agent.exporters.text.timeline import when
from agent.exporters.timeline import Timeline
from agent.exporters.web import page_map, status
from agent.exporters.web.page_map import LONGEST_LIST, Network
from agent.exporters.web.status import Verdict
from agent.model.finding import Judged
from agent.model.release import Cleaning
from agent.model.report import Report
from agent.model.snapshot import Blind, LeftAlone, NotAsked

_FINDINGS_OF_ONE: Final = 40
_EVENTS: Final = 60


@dataclass(frozen=True, slots=True)
class Found:
    """The findings of one detector."""

    detector: str
    count: int
    what: str
    do: str
    messages: tuple[tuple[str, bool], ...]
    """Each with whether it is confirmed."""


@dataclass(frozen=True, slots=True)
class Happened:
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
    stopped: str
    do: str
    releases: tuple[Release, ...]
    more: int
    """How many are not listed."""


@dataclass(frozen=True, slots=True)
class View:
    node: str
    looked: str
    verdict: Verdict
    unread: tuple[tuple[str, str], ...]
    blind: tuple[tuple[str, str], ...]
    left_alone: str
    networks: tuple[Network, ...]
    findings: tuple[Found, ...]
    devices: tuple[tuple[str, ...], ...]
    devices_unread: str
    devices_chosen: bool
    """Whether they were left alone by choice."""
    events: tuple[Happened, ...]
    """The newest first."""
    older: int
    timeline_lacks: tuple[str, ...]
    round: Round | None


def of(report: Report, timeline: Timeline, *, alive: bool) -> View:
    snapshot = report.scene.snapshot
    devices, devices_unread, devices_chosen = _devices(report)
    return View(
        node=printable(snapshot.node_name),
        looked=moment(snapshot.taken_at),
        verdict=status.of(report, alive=alive),
        unread=tuple((one.source, printable(one.why)) for one in report.unread),
        blind=tuple((gap.detector, printable(gap.why)) for gap in report.gaps if not gap.chosen),
        left_alone=snapshot.pods.why if isinstance(snapshot.pods, NotAsked) else "",
        networks=page_map.networks(report),
        findings=tuple(_findings(report)),
        devices=devices,
        devices_unread=devices_unread,
        devices_chosen=devices_chosen,
        events=tuple(
            Happened(when(one).strip(" ~"), one.exact, one.what.value.replace("_", " "), printable(one.text))
            for one in reversed(timeline.events[-_EVENTS:])
        ),
        older=max(0, len(timeline.events) - _EVENTS),
        timeline_lacks=(
            *(printable(f"{one.source}: {one.why}") for one in timeline.unread),
            *map(printable, timeline.warnings),
        ),
        round=None if report.cleaning is None else _round(report.cleaning),
    )


def _findings(report: Report) -> Iterator[Found]:
    detectors = {detector.NAME: detector for detector in DETECTORS}
    for name, found in groupby(findings_in_order(report), key=lambda judged: judged.finding.detector):
        judged = list(found)
        yield Found(
            detector=name,
            count=len(judged),
            what=cleandoc(detectors[name].__doc__ or "").partition("\n")[0],
            do=advice(detectors[name]),
            messages=tuple(_said(judged[:_FINDINGS_OF_ONE])),
        )


def advice(detector: Detector) -> str:
    """Return what follows `Do:` on a detector's page."""
    return " ".join(cleandoc(detector.__doc__ or "").partition("\nDo: ")[2].split())


def _said(found: Iterable[Judged]) -> Iterator[tuple[str, bool]]:
    return ((printable(one.finding.message), one.confirmed) for one in found)


def _devices(report: Report) -> tuple[tuple[tuple[str, ...], ...], str, bool]:
    """Return the rows, or why there are none, and whether that is by choice."""
    try:
        rows = device_rows(report.scene.snapshot)
    except LeftAlone as alone:
        return (), str(alone), True
    except Blind as blind:
        return (), printable(str(blind)), False
    return tuple(tuple(map(printable, row)) for row in rows), "", False


def _round(cleaning: Cleaning) -> Round:
    return Round(
        applied=cleaning.applied,
        stopped=printable(cleaning.stopped),
        do=WHEN_STOPPED,
        releases=tuple(
            Release(
                addresses=", ".join(one.ip for one in outcome.candidate.reservations),
                pod=printable(outcome.candidate.pod),
                verdict=outcome.verdict.value.replace("_", " "),
                why=printable(outcome.why or "; ".join(refusal.why for refusal in outcome.refusals)),
            )
            for outcome in cleaning.outcomes[:LONGEST_LIST]
        ),
        more=max(0, len(cleaning.outcomes) - LONGEST_LIST),
    )
