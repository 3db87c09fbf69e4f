"""One sync: classify every reservation, confirm what lasts, then detect. Pure, so that recordings replay."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from agent.checks import runtime as runtimes
from agent.checks.addresses import host_ports, leaked_reservation, stuck_teardown
from agent.checks.addresses.classify import classify
from agent.checks.addresses.host_ports import Ports
from agent.checks.devices.state import with_history
from agent.checks.registry import DETECTORS, Detector
from agent.model.assessment import Assessment, State, or_none
from agent.model.finding import Finding, Key, LeakCause, SkippedCheck, TrackedFinding
from agent.model.ranges import usable
from agent.model.report import NetworkSummary, Report
from agent.model.snapshot import (
    InsufficientData,
    Known,
    NetworkStore,
    NotRequested,
    Reservation,
    ReservationKey,
    Snapshot,
)

CLOCK_STEP = timedelta(seconds=5)
"""A larger difference between the progress of the wall clock and of the boot clock means that the clock was set."""


@dataclass(frozen=True, slots=True)
class Observation:
    """A finding, kept from snapshot to snapshot."""

    first: Finding
    first_seen: datetime
    first_uptime: timedelta
    confirmed: bool = False


@dataclass(frozen=True, slots=True)
class ConfirmationState:
    """What a sync leaves to the next."""

    taken_at: datetime
    uptime: timedelta
    observations: Mapping[Key, Observation]
    pods: Mapping[str, str] = field(default_factory=dict)
    """The pod of each container ID that has a reservation: every other record of a leak's owner is gone."""
    pending: Mapping[Reservation, tuple[datetime, timedelta]] = field(default_factory=dict)
    """When each pending teardown was first seen, by both clocks: no record on the node says since when it is."""
    owned: frozenset[Reservation] = frozenset()  # the reservations that had an owner
    host_ports: Mapping[str, Ports] = field(default_factory=dict)
    """Those of the pod of each container ID that has a reservation (`Assessment.host_ports`)."""


class Detected(NamedTuple):
    findings: tuple[Finding, ...]
    gaps: tuple[SkippedCheck, ...]


class Confirmed(NamedTuple):
    findings: tuple[TrackedFinding, ...]
    observations: Mapping[Key, Observation]


def clock_stepped(before: ConfirmationState, snapshot: Snapshot) -> bool:
    """Return whether the wall clock was set since the last snapshot."""
    return abs((snapshot.taken_at - before.taken_at) - (snapshot.uptime - before.uptime)) > CLOCK_STEP


def confirm(
    detected: Detected, before: ConfirmationState, now: Snapshot, confirm_after: timedelta, ended: Collection[Key] = ()
) -> Confirmed:
    """Confirm each finding that the last snapshot had too and that has lasted for `confirm_after`, or is urgent.

    Durations are measured by the boot clock. Where a detector had a gap, its confirmed findings stay known, so that
    they do not count as new afterwards, except those that are certain to have `ended`; its candidates start over. All
    candidates start over when the clock was set.
    """
    confirmed = {key: observation for key, observation in before.observations.items() if observation.confirmed}
    known = confirmed if clock_stepped(before, now) else before.observations
    with_gap = {gap.detector for gap in detected.gaps}
    kept = ((key, seen) for key, seen in confirmed.items() if seen.first.detector in with_gap and key not in ended)
    observations, tracked = dict(kept), list[TrackedFinding]()
    for finding in detected.findings:
        observation = _observe(finding, known.get(finding.key), now, confirm_after)
        observations[finding.key] = observation
        tracked.append(TrackedFinding(finding, observation.first_seen, observation.confirmed))
    return Confirmed(tuple(tracked), observations)


def _observe(finding: Finding, earlier: Observation | None, now: Snapshot, confirm_after: timedelta) -> Observation:
    if earlier is None:
        return Observation(finding, now.taken_at, now.uptime)
    lasted = finding.urgent or now.uptime - earlier.first_uptime >= confirm_after
    return replace(earlier, confirmed=earlier.confirmed or lasted)


_OTHERS: Final = tuple(detector for detector in DETECTORS if detector is not leaked_reservation)
_OWNED: Final = {State.IN_USE, State.NOT_READY, State.TEARDOWN_PENDING}
_SEEN_ONCE: Final = "no owner of any kind, but seen in one snapshot only"
"""A leak that is not confirmed: between two reads of one snapshot a pod can vanish."""


def first_state(snapshot: Snapshot, pods: Mapping[str, str] | None = None) -> ConfirmationState:
    """Return the state before the first snapshot."""
    return ConfirmationState(snapshot.taken_at, snapshot.uptime, {}, pods or {})


def run(
    snapshot: Snapshot, before: ConfirmationState | None, *, grace: timedelta, confirm_after: timedelta
) -> tuple[Report, ConfirmationState]:
    """Assess a snapshot.

    Leaks are confirmed first: a reservation is `leaked` only once two snapshots found the same file without an owner.
    Every other detector sees the final states, so that states, findings, metrics and JSON of a report agree.

    `grace`: how old a file without an owner must be; `confirm_after`: how long a finding must last.
    """
    before = before or first_state(snapshot)
    suspected = _with_memory(classify(snapshot, grace, before.pods), before)
    suspects = detect(suspected, (leaked_reservation,))
    leaks = _as_first_seen(confirm(suspects, before, snapshot, confirm_after, _ended(suspected, before)))
    assessment = _with_leaks(suspected, leaks)
    detected = detect(assessment, _OTHERS)
    others = confirm(detected, before, snapshot, confirm_after)
    report = Report(
        assessment=assessment,
        networks=tuple(_summary(assessment, store) for store in snapshot.reservations),
        findings=(*leaked_reservation.summarized(leaks.findings, runtimes.name_of(snapshot)), *others.findings),
        gaps=(*suspects.gaps, *detected.gaps),
        leak_causes=_known_causes(assessment, leaks),
        newly_confirmed=_newly_confirmed(leaks, before),
        clock_stepped=clock_stepped(before, snapshot),
    )
    observations, names = {**leaks.observations, **others.observations}, _pods(assessment, before)
    owned = frozenset(reservation for reservation, entry in assessment.classified.items() if entry.state in _OWNED)
    pending, ports = assessment.pending, assessment.host_ports
    return report, ConfirmationState(snapshot.taken_at, snapshot.uptime, observations, names, pending, owned, ports)


