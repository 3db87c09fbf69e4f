"""One sync: classify every reservation, confirm what lasts, then detect. Pure, so that recordings replay."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Final, NamedTuple

from agent.checks import kubelet_runtime as runtimes
from agent.checks.addresses import host_ports, leaked_reservation, stuck_teardown
from agent.checks.addresses.classify import classify
from agent.checks.devices.history import with_history
from agent.checks.registry import DETECTORS, Detector
from agent.model.assessment import Assessment, State, or_none
from agent.model.bug import Bug, bug_of
from agent.model.clocks import CLOCK_STEP
from agent.model.finding import Finding, Key, LeakCause, SkippedCheck, TrackedFinding
from agent.model.index import SnapshotIndex
from agent.model.ranges import usable
from agent.model.report import NetworkSummary, Report
from agent.model.snapshot import (
    InsufficientData,
    Known,
    NetworkStore,
    NotRequested,
    ReservationKey,
    Snapshot,
)


@dataclass(frozen=True, slots=True)
class ConfirmationState:
    """What a sync leaves to the next."""

    assessment: Assessment
    observations: Mapping[Key, TrackedFinding]  # each finding as it was first seen
    pods: Mapping[str, str]
    """The pod of each container ID that has a reservation: every other record of a leak's owner is gone."""

    @property
    def confirmed(self) -> dict[Key, TrackedFinding]:
        return {key: seen for key, seen in self.observations.items() if seen.confirmed}


class Detected(NamedTuple):
    findings: tuple[Finding, ...]
    gaps: tuple[SkippedCheck, ...]
    bugs: tuple[Bug, ...] = ()  # of detectors


def clock_stepped(before: ConfirmationState, snapshot: Snapshot) -> bool:
    """Return whether the wall clock was set since the last snapshot."""
    earlier = before.assessment.snapshot
    return (
        abs((snapshot.taken_at - earlier.taken_at) - (snapshot.uptime - earlier.uptime))
        > CLOCK_STEP
    )


def confirm(
    detected: Detected, before: ConfirmationState, now: Snapshot, confirm_after: timedelta
) -> dict[Key, TrackedFinding]:
    """Confirm each finding that the last snapshot had too and that has lasted for `confirm_after`, or is urgent.

    Durations are measured by the boot clock. Where a detector had a gap, its confirmed findings stay known, so that
    they do not count as new afterwards; its candidates start over. All candidates start over when the clock was set.
    """
    known = before.confirmed if clock_stepped(before, now) else before.observations
    with_gap = {gap.detector for gap in detected.gaps}
    observations = {
        key: seen for key, seen in before.confirmed.items() if seen.finding.detector in with_gap
    }
    for finding in detected.findings:
        seen = known.get(finding.key)
        if seen is None:
            seen = TrackedFinding(finding, now.taken_at, confirmed=False, first_uptime=now.uptime)
        elif finding.urgent or now.uptime - seen.first_uptime >= confirm_after:
            seen = replace(seen, confirmed=True)
        observations[finding.key] = seen
    return observations


_OTHERS: Final = tuple(detector for detector in DETECTORS if detector is not leaked_reservation)
OWNED: Final = {State.IN_USE, State.NOT_READY, State.TEARDOWN_PENDING}
_SEEN_ONCE: Final = "no owner of any kind, but seen in one snapshot only"
"""A leak that is not confirmed: between two reads of one snapshot a pod can vanish."""


def first_state(snapshot: Snapshot, pods: Mapping[str, str] | None = None) -> ConfirmationState:
    return ConfirmationState(Assessment(SnapshotIndex(snapshot), ()), {}, pods or {})


def run(
    snapshot: Snapshot,
    before: ConfirmationState | None,
    *,
    grace: timedelta,
    confirm_after: timedelta,
) -> tuple[Report, ConfirmationState]:
    """Assess a snapshot.

    Leaks are confirmed first: a reservation is `leaked` only once two snapshots found the same file without an owner.
    Every other detector sees the final states, so that states, findings, metrics and JSON of a report agree.

    `grace`: how old a file without an owner must be; `confirm_after`: how long a finding must last.
    """
    before = before or first_state(snapshot)
    suspected = _with_memory(classify(snapshot, grace, before.pods), before)
    suspects = detect(suspected, (leaked_reservation,))
    observed = confirm(suspects, _without_ended_leaks(before, suspected), snapshot, confirm_after)
    # As first seen: a later restart did not cause an earlier leak.
    leaks = [
        seen for seen in (observed[finding.key] for finding in suspects.findings) if seen.confirmed
    ]
    assessment = _with_leaks(suspected, {leak.finding.key for leak in leaks})
    detected = detect(assessment, _OTHERS)
    others = confirm(detected, before, snapshot, confirm_after)
    report = Report(
        assessment=assessment,
        networks=tuple(_summary(assessment, store) for store in snapshot.reservations),
        findings=(
            *leaked_reservation.summarized(leaks, runtimes.name_of(snapshot)),
            *(replace(others[finding.key], finding=finding) for finding in detected.findings),
        ),
        gaps=(*suspects.gaps, *detected.gaps),
        leak_causes=_known_causes(assessment, leaks),
        newly_confirmed=_newly_confirmed(leaks, before),
        clock_stepped=clock_stepped(before, snapshot),
        bugs=(*snapshot.bugs, *suspects.bugs, *detected.bugs),
    )
    return report, ConfirmationState(assessment, {**observed, **others}, _pods(assessment, before))


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
            gaps.append(SkippedCheck(detector.NAME, str(missing), chosen=missing.chosen))
        except Exception as error:  # noqa: BLE001 (a broken detector must not silence the others; it is logged as a gap)
            bugs.append(bug_of("detector", detector.NAME, error))
            gaps.append(
                SkippedCheck(detector.NAME, f"{type(error).__name__}: {error}", broken=True)
            )
    return Detected(tuple(findings), tuple(gaps), tuple(bugs))


