"""The kubelet does not complete the teardown of a sandbox: its address or its pod stays.

The kubelet retries a teardown until it succeeds. It fails every time if the network plugin fails: a
CNI configuration or plugin binary was removed, or kubenet has no pod CIDR. If libcni's cached
result of a sandbox is empty, as after a power cut or on a full disk, containerd before 2.0 and
CRI-O before 1.31 cannot stop the sandbox. A process that does not end keeps its sandbox running.
With cri-dockerd, kubelets from 1.36 do not see a sandbox whose container was removed (`docker rm
-f`), and never tear it down.

Means: the teardown of a sandbox has been due for 5 minutes (severity info) or 15 (warning), and the
kubelet and the runtime have run for so long. It is due when its pod should be gone (the grace
period included), whether the sandbox runs or not; when its pod has had a newer sandbox; or as long
as snapshots show that the sandbox does not run, or that only a checkpoint of it is left. A damaged
cached result is a warning at once if the runtime cannot tear such a sandbox down. A container in
another namespace of containerd, that of docker or nerdctl, may run: it stays info.
Or a pod without such an address should have been gone for as long, and the kubelet says in an Event
of the last minutes that it cannot remove it: pods that the same cause keeps are one finding.
"""

from collections.abc import Collection, Iterator, Sequence
from datetime import timedelta
from typing import Final

from agent.checks.addresses.failed_kills import FailedKills, failed_kills, removable, unlisted
from agent.checks.addresses.teardown_due import Due, Evidence, teardown_due, trying_for
from agent.checks.detector import Advice, Noun, Step
from agent.checks.kubelet_service import LOG_FILES
from agent.checks.runtime_versions import forgives_damaged_result
from agent.checks.waiting.causes import groups
from agent.checks.waiting.evidence import remedies
from agent.model.assessment import Assessment, ClassifiedReservation, State
from agent.model.finding import WAITING_PODS, Finding, Severity
from agent.model.ranges import runs
from agent.model.snapshot import (
    EARLIEST,
    ENDED,
    FAILED_KILL,
    SANDBOX_OF_ANOTHER_CLIENT,
    SANDBOX_RECORDED,
    DamagedResult,
    InsufficientData,
    Pod,
    Reservation,
    SandboxFailure,
    Snapshot,
    known_or,
    require_available,
)
from agent.model.text import FEW, LONGEST_LIST, count_of, format_time, join_few, join_names

NAME = "stuck_teardown"
SEVERITIES: Final = (Severity.INFO, Severity.WARNING)
NOUN: Final = Noun(
    "address or pod whose teardown does not complete",
    "addresses or pods whose teardown does not complete",
)
_DAMAGED: Final = "damaged"
_RUNS: Final = "runs"
_REPLACED: Final = "replaced"
_RECORDED: Final = "recorded"
_HANGS: Final = "hangs"
_FOREIGN: Final = "foreign"
_FORGOTTEN: Final = "forgotten"
_FAILS: Final = "fails"
"""The kinds of findings, which have steps of their own."""
ADVICE: Final = Advice(
    steps=(
        Step(
            "If libcni's cached result is damaged, remove the named file. If the disk is full, "
            "free space first. The kubelet then releases the address within a minute.",
            kind=_DAMAGED,
        ),
        Step(
            "See why the attempts fail, and repair that: the pod's Events, and the logs of the "
            f"kubelet and the runtime (k3s and RKE2: also `{LOG_FILES}`) with the sandbox's ID. "
            "The kubelet then releases the address:",
            commands=(
                "kubectl get events -A --field-selector reason=FailedKillPod",
                "journalctl -u kubelet -u containerd -u crio -u 'k3s*' -u 'rke2*' | grep ID",
            ),
            kind=_FAILS,
        ),
        Step(
            "If the sandbox still runs, its processes may not end. See what they wait for, such as "
            "a file server (state D). Continue a shim that is stopped (`kill -CONT PID`, state T):",
            commands=("ps -eo pid,ppid,stat,wchan:30,args | awk '$3 ~ /^[DT]/'",),
            kind=_RUNS,
        ),
        Step(
            "A sandbox that its pod has replaced is torn down once more when the pod is deleted: "
            "delete the pod, then scan again.",
            kind=_REPLACED,
        ),
        Step(
            "One that the runtime has recorded but does not list is unknown to the kubelet: "
            "restart the runtime, which loads its records again.",
            kind=_RECORDED,
        ),
        Step(
            "If its creation or removal hangs, the runtime's log has the ID and the cause.",
            kind=_HANGS,
        ),
        Step(
            "If docker or nerdctl has the container, look there whether it is needed.",
            kind=_FOREIGN,
        ),
        Step(
            "With cri-dockerd and Kubernetes 1.36 or newer, check that no process has the address, "
            "move the checkpoint `/var/lib/cri-dockerd/sandbox/ID` to another directory, then "
            "release it:",
            commands=("nodeleak clean",),
            kind=_FORGOTTEN,
        ),
        Step("Never remove the sandbox with `ctr`: its address would leak."),
    ),
    runbook="StuckTeardown.md#nodeleakstuckteardown",
)

