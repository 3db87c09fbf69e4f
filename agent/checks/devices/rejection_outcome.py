"""What becomes of rejected pods, and whether the kubelet goes on rejecting. Pure."""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from agent.model.rejections import PodOutcome, Rejection, RejectionCause
from agent.model.snapshot import Pod, Snapshot
from agent.model.text import format_age, format_time

OVERDUE: Final = timedelta(seconds=60)
"""How long after its deletionTimestamp a pod may still exist."""
REPLACED_WITHIN: Final = {
    **dict.fromkeys(("ReplicaSet", "ReplicationController", "Job")),
    "StatefulSet": timedelta(minutes=2),
    "DaemonSet": timedelta(minutes=16),
}
"""Controllers that replace failed pods, and how long that may take; None: any time.

The last two delete the failed pod first. So if it is older than that, it is stuck.
"""
STORM_PODS: Final = 5
STORM_WITHIN: Final = timedelta(minutes=10)
_SETTLED: Final = timedelta(seconds=60)
"""By then a controller has created another pod, and the kubelet has admitted or rejected it."""
_QUIET_FOR_JOBS: Final = timedelta(minutes=11)  # its back-off grows to 10 minutes
_QUIET_FOR_DAEMON_SETS: Final = timedelta(minutes=17)  # 15 minutes
RACES: Final = frozenset({
    RejectionCause.NODE_REBOOT,
    RejectionCause.KUBELET_RESTART,
    RejectionCause.INIT_CONTAINER,
    RejectionCause.READMITTED_AFTER_COMPLETION,
})  # fmt: skip
"""Causes that end with the registration. A plugin that restarts may do so again."""
_PASSING: Final = frozenset({RejectionCause.PLUGIN_RESTART, RejectionCause.EXHAUSTED})
"""Causes that pass while the resource stays registered."""


class Case(NamedTuple):
    """A rejected pod, and why it was rejected."""

    pod: Pod
    rejection: Rejection
    resource: str
    cause: RejectionCause
    evidence: str
    age: timedelta | None
    """How long ago it was rejected; None: no record says when."""

    @property
    def owner(self) -> str:
        return owner_of(self.pod)

    @property
    def kind(self) -> str:
        return self.pod.controller.partition("/")[0]


class Course(NamedTuple):
    """How the rejections of a controller's pods go on."""

    is_over: bool
    evidence: str  # in words
    is_storm: bool = False
    """Five in ten minutes, one after the other, as far as is known."""
    lasted: timedelta = timedelta(0)
    """From the first to the last rejection of the last ten minutes in which there were any."""


def course_of(cases: Sequence[Case], running: Iterable[Pod], registered: Collection[str]) -> Course:
    """Return how the rejections of the pods of one controller go on.

    `running`: the pods of that controller that run or have completed. `registered`: the resources
    of which the kubelet has healthy devices now.
    """
    dated = sorted((case.age, number) for number, case in enumerate(cases) if case.age is not None)
    if not dated:
        return Course(is_over=False, evidence="no record says when it was rejected")

    age, number = dated[0]
    last = cases[number]
    recent = [(other, cases[number]) for other, number in dated if other - age <= STORM_WITHIN]
    lasted = recent[-1][0] - age
    is_storm = len(recent) >= STORM_PODS and not _has_paused(last, age, lasted, registered)

    causes = Counter(case.cause for _, case in recent)
    common = causes.most_common(1)[0][0]
    successor = _successor(last, running)
    if common in RACES and last.resource in registered:
        evidence = f"it is over: {last.resource} is registered now"
    elif successor and age >= _SETTLED:
        evidence = f"it is over: its pod {successor} runs"
    elif age > _quiet_after(last.kind):
        evidence = f"it is over: no pod was rejected for {format_age(age)}"
    else:
        several = f"{len(recent)} within {format_age(lasted)}, " if is_storm else ""
        evidence = f"it may go on: {several}the last pod was rejected {format_age(age)} ago"
        if not successor:
            evidence += ", and no later one runs here"
        return Course(is_over=False, evidence=evidence, is_storm=is_storm, lasted=lasted)
    return Course(is_over=True, evidence=evidence, is_storm=is_storm, lasted=lasted)


def _quiet_after(kind: str) -> timedelta:
    """Return for how long no pod of a controller is rejected once it is over."""
    if REPLACED_WITHIN.get(kind):  # it deletes rejected pods, so that none shows the rate
        return _QUIET_FOR_DAEMON_SETS
    return _QUIET_FOR_JOBS if kind == "Job" else STORM_WITHIN


def _has_paused(last: Case, age: timedelta, lasted: timedelta, registered: Collection[str]) -> bool:
    """Return whether pods are no longer sent one after the other.

    Back-offs double: the next pod is rejected within the time that it has lasted. If the cause is
    there still, a pause proves nothing.
    """
    passes = last.cause is RejectionCause.NOT_FOR_A_DEVICE
    passes = passes or (last.cause in _PASSING and last.resource in registered)
    return passes and age >= max(_SETTLED, 2 * lasted)


def _successor(last: Case, running: Iterable[Pod]) -> str | None:
    """Return a pod that was started after a pod was rejected."""
    at = last.rejection.at
    later = (pod.name for pod in running if at and pod.started and pod.started > at)
    return next(later, None)


def overdue_since(pod: Pod, snapshot: Snapshot) -> datetime | None:
    """Return since when a deleted pod should be gone, by the API server's clock.

    None: it may still exist.
    """
    if pod.deletion and snapshot.api_time - pod.deletion > OVERDUE:
        return pod.deletion
    return None


def outcome_of(case: Case, course: Course, snapshot: Snapshot) -> tuple[PodOutcome, str]:
    """Return what happens to a rejected pod if nobody acts, and that in words."""
    pod = case.pod
    if since := overdue_since(pod, snapshot):
        overdue = f"deleted, and should have been gone by {format_time(since)}"
        blocker = "the kubelet has not finished deleting it"
        if pod.finalizers:
            blocker = f"its finalizers remain: {', '.join(pod.finalizers)}"
        return PodOutcome.TERMINATING_STUCK, f"{overdue}, but {blocker}"

    controller = pod.controller
    if pod.static:
        return PodOutcome.STUCK, "it is a static pod: the kubelet does not try it again by itself"
    if case.kind not in REPLACED_WITHIN:
        reason = f"{controller} need not replace it" if controller else "it has no controller"
        return PodOutcome.STUCK, f"{reason}, so it stays Failed"

    limit = REPLACED_WITHIN[case.kind]
    if limit and case.age is not None and case.age > limit:
        return PodOutcome.STUCK, f"{controller} should have replaced it by now"
    reaction = "counts it as a failure and retries" if case.kind == "Job" else "replaces it"
    outcome = PodOutcome.REPLACED_BY_CONTROLLER if course.is_over else PodOutcome.REJECTED_AGAIN
    return outcome, f"{controller} {reaction}; {course.evidence}"


def runs(pod: Pod) -> bool:
    """Return whether the kubelet admitted it and started it, even if it has completed."""
    has_started = pod.started is not None and pod.phase in {"Running", "Succeeded"}
    return has_started and not pod.deleting


def owner_of(pod: Pod) -> str:
    """Return its controller and namespace; without a controller, empty."""
    return f"{pod.controller} in {pod.namespace}" if pod.controller else ""