def _with_memory(assessment: Assessment, before: ConfirmationState) -> Assessment:
    """Add what earlier snapshots know of the reservations. Where none can be read now, that stays known."""
    earlier, snapshot = before.assessment, assessment.snapshot
    if not _read(snapshot):
        return replace(assessment, pending=earlier.pending, host_ports=earlier.host_ports)
    entries = {} if clock_stepped(before, snapshot) else earlier.classified
    owned = (leak for leak in assessment.leaked if leak in entries and entries[leak].state in OWNED)
    return replace(
        assessment,
        last_owned=dict.fromkeys(owned, earlier.snapshot.taken_at),
        pending=stuck_teardown.pending_since(assessment, earlier.pending),
        host_ports=host_ports.in_specs(assessment, earlier.host_ports),
    )


def _read(snapshot: Snapshot) -> set[str]:
    """Return the networks whose reservations were read."""
    return {store.network for store in snapshot.reservations if isinstance(store.reading, Known)}


def _without_ended_leaks(before: ConfirmationState, suspected: Assessment) -> ConfirmationState:
    """Forget the leaks that have ended: the file is gone, or has an owner. Of other findings, any may be missing."""
    entries, read = suspected.classified.items(), _read(suspected.snapshot)
    lasting = {
        leaked_reservation.key(leak)
        for leak, entry in entries
        if entry.state in {State.UNKNOWN, State.LEAKED}
    }
    observations = {
        key: seen
        for key, seen in before.observations.items()
        if key in lasting or seen.finding.network not in read
    }
    return replace(before, observations=observations)


def _with_leaks(suspected: Assessment, confirmed: Collection[Key]) -> Assessment:
    """Make every reservation without an owner a candidate, unless it is a confirmed leak."""
    seen_once = {leak for leak in suspected.leaked if leaked_reservation.key(leak) not in confirmed}
    if not seen_once:
        return suspected
    reservations = (
        replace(entry, state=State.CANDIDATE, why=_SEEN_ONCE) if entry.entry in seen_once else entry
        for entry in suspected.reservations
    )
    return replace(suspected, reservations=tuple(reservations))


def _known_causes(
    assessment: Assessment, leaks: Iterable[TrackedFinding]
) -> dict[ReservationKey, LeakCause]:
    causes = {leak.finding.key: leak.finding.cause for leak in leaks}
    found = ((leak.key, causes[leaked_reservation.key(leak)]) for leak in assessment.leaked)
    return {
        key: cause
        for key, cause in found
        if isinstance(cause, LeakCause) and cause is not LeakCause.UNKNOWN
    }


def _newly_confirmed(
    leaks: Iterable[TrackedFinding], before: ConfirmationState
) -> Counter[tuple[str, LeakCause]]:
    """Count by network and cause."""
    known = before.confirmed
    new = (leak.finding for leak in leaks if leak.finding.key not in known)
    return Counter((leak.network, leak.cause) for leak in new if isinstance(leak.cause, LeakCause))


def _pods(assessment: Assessment, before: ConfirmationState) -> Mapping[str, str]:
    """Return the pods of the reserved IDs; those known before where no reservation was read."""
    if not _read(assessment.snapshot):
        return before.pods
    return {
        entry.container_id: entry.pod
        for entry in assessment.reservations
        if entry.container_id and entry.pod
    }


def _summary(assessment: Assessment, store: NetworkStore) -> NetworkSummary:
    network = store.network
    if isinstance(store.reading, NotRequested):
        return NetworkSummary(network, None, None, None, None, None, not_in_use=store.reading.why)
    entries, ranges = or_none(assessment.of, network), or_none(assessment.ranges, network)
    size, free = None if ranges is None else usable(ranges), or_none(assessment.free, network)
    reserved = None if entries is None else sum(entry.blocks for entry in entries)
    counts = None if entries is None else Counter(entry.state for entry in entries)
    states = None if counts is None else {state: counts[state] for state in State}
    return NetworkSummary(network, ranges, size, reserved, free, states)


def needs_second_snapshot(snapshot: Snapshot, grace: timedelta) -> bool:
    """Return whether a snapshot leaves anything to confirm."""
    assessment = _with_memory(classify(snapshot, grace), first_state(snapshot))
    return bool(assessment.leaked or detect(assessment, _OTHERS).findings)


def replay(
    snapshots: Iterable[Snapshot],
    *,
    grace: timedelta,
    confirm_after: timedelta,
    pods: Mapping[str, str] | None = None,
) -> Report:
    """Assess snapshots, and keep of the last what was confirmed, for a command. `pods`: names by container ID."""
    state: ConfirmationState | None = None
    report: Report | None = None
    for snapshot in map(with_history, snapshots):
        before = state or first_state(snapshot, pods)
        report, state = run(snapshot, before, grace=grace, confirm_after=confirm_after)
    if report is None:
        raise ValueError("no snapshot to assess")
    return replace(
        report, findings=tuple(finding for finding in report.findings if finding.confirmed)
    )
