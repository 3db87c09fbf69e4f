"""The node's status has lost a volume: the controller has it attached, and the kubelet waits for ever to be told so.

Detaching it had failed, and a pod with it came back to the same node before the next try. `status.volumesInUse` names
it, `status.volumesAttached` does not, and the kubelet says `Volume not attached according to node status`.

Means: confirmed: its VolumeAttachment says attached, and a pod has waited for two minutes. Probable: a pod has waited
for ten, and the cluster tells of no error. Mounted: it is in use, and the controller may detach it under its pod.
Do: delete the pod that waits, wait until the volume has left both lists of the node's status and its VolumeAttachment
is gone, and only then let a pod with it come back. Or restart the kube-controller-manager: it learns what is attached
from the node's status. Clusters from 1.26 on (1.25.1, 1.24.5, 1.23.11, 1.22.14) put the entry back by themselves.
"""

from collections.abc import Iterator
from typing import Final

from agent.checks.volumes import lost_volumes
from agent.checks.volumes.lost_volumes import Detached
from agent.model.assessment import Assessment
from agent.model.finding import Finding, Severity, format_time
from agent.model.snapshot import Pod, Snapshot, known_or
from agent.model.volumes import Strength

NAME = "detached_volume"
SEVERITIES: Final = (Severity.WARNING, Severity.CRITICAL)

NAMED: Final = 3
"""Pods that are named; the others are counted."""

_AGAIN: Final = (
    "delete the pod, wait until the volume has left volumesInUse and volumesAttached and its VolumeAttachment is gone, "
    "and let the pod come back only then; or restart the kube-controller-manager"
)
_ATTACH: Final = "restart the kube-controller-manager, which then attaches it again; until then move its pods away"


def find(assessment: Assessment) -> Iterator[Finding]:
    snapshot = assessment.snapshot
    for one in lost_volumes.detached(snapshot):
        yield Finding(
            detector=NAME,
            severity=Severity.WARNING if one.strength is Strength.PROBABLE else Severity.CRITICAL,
            subject=f"volume {one.volume}",
            message=f"{one.strength.value}: {_trouble(one)}; {_version(snapshot.server_version)}; "
            f"{_ATTACH if one.strength is Strength.MOUNTED else _AGAIN}{_not_asked(snapshot)}",
            affected=tuple(pod.uid for pod in one.pods) if one.exact else (),
            pod=one.pods[0].name if one.exact and len(one.pods) == 1 else "",
            since=None
            if one.strength is Strength.MOUNTED
            else min((pod.scheduled for pod in one.pods if pod.scheduled is not None), default=None),
            strength=one.strength,
        )


def _trouble(one: Detached) -> str:
    match one.strength:
        case Strength.MOUNTED:
            used = f" (by {_names(one.pods)})" if one.pods else ""
            return f"{one.volume} is mounted{used}, and the node's volumesAttached does not name it: it may be detached"
        case Strength.CONFIRMED:
            known = f"{one.volume} is attached by its VolumeAttachment, and the node's volumesAttached does not name it"
        case Strength.PROBABLE:
            known = f"the node's volumesInUse names {one.volume}, and volumesAttached does not"
    if one.exact:
        return f"{known}: waited for by {_names(one.pods)}"
    return f"{known}; which pod needs it is not known, pods that wait with a claim: {_names(one.pods)}"


def _names(pods: tuple[Pod, ...]) -> str:
    named = ", ".join(_name(pod) for pod in pods[:NAMED])
    return f"{named} and {len(pods) - NAMED} more" if len(pods) > NAMED else named


def _name(pod: Pod) -> str:
    waits = pod.started is None and pod.scheduled is not None
    return f"{pod.name} since {format_time(pod.scheduled)}" if waits and pod.scheduled else pod.name


def _version(version: str) -> str:
    match lost_volumes.has_bug(version):
        case True:
            return f"Kubernetes {version} is known to lose such entries when detaching fails"
        case False:
            return f"Kubernetes {version} has the known fixes"
        case None:
            return "whether this version of Kubernetes is known to lose such entries is not known"


def _not_asked(snapshot: Snapshot) -> str:
    told = known_or(snapshot.attachments, None)
    left = sorted(told.not_requested) if told else ()
    return f" (not asked: {', '.join(left)})" if left else ""
