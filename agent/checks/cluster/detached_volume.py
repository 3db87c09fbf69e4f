"""A volume in use is missing from the node's status: the kubelet waits forever for the entry.

The volume is attached. A detach failed, and a pod that uses the volume returned to the same node
before the retry. `status.volumesInUse` lists the volume, `status.volumesAttached` does not, and the
kubelet logs `Volume not attached according to node status`.

It looks the same from here if another node has the volume (Multi-Attach), if attaching or detaching
it fails, or if its CSI driver is not registered on this node. Then nothing is lost, and restarting
a controller or recreating the pod changes nothing.

Means: confirmed: the VolumeAttachment says attached and a pod has waited for 2 minutes. Mounted: it
is in use, and the controller may detach it under a pod. After 10 minutes: elsewhere, failing or
no_driver: the cluster says which of the other reasons it is (info). Probable: nothing says it
(critical if none of them is possible). A volume that the kubelet names in-tree and the controller
by its CSI driver, or the other way, is the same, or unknown.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import Final, NamedTuple

from agent.checks.cluster.volume_causes import (
    EVENTS_LIVE,
    FIXED,
    Cause,
    Explanation,
    commands,
    describe_version,
    explain,
    list_holders,
    possible_causes,
)
from agent.checks.detector import Advice, Noun, Step
from agent.model.assessment import Assessment
from agent.model.finding import Finding, Severity
from agent.model.remedy import Remedy
from agent.model.snapshot import InsufficientData, Node, Pod, Snapshot, known_or
from agent.model.text import format_time, join_few
from agent.model.versions import is_since
from agent.model.volumes import MIGRATED, Attachment, Attachments, Confidence

NAME = "detached_volume"
SEVERITIES: Final = (Severity.INFO, Severity.WARNING, Severity.CRITICAL)
NOUN: Final = Noun(
    "volume missing from the node's volumesAttached",
    "volumes missing from the node's volumesAttached",
)
ADVICE: Final = Advice(
    steps=(
        Step(
            "See why it is not attached. VolumeAttachments name the node that has a volume, and "
            "attach and detach errors; a CSINode lists the drivers of its node; Events of the pod "
            "say it too, once, and live for an hour.",
            (
                "kubectl get volumeattachments",
                "kubectl get csinode NODE -o yaml",
                "kubectl describe pod -n NAMESPACE POD",
            ),
        ),
        Step(
            "elsewhere: end the pod on the other node, which keeps the volume. If that machine is "
            "certainly off, taint its node: `kubectl taint node NODE "
            "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute`."
        ),
        Step("failing, no_driver: repair the driver. The cluster and the kubelet try again."),
        Step("Else, first check that no other node has the volume."),
        Step(
            "If it is mounted, restart the leader of the kube-controller-manager, which attaches "
            "it again, and tell the owner of the storage."
        ),
        Step(
            "If its entry was lost, cordon the node, delete the waiting pods, and uncordon when "
            "the volume has left both lists of the node's status and its VolumeAttachment is gone; "
            "if that takes more than ten minutes, restart that leader."
        ),
        Step("Kubernetes 1.26 and later (1.25.1, 1.24.5, 1.23.11, 1.22.14) restores the entry."),
    ),
    runbook="VolumeLost.md#nodeleakvolumelost",
    in_findings=True,
)

_CHECK_OTHERS: Final = "first check that no other node has the volume; then"
_RESTART_LEADER: Final = "restart the leader of the kube-controller-manager"
_UNCORDON: Final = (
    "uncordon when the volume has left volumesInUse and volumesAttached and its VolumeAttachment "
    "is gone"
)
_RECREATE_POD: Final = (
    f"{_CHECK_OTHERS} cordon the node, delete the waiting pods, and {_UNCORDON}; if that takes more "
    f"than ten minutes, {_RESTART_LEADER}"
)
_REATTACH: Final = (
    f"{_CHECK_OTHERS} {_RESTART_LEADER}, which attaches it again; tell the owner of the storage"
)
_PROBLEMS: Final = {
    Confidence.MOUNTED: "{volume} is mounted{users} but missing from the node's volumesAttached, "
    "so it may be detached",
    Confidence.CONFIRMED: "{volume} is attached according to its VolumeAttachment but missing from "
    "the node's volumesAttached",
}
_NOT_LISTED: Final = "{volume} is in the node's volumesInUse but missing from volumesAttached"

_SETTLED_AFTER: Final = timedelta(minutes=2)
"""A kubelet that started more recently has not reported all volumes in use yet."""
_LATE_AFTER: Final = timedelta(minutes=2)
"""A volume whose VolumeAttachment says attached is in the status within seconds."""
_ATTACH_TIMEOUT: Final = timedelta(minutes=10)
"""As long as the kubelet itself waits for an attach. It is longer than a mount (2 min 3 s), the
longest back-off (2 min 2 s) and the wait for another node (6 min)."""


@dataclass(frozen=True, slots=True)
class Request:
    """What to ask the API server about. On a healthy node there is nothing to ask."""

    volumes: tuple[str, ...]
    pods: tuple[Pod, ...]  # pods that have waited long enough to be waiting for these volumes
    is_late: bool = False  # one has waited for longer than any attach takes


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
        if not any(is_same_volume(volume, other) for other in candidates):
            not_listed[volume] = candidates
    return not_listed


def request(snapshot: Snapshot) -> Request | None:
    """Return what to ask the API server; None: nothing, or not known yet."""
    node = known_or(snapshot.node, None)
    volumes = missing(node) if node else ()
    waiting = _waiting_times(snapshot, known_or(snapshot.pods, ()))
    late = tuple(pod for pod, time in waiting.items() if time >= _LATE_AFTER)
    is_late = any(time >= _ATTACH_TIMEOUT for time in waiting.values())

    return Request(volumes, late, is_late) if volumes and late else None


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
    """Whether the kubelet has had time to report its volumes. Raises InsufficientData."""
    started = snapshot.processes.known().kubelet
    if started is None:
        reason = "no kubelet found: it is not running, or is part of another process"
        raise InsufficientData(f"processes: {reason}")
    return snapshot.taken_at - started >= _SETTLED_AFTER


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
        users_known = bool(attachment.claim) or any(_needs(pod, attachment) for pod in pods)
        waiting = {
            pod: time
            for pod, time in times.items()
            if _may_need(pod, attachment, resolved, users_known=users_known)
        }
        yield from _find_late(snapshot, attachment, waiting, users_known=users_known)


def _may_need(
    pod: Pod, attachment: Attachment, resolved: Collection[str], *, users_known: bool
) -> bool:
    """Whether a pod may need a volume.

    `resolved`: the claims whose volume is known. `users_known`: whether it is known who needs it.
    """
    return _needs(pod, attachment) if users_known else bool(_claims(pod).difference(resolved))


def _find_late(
    snapshot: Snapshot,
    attachment: Attachment,
    waiting: Mapping[Pod, timedelta],
    *,
    users_known: bool,
) -> Iterator[Finding]:
    """Yield the finding if pods have waited for too long. `waiting`: for how long each has."""
    # If any of several pods may need it, it may be the one that has waited for the shortest time.
    decisive = max if users_known else min
    waited = decisive(waiting.values(), default=timedelta(0))
    if users_known and attachment.attached and waited >= _LATE_AFTER:
        late = [pod for pod, time in waiting.items() if time >= _LATE_AFTER]
        yield _finding(snapshot, attachment.volume, Confidence.CONFIRMED, late)
    elif not (users_known and attachment.attached) and waited >= _ATTACH_TIMEOUT:
        late = [pod for pod, time in waiting.items() if time >= _ATTACH_TIMEOUT]
        yield _finding_unconfirmed(snapshot, attachment, late, users_known=users_known)


def _finding_unconfirmed(
    snapshot: Snapshot, attachment: Attachment, late: Sequence[Pod], *, users_known: bool
) -> Finding:
    """Say why a volume is not attached, or what the reasons may be."""
    answers = snapshot.attachments.known()
    users = sorted(late, key=lambda pod: (pod.name, pod.uid))
    uids = {pod.uid for pod in users}
    explanation = explain(attachment, [event for event in answers.events if event.pod_uid in uids])

    confidence = Confidence.PROBABLE
    severity = Severity.WARNING
    if explanation is not None:
        confidence = explanation.confidence
        severity = Severity.INFO
        reason = _Reason.from_explanation(explanation)
    else:
        if attachment.attached or uids.isdisjoint(answers.failed_pods):
            causes = _remaining_causes(snapshot, attachment, answers, users)
            if users_known and causes == [Cause.LOST]:
                severity = Severity.CRITICAL
        else:
            confidence = Confidence.FAILING
            severity = Severity.INFO
            causes = [Cause.ELSEWHERE, Cause.FAILING]
        reason = _possible_reason(causes, attachment, users, snapshot, users_known=users_known)

    return _finding(
        snapshot,
        attachment.volume,
        confidence,
        users,
        reason=reason,
        severity=severity,
        users_known=users_known,
    )


def _remaining_causes(
    snapshot: Snapshot, attachment: Attachment, answers: Attachments, users: Iterable[Pod]
) -> list[Cause]:
    """Return the possible causes if the API server's answers show none."""
    oldest = max(_waiting_times(snapshot, users).values())
    were_read = answers.events_read
    if were_read is None:
        were_read = not answers.not_requested

    causes = possible_causes(attachment, events_known=were_read and oldest < EVENTS_LIVE)
    if causes == [Cause.LOST] and is_since(snapshot.server_version, FIXED):
        return [Cause.FAILING, Cause.LOST]  # this version should not lose it
    return causes