_LATE: Final = timedelta(minutes=5)
"""A teardown takes up to 4 minutes, and is tried each minute."""
_STUCK: Final = timedelta(minutes=15)


def find(assessment: Assessment) -> Iterator[Finding]:
    reported: set[str] = set()
    gap: InsufficientData | None = None
    try:
        for finding in _of_addresses(assessment):
            reported.add(finding.pod)
            yield finding
    except InsufficientData as missing:
        gap = missing

    yield from _of_pods(assessment, reported)
    if gap is not None:
        raise gap
    _require_events(assessment, reported)


def _of_addresses(assessment: Assessment) -> Iterator[Finding]:
    """Yield a finding for each address whose teardown is late. Raises InsufficientData."""
    assessment.require_reservations()
    assessment.snapshot.containers.known()
    if assessment.runtime.keeps_checkpoints:
        assessment.snapshot.checkpoints.known()

    for reservation, entry in assessment.classified.items():
        if entry.state in {State.TEARDOWN_PENDING, State.NOT_READY, State.IN_USE}:
            due = teardown_due(reservation, entry, assessment)
            if due is not None:
                yield from _late(reservation, entry, due, assessment)


def _of_pods(assessment: Assessment, reported: Collection[str]) -> Iterator[Finding]:
    """Yield a finding for each reason that keeps pods. `reported`: pods that have a finding."""
    snapshot = assessment.snapshot
    others = unlisted(snapshot, reported)
    for number, kills in enumerate(failed_kills(snapshot, reported)):
        lasted = min(_overdue(kills.pods[0], snapshot), trying_for(assessment))
        if lasted >= _LATE:
            severity = Severity.WARNING if lasted >= _STUCK else Severity.INFO
            yield _pods(kills, number, severity, snapshot, others=0 if number else others)


def _require_events(assessment: Assessment, reported: Collection[str]) -> None:
    """Raise InsufficientData if pods, or their Events, might say that a pod cannot be removed."""
    snapshot = assessment.snapshot
    require_available(snapshot.pods)
    late = any(_overdue(pod, snapshot) >= _LATE for pod in removable(snapshot, reported))
    if late and trying_for(assessment) >= _LATE:
        snapshot.sandbox_failures.known()


def _overdue(pod: Pod, snapshot: Snapshot) -> timedelta:
    return snapshot.api_time - pod.deletion if pod.deletion else timedelta(0)


def _pods(
    kills: FailedKills, number: int, severity: Severity, snapshot: Snapshot, *, others: int
) -> Finding:
    """Return the finding about pods that the same cause keeps.

    `number`: its place among the causes. `others`: pods whose Events were not listed.
    """
    failure = kills.failure
    names = [pod.name for pod in kills.pods]
    since = snapshot.taken_at - _overdue(kills.pods[0], snapshot)
    who = f"pod {names[0]} should have been gone"
    if len(names) > 1:
        who = f"{len(names)} pods should have been gone, the first"

    headline = f"{who} since {format_time(since)}: {_words(failure)}"

    details = []
    if len(names) > 1:
        details.append(f"pods: {join_few(names)}")
    if others:
        details.append(f"the Events of {count_of(others, 'other')} were not listed")

    return Finding(
        NAME,
        "pods that cannot be removed",
        "; ".join([headline, *details]),
        severity=severity,
        network=failure.network,
        pod=names[0] if len(names) == 1 else "",
        since=since,
        identity=(number, severity),
        affected=tuple(pod.uid for pod in kills.pods[:FEW]),
        headline=headline,
        details=tuple(details),
        told_by=_told_by(failure, snapshot),
        steps=tuple(remedies(failure)),
        pods=tuple(names),
        kinds=(_FAILS,),
    )


