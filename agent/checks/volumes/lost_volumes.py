"""Which volumes the node's status has lost, how certain that is, and which pods are affected. Pure.

The kubelet waits for a volume until `status.volumesAttached` lists it. The attach/detach controller removes the entry
before it detaches; when the detach fails, some versions do not restore it: the volume stays attached, and the kubelet
waits forever.

While CSI migration is enabled only in the kubelet or only in the controller, they name the same volume differently.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from agent.model.snapshot import InsufficientData, Node, Pod, Snapshot, known_or
from agent.model.volumes import MIGRATED, Attachment, Confidence

SETTLED: Final = timedelta(minutes=2)
"""A kubelet that started more recently has not reported all volumes in use yet."""
_LATE: Final = timedelta(minutes=2)
"""A volume whose VolumeAttachment says attached is in the node's status within seconds."""
LOST: Final = timedelta(minutes=10)
"""As long as the kubelet itself waits for an attach; longer than a mount (2 min 3 s), the longest back-off
(2 min 2 s) and the wait for another node (6 min)."""


@dataclass(frozen=True, slots=True)
class Detached:
    """A volume that is missing from the node's status."""

    volume: str
    confidence: Confidence
    pods: tuple[Pod, ...]
    """The pods that wait for it, or have it mounted."""
    exact: bool
    """These pods do need this volume; otherwise some of them may, and which is not known."""


@dataclass(frozen=True, slots=True)
class Request:
    """What to ask the API server about. On a healthy node there is nothing to ask."""

    volumes: tuple[str, ...]
    pods: tuple[Pod, ...]
    """Pods that have waited long enough to be waiting for these volumes."""


def missing(node: Node) -> tuple[str, ...]:
    """Return the volumes in use that the controller does not list as attached; none if the kubelet attaches itself."""
    return tuple(volume for volume, others in _not_listed(node).items() if not others)


def _not_listed(node: Node) -> dict[str, list[str]]:
    """Return each volume in use that is not attached, with those attached that may be the same by its other name.

    Such a volume is not in use by that name: the kubelet and the controller name it differently.
    """
    if not (node.ready and node.controller_attach):
        return {}
    in_use, attached = {*node.volumes_in_use}, {*node.volumes_attached}
    others = {
        volume: [other for other in sorted(attached - in_use) if _migrated(volume, other)]
        for volume in sorted(in_use - attached)
    }
    return {volume: found for volume, found in others.items() if not any(same(volume, other) for other in found)}


def request(snapshot: Snapshot) -> Request | None:
    """Return what to ask the API server; None: nothing, or not known yet."""
    node, pods = known_or(snapshot.node, None), known_or(snapshot.pods, ())
    volumes = missing(node) if node else ()
    late = tuple(pod for pod in pods if (_waited(pod, snapshot) or timedelta(0)) >= _LATE)
    return Request(volumes, late) if volumes and late else None


def detached(snapshot: Snapshot) -> Iterator[Detached]:
    """Yield each missing volume once; raises InsufficientData after those that are certain without the source."""
    node = snapshot.node.known()
    not_listed = _not_listed(node) if node else {}
    if not not_listed or not _settled(snapshot):
        return
    yield from _lost(snapshot, [volume for volume, others in not_listed.items() if not others])
    # Last, so that it hides nothing that is certain.
    for volume in (volume for volume, others in not_listed.items() if others):
        why = "because the kubelet and the controller disagree on CSI migration"
        raise InsufficientData(f"node: it is unknown whether {volume} is attached, {why}")


def _lost(snapshot: Snapshot, lost: Sequence[str]) -> Iterator[Detached]:
    if not lost:
        return
    mounted = {mount.volume for mount in known_or(snapshot.mounts, ())}
    for volume in lost:
        if volume in mounted:
            yield Detached(volume, Confidence.MOUNTED, _users(snapshot, volume), exact=True)
    yield from _waited_for(snapshot, [volume for volume in lost if volume not in mounted])
    # Last, so that unavailable mounts do not hide what was found without them.
    snapshot.mounts.known()


def _settled(snapshot: Snapshot) -> bool:
    started = snapshot.processes.known().kubelet
    if started is None:
        raise InsufficientData("processes: no kubelet found: it is not running, or is part of another process")
    return snapshot.taken_at - started >= SETTLED


def _users(snapshot: Snapshot, volume: str) -> tuple[Pod, ...]:
    uids = {mount.pod_uid for mount in known_or(snapshot.mounts, ()) if mount.volume == volume}
    attachment = _attachments(snapshot).get(volume, Attachment(volume))
    pods = known_or(snapshot.pods, ())
    return _by_name(pod for pod in pods if pod.live and (pod.uid in uids or _needs(pod, attachment)))