class _Reason(NamedTuple):
    """Why a volume is not attached, and what to do."""

    text: str
    """All of it in one sentence."""
    details: tuple[str, ...]
    """The same without what to do."""
    steps: tuple[Remedy, ...]

    @classmethod
    def from_explanation(cls, explanation: Explanation) -> "_Reason":
        remedies = explanation.remedies
        texts = [f"{one.text}: {one.command}" if one.command else one.text for one in remedies]
        steps = tuple(map(_as_step, remedies))
        return cls("; ".join([explanation.text, *texts]), (explanation.text,), steps)


def _as_step(remedy: Remedy) -> Remedy:
    """Write a clause as a sentence of its own."""
    text = f"{remedy.text[0].upper()}{remedy.text[1:]}"
    return replace(remedy, text=f"{text}{':' if remedy.command else '.'}")


def _possible_reason(
    causes: Sequence[Cause],
    attachment: Attachment,
    users: Sequence[Pod],
    snapshot: Snapshot,
    *,
    users_known: bool,
) -> _Reason:
    """Return a reason that names the possible causes, and how to tell them apart."""
    recreate = partial(
        _recreation_steps, attachment.volume, snapshot.node_name, users, users_known=users_known
    )
    version = describe_version(snapshot.server_version)
    names = [
        f"{cause.value} ({version})" if cause is Cause.LOST else cause.value for cause in causes
    ]
    if list(causes) == [Cause.LOST]:
        return _Reason(f"{names[0]}; {_RECREATE_POD}", (names[0],), recreate())

    which = commands(attachment, snapshot.node_name, users[0])
    decide = f"{'; '.join(which)} (Events live for an hour)"
    if len(names) > 1:
        text = f"one of: {'; '.join(names)}; to tell them apart: {decide}"
        details = tuple(f"possible: {name}" for name in names)
    else:
        only = f"nothing else is possible but: {names[0]}"
        text = f"{only}; see {decide}"
        details = (only,)

    see = f"See why {attachment.volume} is not attached (Events of pods live for an hour):"
    steps = [Remedy(see, command) for command in which]
    if Cause.LOST in causes and is_since(snapshot.server_version, FIXED) is False:
        text += f"; if its entry was lost, {_RECREATE_POD}"
        steps += recreate("if its entry was lost, ")
    return _Reason(text, details, tuple(steps))


