"""The kubelet had no device for a pod and rejected it: it stays Failed, nothing admits it again.

After a restart, a kubelet admits pods before the device plugins have registered again. It rejects
pods in between with `UnexpectedAdmissionError` (or `OutOf…`), even pods that had run. The scheduler
does not know that and may send more.

Means: the kubelet rejected the pod, which is Failed. The message gives the cause, by the times of
the rejection and of the plugin's registration; `unverified` if they do not prove it. Five pods of
one controller in ten minutes share one finding.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Final

from agent.checks.detector import Advice, Noun, Step
from agent.checks.devices.rejection_cause import explain
from agent.checks.devices.resources import resource_states
from agent.checks.devices.view import DeviceView
from agent.model.assessment import Assessment
from agent.model.finding import Finding, Severity
from agent.model.rejections import PodOutcome, RejectedPod, Rejection, RejectionCause
from agent.model.snapshot import Known, Pod, Snapshot
from agent.model.text import format_time, join_names

NAME = "rejected_pod"
SEVERITIES: Final = (Severity.WARNING,)
NOUN: Final = Noun(
    "pod rejected by the kubelet for a device", "pods rejected by the kubelet for a device"
)
ADVICE: Final = Advice(
    steps=(
        Step(
            "If nothing replaces the pod, save its manifest, and delete it when the devices are "
            "healthy again (`kubectl delete pod`); never with --force, which can leak the address "
            "of a pod that had run."
        ),
        Step("If its controller replaces it, delete the leftover at your convenience."),
        Step(
            "To prevent it, give the plugin the priority class system-node-critical, taint nodes "
            "until their devices are registered, and run kubelet 1.27.6, 1.28 or later."
        ),
    ),
    runbook="Devices.md#nodeleakrejectedpods",
    in_messages=True,
)

STORM_PODS: Final = 5
STORM_WITHIN: Final = timedelta(minutes=10)
_NAMED: Final = 3
"""How many pods of a storm a message names."""

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

NO_FORCE: Final = "never use --force, which can leak the address of a pod that had run"
_LEFTOVER: Final = f"delete the failed pod at your convenience; {NO_FORCE}"


def find(assessment: Assessment) -> Iterator[Finding]:
    rejected = list(rejected_pods(assessment.snapshot))
    in_storms: set[RejectedPod] = set()
    for storm in _storms(rejected):
        in_storms.update(storm)
        yield _finding_about_storm(storm)
    for pod in rejected:
        if pod not in in_storms:
            yield _finding_about_pod(pod)

    # Last: without the device plugins the pods are known, but not the causes.
    assessment.snapshot.device_plugins.known()


def rejected_pods(snapshot: Snapshot) -> Iterator[RejectedPod]:
    """Yield every rejected pod, unless it is deleted and not overdue.

    Without the device plugins, causes are unverified.
    """
    view: DeviceView | None = None
    by_socket: dict[str, str] = {}
    healthy: set[str] = set()
    if isinstance(snapshot.device_plugins, Known):
        view = DeviceView.of(snapshot)
        by_socket = {socket: resource for resource, socket in view.sockets.items()}
        healthy = {state.resource for state in resource_states(view) if state.registered}

    for pod in snapshot.pods.known():
        rejection = pod.rejection
        if pod.phase != "Failed" or rejection is None:
            continue
        if pod.deleting and not _overdue_since(pod, snapshot):
            continue

        # If the message names a socket and no resource, the resource is a guess from the spec.
        resource = by_socket.get(rejection.socket, rejection.resource)
        cause = RejectionCause.NOT_FOR_A_DEVICE
        evidence = f"the kubelet reported {rejection.reason}: {rejection.message}"
        if rejection.for_device:
            cause, evidence = explain(view, pod, rejection, resource)
        outcome, advice = _outcome(pod, rejection, cause, snapshot, healthy=resource in healthy)
        yield RejectedPod(
            pod=pod.name,
            uid=pod.uid,
            controller=pod.controller,
            resource=resource,
            at=rejection.at,
            cause=cause,
            pod_outcome=outcome,
            why=evidence,
            do=advice,
        )


def _overdue_since(pod: Pod, snapshot: Snapshot) -> datetime | None:
    """Return since when a deleted pod should be gone, by the API server's clock.

    None: it may still exist.
    """
    if pod.deletion and snapshot.api_time - pod.deletion > OVERDUE:
        return pod.deletion
    return None


def _outcome(
    pod: Pod, rejection: Rejection, cause: RejectionCause, snapshot: Snapshot, *, healthy: bool
) -> tuple[PodOutcome, str]:
    """Return what happens to a rejected pod, and that in words with what to do.

    `healthy`: the kubelet has healthy devices of the resource now.
    """
    if since := _overdue_since(pod, snapshot):
        overdue = f"deleted, and should have been gone by {format_time(since)}"
        return PodOutcome.TERMINATING_STUCK, f"{overdue}, but {_deletion_blocker(pod)}"

    when = "(its devices are healthy again)" if healthy else "once its devices are healthy again"
    if cause is RejectionCause.EXHAUSTED:
        when = "once a device is free"
    delete = f"delete it {when}; {NO_FORCE}"

    controller = pod.controller
    kind = controller.partition("/")[0]
    if kind not in REPLACED_WITHIN:
        reason = f"{controller} need not replace it" if controller else "it has no controller"
        return PodOutcome.STUCK, f"{reason}, so it stays Failed: {delete}"
    limit = REPLACED_WITHIN[kind]
    if limit and rejection.at and snapshot.taken_at - rejection.at > limit:
        return PodOutcome.STUCK, f"{controller} should have replaced it by now: {delete}"
    reaction = "counts it as a failure and retries" if kind == "Job" else "replaces it"
    return PodOutcome.REPLACED_BY_CONTROLLER, f"{controller} {reaction}; {_LEFTOVER}"


def _deletion_blocker(pod: Pod) -> str:
    if pod.finalizers:
        finalizers = ", ".join(pod.finalizers)
        return (
            f"its finalizers remain: {finalizers}; the controller that owns them must remove them"
        )
    return (
        "the kubelet has not finished deleting it; only a kubelet restart makes it try again, and "
        "every device plugin must then register again: ask the owner of the node first; "
        f"{NO_FORCE}"
    )


def _finding_about_pod(pod: RejectedPod) -> Finding:
    subject = f"pod {pod.pod}"
    rejected = f"{subject} was rejected for {pod.resource or 'a device'}"
    is_stuck = pod.pod_outcome is PodOutcome.TERMINATING_STUCK
    return Finding(
        NAME,
        subject,
        f"{rejected}: {pod.why}; {pod.do}",
        pod=pod.pod,
        cause=pod.cause,
        since=pod.at,
        identity=(pod.uid,),
        # Each pod that cannot end has its own advice.
        group=None if is_stuck else (pod.resource, pod.cause, pod.pod_outcome),
        resource=pod.resource,
        pod_outcome=pod.pod_outcome,
        rejected_pods=(pod,),
    )


def _finding_about_storm(pods: Sequence[RejectedPod]) -> Finding:
    """Return a finding with the advice for the commonest cause and outcome."""
    commonest, _ = Counter((pod.cause, pod.pod_outcome) for pod in pods).most_common(1)[0]
    typical = next(pod for pod in pods if (pod.cause, pod.pod_outcome) == commonest)
    subject = f"pods of {_controller_and_namespace(typical)}"
    names = ", ".join(pod.pod for pod in pods[:_NAMED])
    if len(pods) > _NAMED:
        names += f" and {len(pods) - _NAMED} more"
    rejected = f"{len(pods)} {subject} were rejected for {typical.resource or 'a device'}"
    return Finding(
        NAME,
        subject,
        f"{rejected} ({names}); for the first of them: {typical.why}; {typical.do}",
        cause=typical.cause,
        since=pods[0].at,
        resource=typical.resource,
        pod_outcome=typical.pod_outcome,
        rejected_pods=tuple(pods),
    )


def describe_group(findings: Sequence[Finding], _assessment: Assessment) -> str:
    """Describe several pods that were rejected for one resource and cause."""
    first = findings[0].rejected_pods[0]
    pods = join_names([finding.pod for finding in findings])
    rejected = f"{len(findings)} pods were rejected for {first.resource or 'a device'} ({pods})"
    return f"{rejected}; for the first of them: {first.why}; {first.do}"


def _storms(rejected: Iterable[RejectedPod]) -> Iterator[tuple[RejectedPod, ...]]:
    """Yield the pods of each controller of which many were rejected in a short time."""
    by_controller: defaultdict[str, list[tuple[datetime, RejectedPod]]] = defaultdict(list)
    for pod in rejected:
        if pod.controller and pod.at is not None:
            by_controller[_controller_and_namespace(pod)].append((pod.at, pod))

    for pods in by_controller.values():
        pods.sort(key=lambda dated: (dated[0], dated[1].pod, dated[1].uid))
        storm: dict[RejectedPod, None] = {}
        for start in range(len(pods) - STORM_PODS + 1):
            window = pods[start : start + STORM_PODS]
            if window[-1][0] - window[0][0] <= STORM_WITHIN:
                storm |= dict.fromkeys(pod for _, pod in window)
        if storm:
            yield tuple(storm)


def _controller_and_namespace(pod: RejectedPod) -> str:
    return f"{pod.controller} in {pod.pod.partition('/')[0]}"
