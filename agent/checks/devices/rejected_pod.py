"""The kubelet rejected a pod because it had no device for it, and the pod stays Failed: nothing admits it again.

After a restart, a kubelet admits pods before the device plugins have registered again. It rejects pods in between with
`UnexpectedAdmissionError` (or `OutOf…`), even pods that had run. The scheduler does not know that and may send more.

Means: the kubelet rejected the pod, which is Failed. The message gives the cause, by the times of the rejection and of
the plugin's registration; `unverified` if they do not prove it. Five pods of one controller in ten minutes share one.
Do: if nothing replaces the pod, save its manifest, and delete it when the devices are healthy again (`kubectl delete
pod`); never with --force, which can leak the address of a pod that had run. If its controller replaces it, delete the
leftover at your convenience. To prevent it, give the plugin the priority class system-node-critical, taint nodes until
their devices are registered, and run kubelet 1.27.6, 1.28 or later.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Final

from agent.checks.devices.rejection_cause import explain
from agent.checks.devices.state import DeviceView, resource_states
from agent.model.assessment import Assessment
from agent.model.finding import Finding, Severity
from agent.model.rejections import PodOutcome, RejectedPod, Rejection, RejectionCause
from agent.model.snapshot import Known, Pod, Snapshot
from agent.model.text import format_time

NAME = "rejected_pod"
SEVERITIES: Final = (Severity.WARNING,)

STORM_PODS: Final = 5
STORM_WITHIN: Final = timedelta(minutes=10)
_NAMED: Final = 3
"""How many pods of a storm a message names."""

OVERDUE: Final = timedelta(seconds=60)
"""How long after its deletionTimestamp a pod may still exist."""
REPLACED_WITHIN: Final = {
    "ReplicaSet": None,
    "ReplicationController": None,
    "Job": None,
    "StatefulSet": timedelta(minutes=2),
    "DaemonSet": timedelta(minutes=16),
}
"""Controllers that replace failed pods. The last two delete the pod first, so an older pod is stuck."""

NO_FORCE: Final = "never use --force, which can leak the address of a pod that had run"
_LEFTOVER: Final = f"delete the failed pod at your convenience; {NO_FORCE}"


def find(assessment: Assessment) -> Iterator[Finding]:
    rejected = [*rejected_pods(assessment.snapshot)]
    storms = _storms(rejected)
    in_storms = {pod for storm in storms for pod in storm}
    yield from map(_storm, storms)
    yield from (_single(pod) for pod in rejected if pod not in in_storms)
    # Last: without the device plugins the pods are known, but not the causes.
    assessment.snapshot.device_plugins.known()


def rejected_pods(snapshot: Snapshot) -> Iterator[RejectedPod]:
    """Yield every rejected pod but those that are being deleted in time.

    Without the device plugins the pods are the same, and the causes are unverified.
    """
    view: DeviceView | None = None
    by_socket, healthy = dict[str, str](), set[str]()
    if isinstance(snapshot.device_plugins, Known):
        view = DeviceView.of(snapshot)
        by_socket = {socket: resource for resource, socket in view.sockets.items()}
        healthy = {state.resource for state in resource_states(snapshot) if state.registered}
    for pod in snapshot.pods.known():
        if pod.phase == "Failed" and pod.rejection and (not pod.deleting or _overdue(pod, snapshot)):
            # If the message names a socket and no resource, the rejection's resource is a guess from the spec.
            resource = by_socket.get(pod.rejection.socket, pod.rejection.resource)
            yield _rejected(pod, pod.rejection, resource, snapshot, view, healthy=resource in healthy)


def _rejected(
    pod: Pod, rejection: Rejection, resource: str, snapshot: Snapshot, view: DeviceView | None, *, healthy: bool
) -> RejectedPod:
    cause, why = RejectionCause.UNVERIFIED, "the node's device plugins are unavailable"
    if view:
        cause, why = explain(view, pod, rejection, resource)
    outcome, do = _outcome(pod, rejection, cause, snapshot, healthy=healthy)
    return RejectedPod(pod.name, pod.uid, pod.controller, resource, rejection.at, cause, outcome, why, do)


def _overdue(pod: Pod, snapshot: Snapshot) -> datetime | None:
    """Return since when a deleted pod should be gone, by the API server's clock; None: it may still exist."""
    return pod.deletion if pod.deletion is not None and snapshot.api_time - pod.deletion > OVERDUE else None


