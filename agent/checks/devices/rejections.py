"""Why the kubelet refused a pod for a device, and what becomes of it. Pure: a snapshot in, verdicts out."""

from agent.checks.devices import pod_outcome
from agent.checks.devices.rejection_cause import Witness
from agent.checks.devices.resource_state import resource_states
from agent.model.rejections import Stranded
from agent.model.snapshot import Seen, Snapshot


def judge(snapshot: Snapshot) -> tuple[Stranded, ...]:
    """Return every refused pod but those that are just going. Blind where the pods were not read.

    Where the device plugins were not read, the pods are the same; why they were refused is then not verified.
    """
    pods = snapshot.pods.known()
    seen = isinstance(snapshot.device_plugins, Seen) and bool(snapshot.device_plugins.items)
    witness = Witness.of(snapshot) if seen else None
    owners = {socket: resource for resource, socket in witness.sockets.items()} if witness else {}
    healthy = {state.resource for state in resource_states(snapshot) if state.registered} if seen else set()
    found = []
    for pod in pods:
        rejection = pod.rejection
        if rejection is None or pod.phase != "Failed" or (pod.deleting and not pod_outcome.overdue(pod, snapshot)):
            continue
        # Where the message names a socket and no resource, the resource is a guess from the spec.
        resource = owners.get(rejection.socket, rejection.resource)
        cause, why = witness.cause(pod, rejection, resource) if witness else pod_outcome.NOT_READ
        fate, do = pod_outcome.judge(pod, rejection, cause, snapshot, healthy=resource in healthy)
        found.append(Stranded(pod.name, pod.uid, pod.controller, resource, rejection.at, cause, fate, why, do))
    return tuple(found)
