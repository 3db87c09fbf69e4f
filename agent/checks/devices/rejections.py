"""Every pod that the kubelet rejected for a device: why, and what happens to it. Pure."""

from typing import Final

from agent.checks.devices.pod_outcome import overdue, predict_outcome
from agent.checks.devices.rejection_cause import Explanation, RejectionAnalysis
from agent.checks.devices.resource_state import resource_states
from agent.model.rejections import RejectedPod, Rejection, RejectionCause
from agent.model.snapshot import Known, Pod, Snapshot

_UNAVAILABLE: Final = (RejectionCause.UNVERIFIED, "the node's device plugins are unavailable")


def rejected_pods(snapshot: Snapshot) -> tuple[RejectedPod, ...]:
    """Return every rejected pod but those that are being deleted in time.

    Without the device plugins the pods are the same, and the causes are unverified.
    """
    rejections = _rejections(snapshot)
    if not isinstance(snapshot.device_plugins, Known):
        return tuple(
            _rejected_pod(pod, rejection, rejection.resource, _UNAVAILABLE, snapshot, healthy=False)
            for pod, rejection in rejections
        )
    analysis = RejectionAnalysis.of(snapshot)
    by_socket = {socket: resource for resource, socket in analysis.sockets.items()}
    healthy = {state.resource for state in resource_states(snapshot) if state.registered}
    rejected = []
    for pod, rejection in rejections:
        # If the message names a socket and no resource, the rejection's resource is a guess from the spec.
        resource = by_socket.get(rejection.socket, rejection.resource)
        cause = analysis.cause(pod, rejection, resource)
        rejected.append(_rejected_pod(pod, rejection, resource, cause, snapshot, healthy=resource in healthy))
    return tuple(rejected)


def _rejections(snapshot: Snapshot) -> list[tuple[Pod, Rejection]]:
    failed = ((pod, pod.rejection) for pod in snapshot.pods.known() if pod.phase == "Failed")
    return [
        (pod, rejection)
        for pod, rejection in failed
        if rejection is not None and (not pod.deleting or overdue(pod, snapshot))
    ]


def _rejected_pod(
    pod: Pod, rejection: Rejection, resource: str, explanation: Explanation, snapshot: Snapshot, *, healthy: bool
) -> RejectedPod:
    cause, why = explanation
    outcome, do = predict_outcome(pod, rejection, cause, snapshot, healthy=healthy)
    return RejectedPod(pod.name, pod.uid, pod.controller, resource, rejection.at, cause, outcome, why, do)