def _checking_step(volume: str, condition: str = "") -> Remedy:
    text = f"{condition}check that no other node has {volume}:"
    return Remedy(f"{text[0].upper()}{text[1:]}", list_holders(volume))


def _recreation_steps(
    volume: str, node: str, pods: Iterable[Pod], condition: str = "", *, users_known: bool = True
) -> tuple[Remedy, ...]:
    """Return the steps by which a volume is attached anew for waiting pods.

    `condition`: the start of the first step; empty: none. Not `users_known`: some of the pods need
    it, and it is unknown which.
    """
    wait = "wait" if users_known else "may wait"
    again = f"Then cordon the node, and delete the pods that {wait} for {volume}:"
    names = [pod.name.partition("/") for pod in pods]
    return (
        _checking_step(volume, condition),
        Remedy(again, f"kubectl cordon {node}"),
        *(Remedy(again, f"kubectl delete pod -n {space} {name}") for space, _, name in names),
        Remedy(
            f"When {volume} has left volumesInUse and volumesAttached, and its VolumeAttachment is "
            "gone:",
            f"kubectl uncordon {node}",
        ),
        Remedy(f"If that takes more than ten minutes, {_RESTART_LEADER}."),
    )


def _reattachment_steps(volume: str) -> tuple[Remedy, ...]:
    """Return the steps by which the volume of a running pod is attached again."""
    return (
        _checking_step(volume),
        Remedy(
            "Restart the leader of the kube-controller-manager, which attaches the volume again."
        ),
        Remedy("Tell the owner of the storage: the volume may have been detached under its pod."),
    )


