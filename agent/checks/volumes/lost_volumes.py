"""Which volumes the node's status has lost, how sure that is, and who needs them. Pure.

The kubelet waits for a volume until `status.volumesAttached` names it. The controller takes it out before it detaches,
and where detaching fails some versions do not put it back: it stays attached, and the kubelet waits for ever.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from agent.model.snapshot import InsufficientData, Known, Node, Pod, Snapshot, known_or
from agent.model.volumes import Attachment, Attachments, Strength

SETTLED: Final = timedelta(minutes=2)
"""A kubelet that has just started has not told yet what it uses."""
LATE: Final = timedelta(minutes=2)
"""What is attached by its VolumeAttachment is in the node's status within seconds."""
LOST: Final = timedelta(minutes=10)
"""As long as the kubelet itself waits for an attaching, and longer than a mount (2 min 3 s), the longest back-off
(2 min 2 s) and the wait for another node (6 min)."""


@dataclass(frozen=True, slots=True)
class Detached:
    """A volume that the node's status has lost."""

    volume: str
    strength: Strength
    pods: tuple[Pod, ...]
    """Who waits for it, or has it mounted."""
    exact: bool
    """They do need this volume; else it is one of theirs, and which one is not known."""


@dataclass(frozen=True, slots=True)
class Question:
    """What is worth asking the API server about; nothing on a node whose volumes are all attached in time."""

    volumes: tuple[str, ...]
    pods: tuple[Pod, ...]
    """Who has waited for so long that it may be for one of them."""


def missing(node: Node) -> tuple[str, ...]:
    """Return what the kubelet uses and the controller does not say it has attached, where it is the one to say so."""
    if not (node.ready and node.controller_attach):
        return ()
    return tuple(sorted({*node.volumes_in_use}.difference(node.volumes_attached)))


def waited(pod: Pod, taken_at: datetime, api_skew: timedelta | None) -> timedelta | None:
    """Return how long a pod has waited to begin, at least; None: it does not, or for no volume.

    It was scheduled by the clock of the API server, or of the kubelet: neither is known to be the one.
    """
    begins = pod.phase == "Pending" and not pod.deleting and pod.started is None
    if not begins or pod.scheduled is None or not (pod.claims or pod.volumes):
        return None
    return taken_at + min(api_skew or timedelta(0), timedelta(0)) - pod.scheduled


def question(snapshot: Snapshot) -> Question | None:
    """Return what to ask the API server; None: nothing, or not known yet."""
    node, pods = known_or(snapshot.node, None), known_or(snapshot.pods, ())
    volumes = missing(node) if node else ()
    late = tuple(pod for pod in pods if (waited(pod, snapshot.taken_at, snapshot.api_skew) or timedelta(0)) >= LATE)
    return Question(volumes, late) if volumes and late else None


def detached(snapshot: Snapshot) -> Iterator[Detached]:
    """Yield each volume that is lost, once; raises Blind after those that can be told without the silent source."""
    node = snapshot.node.known()
    lost = missing(node) if node else ()
    if not lost or not _settled(snapshot):
        return
    mounted = _mounted(snapshot)
    for volume in lost:
        if volume in mounted:
            yield Detached(volume, Strength.MOUNTED, _users(snapshot, volume, mounted[volume]), exact=True)
    yield from _waited_for(snapshot, [volume for volume in lost if volume not in mounted])
    # Said after what was seen: of what else is mounted there is no word.
    snapshot.mounts.known()


def _settled(snapshot: Snapshot) -> bool:
    started = snapshot.processes.known().kubelet
    if started is None:
        raise InsufficientData("daemons: no kubelet is seen: it does not run, or is part of another process")
    return snapshot.taken_at - started >= SETTLED


def _mounted(snapshot: Snapshot) -> Mapping[str, set[str]]:
    """Return the uids of the pods in whose directories it is, by volume."""
    found: dict[str, set[str]] = {}
    for one in known_or(snapshot.mounts, ()):
        found.setdefault(one.volume, set()).add(one.pod_uid)
    return found


