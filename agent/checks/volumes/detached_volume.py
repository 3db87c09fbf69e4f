"""A volume in use is missing from the node's status: it is attached, but the kubelet waits forever for the entry.

A detach failed, and a pod that uses the volume returned to the same node before the retry. `status.volumesInUse` lists
the volume, `status.volumesAttached` does not, and the kubelet logs `Volume not attached according to node status`.

Means: confirmed: the VolumeAttachment says attached and a pod has waited for 2 minutes. Probable: a pod has waited for
10 minutes and the cluster reports no attach error. Mounted: it is in use, and the controller may detach it under a pod.
A volume that the kubelet names in-tree and the controller by its CSI driver, or the other way, is the same, or unknown.
Do: first check that no other node has the volume. If it is mounted, restart the leader of the kube-controller-manager,
which attaches it again, and tell the owner of the storage. Otherwise cordon the node, delete the waiting pods, and
uncordon when the volume has left both lists of the node's status and its VolumeAttachment is gone; if that takes more
than ten minutes, restart that leader. Kubernetes 1.26 and later (1.25.1, 1.24.5, 1.23.11, 1.22.14) restores the entry.
"""

from collections.abc import Iterator
from typing import Final

from agent.checks.volumes import lost_volumes
from agent.checks.volumes.lost_volumes import Detached
from agent.model.assessment import Assessment
from agent.model.finding import Finding, Severity
from agent.model.runtime import is_since
from agent.model.snapshot import Pod, Snapshot, known_or
from agent.model.text import format_time
from agent.model.volumes import Confidence

NAME = "detached_volume"
SEVERITIES: Final = (Severity.WARNING, Severity.CRITICAL)

FIXED: Final = ((1, 22, 14), (1, 23, 11), (1, 24, 5), (1, 25, 1), (1, 26, 0))
"""The first releases of Kubernetes that restore the entry when a detach fails."""
_NAMED: Final = 3
"""How many pods a message names; it counts the others."""

_FIRST: Final = "first check that no other node has the volume; then"
_RECREATE_POD: Final = (
    f"{_FIRST} cordon the node, delete the waiting pods, and uncordon when the volume has left volumesInUse and "
    "volumesAttached and its VolumeAttachment is gone; if that takes more than ten minutes, restart the leader of the "
    "kube-controller-manager"
)
_REATTACH: Final = (
    f"{_FIRST} restart the leader of the kube-controller-manager, which attaches it again; tell the owner of the "
    "storage"
)


def find(assessment: Assessment) -> Iterator[Finding]:
    snapshot = assessment.snapshot
    for volume in lost_volumes.detached(snapshot):
        yield _finding(volume, snapshot)


def _finding(volume: Detached, snapshot: Snapshot) -> Finding:
    confidence, mounted = volume.confidence, volume.confidence is Confidence.MOUNTED
    scheduled = () if mounted else (pod.scheduled for pod in volume.pods if pod.scheduled is not None)
    remedy = f"{_REATTACH if mounted else _RECREATE_POD}{_not_requested(snapshot)}"
    return Finding(
        NAME,
        f"volume {volume.volume}",
        f"{confidence.value}: {_problem(volume)}; {_version(snapshot.server_version)}; {remedy}",
        Severity.WARNING if confidence is Confidence.PROBABLE else Severity.CRITICAL,
        pod=volume.pods[0].name if volume.exact and len(volume.pods) == 1 else "",
        since=min(scheduled, default=None),
        confidence=confidence,
        affected=tuple(pod.uid for pod in volume.pods) if volume.exact else (),
    )


def _problem(volume: Detached) -> str:
    name = volume.volume
    match volume.confidence:
        case Confidence.MOUNTED:
            used = f" (by {_names(volume.pods)})" if volume.pods else ""
            return f"{name} is mounted{used} but missing from the node's volumesAttached, so it may be detached"
        case Confidence.CONFIRMED:
            known = f"{name} is attached according to its VolumeAttachment but missing from the node's volumesAttached"
        case Confidence.PROBABLE:
            known = f"{name} is in the node's volumesInUse but missing from volumesAttached"
    if volume.exact:
        return f"{known}; waiting pods: {_names(volume.pods)}"
    return f"{known}; it is unknown which pod needs it; waiting pods with a claim: {_names(volume.pods)}"


def _names(pods: tuple[Pod, ...]) -> str:
    named = ", ".join(_name(pod) for pod in pods[:_NAMED])
    return f"{named} and {len(pods) - _NAMED} more" if len(pods) > _NAMED else named


def _name(pod: Pod) -> str:
    waits = pod.started is None and pod.scheduled is not None
    return f"{pod.name} since {format_time(pod.scheduled)}" if waits and pod.scheduled else pod.name


def _version(version: str) -> str:
    match is_since(version, FIXED):
        case True:
            return f"Kubernetes {version} has the known fixes"
        case False:
            return f"Kubernetes {version} has the known bug that loses such entries"
        case None:
            return "it is unknown whether this version of Kubernetes has the known bug"


def _not_requested(snapshot: Snapshot) -> str:
    attachments = known_or(snapshot.attachments, None)
    skipped = sorted(attachments.not_requested) if attachments else ()
    return f"; nodeleak may not {', '.join(skipped)}, so this is less certain" if skipped else ""
