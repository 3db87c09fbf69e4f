"""Which volumes are missing from the node's status, how certain that is, and which pods are affected. Pure.

The kubelet waits for a volume until `status.volumesAttached` lists it. The attach/detach controller removes the entry
before it detaches; when the detach fails, some versions do not restore it: the volume stays attached, and the kubelet
waits forever.

While CSI migration is enabled in only one of the two, they name the same volume differently.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from agent.model.snapshot import InsufficientData, Known, Node, Pod, Snapshot, known_or
from agent.model.volumes import MIGRATED, Attachment, Attachments, Strength

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
    strength: Strength
    pods: tuple[Pod, ...]
    """The pods that wait for it, or have it mounted."""
    exact: bool
    """These pods do need this volume; otherwise one of them may, and which one is not known."""


@dataclass(frozen=True, slots=True)
class Question:
    """What to ask the API server about. On a healthy node there is nothing to ask."""

    volumes: tuple[str, ...]
    pods: tuple[Pod, ...]
    """Pods that have waited long enough to be waiting for one of them."""


def missing(node: Node) -> tuple[str, ...]:
    """Return the volumes in use that the controller does not list as attached; none if the kubelet attaches itself."""
    return tuple(volume for volume, others in _not_listed(node).items() if not others)


def disputed(node: Node) -> tuple[str, ...]:
    """Return the volumes in use that may be attached under a name that the kubelet does not use."""
    return tuple(
        volume
        for volume, others in _not_listed(node).items()
        if others and not any(same(volume, other) for other in others)
    )


def _not_listed(node: Node) -> dict[str, tuple[str, ...]]:
    """Return each volume in use that is not listed as attached, with those that may be the same by its other name.

    Such a volume is attached and not in use by that name: the kubelet and the controller name it differently.
    """
    if not (node.ready and node.controller_attach):
        return {}
    in_use, attached = {*node.volumes_in_use}, {*node.volumes_attached}
    others = sorted(attached - in_use)
    return {
        volume: tuple(other for other in others if _may_be_same(volume, other)) for volume in sorted(in_use - attached)
    }


def waited(pod: Pod, taken_at: datetime, api_skew: timedelta | None) -> timedelta | None:
    """Return how long at least a pod has waited to start; None: it does not wait, or needs no volume.

    The scheduling time is by the API server's clock or the kubelet's; it is not known which.
    """
    waits = pod.phase == "Pending" and not pod.deleting and pod.started is None
    if not waits or pod.scheduled is None or not (pod.claims or pod.volumes):
        return None
    return taken_at + min(api_skew or timedelta(0), timedelta(0)) - pod.scheduled


def question(snapshot: Snapshot) -> Question | None:
    """Return what to ask the API server; None: nothing, or not known yet."""
    node, pods = known_or(snapshot.node, None), known_or(snapshot.pods, ())
    volumes = missing(node) if node else ()
    late = tuple(pod for pod in pods if (waited(pod, snapshot.taken_at, snapshot.api_skew) or timedelta(0)) >= _LATE)
    return Question(volumes, late) if volumes and late else None


def detached(snapshot: Snapshot) -> Iterator[Detached]:
    """Yield each missing volume once; raises InsufficientData after those that are certain without the source."""
    node = snapshot.node.known()
    lost, unclear = (missing(node), disputed(node)) if node else ((), ())
    if not (lost or unclear) or not _settled(snapshot):
        return
    yield from _lost(snapshot, lost)
    # Last, so that it hides nothing that is certain.
    if unclear:
        raise InsufficientData(
            f"node: it is unknown whether {unclear[0]} is attached, because the kubelet and the controller disagree on "
            "CSI migration"
        )


def _lost(snapshot: Snapshot, lost: Sequence[str]) -> Iterator[Detached]:
    if not lost:
        return
    mounted = _mounted(snapshot)
    for volume in lost:
        if volume in mounted:
            yield Detached(volume, Strength.MOUNTED, _users(snapshot, volume, mounted[volume]), exact=True)
    yield from _waited_for(snapshot, [volume for volume in lost if volume not in mounted])
    # Last, so that unavailable mounts do not hide what was found without them.
    snapshot.mounts.known()


def _settled(snapshot: Snapshot) -> bool:
    started = snapshot.processes.known().kubelet
    if started is None:
        raise InsufficientData("processes: no kubelet found: it is not running, or is part of another process")
    return snapshot.taken_at - started >= SETTLED


def _mounted(snapshot: Snapshot) -> Mapping[str, set[str]]:
    """Return, for each mounted volume, the uids of the pods in whose directories it is mounted."""
    found: dict[str, set[str]] = {}
    for one in known_or(snapshot.mounts, ()):
        found.setdefault(one.volume, set()).add(one.pod_uid)
    return found


def _users(snapshot: Snapshot, volume: str, uids: set[str]) -> tuple[Pod, ...]:
    if not isinstance(snapshot.pods, Known):
        return ()
    attachment = Attachment(volume)
    if isinstance(snapshot.attachments, Known):
        attachment = _by_volume(snapshot.attachments.value).get(volume, attachment)
    return _by_name(pod for pod in snapshot.pods.value if pod.live and (pod.uid in uids or _needs(pod, attachment)))


def _waited_for(snapshot: Snapshot, lost: Sequence[str]) -> Iterator[Detached]:
    pods = [pod for pod in snapshot.pods.known() if pod.live]
    if not lost or question(snapshot) is None:
        return
    waiting = _Waiting.of(snapshot, pods)
    for volume in lost:
        yield from waiting.detached(volume)


@dataclass(frozen=True, slots=True)
class _Waiting:
    """The pods that wait to start, and what the API server says about their volumes."""

    pods: Sequence[Pod]
    """All live pods."""
    waited: Mapping[Pod, timedelta]
    """How long the pods without a sandbox have waited."""
    attachments: Mapping[str, Attachment]
    failed_pods: frozenset[str]
    resolved_claims: frozenset[str]

    @classmethod
    def of(cls, snapshot: Snapshot, pods: Sequence[Pod]) -> "_Waiting":
        answer = snapshot.attachments.known()
        attachments = _by_volume(answer)
        return cls(
            pods=pods,
            waited=_waited(snapshot, pods),
            attachments=attachments,
            failed_pods=frozenset(answer.failed_pods),
            resolved_claims=frozenset(one.claim for one in attachments.values() if one.claim),
        )

    def detached(self, volume: str) -> Iterator[Detached]:
        attachment = self.attachments.get(volume, Attachment(volume))
        exact = bool(attachment.claim) or any(_needs(pod, attachment) for pod in self.pods)
        waited = {pod: time for pod, time in self.waited.items() if self._may_need(pod, attachment, exact=exact)}
        # If any one of several pods may need it, that may be the one that has waited for the shortest time.
        longest = (max if exact else min)(waited.values(), default=timedelta(0))
        if exact and attachment.attached:
            strength, at_least = Strength.CONFIRMED, _LATE
        else:
            strength, at_least = Strength.PROBABLE, LOST
        if longest < at_least or (strength is Strength.PROBABLE and self._reported(attachment, waited)):
            return
        yield Detached(volume, strength, _longest_waiting(waited, at_least), exact)

    def _may_need(self, pod: Pod, attachment: Attachment, *, exact: bool) -> bool:
        return _needs(pod, attachment) if exact else bool(_claims(pod) - self.resolved_claims)

    def _reported(self, attachment: Attachment, pods: Iterable[Pod]) -> bool:
        """Whether the cluster itself reports an attach error: then the entry is not lost."""
        return attachment.failed or any(pod.uid in self.failed_pods for pod in pods)


def _waited(snapshot: Snapshot, pods: Iterable[Pod]) -> dict[Pod, timedelta]:
    # A sandbox is created only after the volumes of its pod are mounted.
    with_sandbox = {container.pod_uid for container in snapshot.containers.known() if container.sandbox}
    times = {pod: waited(pod, snapshot.taken_at, snapshot.api_skew) for pod in pods if pod.uid not in with_sandbox}
    return {pod: time for pod, time in times.items() if time is not None}


def _longest_waiting(waited: Mapping[Pod, timedelta], at_least: timedelta) -> tuple[Pod, ...]:
    return _by_name(pod for pod, time in waited.items() if time >= at_least)


def _by_volume(answer: Attachments) -> dict[str, Attachment]:
    return {one.volume: one for one in answer.volumes}


def _claims(pod: Pod) -> set[str]:
    """Return the claims of a pod, each as `namespace/name`."""
    namespace = pod.name.partition("/")[0]
    return {f"{namespace}/{claim}" for claim in pod.claims}


def _needs(pod: Pod, attachment: Attachment) -> bool:
    return attachment.claim in _claims(pod) or any(same(volume, attachment.volume) for volume in pod.volumes)


_IDS_DIFFER: Final = "kubernetes.io/rbd"
"""Its CSI ID has hashes in it; that of any other plugin has the same last part (`csi-translation-lib`)."""


def same(one: str, other: str) -> bool:
    """Whether both certainly name the same volume; one of them may name a migrated in-tree volume by its CSI driver."""
    return one == other or (_migrated(one, other) and _last_part(one) == _last_part(other))


def _may_be_same(one: str, other: str) -> bool:
    return same(one, other) or (_migrated(one, other) and _IDS_DIFFER in {_plugin(one), _plugin(other)})


def _migrated(one: str, other: str) -> bool:
    """Whether one is a volume of an in-tree plugin, and the other of the CSI driver that replaces it."""
    plugins = _plugin(one), _plugin(other)
    return MIGRATED.get(plugins[0]) == plugins[1] or MIGRATED.get(plugins[1]) == plugins[0]


def _plugin(volume: str) -> str:
    matched = re.match(r"kubernetes\.io/csi/[^^]*|[^/]*/[^/]*", volume)
    return matched[0] if matched else ""


def _last_part(volume: str) -> str:
    return re.split(r"[/^]", volume)[-1]


def _by_name(pods: Iterable[Pod]) -> tuple[Pod, ...]:
    return tuple(sorted(pods, key=lambda pod: (pod.name, pod.uid)))


FIXED: Final = {22: 14, 23: 11, 24: 5, 25: 1}
"""The first patch release of each minor version 1.x that restores the entry; all later minor versions do."""


def has_bug(version: str) -> bool | None:
    """Whether a cluster of this version (`v1.20.2`) loses the entry when a detach fails; None: not known."""
    matched = re.match(r"v?(\d{1,3})\.(\d{1,3})\.(\d{1,4})(?!\d)", version)
    if matched is None:
        return None
    major, minor, patch = map(int, matched.groups())
    if (major, minor) in {(1, known) for known in FIXED}:
        return patch < FIXED[minor]
    return (major, minor) < (1, min(FIXED))