def _told_by(failure: SandboxFailure, snapshot: Snapshot) -> str:
    """Return who reports what to do if the same cause keeps pods from starting; empty: nobody."""
    others = [group.failure for group in groups(snapshot) if group.failure]
    causes = {(other.plugin, other.entry) for other in others if other.entry}
    return WAITING_PODS if (failure.plugin, failure.entry) in causes else ""


def _late(
    reservation: Reservation, entry: ClassifiedReservation, due: Due, assessment: Assessment
) -> Iterator[Finding]:
    """Yield a finding if a teardown has been due for too long, or cannot succeed."""
    is_impossible = bool(_damage(entry, assessment)) and _forgives(assessment) is False
    if due.lasted < _LATE and not (is_impossible and _is_old(entry, assessment)):
        return

    is_stuck = due.lasted >= _STUCK or is_impossible
    foreign = _state(entry, assessment) == SANDBOX_OF_ANOTHER_CLIENT
    severity = Severity.WARNING if is_stuck and not foreign else Severity.INFO
    reasons = (_owner(entry, due, assessment), *_reasons([entry], assessment))
    kinds = tuple(_kinds(entry, due, assessment))
    failure = _last_failure({entry.pod}, assessment)

    yield Finding(
        NAME,
        str(reservation.key),
        f"{entry.name} is reserved for {'; '.join(reasons)}",
        severity=severity,
        network=entry.network,
        pod=entry.pod,
        since=due.since,
        identity=(entry.container_id, severity),
        group=(entry.pod, severity) if entry.pod else None,
        steps=tuple(remedies(failure)) if failure and _FAILS in kinds else (),
        kinds=kinds,
    )


def _state(entry: ClassifiedReservation, assessment: Assessment) -> str:
    """Return what the runtime calls the state; empty: it has no such container."""
    container = assessment.index.containers.get(entry.container_id)
    return container.state if container else ""


def _is_old(entry: ClassifiedReservation, assessment: Assessment) -> bool:
    """Return whether its creation is over: until then, its cached result may be half written."""
    container = assessment.index.containers.get(entry.container_id)
    if container is None or container.running:
        return False
    age = assessment.snapshot.taken_at.timestamp() - container.created
    return age >= _LATE.total_seconds()


def _damage(entry: ClassifiedReservation, assessment: Assessment) -> list[DamagedResult]:
    """Return the damaged results of its sandbox: one prevents the teardown in all its networks."""
    if entry.state is State.IN_USE or _forgives(assessment):
        return []
    damaged = assessment.index.damaged_results
    return [result for (_, sandbox), result in damaged.items() if sandbox == entry.container_id]


def _forgives(assessment: Assessment) -> bool | None:
    """Return whether the runtime tears a sandbox down without its cached result; None: unknown."""
    answers = {forgives_damaged_result(runtime) for runtime in assessment.runtime.used}
    return answers.pop() if len(answers) == 1 else None


def _kinds(entry: ClassifiedReservation, due: Due, assessment: Assessment) -> Iterator[str]:
    """Yield what has steps of its own."""
    state = _state(entry, assessment)
    if _damage(entry, assessment):
        yield _DAMAGED
    elif state == SANDBOX_OF_ANOTHER_CLIENT:
        yield _FOREIGN
    elif entry.state is State.IN_USE:
        yield _RUNS
        yield _FAILS
    elif due.evidence is Evidence.FORGOTTEN:
        yield _FORGOTTEN
    elif due.evidence is Evidence.REPLACED:
        yield _REPLACED
    elif state == SANDBOX_RECORDED:
        yield _RECORDED
    elif state and state not in ENDED:
        yield _HANGS
    else:
        yield _FAILS


