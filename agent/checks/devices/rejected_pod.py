"""The kubelet rejected a pod, for a device or otherwise: it stays Failed, nothing admits it again.

After a restart, a kubelet admits pods before the device plugins have registered again. It rejects
pods in between with `UnexpectedAdmissionError` (or `OutOf…`), even pods that had run. Pods are also
rejected for NUMA nodes, CPU, memory, labels, ports and others. The scheduler does not know that and
may send more. Evictions, preemptions and shutdowns are no rejections.

Means: the kubelet rejected the pod, which is Failed. For a device, the times of the rejection and
of the plugin's registration give the cause; `unverified` if they do not prove it. Otherwise the
kubelet's reason and message say why. Five pods of one controller in ten minutes are a storm, and
share one finding.
Severity info: it is over, and the controller has replaced the pod: what is left can be deleted.
Severity warning: the pod is not replaced, or more pods may be rejected.
Severity critical: a storm has lasted for two minutes and may go on.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Final, NamedTuple

from agent.checks.detector import Advice, Noun, Step
from agent.checks.devices.kubelet_versions import rejects_running_pods
from agent.checks.devices.rejection_cause import explain
from agent.checks.devices.rejection_outcome import (
    RACES,
    STORM_PODS,
    STORM_WITHIN,
    Case,
    Course,
    course_of,
    outcome_of,
    overdue_since,
    owner_of,
    runs,
)
from agent.checks.devices.rejection_steps import keep_away, steps_about
from agent.checks.devices.resources import resource_states
from agent.checks.devices.view import DeviceView
from agent.model.assessment import Assessment
from agent.model.devices import ResourceState
from agent.model.finding import Finding, Severity
from agent.model.rejections import (
    NODE_PORTS,
    TOPOLOGY,
    PodOutcome,
    RejectedPod,
    Rejection,
    RejectionCause,
    RejectionKind,
)
from agent.model.remedy import Remedy
from agent.model.snapshot import Known, Pod, Snapshot
from agent.model.text import count_of, join_few, join_names

NAME = "rejected_pod"
SEVERITIES: Final = (Severity.INFO, Severity.WARNING, Severity.CRITICAL)
NOUN: Final = Noun("pod rejected by the kubelet", "pods rejected by the kubelet")
_AT_BOOT: Final = "at_boot"
_AT_RESTART: Final = "at_restart"
_EVICTABLE: Final = "evictable"
ADVICE: Final = Advice(
    steps=(
        Step("A deletion with --force can leak the address of a pod that had run."),
        Step(
            "To prevent it, drain the node before a reboot, and uncordon it when its status has "
            "the devices again. Pods that are bound to a node are admitted when it boots: "
            "NoSchedule taints and priority classes do not spare them.",
            kind=_EVICTABLE,
        ),
        Step(
            "To prevent it without a drain, let the pod do without a device request: node affinity "
            "selects nodes as well.",
            kind=_AT_BOOT,
        ),
        Step(
            "To prevent it, update the kubelet to 1.25.14, 1.26.9, 1.27.6, 1.28 or later: its "
            "restart then spares pods that run.",
            kind=_AT_RESTART,
        ),
    ),
    runbook="Devices.md#nodeleakrejectedpods",
)

_LASTING: Final = timedelta(minutes=2)
"""Plugins that start with the node have registered by then."""
_A_LOOP: Final = 3
"""Starts of the kubelet in ten minutes. A change of its configuration needs one."""


class Judged(NamedTuple):
    """A rejected pod with what becomes of it."""

    case: Case
    course: Course
    pod: RejectedPod

    @property
    def key(self) -> tuple[str, str]:
        return self.pod.pod, self.pod.uid

    @property
    def alike(self) -> tuple[object, ...]:
        """What pods have in common that share one line and the same steps."""
        rejection = self.case.rejection
        return (
            "" if self.pod.resource else rejection.reason,
            rejection.refused is RejectionKind.REQUEST_REFUSED,
            self.pod.resource,
            self.pod.cause,
            self.pod.pod_outcome,
            self.case.pod.static,
        )


class _Context(NamedTuple):
    """What is known of the devices now; without the device plugins, nothing."""

    snapshot: Snapshot
    view: DeviceView | None
    states: Mapping[str, ResourceState]

    @property
    def lasting(self) -> frozenset[str]:
        """The registered resources, unless a kubelet that starts over and over soon loses them."""
        if self.restarts:
            return frozenset()
        return frozenset(name for name, state in self.states.items() if state.registered)

    @property
    def restarts(self) -> int:
        """How often the kubelet has started in the last ten minutes; 0 if that is not a loop."""
        if self.view is None:
            return 0
        since = self.snapshot.taken_at - STORM_WITHIN
        starts = sum(run.start.at >= since for run in self.view.runs)
        return starts if starts >= _A_LOOP else 0


def find(assessment: Assessment) -> Iterator[Finding]:
    context = _context(assessment.snapshot)
    rejected = list(_judge(context))
    in_storms: set[tuple[str, str]] = set()
    # What goes on comes first, and so do its steps.
    for storm in sorted(_storms(rejected), key=lambda storm: storm[0].course.is_over):
        in_storms.update(one.key for one in storm)
        yield _finding_about_storm(storm, context)

    groups: defaultdict[tuple[object, ...], list[Judged]] = defaultdict(list)
    for one in rejected:
        if one.key not in in_storms:
            # Each pod that cannot end has its own advice.
            own = one.pod.uid if one.pod.pod_outcome is PodOutcome.TERMINATING_STUCK else ""
            groups[(*one.alike, own)].append(one)

    for group in sorted(groups.values(), key=lambda group: group[0].course.is_over):
        steps = _steps(group, context)
        for one in group:
            yield _finding_about_pod(one, steps, context)

    # Last: without the device plugins the pods are known, but not the causes.
    assessment.snapshot.device_plugins.known()


def _context(snapshot: Snapshot) -> _Context:
    if not isinstance(snapshot.device_plugins, Known):
        return _Context(snapshot, None, {})
    view = DeviceView.of(snapshot)
    states = {state.resource: state for state in resource_states(view)}
    return _Context(snapshot, view, states)


def _judge(context: _Context) -> Iterator[Judged]:
    """Yield the rejected pods in the order of the API server, each with what becomes of it."""
    cases = list(_cases(context))
    by_owner: defaultdict[str, list[Case]] = defaultdict(list)
    for case in cases:
        by_owner[case.owner or case.pod.uid].append(case)

    running: defaultdict[str, list[Pod]] = defaultdict(list)
    for pod in filter(runs, context.snapshot.pods.known()):
        running[owner_of(pod)].append(pod)
    courses = {
        owner: course_of(own, running.get(owner, ()), context.lasting)
        for owner, own in by_owner.items()
    }

    for case in cases:
        course = courses[case.owner or case.pod.uid]
        outcome, consequence = outcome_of(case, course, context.snapshot)
        if context.restarts and case.cause in RACES:
            consequence += (
                f"; the kubelet has started {context.restarts} times within 10 minutes, and each "
                "start may reject pods: its log says why it ends"
            )

        rejected = RejectedPod(
            pod=case.pod.name,
            uid=case.pod.uid,
            controller=case.pod.controller,
            resource=case.resource,
            at=case.rejection.at,
            cause=case.cause,
            pod_outcome=outcome,
            why=case.evidence,
            consequence=consequence,
        )
        yield Judged(case, course, rejected)


def _cases(context: _Context) -> Iterator[Case]:
    """Yield every rejected pod, unless it is deleted and not overdue."""
    snapshot = context.snapshot
    sockets = context.view.sockets if context.view else {}
    by_socket = {socket: resource for resource, socket in sockets.items()}
    for pod in snapshot.pods.known():
        rejection = pod.rejection
        if pod.phase != "Failed" or rejection is None:
            continue
        if pod.deleting and not overdue_since(pod, snapshot):
            continue

        # If the message names a socket and no resource, the resource is a guess from the spec.
        resource = by_socket.get(rejection.socket, rejection.resource)
        if rejection.refused is RejectionKind.NOT_FOR_A_DEVICE:
            cause = RejectionCause.NOT_FOR_A_DEVICE
            evidence = _words(pod, rejection, context)
        else:
            cause, evidence = explain(context.view, pod, rejection, resource)
        yield Case(pod, rejection, resource, cause, evidence, _age(rejection, snapshot))


def _age(rejection: Rejection, snapshot: Snapshot) -> timedelta | None:
    """Return how long ago a pod was rejected, by the clock of who says so; None: unknown."""
    if rejection.at is None:
        return None
    now = snapshot.api_time if rejection.by_api else snapshot.taken_at
    return max(now - rejection.at, timedelta(0))


def _words(pod: Pod, rejection: Rejection, context: _Context) -> str:
    """Return what the kubelet says. It may be right although enough devices are free."""
    words = f"the kubelet says {rejection.reason}: {rejection.message}"
    if rejection.reason == NODE_PORTS:
        return words + _port_holders(pod, context.snapshot)
    if rejection.reason != TOPOLOGY:
        return words

    for resource in pod.wants:
        state = context.states.get(resource)
        if state and state.devices is not None and state.allocated is not None:
            free = max(0, state.devices - state.allocated)
            words += f"; {free} of {count_of(state.devices, 'device')} of {resource} are free now"
    return words


def _port_holders(pod: Pod, snapshot: Snapshot) -> str:
    """Return which live pods have host ports of a pod, in words.

    A pod in the host's network needs none to use one, so that there may be no such pod.
    """
    ports = set(pod.host_ports or ())
    holders = [
        f"{other.name} ({join_names(sorted(map(str, shared)))})"
        for other in snapshot.pods.known()
        if other.live and (shared := ports.intersection(other.host_ports or ()))
    ]
    return f"; live pods with the same host port: {join_names(holders)}" if holders else ""


def _rejected(pod: RejectedPod) -> str:
    return f"rejected for {pod.resource}" if pod.resource else "rejected"


def _finding_about_pod(one: Judged, steps: tuple[Remedy, ...], context: _Context) -> Finding:
    pod = one.pod
    subject = f"pod {pod.pod}"
    is_stuck = pod.pod_outcome is PodOutcome.TERMINATING_STUCK
    is_over = pod.pod_outcome is PodOutcome.REPLACED_BY_CONTROLLER

    return Finding(
        NAME,
        subject,
        f"{subject} was {_rejected(pod)}: {pod.why}; {pod.consequence}",
        severity=Severity.INFO if is_over else Severity.WARNING,
        pod=pod.pod,
        cause=pod.cause,
        since=pod.at,
        # A StatefulSet deletes a rejected pod and creates another one of that name.
        identity=() if one.case.kind == "StatefulSet" else (pod.uid,),
        group=None if is_stuck else one.alike,
        resource=pod.resource,
        pod_outcome=pod.pod_outcome,
        rejected_pods=(pod,),
        steps=steps,
        kinds=_kinds(one.case, context.snapshot),
    )


def _finding_about_storm(storm: Sequence[Judged], context: _Context) -> Finding:
    """Return a finding with the advice for the commonest cause and outcome."""
    commonest, _ = Counter(one.alike for one in storm).most_common(1)[0]
    typical = next(one for one in storm if one.alike == commonest)
    pod, course = typical.pod, typical.course

    subject = f"pods of {typical.case.owner}"
    names = join_few([one.pod.pod for one in storm])
    headline = f"{len(storm)} {subject} were {_rejected(pod)}"
    details = [f"pods: {names}", f"the first of them: {pod.why}", pod.consequence]

    severity = Severity.WARNING
    if not course.is_over:
        if course.is_storm:
            headline += ", and it may go on"
            if course.lasted >= _LASTING:
                severity = Severity.CRITICAL
        if pod.pod_outcome is not PodOutcome.REJECTED_AGAIN:
            details.append(course.evidence)
    elif pod.pod_outcome is PodOutcome.REPLACED_BY_CONTROLLER:
        severity = Severity.INFO

    return Finding(
        NAME,
        subject,
        "; ".join([headline, *details]),
        severity=severity,
        cause=pod.cause,
        since=storm[0].pod.at,
        resource=pod.resource,
        pod_outcome=pod.pod_outcome,
        rejected_pods=tuple(one.pod for one in storm),
        headline=headline,
        details=tuple(details),
        steps=_steps(storm, context, typical),
        kinds=_kinds(typical.case, context.snapshot),
    )


def describe_group(findings: Sequence[Finding], _assessment: Assessment) -> str:
    """Describe several pods that were rejected for one resource and cause."""
    first = findings[0].rejected_pods[0]
    pods = join_names([finding.pod for finding in findings])
    rejected = f"{len(findings)} pods were {_rejected(first)} ({pods})"
    return f"{rejected}; for the first of them: {first.why}; {first.consequence}"


def _kinds(case: Case, snapshot: Snapshot) -> tuple[str, ...]:
    """Return which steps prevent it: no drain evicts a static pod or one of a DaemonSet."""
    if case.cause is RejectionCause.NODE_REBOOT:
        is_drained = not case.pod.static and case.kind != "DaemonSet"
        return (_AT_BOOT, _EVICTABLE) if is_drained else (_AT_BOOT,)

    is_restart = case.cause is RejectionCause.KUBELET_RESTART
    if is_restart and rejects_running_pods(snapshot.kubelet_version):
        return (_AT_RESTART,)
    return ()


def _steps(
    group: Sequence[Judged], context: _Context, typical: Judged | None = None
) -> tuple[Remedy, ...]:
    """Return what to do about pods; `typical`: the one of a storm whose outcome most of them have.

    Pods of different controllers can be a storm as well, and it has to end first.
    """
    typical = typical or group[0]
    cases = [one.case for one in group]
    course = typical.course
    if not course.is_storm:
        course = course_of(cases, (), context.lasting)

    ordered = [typical.case, *(case for case in cases if case is not typical.case)]
    outcome = typical.pod.pod_outcome
    steps = steps_about(ordered, outcome, context.snapshot, context.lasting)
    if course.is_storm and not course.is_over:
        return tuple(keep_away(cases, context.snapshot, meanwhile=steps))
    return tuple(steps)


def _storms(rejected: Iterable[Judged]) -> Iterator[tuple[Judged, ...]]:
    """Yield the pods of each controller of which many were rejected in a short time."""
    by_controller: defaultdict[str, list[Judged]] = defaultdict(list)
    for one in rejected:
        if one.case.owner and one.case.age is not None:
            by_controller[one.case.owner].append(one)

    for pods in by_controller.values():
        pods.sort(key=lambda one: (-_seconds(one), one.pod.pod, one.pod.uid))
        storm: dict[tuple[str, str], Judged] = {}
        for start in range(len(pods) - STORM_PODS + 1):
            window = pods[start : start + STORM_PODS]
            if _seconds(window[0]) - _seconds(window[-1]) <= STORM_WITHIN.total_seconds():
                storm |= {one.key: one for one in window}
        if storm:
            yield tuple(storm.values())


def _seconds(one: Judged) -> float:
    return (one.case.age or timedelta(0)).total_seconds()
