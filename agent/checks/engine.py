"""One sync: classify every reservation, confirm what lasts, then detect. Pure, so that recordings replay."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Final

from agent.checks.addresses import leaked_reservation
from agent.checks.addresses.classify import classify
from agent.checks.addresses.pending_teardown import pending_since, with_durations
from agent.checks.confirm import ConfirmationState, clock_stepped, confirm
from agent.checks.devices.history import with_history
from agent.checks.registry import DETECTORS, Detector
from agent.model.assessment import Assessment, ClassifiedReservation, State
from agent.model.finding import Finding, Gap
from agent.model.ranges import free, usable
from agent.model.report import NetworkSummary, Report
from agent.model.snapshot import (
    InsufficientData,
    Known,
    NetworkStore,
    NotRequested,
    Reservation,
    Snapshot,
    SourceDisabled,
)

_LEAKS: Final = (leaked_reservation,)
_OTHERS: Final = tuple(detector for detector in DETECTORS if detector is not leaked_reservation)


def run(
    snapshot: Snapshot,
    before: ConfirmationState | None,
    *,
    grace: timedelta,
    confirm_after: timedelta,
    pods: Mapping[str, str] | None = None,
) -> tuple[Report, ConfirmationState]:
    """Assess one snapshot.

    Leaks are confirmed first: a reservation is `leaked` only once two snapshots found the same file without an owner.
    Every other detector sees the final states, so that states, findings, metrics and JSON of one report agree.

    `grace`: how old a file without an owner must be; `confirm_after`: how long a finding must last.
    `pods`: names of pods by container ID, for the first snapshot. They name, and change no state.
    """
    classified = classify(snapshot, grace, before.pods if before else pods)
    pending = pending_since(classified, before.pending if before else {})
    classified = with_durations(classified, pending)
    suspected, leak_gaps = detect(classified, _LEAKS)
    tracked, leaks_seen = confirm(suspected, leak_gaps, before, snapshot, confirm_after)
    leaks = tuple(one for one in tracked if one.confirmed)
    assessment = _with_confirmed_leaks(classified, frozenset(one.finding.subject for one in leaks))
    found, gaps = detect(assessment, _OTHERS)
    others, others_seen = confirm(found, gaps, before, snapshot, confirm_after)
    findings = (*leaks, *others)
    known = before.observations if before else {}
    report = Report(
        assessment=assessment,
        networks=tuple(_summary(assessment, store) for store in snapshot.reservations),
        findings=findings,
        gaps=(*leak_gaps, *gaps),
        newly_confirmed=tuple(
            one for one in findings if one.confirmed and not ((old := known.get(one.finding.key)) and old.confirmed)
        ),
        clock_stepped=clock_stepped(before, snapshot.taken_at, snapshot.uptime),
    )
    return report, ConfirmationState(
        snapshot.taken_at, snapshot.uptime, {**leaks_seen, **others_seen}, _pods(assessment, before), pending
    )


def detect(assessment: Assessment, detectors: Iterable[Detector]) -> tuple[tuple[Finding, ...], tuple[Gap, ...]]:
    """Run each detector. One that lacks data leaves a gap beside what it could still find."""
    findings: list[Finding] = []
    gaps: list[Gap] = []
    for detector in detectors:
        try:
            for finding in detector.find(assessment):
                findings.append(finding)  # noqa: PERF402 (a finding made before the gap counts)
        except InsufficientData as missing:
            gaps.append(Gap(detector.NAME, str(missing), chosen=isinstance(missing, SourceDisabled)))
        except Exception as error:  # noqa: BLE001 (one broken detector must not silence the others; it is logged as a gap)
            gaps.append(Gap(detector.NAME, f"{type(error).__name__}: {error}", broken=True))
    return tuple(findings), tuple(gaps)


def _with_confirmed_leaks(assessment: Assessment, confirmed: frozenset[str]) -> Assessment:
    """Make a leak that was seen once a candidate: between two reads of one snapshot a pod can vanish."""

    def final(one: ClassifiedReservation) -> ClassifiedReservation:
        if one.state is not State.LEAKED or not isinstance(one.entry, Reservation) or str(one.entry.key) in confirmed:
            return one
        return replace(one, state=State.CANDIDATE, why="no owner of any kind, but seen in one snapshot only")

    return replace(assessment, reservations=tuple(map(final, assessment.reservations)))


def _pods(assessment: Assessment, before: ConfirmationState | None) -> dict[str, str]:
    """Return the pods of the reserved ids; the earlier ones where no reservation was read."""
    if before is not None and not any(isinstance(store.reading, Known) for store in assessment.snapshot.reservations):
        return dict(before.pods)
    return {one.container_id: one.pod for one in assessment.reservations if one.container_id and one.pod}


def _summary(assessment: Assessment, store: NetworkStore) -> NetworkSummary:
    network = store.network
    if isinstance(store.reading, NotRequested):
        return NetworkSummary(network, None, None, None, None, None, not_in_use=store.reading.why)
    try:
        entries = assessment.of(network)
    except InsufficientData:
        entries = None
    try:
        ranges = assessment.ranges(network)
    except InsufficientData:
        ranges = None
    taken = None if entries is None else [classified.name for classified in entries if classified.blocks]
    return NetworkSummary(
        name=network,
        ranges=ranges,
        usable=None if ranges is None else usable(ranges),
        reserved=None if taken is None else len(taken),
        free=None if ranges is None or taken is None else free(ranges, taken),
        states=None if entries is None else _tally(entries),
    )


def _tally(entries: Iterable[ClassifiedReservation]) -> dict[State, int]:
    counted = Counter(classified.state for classified in entries)
    return {state: counted[state] for state in State}


def needs_second_snapshot(snapshot: Snapshot, grace: timedelta) -> bool:
    """Return whether a snapshot leaves anything to confirm."""
    classified = classify(snapshot, grace)
    findings, _ = detect(with_durations(classified, pending_since(classified, {})), DETECTORS)
    return bool(findings)


def replay(
    snapshots: Iterable[Snapshot],
    *,
    grace: timedelta,
    confirm_after: timedelta,
    pods: Mapping[str, str] | None = None,
) -> Report:
    """Assess snapshots one after the other, and keep of the last one what was confirmed: the report of a command."""
    state: ConfirmationState | None = None
    report: Report | None = None
    for snapshot in map(with_history, snapshots):
        report, state = run(snapshot, state, grace=grace, confirm_after=confirm_after, pods=pods)
    if report is None:
        raise ValueError("no snapshot to assess")
    return replace(report, findings=tuple(one for one in report.findings if one.confirmed))