def _owner(entry: ClassifiedReservation, due: Due, assessment: Assessment) -> str:
    """Say whom the address is reserved for, and since when nothing tears it down."""
    since = format_time(due.since)
    if due.evidence is Evidence.FORGOTTEN:
        return (
            f"container {entry.container}, which no longer exists; kubelets from 1.36 never tear "
            "it down: check that no process has the address, move the checkpoint "
            f"/var/lib/cri-dockerd/sandbox/{entry.container_id} to another directory, then run "
            "nodeleak clean"
        )

    if entry.state is State.TEARDOWN_PENDING:
        return (
            f"container {entry.container}, which no longer exists; the kubelet has not completed "
            f"its teardown since {since}"
        )

    state = _state(entry, assessment)
    if state == SANDBOX_OF_ANOTHER_CLIENT:
        return (
            f"container {entry.container}, which is {state}, seen since {since}: docker or nerdctl "
            "has it, and the kubelet does not tear it down"
        )
    return f"sandbox {entry.container}, {_delay(entry, due, state)}"


def _delay(entry: ClassifiedReservation, due: Due, state: str) -> str:
    """Describe a sandbox that is not torn down. `state`: what the runtime calls it."""
    since = format_time(due.since)
    called = "which is not ready"
    if entry.state is State.IN_USE:
        called = "which still runs"
    elif state not in ENDED:
        called = f"which the runtime calls `{state or 'unnamed'}`"

    if due.evidence is Evidence.POD_DELETED:
        return f"{called}, although its pod should have been gone since {since}"
    if due.evidence is Evidence.REPLACED:
        return (
            f"{called}, and its pod has had a newer sandbox since {since}: nothing tears the old "
            "one down before the pod is deleted"
        )

    if state in ENDED:
        return f"which has not been ready since {since} and is not torn down"
    return (
        f"which the runtime has called `{state or 'unnamed'}` since {since}: it does not run, and "
        "it is not torn down"
    )


def _reasons(entries: Sequence[ClassifiedReservation], assessment: Assessment) -> Iterator[str]:
    """Yield why the teardown of these entries fails, as far as the node shows it."""
    damaged = {result.file: result for entry in entries for result in _damage(entry, assessment)}
    if damaged:
        is_one = len(damaged) == 1
        first = next(iter(damaged.values()))
        file = f"libcni's cached result {first.file} is damaged ({first.damage})"
        if not is_one:
            file = (
                f"{len(damaged)} of libcni's cached results are damaged, such as {first.file} "
                "(`nodeleak scan --output=wide` names all)"
            )

        runtimes = " or ".join(map(str, assessment.runtime.used)) or "the runtime"
        object_ = "it" if is_one else "them"
        cannot = f"{runtimes} cannot tear {object_} down"
        if _forgives(assessment) is None:
            cannot = f"possible cause: {runtimes} may be too old to tear {object_} down"

        remove = "remove this file" if is_one else "remove these files"
        yield (
            f"{cannot}, because {file}; {remove} below /var/lib/cni/results or /var/lib/cni/cache"
        )

    if failure := _last_failure({entry.pod for entry in entries}, assessment):
        yield _words(failure)


def _words(failure: SandboxFailure) -> str:
    problem = failure.message
    if failure.plugin:
        problem = f"plugin {failure.plugin} fails: {failure.message}"
    return f"the runtime says: {problem}"


def _last_failure(pods: set[str], assessment: Assessment) -> SandboxFailure | None:
    """Return the last Event by which the sandbox of one of these pods could not be removed."""
    failures = [
        failure
        for failure in known_or(assessment.snapshot.sandbox_failures, ())
        if failure.pod in pods and failure.reason == FAILED_KILL
    ]
    return max(failures, key=lambda failure: failure.at or EARLIEST, default=None)


def describe_group(findings: Sequence[Finding], assessment: Assessment) -> str:
    """Describe several addresses of one pod."""
    subjects = {finding.subject for finding in findings}
    entries = [
        entry
        for reservation, entry in assessment.classified.items()
        if str(reservation.key) in subjects
    ]

    ips = [entry.name for entry in entries]
    consecutive = runs(ips)
    shown = join_names(consecutive if len(consecutive) <= LONGEST_LIST else ips)
    sandboxes = count_of(len({entry.container_id for entry in entries}), "sandbox", "sandboxes")
    oldest = min(finding.since for finding in findings if finding.since)
    reasons = "".join(f"; {reason}" for reason in _reasons(entries, assessment))

    return (
        f"{count_of(len(ips), 'address', 'addresses')} of {sandboxes} of pod {findings[0].pod} "
        f"should have been released since {format_time(oldest)}: {shown}{reasons}"
    )