def detect(assessment: Assessment, detectors: Iterable[Detector]) -> Detected:
    """Run each detector. If it lacks data, it leaves a gap beside what it could still find."""
    findings: list[Finding] = []
    gaps: list[SkippedCheck] = []
    for detector in detectors:
        try:
            for finding in detector.find(assessment):
                findings.append(finding)  # noqa: PERF402 (a finding made before the gap counts)
        except InsufficientData as missing:
            gaps.append(SkippedCheck(detector.NAME, str(missing), chosen=missing.chosen))
        except Exception as error:  # noqa: BLE001 (a broken detector must not silence the others; it is logged as a gap)
            gaps.append(SkippedCheck(detector.NAME, f"{type(error).__name__}: {error}", broken=True))
    return Detected(tuple(findings), tuple(gaps))


def _with_memory(assessment: Assessment, before: ConfirmationState) -> Assessment:
    """Add what earlier snapshots know of the reservations. Where none can be read now, that stays known."""
    if not _read(assessment.snapshot):
        return replace(assessment, pending=before.pending, host_ports=before.host_ports)
    owned = frozenset() if clock_stepped(before, assessment.snapshot) else before.owned
    return replace(
        assessment,
        last_owned={leak: before.taken_at for leak in assessment.leaked if leak in owned},
        pending=stuck_teardown.pending_since(assessment, before.pending),
        host_ports=host_ports.in_specs(assessment, before.host_ports),
    )


def _read(snapshot: Snapshot) -> set[str]:
    """Return the networks whose reservations were read."""
    return {store.network for store in snapshot.reservations if isinstance(store.reading, Known)}


def _ended(suspected: Assessment, before: ConfirmationState) -> frozenset[Key]:
    """Return the leaks that have ended, even if their detector has a gap: the file is gone, or has an owner."""
    entries, undecided = suspected.classified.items(), {State.UNKNOWN, State.LEAKED}
    keys = {leaked_reservation.key(reservation) for reservation, entry in entries if entry.state in undecided}
    known, read = ((key, seen.first) for key, seen in before.observations.items()), _read(suspected.snapshot)
    leaks = ((key, first.network) for key, first in known if first.detector == leaked_reservation.NAME)
    return frozenset(key for key, network in leaks if network in read and key not in keys)


def _as_first_seen(leaks: Confirmed) -> Confirmed:
    """Return the confirmed leaks with the cause seen first: a later restart did not cause an earlier leak."""
    confirmed = (leak for leak in leaks.findings if leak.confirmed)
    findings = (replace(leak, finding=leaks.observations[leak.finding.key].first) for leak in confirmed)
    return Confirmed(tuple(findings), leaks.observations)


def _with_leaks(suspected: Assessment, leaks: Confirmed) -> Assessment:
    """Make every reservation without an owner a candidate, unless it is a confirmed leak."""
    keys = {leak.finding.key for leak in leaks.findings}
    seen_once = {leak for leak in suspected.leaked if leaked_reservation.key(leak) not in keys}
    if not seen_once:
        return suspected
    reservations = (
        replace(entry, state=State.CANDIDATE, why=_SEEN_ONCE) if entry.entry in seen_once else entry
        for entry in suspected.reservations
    )
    return replace(suspected, reservations=tuple(reservations))


def _known_causes(assessment: Assessment, leaks: Confirmed) -> dict[ReservationKey, LeakCause]:
    causes = {leak.finding.key: leak.finding.cause for leak in leaks.findings}
    found = ((leak.key, causes[leaked_reservation.key(leak)]) for leak in assessment.leaked)
    return {key: cause for key, cause in found if isinstance(cause, LeakCause) and cause is not LeakCause.UNKNOWN}


def _newly_confirmed(leaks: Confirmed, before: ConfirmationState) -> Counter[tuple[str, LeakCause]]:
    """Count by network and cause."""
    known = {key for key, observation in before.observations.items() if observation.confirmed}
    new = (leak.finding for leak in leaks.findings if leak.finding.key not in known)
    return Counter((leak.network, leak.cause) for leak in new if isinstance(leak.cause, LeakCause))


def _pods(assessment: Assessment, before: ConfirmationState) -> Mapping[str, str]:
    """Return the pods of the reserved IDs; those known before where no reservation was read."""
    if not _read(assessment.snapshot):
        return before.pods
    return {entry.container_id: entry.pod for entry in assessment.reservations if entry.container_id and entry.pod}


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
    snapshots: Iterable[Snapshot], *, grace: timedelta, confirm_after: timedelta, pods: Mapping[str, str] | None = None
) -> Report:
    """Assess snapshots, and keep of the last what was confirmed, for a command. `pods`: names by container ID."""
    state: ConfirmationState | None = None
    report: Report | None = None
    for snapshot in map(with_history, snapshots):
        before = state or first_state(snapshot, pods)
        report, state = run(snapshot, before, grace=grace, confirm_after=confirm_after)
    if report is None:
        raise ValueError("no snapshot to assess")
    return replace(report, findings=tuple(finding for finding in report.findings if finding.confirmed))