def _outcome(
    pod: Pod, rejection: Rejection, cause: RejectionCause, snapshot: Snapshot, *, healthy: bool
) -> tuple[PodOutcome, str]:
    """Return the outcome, and the advice. `healthy`: the kubelet has healthy devices of the resource now."""
    if since := _overdue(pod, snapshot):
        return (
            PodOutcome.TERMINATING_STUCK,
            f"deleted, and should have been gone by {format_time(since)}, but {_held_by(pod)}",
        )
    delete = f"delete it {_when(cause, healthy)}; {NO_FORCE}"
    kind = pod.controller.partition("/")[0]
    if kind not in REPLACED_WITHIN:
        whose = f"{pod.controller} need not replace it" if pod.controller else "it has no controller"
        return PodOutcome.STUCK, f"{whose}, so it stays Failed: {delete}"
    grace = REPLACED_WITHIN[kind]
    if grace is not None and rejection.at is not None and snapshot.taken_at - rejection.at > grace:
        return PodOutcome.STUCK, f"{pod.controller} should have replaced it by now: {delete}"
    if kind == "Job":
        return PodOutcome.REPLACED_BY_CONTROLLER, f"{pod.controller} counts it as a failure and retries; {_LEFTOVER}"
    return PodOutcome.REPLACED_BY_CONTROLLER, f"{pod.controller} replaces it; {_LEFTOVER}"


def _held_by(pod: Pod) -> str:
    if pod.finalizers:
        return f"its finalizers remain: {', '.join(pod.finalizers)}; the controller that owns them must remove them"
    return (
        "the kubelet has not finished deleting it; only a kubelet restart makes it try again, and every device plugin "
        f"must then register again: ask the owner of the node first; {NO_FORCE}"
    )


def _when(cause: RejectionCause, healthy: bool) -> str:
    if cause is RejectionCause.EXHAUSTED:
        return "once a device is free"
    return "(its devices are healthy again)" if healthy else "once its devices are healthy again"


def _single(pod: RejectedPod) -> Finding:
    return Finding(
        detector=NAME,
        subject=f"pod {pod.pod}",
        message=f"pod {pod.pod} was rejected{_for(pod.resource)}: {pod.why}; {pod.do}",
        pod=pod.pod,
        cause=pod.cause,
        since=pod.at,
        identity=(pod.uid,),
        resource=pod.resource,
        pod_outcome=pod.pod_outcome,
        rejected_pods=(pod,),
    )


def _storm(storm: Sequence[RejectedPod]) -> Finding:
    typical = _typical(storm)
    whose, resource = _controller(typical), typical.resource
    names = ", ".join(pod.pod for pod in storm[:_NAMED])
    more = f" and {len(storm) - _NAMED} more" if len(storm) > _NAMED else ""
    return Finding(
        detector=NAME,
        subject=f"pods of {whose}",
        message=f"{len(storm)} pods of {whose} were rejected{_for(resource)} ({names}{more}); for the first of them: "
        f"{typical.why}; {typical.do}",
        cause=typical.cause,
        since=storm[0].at,
        resource=resource,
        pod_outcome=typical.pod_outcome,
        rejected_pods=tuple(storm),
    )


def _storms(rejected: Iterable[RejectedPod]) -> list[tuple[RejectedPod, ...]]:
    """Return the pods of each controller of which many were rejected in a short time."""
    by_controller: defaultdict[str, list[RejectedPod]] = defaultdict(list)
    for pod in rejected:
        if pod.controller and pod.at is not None:
            by_controller[_controller(pod)].append(pod)
    return [storm for pods in by_controller.values() if (storm := _in_storm(pods))]


def _in_storm(pods: Iterable[RejectedPod]) -> tuple[RejectedPod, ...]:
    in_order = sorted(pods, key=lambda pod: (str(pod.at), pod.pod, pod.uid))
    windows = (in_order[index : index + STORM_PODS] for index in range(len(in_order) - STORM_PODS + 1))
    close = {pod for window in windows if _close(window) for pod in window}
    return tuple(pod for pod in in_order if pod in close)


def _close(window: Sequence[RejectedPod]) -> bool:
    first, last = window[0].at, window[-1].at
    return first is not None and last is not None and last - first <= STORM_WITHIN


def _typical(storm: Sequence[RejectedPod]) -> RejectedPod:
    """Return the first pod with the most common cause and outcome."""
    kinds = Counter((pod.cause, pod.pod_outcome) for pod in storm)
    commonest = kinds.most_common(1)[0][0]
    return next(pod for pod in storm if (pod.cause, pod.pod_outcome) == commonest)


def _controller(pod: RejectedPod) -> str:
    return f"{pod.controller} in {pod.pod.partition('/')[0]}"


def _for(resource: str) -> str:
    return f" for {resource}" if resource else " for a device"