def _users(snapshot: Snapshot, volume: str, uids: set[str]) -> tuple[Pod, ...]:
    if not isinstance(snapshot.pods, Known):
        return ()
    word = Attachment(volume)
    if isinstance(snapshot.attachments, Known):
        word = _words(snapshot.attachments.value).get(volume, word)
    return _in_order(pod for pod in snapshot.pods.value if pod.live and (pod.uid in uids or _needs(pod, word)))


def _waited_for(snapshot: Snapshot, lost: Sequence[str]) -> Iterator[Detached]:
    pods = [pod for pod in snapshot.pods.known() if pod.live]
    if not lost or question(snapshot) is None:
        return
    # A sandbox is made only after the volumes of its pod are mounted.
    made = {container.pod_uid for container in snapshot.containers.known() if container.sandbox}
    told = snapshot.attachments.known()
    words = _words(told)
    waits = {
        pod: since
        for pod in pods
        if pod.uid not in made and (since := waited(pod, snapshot.taken_at, snapshot.api_skew)) is not None
    }
    failed = {*told.failed_pods}
    resolved = {word.claim for word in words.values() if word.claim}

    for volume in lost:
        word = words.get(volume, Attachment(volume))
        exact = bool(word.claim) or any(_needs(pod, word) for pod in pods)
        candidates = [
            pod for pod in waits if (_needs(pod, word) if exact else _claims(pod) - resolved)
        ]  # fmt: skip
        if not candidates:
            continue
        # Of several that might need it, the youngest may be the one: it has waited for so long at least.
        longest = (max if exact else min)(waits[pod] for pod in candidates)
        # What the cluster reports by itself is no lost entry; but an event stays for an hour after what it tells of.
        reported = word.failed or any(pod.uid in failed for pod in candidates)
        if exact and word.attached and longest >= LATE:
            late = _in_order(pod for pod in candidates if waits[pod] >= LATE)
            yield Detached(volume, Strength.CONFIRMED, late, exact)
        elif longest >= LOST and not reported:
            late = _in_order(pod for pod in candidates if waits[pod] >= LOST)
            yield Detached(volume, Strength.PROBABLE, late, exact)


def _words(told: Attachments) -> dict[str, Attachment]:
    return {word.volume: word for word in told.volumes}


def _claims(pod: Pod) -> set[str]:
    """Return the claims of a pod, each as `namespace/name`."""
    namespace = pod.name.partition("/")[0]
    return {f"{namespace}/{claim}" for claim in pod.claims}


def _needs(pod: Pod, word: Attachment) -> bool:
    return word.claim in _claims(pod) or any(same(volume, word.volume) for volume in pod.volumes)


def same(named: str, volume: str) -> bool:
    """Compare a volume as pods and PersistentVolumes name it with one of the node's status.

    That knows a migrated one by its CSI driver.
    """
    migrated = volume.startswith("kubernetes.io/csi/") and named.startswith("kubernetes.io/")
    return named == volume or (migrated and _last(named) == _last(volume))


def _last(volume: str) -> str:
    return re.split(r"[/^]", volume)[-1]


def _in_order(pods: Iterable[Pod]) -> tuple[Pod, ...]:
    return tuple(sorted(pods, key=lambda pod: (pod.name, pod.uid)))


FIXED: Final = {22: 14, 23: 11, 24: 5, 25: 1}
"""The first patch of each minor version 1.x that puts the entry back; 1.26 has it from the start."""


def has_bug(version: str) -> bool | None:
    """Tell whether a cluster of this version (`v1.20.2`) loses the entry when detaching fails; None: not known."""
    matched = re.match(r"v?(\d{1,3})\.(\d{1,3})\.(\d{1,4})(?!\d)", version)
    if matched is None:
        return None
    major, minor, patch = map(int, matched.groups())
    if (major, minor) in {(1, known) for known in FIXED}:
        return patch < FIXED[minor]
    return (major, minor) < (1, min(FIXED))