def _attachments(snapshot: Snapshot) -> Mapping[str, Attachment]:
    answer = known_or(snapshot.attachments, None)
    return {attachment.volume: attachment for attachment in answer.volumes} if answer else {}


def _waited_for(snapshot: Snapshot, lost: Sequence[str]) -> Iterator[Detached]:
    pods = snapshot.pods.known()
    if not lost or request(snapshot) is None:
        return
    failed_pods, times = snapshot.attachments.known().failed_pods, _waiting_times(snapshot, pods)
    attachments = _attachments(snapshot)
    resolved = {attachment.claim for attachment in attachments.values()}
    for volume in lost:
        attachment = attachments.get(volume, Attachment(volume))
        exact = bool(attachment.claim) or any(_needs(pod, attachment) for pod in pods)
        waiting = {pod: times[pod] for pod in times if _may_need(pod, attachment, resolved, exact=exact)}
        yield from _if_late(attachment, waiting, failed_pods, exact=exact)


def _may_need(pod: Pod, attachment: Attachment, resolved: Collection[str], *, exact: bool) -> bool:
    """`resolved`: the claims of which the volume is known. `exact`: it is known which pods need this volume."""
    return _needs(pod, attachment) if exact else bool(_claims(pod).difference(resolved))


def _waiting_times(snapshot: Snapshot, pods: Iterable[Pod]) -> dict[Pod, timedelta]:
    # A sandbox is created only after the volumes of its pod are mounted.
    with_sandbox = {container.pod_uid for container in snapshot.containers.known() if container.sandbox}
    times = {pod: _waited(pod, snapshot) for pod in pods if pod.uid not in with_sandbox}
    return {pod: time for pod, time in times.items() if time is not None}


def _if_late(
    attachment: Attachment, waiting: Mapping[Pod, timedelta], failed_pods: Collection[str], *, exact: bool
) -> Iterator[Detached]:
    if exact and attachment.attached:
        confidence, at_least = Confidence.CONFIRMED, _LATE
    elif attachment.failed or any(pod.uid in failed_pods for pod in waiting):
        return  # the cluster itself reports an attach error: the entry is not lost
    else:
        confidence, at_least = Confidence.PROBABLE, LOST
    # If any of several pods may need it, that may be the pod that has waited for the shortest time.
    if (max if exact else min)(waiting.values(), default=timedelta(0)) >= at_least:
        late = _by_name(pod for pod, time in waiting.items() if time >= at_least)
        yield Detached(attachment.volume, confidence, late, exact)


def _waited(pod: Pod, snapshot: Snapshot) -> timedelta | None:
    """Return how long at least a pod has waited to start; None: it does not wait, or needs no volume.

    The scheduling time is by the API server's clock or the kubelet's; it is not known which.
    """
    waits = pod.phase == "Pending" and not pod.deleting and pod.started is None
    if not waits or pod.scheduled is None or not (pod.claims or pod.volumes):
        return None
    return min(snapshot.taken_at, snapshot.api_time) - pod.scheduled


def _claims(pod: Pod) -> set[str]:
    """Return the claims of a pod, each as `namespace/name`."""
    namespace = pod.name.partition("/")[0]
    return {f"{namespace}/{claim}" for claim in pod.claims}


def _needs(pod: Pod, attachment: Attachment) -> bool:
    named = (same(volume, attachment.volume) for volume in pod.volumes)
    return pod.live and (attachment.claim in _claims(pod) or any(named))


def _by_name(pods: Iterable[Pod]) -> tuple[Pod, ...]:
    return tuple(sorted(pods, key=lambda pod: (pod.name, pod.uid)))


def same(volume: str, other: str) -> bool:
    """Whether both certainly name the same volume, even if either has the name by the CSI driver of a migration.

    The last part of both names is the ID. (That of a Ceph image has hashes in it: it is never certain.)
    """
    return volume == other or (
        _migrated(volume, other) and re.split(r"[/^]", volume)[-1] == re.split(r"[/^]", other)[-1]
    )


def _migrated(volume: str, other: str) -> bool:
    """Whether they are volumes of an in-tree plugin and of the CSI driver that replaces it."""
    plugins = _plugin(volume), _plugin(other)
    return MIGRATED.get(plugins[0]) == plugins[1] or MIGRATED.get(plugins[1]) == plugins[0]


def _plugin(volume: str) -> str:
    matched = re.match(r"kubernetes\.io/csi/[^^]*|[^/]*/[^/]*", volume)
    return matched[0] if matched else ""
