"""One round: tell what each reservation is, ask every detector, believe what lasts. Pure, so it can be replayed."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from datetime import timedelta

from agent.checks import confirm
from agent.checks.addresses import leaked_reservation
from agent.checks.addresses.classify import judge
from agent.checks.registry import DETECTORS, Detector
from agent.model.assessment import Occupancy, Scene, State
from agent.model.finding import Finding, Gap, Judged
from agent.model.ranges import free, usable
from agent.model.report import NetworkSummary, Report
from agent.model.snapshot import Blind, LeftAlone, Seen, Snapshot


def run(
    snapshot: Snapshot, memory: confirm.Memory | None, *, patience: timedelta, period: timedelta
) -> tuple[Report, confirm.Memory]:
    """Judge one look. `patience`: how old an ownerless file must be; `period`: how long a finding must last."""
    scene = judge(snapshot, patience, memory.pods if memory else None)
    findings, gaps = detect(scene, DETECTORS)
    judged, remembered = confirm.weigh(findings, gaps, memory, snapshot.taken_at, snapshot.uptime, period)
    scene = _a_leak_seen_once_is_young(scene, judged)
    known = {} if memory is None else memory.sightings
    return Report(
        scene=scene,
        networks=tuple(_summary(scene, store.network) for store in snapshot.reservations),
        findings=judged,
        gaps=gaps,
        newly_confirmed=tuple(
            one for one in judged if one.confirmed and not ((old := known.get(one.finding.key)) and old.confirmed)
        ),
        clock_stepped=confirm.clock_stepped(memory, snapshot.taken_at, snapshot.uptime),
    ), replace(remembered, pods=_names(scene, memory))


def detect(scene: Scene, detectors: Iterable[Detector]) -> tuple[tuple[Finding, ...], tuple[Gap, ...]]:
    """Ask each detector; one that has no word to judge by leaves a gap beside what it could still see."""
    findings: list[Finding] = []
    gaps: list[Gap] = []
    for detector in detectors:
        try:
            for finding in detector.find(scene):
                findings.append(finding)  # noqa: PERF402 (what was found before a gap stays found)
        except Blind as blind:
            gaps.append(Gap(detector.NAME, str(blind), chosen=isinstance(blind, LeftAlone)))
        except Exception as error:  # noqa: BLE001 (one broken detector must not silence the others; it is logged as a gap)
            gaps.append(Gap(detector.NAME, f"{type(error).__name__}: {error}", broken=True))
    return tuple(findings), tuple(gaps)


def _a_leak_seen_once_is_young(scene: Scene, judged: Iterable[Judged]) -> Scene:
    """Between two reads of one look a pod can vanish; only what two looks found the same is called leaked."""
    confirmed = {
        one.finding.subject
        for one in judged
        if one.confirmed and one.finding.detector == leaked_reservation.NAME
    }  # fmt: skip

    def settled(occupancy: Occupancy) -> Occupancy:
        if occupancy.state is not State.LEAKED or f"{occupancy.network}/{occupancy.name}" in confirmed:
            return occupancy
        return replace(occupancy, state=State.YOUNG, why="no owner of any kind, but seen only a moment ago")

    return replace(scene, occupancies=tuple(map(settled, scene.occupancies)))


def _names(scene: Scene, memory: confirm.Memory | None) -> dict[str, str]:
    """Keep the pods of the ids that are reserved, and all of them when no reservation was read."""
    if memory is not None and not any(isinstance(store.reading, Seen) for store in scene.snapshot.reservations):
        return dict(memory.pods)
    return {one.container_id: one.pod for one in scene.occupancies if one.container_id and one.pod}


def _summary(scene: Scene, network: str) -> NetworkSummary:
    try:
        occupancies = scene.of(network)
    except Blind:
        occupancies = None
    try:
        ranges = scene.ranges(network)
    except Blind:
        ranges = None
    taken = None if occupancies is None else [occupancy.name for occupancy in occupancies if occupancy.blocks]
    return NetworkSummary(
        name=network,
        ranges=ranges,
        usable=None if ranges is None else usable(ranges),
        reserved=None if taken is None else len(taken),
        free=None if ranges is None or taken is None else free(ranges, taken),
        states=None if occupancies is None else _tally(occupancies),
    )


def _tally(occupancies: Iterable[Occupancy]) -> dict[State, int]:
    counted = Counter(occupancy.state for occupancy in occupancies)
    return {state: counted[state] for state in State}


def needs_second_look(snapshot: Snapshot, patience: timedelta) -> bool:
    """Tell whether one look leaves something to confirm: a finding of any kind."""
    findings, _ = detect(judge(snapshot, patience), DETECTORS)
    return bool(findings)


def replay(looks: Iterable[Snapshot], *, patience: timedelta, period: timedelta) -> Report:
    """Judge looks one after the other, and keep of the last what had lasted: what a scan says."""
    memory: confirm.Memory | None = None
    report: Report | None = None
    for snapshot in looks:
        report, memory = run(snapshot, memory, patience=patience, period=period)
    if report is None:
        raise ValueError("no look to judge")
    return replace(report, findings=tuple(one for one in report.findings if one.confirmed))
