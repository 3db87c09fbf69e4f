"""One sync: classify every reservation, confirm what lasts, then detect.

What two snapshots found is confirmed here, and nowhere else. Pure, so that recordings can be
replayed.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Final, NamedTuple

from agent.checks.addresses import leaked_reservation
from agent.checks.addresses.classify import classify
from agent.checks.detector import Detector
from agent.checks.devices.history import with_history
from agent.checks.kubelet_runtime import kubelet_runtime
from agent.checks.memory import advance, networks_read
from agent.checks.registry import DETECTORS
from agent.model.assessment import Assessment, State, or_none
from agent.model.bug import Bug, bug_of
from agent.model.clocks import CLOCK_STEP
from agent.model.finding import (
    WAITING_PODS,
    Finding,
    Key,
    LeakCause,
    Observations,
    SkippedCheck,
    TrackedFinding,
)
from agent.model.index import SnapshotIndex
from agent.model.memory import NO_MEMORY, Memory
from agent.model.ranges import usable
from agent.model.report import NetworkSummary, Report
from agent.model.snapshot import (
    InsufficientData,
    NetworkStore,
    NotRequested,
    Reservation,
    Snapshot,
)

_SEEN_ONCE: Final = "no owner of any kind, but seen in one snapshot only"
"""Why a leak is not confirmed: between two reads of one snapshot a pod can vanish."""
_REMAINING: Final = tuple(detector for detector in DETECTORS if detector is not leaked_reservation)
"""The detectors that run once it is known what is leaked."""


@dataclass(frozen=True, slots=True)
class ConfirmationState:
    """What a sync leaves to the next."""

    memory: Memory = NO_MEMORY
    observations: Observations = field(default_factory=dict)


class Detected(NamedTuple):
    findings: tuple[Finding, ...]
    gaps: tuple[SkippedCheck, ...]
    bugs: tuple[Bug, ...]  # of detectors


def run(
    snapshot: Snapshot,
    before: ConfirmationState | None,
    *,
    grace: timedelta,
    confirm_after: timedelta,
) -> tuple[Report, ConfirmationState]:
    """Return the report of a snapshot, and what the next sync has to know.

    Leaks are confirmed first: a reservation is `leaked` only once two snapshots found the same file
    without an owner. Every other detector sees the final states, so that states, findings, metrics
    and JSON of a report agree.

    `grace`: how old a file without an owner must be; `confirm_after`: how long a finding must last.
    """
    before = before or ConfirmationState()
    stepped = _clock_stepped(before.memory, snapshot)
    assessment = _assess(snapshot, before.memory, grace, clock_stepped=stepped)
    confirmed_before = _confirmed(before.observations)
    # All candidates start over when the clock was set.
    observed_before = confirmed_before if stepped else before.observations

    suspects = detect(assessment, (leaked_reservation,))
    still_observed = _without_ended(observed_before, assessment)
    observed = _confirm(suspects, still_observed, snapshot, confirm_after)
    # As first seen: a later restart did not cause an earlier leak.
    tracked = [observed[finding.key] for finding in suspects.findings]
    leaks = [leak for leak in tracked if leak.confirmed]
    assessment = _with_confirmed(assessment, leaks)
    listed_leaks = leaked_reservation.summarized(leaks, assessment)

    detected = detect(assessment, _REMAINING)
    others = _confirm(detected, observed_before, snapshot, confirm_after)
    findings = [replace(others[finding.key], finding=finding) for finding in detected.findings]

    report = Report(
        assessment=assessment,
        networks=tuple(_summary(assessment, store) for store in snapshot.reservations),
        findings=(*listed_leaks, *findings),
        gaps=(*suspects.gaps, *detected.gaps),
        leak_causes=leaked_reservation.known_causes(leaks),
        newly_confirmed=Counter(
            (leak.finding.network, LeakCause(str(leak.finding.cause)))
            for leak in leaks
            if leak.finding.key not in confirmed_before
        ),
        clock_stepped=stepped,
        bugs=(*snapshot.bugs, *suspects.bugs, *detected.bugs),
    )
    return report, ConfirmationState(assessment.memory, {**observed, **others})


def _clock_stepped(before: Memory, snapshot: Snapshot) -> bool:
    """Return whether the wall clock was set since the last snapshot."""
    if before.last_taken is None:
        return False
    by_wall_clock = snapshot.taken_at - before.last_taken.wall
    by_boot_clock = snapshot.uptime - before.last_taken.uptime
    return abs(by_wall_clock - by_boot_clock) > CLOCK_STEP


def _assess(
    snapshot: Snapshot, before: Memory, grace: timedelta, *, clock_stepped: bool = False
) -> Assessment:
    """Classify every reservation, and add what this snapshot shows to the memory."""
    index = SnapshotIndex(snapshot)
    assessment = classify(index, kubelet_runtime(snapshot), grace, before)
    memory = advance(before, assessment, clock_stepped=clock_stepped)
    return replace(assessment, memory=memory)


def detect(assessment: Assessment, detectors: Iterable[Detector]) -> Detected:
    """Run each detector. If it lacks data, it leaves a gap beside what it could still find."""
    findings: list[Finding] = []
    gaps: list[SkippedCheck] = []
    bugs: list[Bug] = []
    for detector in detectors:
        try:
            for finding in detector.find(assessment):
                findings.append(finding)  # noqa: PERF402 (a finding made before the gap counts)
        except InsufficientData as missing:
            gap = SkippedCheck(
                detector.NAME, str(missing), chosen=missing.chosen, missing=missing.missing
            )
            gaps.append(gap)
        except Exception as error:  # noqa: BLE001 (a bug must not silence the other detectors)
            bugs.append(bug_of("detector", detector.NAME, error))
            reason = f"{type(error).__name__}: {error}"
            gaps.append(SkippedCheck(detector.NAME, reason, broken=True))
    return Detected(tuple(findings), tuple(gaps), tuple(bugs))


def _confirm(
    detected: Detected, earlier: Observations, now: Snapshot, confirm_after: timedelta
) -> dict[Key, TrackedFinding]:
    """Confirm each finding that an earlier snapshot had and that has lasted, or is urgent.

    No leak is urgent.

    Durations are measured by the boot clock. If a detector had a gap, its confirmed findings stay
    known, so that they do not count as new afterwards; its candidates start over.
    """
    with_gap = {gap.detector for gap in detected.gaps}
    observations = {
        key: tracked
        for key, tracked in _confirmed(earlier).items()
        if tracked.finding.detector in with_gap
    }

    for finding in detected.findings:
        tracked = earlier.get(finding.key)
        if tracked is None:
            tracked = TrackedFinding(
                finding, first_seen=now.taken_at, confirmed=False, first_uptime=now.uptime
            )
        elif finding.urgent or now.uptime - tracked.first_uptime >= confirm_after:
            tracked = replace(tracked, confirmed=True)
        observations[finding.key] = tracked
    return observations


def _confirmed(observations: Observations) -> Observations:
    return {key: tracked for key, tracked in observations.items() if tracked.confirmed}


def _leak_key(reservation: Reservation) -> Key:
    """Return the key of its finding. Another file of the same address has another one.

    If the detector gave its finding another key, no leak would ever be confirmed.
    """
    return (
        leaked_reservation.NAME,
        str(reservation.key),
        reservation.container_id,
        reservation.inode,
        reservation.size,
        reservation.mtime_ns,
    )


def _without_ended(observations: Observations, suspected: Assessment) -> Observations:
    """Return the observations without leaks that have ended: the file is gone, or has an owner.

    Those of other detectors are of no use here: any may be missing.
    """
    read = networks_read(suspected.snapshot)
    lasting = {
        _leak_key(reservation)
        for reservation, entry in suspected.classified.items()
        if entry.state in {State.UNKNOWN, State.LEAKED}
    }

    return {
        key: tracked
        for key, tracked in observations.items()
        if key in lasting or tracked.finding.network not in read
    }


def _with_confirmed(suspected: Assessment, leaks: Iterable[TrackedFinding]) -> Assessment:
    """Make every reservation without an owner a candidate, unless it is a confirmed leak."""
    confirmed = {leak.finding.key for leak in leaks}
    seen_once = {leak for leak in suspected.leaked if _leak_key(leak) not in confirmed}
    if not seen_once:
        return suspected
    reservations = (
        replace(entry, state=State.CANDIDATE, why=_SEEN_ONCE) if entry.entry in seen_once else entry
        for entry in suspected.reservations
    )
    return replace(suspected, reservations=tuple(reservations))


def _summary(assessment: Assessment, store: NetworkStore) -> NetworkSummary:
    network = store.network
    if isinstance(store.reading, NotRequested):
        return NetworkSummary(network, not_in_use=store.reading.why)

    entries = or_none(assessment.entries, network)
    ranges = or_none(assessment.ranges, network)
    states: dict[State, int] | None = None
    reserved: int | None = None
    if entries is not None:
        counts = Counter(entry.state for entry in entries)
        states = {state: counts[state] for state in State}
        reserved = sum(entry.blocks for entry in entries)
    return NetworkSummary(
        network,
        ranges=ranges,
        usable=None if ranges is None else usable(ranges),
        reserved=reserved,
        free=or_none(assessment.free, network),
        states=states,
    )


def needs_second_snapshot(snapshot: Snapshot, grace: timedelta) -> bool:
    """Return whether a snapshot leaves anything to confirm."""
    assessment = _assess(snapshot, NO_MEMORY, grace)
    return bool(assessment.leaked or detect(assessment, _REMAINING).findings)


def replay(
    snapshots: Iterable[Snapshot],
    *,
    grace: timedelta,
    confirm_after: timedelta,
    pods: Mapping[str, str] | None = None,
) -> Report:
    """Return the report of the last snapshot, with what was confirmed only, for a command.

    Pods that wait are in it at once: they have waited for a minute, and the node is not OK.

    `pods`: names by container ID, which another process remembered.
    """
    state = ConfirmationState(Memory(pods_of_other_process=pods or {}))
    report: Report | None = None
    for snapshot in map(with_history, snapshots):
        report, state = run(snapshot, state, grace=grace, confirm_after=confirm_after)
    if report is None:
        raise ValueError("no snapshot to assess")

    kept = tuple(
        tracked
        for tracked in report.findings
        if tracked.confirmed or tracked.finding.detector == WAITING_PODS
    )
    return replace(report, findings=kept)
