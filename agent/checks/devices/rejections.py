"""Why the kubelet refused a pod for a device, and what becomes of it. Pure: a snapshot in, verdicts out."""

from agent.checks.devices.pod_outcome import NOT_READ, overdue, predict_outcome
from agent.checks.devices.rejection_cause import RejectionAnalysis
from agent.checks.devices.resource_state import resource_states
from agent.model.rejections import RejectedPod
from agent.model.snapshot import Known, Snapshot


def rejected_pods(snapshot: Snapshot) -> tuple[RejectedPod, ...]:
    """Return every refused pod but those that are just going. Blind where the pods were not read.

    Where the device plugins were not read, the pods are the same; why they were refused is then not verified.
    """
    pods = snapshot.pods.known()
    seen = isinstance(snapshot.device_plugins, Known)
    analysis = RejectionAnalysis.of(snapshot) if seen else None
    owners = {socket: resource for resource, socket in analysis.sockets.items()} if analysis else {}
    healthy = {state.resource for state in resource_states(snapshot) if state.registered} if seen else set()
    found = []
    for pod in pods:
        rejection = pod.rejection
        if rejection is None or pod.phase != "Failed" or (pod.deleting and not overdue(pod, snapshot)):
            continue
        # Where the message names a socket and no resource, the resource is a guess from the spec.
        resource = owners.get(rejection.socket, rejection.resource)
        cause, why = analysis.cause(pod, rejection, resource) if analysis else NOT_READ
        pod_outcome, do = predict_outcome(pod, rejection, cause, snapshot, healthy=resource in healthy)
        found.append(
            RejectedPod(pod.name, pod.uid, pod.controller, resource, rejection.at, cause, pod_outcome, why, do)
        )
    return tuple(found)
