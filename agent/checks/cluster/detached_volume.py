"""A volume in use is missing from the node's status: the kubelet waits forever for the entry.

The volume is attached. A detach failed, and a pod that uses the volume returned to the same node
before the retry. `status.volumesInUse` lists the volume, `status.volumesAttached` does not, and the
kubelet logs `Volume not attached according to node status`.

Means: confirmed: the VolumeAttachment says attached and a pod has waited for 2 minutes. Probable: a
pod has waited for 10 minutes and the cluster reports no attach error. Mounted: it is in use, and
the controller may detach it under a pod. A volume that the kubelet names in-tree and the controller
by its CSI driver, or the other way, is the same, or unknown.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from agent.checks.detector import Noun, Remedy, Step
from agent.model.assessment import Assessment
from agent.model.finding import Finding, Severity
from agent.model.snapshot import InsufficientData, Node, Pod, Snapshot, known_or
from agent.model.text import format_time
from agent.model.versions import is_since
from agent.model.volumes import MIGRATED, Attachment, Attachments, Confidence

NAME = "detached_volume"
SEVERITIES: Final = (Severity.WARNING, Severity.CRITICAL)
NOUN: Final = Noun(
    "volume missing from the node's volumesAttached",
    "volumes missing from the node's volumesAttached",
)
REMEDY: Final = Remedy(
    steps=(
        Step("First check that no other node has the volume."),
        Step(
            "If it is mounted, restart the leader of the kube-controller-manager, which attaches "
            "it again, and tell the owner of the storage."
        ),
        Step(
            "Otherwise cordon the node, delete the waiting pods, and uncordon when the volume has "
            "left both lists of the node's status and its VolumeAttachment is gone; if that takes "
            "more than ten minutes, restart that leader."
        ),
        Step("Kubernetes 1.26 and later (1.25.1, 1.24.5, 1.23.11, 1.22.14) restores the entry."),
    ),
    runbook="VolumeLost.md#nodeleakvolumelost",
    in_messages=True,
)

FIXED: Final = ((1, 22, 14), (1, 23, 11), (1, 24, 5), (1, 25, 1), (1, 26, 0))
"""The first releases of Kubernetes that restore the entry when a detach fails."""
_NAMED: Final = 3
"""How many pods a message names. It counts the others."""

_FIRST: Final = "first check that no other node has the volume; then"
_RECREATE_POD: Final = (
    f"{_FIRST} cordon the node, delete the waiting pods, and uncordon when the volume has left "
    "volumesInUse and volumesAttached and its VolumeAttachment is gone; if that takes more than "
    "ten minutes, restart the leader of the kube-controller-manager"
)
_REATTACH: Final = (
    f"{_FIRST} restart the leader of the kube-controller-manager, which attaches it again; tell "
    "the owner of the storage"
)
_PROBLEMS: Final = {
    Confidence.MOUNTED: "{volume} is mounted{users} but missing from the node's volumesAttached, "
    "so it may be detached",
    Confidence.CONFIRMED: "{volume} is attached according to its VolumeAttachment but missing from "
    "the node's volumesAttached{users}",
    Confidence.PROBABLE: "{volume} is in the node's volumesInUse but missing from "
    "volumesAttached{users}",
}

SETTLED: Final = timedelta(minutes=2)
"""A kubelet that started more recently has not reported all volumes in use yet."""
_LATE: Final = timedelta(minutes=2)
"""A volume whose VolumeAttachment says attached is in the status within seconds."""
LOST: Final = timedelta(minutes=10)
"""As long as the kubelet itself waits for an attach. It is longer than a mount (2 min 3 s), the
longest back-off (2 min 2 s) and the wait for another node (6 min)."""


@dataclass(frozen=True, slots=True)
class Request:
    """What to ask the API server about. On a healthy node there is nothing to ask."""

    volumes: tuple[str, ...]
    pods: tuple[Pod, ...]  # pods that have waited long enough to be waiting for these volumes


def missing(node: Node) -> tuple[str, ...]:
    """Return the volumes in use that the controller does not list as attached.

    None of them if the kubelet attaches volumes itself.
    """
    return tuple(volume for volume, candidates in _not_listed(node).items() if not candidates)


def _not_listed(node: Node) -> dict[str, list[str]]:
    """Return each volume in use that is not attached, with what may be its other name.

    That is a volume that is attached and not in use: the kubelet and the controller may name one
    volume differently.
    """
    if not (node.ready and node.controller_attach):
        return {}
    in_use = set(node.volumes_in_use)
    attached = set(node.volumes_attached)
    not_listed = {}
    for volume in sorted(in_use - attached):
        candidates = [other for other in sorted(attached - in_use) if _migrated(volume, other)]
        if not any(same(volume, other) for other in candidates):
            not_listed[volume] = candidates
    return not_listed


def request(snapshot: Snapshot) -> Request | None:
    """Return what to ask the API server; None: nothing, or not known yet."""
    node = known_or(snapshot.node, None)
    volumes = missing(node) if node else ()
    waiting = _waiting_times(snapshot, known_or(snapshot.pods, ()))
    late = tuple(pod for pod, time in waiting.items() if time >= _LATE)
    return Request(volumes, late) if volumes and late else None


def find(assessment: Assessment) -> Iterator[Finding]:
    """Yield each missing volume once.

    Raises InsufficientData after those that are certain without the source.
    """
    snapshot = assessment.snapshot
    node = snapshot.node.known()
    not_listed = _not_listed(node) if node else {}
    if not not_listed or not _is_settled(snapshot):
        return
    lost = [volume for volume, candidates in not_listed.items() if not candidates]
    if lost:
        mounted = {mount.volume for mount in known_or(snapshot.mounts, ())}
        for volume in lost:
            if volume in mounted:
                yield _finding(snapshot, volume, Confidence.MOUNTED, _users(snapshot, volume))
        yield from _find_awaited(snapshot, [volume for volume in lost if volume not in mounted])
        # Last, so that unavailable mounts do not hide what was found without them.
        snapshot.mounts.known()
    # Last, so that it hides nothing that is certain.
    for volume, candidates in not_listed.items():
        if candidates:
            reason = "because the kubelet and the controller disagree on CSI migration"
            raise InsufficientData(f"node: it is unknown whether {volume} is attached, {reason}")


def _is_settled(snapshot: Snapshot) -> bool:
    started = snapshot.processes.known().kubelet
    if started is None:
        reason = "no kubelet found: it is not running, or is part of another process"
        raise InsufficientData(f"processes: {reason}")
    return snapshot.taken_at - started >= SETTLED


def _users(snapshot: Snapshot, volume: str) -> list[Pod]:
    """Return the pods that have a volume mounted or need it."""
    uids = {mount.pod_uid for mount in known_or(snapshot.mounts, ()) if mount.volume == volume}
    attachments = known_or(snapshot.attachments, Attachments()).volumes
    by_volume = {attachment.volume: attachment for attachment in attachments}
    attachment = by_volume.get(volume, Attachment(volume))
    pods = known_or(snapshot.pods, ())
    return [pod for pod in pods if pod.live and (pod.uid in uids or _needs(pod, attachment))]


def _find_awaited(snapshot: Snapshot, lost: Iterable[str]) -> Iterator[Finding]:
    """Yield the lost volumes for which a pod has waited too long."""
    pods = snapshot.pods.known()
    if not lost or request(snapshot) is None:
        return
    listed = snapshot.attachments.known().volumes
    attachments = {attachment.volume: attachment for attachment in listed}
    resolved = {attachment.claim for attachment in listed if attachment.claim}
    # A sandbox is created only after the volumes of its pod are mounted.
    with_sandbox = {
        container.pod_uid for container in snapshot.containers.known() if container.sandbox
    }
    times = _waiting_times(snapshot, (pod for pod in pods if pod.uid not in with_sandbox))
    for volume in lost:
        attachment = attachments.get(volume, Attachment(volume))
        exact = bool(attachment.claim) or any(_needs(pod, attachment) for pod in pods)
        waiting = {
            pod: time
            for pod, time in times.items()
            if _may_need(pod, attachment, resolved, exact=exact)
        }
        yield from _find_late(snapshot, attachment, waiting, exact=exact)


def _may_need(pod: Pod, attachment: Attachment, resolved: Collection[str], *, exact: bool) -> bool:
    """Whether a pod may need a volume.

    `resolved`: the claims whose volume is known. `exact`: it is known which pods need this volume.
    """
    return _needs(pod, attachment) if exact else bool(_claims(pod).difference(resolved))


def _find_late(
    snapshot: Snapshot, attachment: Attachment, waiting: Mapping[Pod, timedelta], *, exact: bool
) -> Iterator[Finding]:
    failed_pods = snapshot.attachments.known().failed_pods
    confidence = Confidence.PROBABLE
    minimum = LOST
    if exact and attachment.attached:
        confidence = Confidence.CONFIRMED
        minimum = _LATE
    elif attachment.failed or any(pod.uid in failed_pods for pod in waiting):
        return  # the cluster itself reports an attach error: the entry is not lost
    # If any of several pods may need it, it may be the one that has waited for the shortest time.
    decisive = max if exact else min
    if decisive(waiting.values(), default=timedelta(0)) >= minimum:
        late = [pod for pod, time in waiting.items() if time >= minimum]
        yield _finding(snapshot, attachment.volume, confidence, late, exact=exact)


def _waiting_times(snapshot: Snapshot, pods: Iterable[Pod]) -> dict[Pod, timedelta]:
    """Return how long at least each pod has waited for volumes, by either clock."""
    now = min(snapshot.taken_at, snapshot.api_time)
    times = {}
    for pod in pods:
        waits = pod.phase == "Pending" and not pod.deleting and pod.started is None
        if waits and pod.scheduled is not None and (pod.claims or pod.volumes):
            times[pod] = now - pod.scheduled
    return times


def _claims(pod: Pod) -> set[str]:
    """Return the claims of a pod, each as `namespace/name`."""
    namespace = pod.name.partition("/")[0]
    return {f"{namespace}/{claim}" for claim in pod.claims}


def _needs(pod: Pod, attachment: Attachment) -> bool:
    by_name = any(same(volume, attachment.volume) for volume in pod.volumes)
    return pod.live and (by_name or attachment.claim in _claims(pod))


def same(volume: str, other: str) -> bool:
    """Whether both certainly name one volume: by the ID, their last part.

    A Ceph image's has hashes, so it is never certain.
    """
    ids = {re.split(r"[/^]", name)[-1] for name in (volume, other)}
    return volume == other or (_migrated(volume, other) and len(ids) == 1)


def _migrated(volume: str, other: str) -> bool:
    """Whether they are volumes of an in-tree plugin and of the CSI driver that replaces it."""
    plugin = _plugin(volume)
    other_plugin = _plugin(other)
    return MIGRATED.get(plugin) == other_plugin or MIGRATED.get(other_plugin) == plugin


def _plugin(volume: str) -> str:
    matched = re.match(r"kubernetes\.io/csi/[^^]*|[^/]*/[^/]*", volume)
    return matched[0] if matched else ""


def _finding(
    snapshot: Snapshot,
    volume: str,
    confidence: Confidence,
    pods: Iterable[Pod],
    *,
    exact: bool = True,
) -> Finding:
    """`pods`: those that wait for the volume, or have it mounted.

    Not `exact`: some of them, and it is unknown which.
    """
    users = sorted(pods, key=lambda pod: (pod.name, pod.uid))
    is_mounted = confidence is Confidence.MOUNTED
    scheduled = [pod.scheduled for pod in users if pod.scheduled is not None and not is_mounted]
    problem = _PROBLEMS[confidence].format(
        volume=volume, users=_describe_users(users, mounted=is_mounted, exact=exact)
    )
    remedy = f"{_REATTACH if is_mounted else _RECREATE_POD}{_not_requested(snapshot)}"
    return Finding(
        NAME,
        f"volume {volume}",
        f"{confidence.value}: {problem}; {_version(snapshot.server_version)}; {remedy}",
        severity=Severity.WARNING if confidence is Confidence.PROBABLE else Severity.CRITICAL,
        pod=users[0].name if exact and len(users) == 1 else "",
        since=min(scheduled, default=None),
        confidence=confidence,
        affected=tuple(pod.uid for pod in users if exact),
    )


def _describe_users(pods: Sequence[Pod], *, mounted: bool, exact: bool) -> str:
    described = []
    for pod in pods[:_NAMED]:
        since = ""
        if pod.scheduled and pod.started is None:
            since = f" since {format_time(pod.scheduled)}"
        described.append(f"{pod.name}{since}")
    names = ", ".join(described)
    if len(pods) > _NAMED:
        names += f" and {len(pods) - _NAMED} more"
    if mounted:
        return f" (by {names})" if names else ""
    if exact:
        return f"; waiting pods: {names}"
    return f"; it is unknown which pod needs it; waiting pods with a claim: {names}"


def _version(version: str) -> str:
    fixed = is_since(version, FIXED)
    if fixed is None:
        return "it is unknown whether this version of Kubernetes has the known bug"
    has = "fixes" if fixed else "bug that loses such entries"
    return f"Kubernetes {version} has the known {has}"


def _not_requested(snapshot: Snapshot) -> str:
    skipped = sorted(known_or(snapshot.attachments, Attachments()).not_requested)
    return f"; nodeleak may not {', '.join(skipped)}, so this is less certain" if skipped else ""
