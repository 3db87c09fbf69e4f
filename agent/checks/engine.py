"""One round: tell what each reservation is, ask every detector, believe what lasts. Pure, so it can be replayed."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from datetime import timedelta

from agent.checks import confirm
from agent.checks.addresses import leaked_reservation
from agent.checks.addresses.classify import classify
from agent.checks.devices.history import with_history
from agent.checks.registry import DETECTORS, Detector
from agent.model.assessment import Assessment, ClassifiedReservation, State
from agent.model.finding import Finding, Gap, TrackedFinding
from agent.model.ranges import free, usable
from agent.model.report import NetworkSummary, Report
from agent.model.snapshot import InsufficientData, Known, Snapshot, SourceDisabled


def run(
    snapshot: Snapshot, memory: confirm.ConfirmationState | None, *, grace: timedelta, confirm_after: timedelta
) -> tuple[Report, confirm.ConfirmationState]:
    """Judge one look. `grace`: how old an ownerless file must be; `confirm_after`: how long a finding must last."""
    assessment = classify(snapshot, grace, memory.pods if memory else None)
    findings, gaps = detect(assessment, DETECTORS)
    judged, remembered = confirm.confirm(findings, gaps, memory, snapshot.taken_at, snapshot.uptime, confirm_after)
    assessment = _a_leak_seen_once_is_young(assessment, judged)
    known = {} if memory is None else memory.observations
    return Report(
        assessment=assessment,
        networks=tuple(_summary(assessment, store.network) for store in snapshot.reservations),
        findings=judged,
        gaps=gaps,
        newly_confirmed=tuple(
            one for one in judged if one.confirmed and not ((old := known.get(one.finding.key)) and old.confirmed)
        ),
        clock_stepped=confirm.clock_stepped(memory, snapshot.taken_at, snapshot.uptime),
    ), replace(remembered, pods=_names(assessment, memory))


def detect(assessment: Assessment, detectors: Iterable[Detector]) -> tuple[tuple[Finding, ...], tuple[Gap, ...]]:
    """Ask each detector; one that has no word to judge by leaves a gap beside what it could still see."""
    findings: list[Finding] = []
    gaps: list[Gap] = []
    for detector in detectors:
        try:
            for finding in detector.find(assessment):
                findings.append(finding)  # noqa: PERF402 (what was found before a gap stays found)
        except InsufficientData as blind:
            gaps.append(Gap(detector.NAME, str(blind), chosen=isinstance(blind, SourceDisabled)))
        except Exception as error:  # noqa: BLE001 (one broken detector must not silence the others; it is logged as a gap)
            gaps.append(Gap(detector.NAME, f"{type(error).__name__}: {error}", broken=True))
    return tuple(findings), tuple(gaps)


def _a_leak_seen_once_is_young(assessment: Assessment, judged: Iterable[TrackedFinding]) -> Assessment:
    """Between two reads of one look a pod can vanish; only what two looks found the same is called leaked."""
    confirmed = {
        one.finding.subject
        for one in judged
        if one.confirmed and one.finding.detector == leaked_reservation.NAME
    }  # fmt: skip

    def settled(classified: ClassifiedReservation) -> ClassifiedReservation:
        if classified.state is not State.LEAKED or f"{classified.network}/{classified.name}" in confirmed:
            return classified
        return replace(classified, state=State.CANDIDATE, why="no owner of any kind, but seen only a moment ago")

    return replace(assessment, classified_reservations=tuple(map(settled, assessment.classified_reservations)))


def _names(assessment: Assessment, memory: confirm.ConfirmationState | None) -> dict[str, str]:
    """Keep the pods of the ids that are reserved, and all of them when no reservation was read."""
    if memory is not None and not any(isinstance(store.reading, Known) for store in assessment.snapshot.reservations):
        return dict(memory.pods)
    return {one.container_id: one.pod for one in assessment.classified_reservations if one.container_id and one.pod}


def _summary(assessment: Assessment, network: str) -> NetworkSummary:
    try:
        classified_reservations = assessment.of(network)
    except InsufficientData:
        classified_reservations = None
    try:
        ranges = assessment.ranges(network)
    except InsufficientData:
        ranges = None
    taken = (
        None
        if classified_reservations is None
        else [classified.name for classified in classified_reservations if classified.blocks]
    )
    return NetworkSummary(
        name=network,
        ranges=ranges,
        usable=None if ranges is None else usable(ranges),
        reserved=None if taken is None else len(taken),
        free=None if ranges is None or taken is None else free(ranges, taken),
        states=None if classified_reservations is None else _tally(classified_reservations),
    )


def _tally(classified_reservations: Iterable[ClassifiedReservation]) -> dict[State, int]:
    counted = Counter(classified.state for classified in classified_reservations)
    return {state: counted[state] for state in State}


def needs_second_snapshot(snapshot: Snapshot, grace: timedelta) -> bool:
    """Tell whether one look leaves something to confirm: a finding of any kind."""
    findings, _ = detect(classify(snapshot, grace), DETECTORS)
    return bool(findings)


def replay(snapshots: Iterable[Snapshot], *, grace: timedelta, confirm_after: timedelta) -> Report:
    """Judge looks one after the other, and keep of the last what had lasted: what a scan says."""
    memory: confirm.ConfirmationState | None = None
    report: Report | None = None
    for snapshot in map(with_history, snapshots):
        report, memory = run(snapshot, memory, grace=grace, confirm_after=confirm_after)
    if report is None:
        raise ValueError("no look to judge")
    return replace(report, findings=tuple(one for one in report.findings if one.confirmed))