def _waiting_times(snapshot: Snapshot, pods: Iterable[Pod]) -> dict[Pod, timedelta]:
    """Return how long at least each pod that waits for volumes has waited, by either clock."""
    now = min(snapshot.taken_at, snapshot.api_time)
    times = {}
    for pod in pods:
        waits = pod.phase == "Pending" and not pod.deleting and pod.started is None
        if waits and pod.scheduled is not None and (pod.claims or pod.volumes):
            times[pod] = now - pod.scheduled
    return times


def _claims(pod: Pod) -> set[str]:
    """Return the claims of a pod, each as `namespace/name`."""
    return {f"{pod.namespace}/{claim}" for claim in pod.claims}


def _needs(pod: Pod, attachment: Attachment) -> bool:
    """Whether a live pod needs a volume, by its name or by its claim."""
    by_name = any(is_same_volume(volume, attachment.volume) for volume in pod.volumes)
    return pod.live and (by_name or attachment.claim in _claims(pod))


def is_same_volume(volume: str, other: str) -> bool:
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
    """Return what names the plugin in a volume, with its CSI driver; empty: nothing does."""
    matched = re.match(r"kubernetes\.io/csi/[^^]*|[^/]*/[^/]*", volume)
    return matched[0] if matched else ""


def _finding(
    snapshot: Snapshot,
    volume: str,
    confidence: Confidence,
    pods: Iterable[Pod],
    *,
    reason: _Reason | None = None,
    severity: Severity = Severity.CRITICAL,
    users_known: bool = True,
) -> Finding:
    """`pods`: those that wait for the volume, or have it mounted. `reason`: None: it was lost.

    Not `users_known`: some of them, and it is unknown which.
    """
    users = sorted(pods, key=lambda pod: (pod.name, pod.uid))
    names = join_few([_describe_user(pod) for pod in users])
    by_users = f" (by {names})" if names else ""
    problem = _PROBLEMS.get(confidence, _NOT_LISTED).format(volume=volume, users=by_users)
    lead = f"{confidence.value}: {problem}"
    is_mounted = confidence is Confidence.MOUNTED
    details = [] if is_mounted else [f"waiting pods: {names}"]
    if not users_known:
        details = ["it is unknown which pod needs it", f"waiting pods with a claim: {names}"]

    if reason is None:
        version = describe_version(snapshot.server_version)
        remedy = _REATTACH if is_mounted else _RECREATE_POD
        steps = (
            _reattachment_steps(volume)
            if is_mounted
            else _recreation_steps(volume, snapshot.node_name, users)
        )
        reason = _Reason(f"{version}; {remedy}", (version,), steps)
    less_certain = _describe_skipped(snapshot)
    scheduled = [pod.scheduled for pod in users if pod.scheduled is not None and not is_mounted]
    return Finding(
        NAME,
        f"volume {volume}",
        "; ".join([lead, *details, reason.text, *less_certain]),
        lead=lead,
        details=(*details, *reason.details, *less_certain),
        steps=reason.steps,
        pods=tuple(pod.name for pod in users),
        severity=severity,
        pod=users[0].name if users_known and len(users) == 1 else "",
        since=min(scheduled, default=None),
        confidence=confidence,
        affected=tuple(pod.uid for pod in users if users_known),
    )


def _describe_user(pod: Pod) -> str:
    if pod.scheduled and pod.started is None:
        return f"{pod.name} since {format_time(pod.scheduled)}"
    return pod.name


def _describe_skipped(snapshot: Snapshot) -> list[str]:
    skipped = sorted(known_or(snapshot.attachments, Attachments()).not_requested)
    return [f"nodeleak may not {', '.join(skipped)}, so this is less certain"] if skipped else []
