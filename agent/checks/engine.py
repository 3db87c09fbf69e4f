"""One sync: classify every reservation, confirm what lasts, then detect. Pure, so that recordings replay."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Final

from agent.checks.addresses import leaked_reservation
from agent.checks.addresses.classify import ProvisionalStates, provisional_states
from agent.checks.addresses.leak_cause import LeakEvidence
from agent.checks.addresses.pending_teardown import pending_since, with_durations
from agent.checks.confirm import ConfirmationState, clock_stepped, confirm
from agent.checks.confirm_leaks import LeakObserver
from agent.checks.devices.history import with_history
from agent.checks.registry import DETECTORS, Detector
from agent.model.assessment import Assessment, ClassifiedReservation, State
from agent.model.finding import Finding, Gap, LeakCause, TrackedFinding
from agent.model.leak import Leaks
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
    provisional = provisional_states(snapshot, grace, before.pods if before else pods)
    assessment, observed = _with_confirmed_leaks(provisional, before, confirm_after)
    pending = pending_since(assessment, before.pending if before else {})
    assessment = with_durations(assessment, pending)
    leaks = list[TrackedFinding]()
    with _noting_gaps(leaked_reservation, observed.gaps):
        leaks += leaked_reservation.find_tracked(assessment)
    found, gaps = detect(assessment, _OTHERS)
    others, observations = confirm(found, gaps, before, snapshot, confirm_after)
    report = Report(
        assessment=assessment,
        networks=tuple(_summary(assessment, store) for store in snapshot.reservations),
        findings=(*leaks, *others),
        gaps=(*observed.gaps, *gaps),
        newly_confirmed=observed.newly_confirmed,
        clock_stepped=clock_stepped(before, snapshot.taken_at, snapshot.uptime),
    )
    state = ConfirmationState(snapshot.taken_at, snapshot.uptime, observations, _pods(assessment, before), pending)
    return report, replace(state, leaks=observed.remembered, reservations=assessment.reservations)


def detect(assessment: Assessment, detectors: Iterable[Detector]) -> tuple[tuple[Finding, ...], tuple[Gap, ...]]:
    """Run each detector. One that lacks data leaves a gap beside what it could still find."""
    findings: list[Finding] = []
    gaps: list[Gap] = []
    for detector in detectors:
        with _noting_gaps(detector, gaps):
            for finding in detector.find(assessment):
                findings.append(finding)  # noqa: PERF402 (a finding made before the gap counts)
    return tuple(findings), tuple(gaps)


@contextmanager
def _noting_gaps(detector: Detector, gaps: list[Gap]) -> Iterator[None]:
    try:
        yield
    except InsufficientData as missing:
        gaps.append(Gap(detector.NAME, str(missing), chosen=isinstance(missing, SourceDisabled)))
    except Exception as error:  # noqa: BLE001 (one broken detector must not silence the others; it is logged as a gap)
        gaps.append(Gap(detector.NAME, f"{type(error).__name__}: {error}", broken=True))


_SEEN_ONCE: Final = State.CANDIDATE, "no owner of any kind, but seen in one snapshot only"
"""A leak that is not confirmed: between two reads of one snapshot a pod can vanish."""


@dataclass(frozen=True, slots=True)
class _ObservedLeaks:
    remembered: Leaks
    """For the next snapshot."""
    newly_confirmed: Mapping[tuple[str, LeakCause], int]
    gaps: list[Gap]


def _with_confirmed_leaks(
    provisional: ProvisionalStates, before: ConfirmationState | None, confirm_after: timedelta
) -> tuple[Assessment, _ObservedLeaks]:
    """Make every reservation without an owner a candidate, unless it is a confirmed leak."""
    snapshot, gaps = provisional.snapshot, list[Gap]()
    observer = LeakObserver(before, snapshot, confirm_after)
    states = [_SEEN_ONCE if one[0] is State.LEAKED else one for one in provisional.states]
    with _noting_gaps(leaked_reservation, gaps):
        evidence = LeakEvidence.of(snapshot, (one for _, one in provisional.suspects()))
        for place, reservation in provisional.suspects():
            if observer.observe(reservation, evidence):
                states[place] = provisional.states[place]
        leaked_reservation.check_sources(snapshot)
    remembered = observer.remembered(_undecided(provisional) if gaps else lambda _: False)
    leaks = {one: leak for one, leak in observer.seen.items() if leak.confirmed}
    return provisional.assessment(states, leaks), _ObservedLeaks(remembered, observer.newly_confirmed, gaps)


def _undecided(provisional: ProvisionalStates) -> Callable[[Reservation], bool]:
    """Return whether a reservation that leaked before may leak still: it was not read, or nothing else was found."""
    judged = {one: state for one, (state, _) in zip(provisional.reservations, provisional.states, strict=True)}
    read = {store.network for store in provisional.snapshot.reservations if isinstance(store.reading, Known)}
    undecided = {State.UNKNOWN, State.LEAKED}
    return lambda one: judged[one] in undecided if one in judged else one.network not in read


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
    return NetworkSummary(
        name=network,
        ranges=ranges,
        usable=None if ranges is None else usable(ranges),
        reserved=None if entries is None else sum(one.blocks for one in entries),
        free=None if ranges is None or entries is None else free(ranges, (one.name for one in entries if one.blocks)),
        states=None if entries is None else _tally(entries),
    )


def _tally(entries: Iterable[ClassifiedReservation]) -> dict[State, int]:
    counted = Counter(classified.state for classified in entries)
    return {state: counted[state] for state in State}


def needs_second_snapshot(snapshot: Snapshot, grace: timedelta) -> bool:
    """Return whether a snapshot leaves anything to confirm."""
    provisional = provisional_states(snapshot, grace)
    if any(provisional.suspects()):
        return True
    assessment = provisional.assessment(provisional.states)
    findings, _ = detect(with_durations(assessment, pending_since(assessment, {})), _OTHERS)
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
