"""Why a volume is in use and not attached, beside an entry that was lost. Pure.

Another node has it; attaching or detaching it fails; its CSI driver is not registered on this
node. The controller reports Multi-Attach once, and Events live for an hour, so that no Event proves
nothing then.
"""

import re
from collections.abc import Collection, Iterator
from datetime import timedelta
from enum import StrEnum
from typing import Final, NamedTuple

from agent.model.remedy import Remedy
from agent.model.snapshot import Pod
from agent.model.text import join_names
from agent.model.versions import is_since
from agent.model.volumes import Attachment, Confidence, VolumeEvent

FIXED: Final = ((1, 22, 14), (1, 23, 11), (1, 24, 5), (1, 25, 1), (1, 26, 0))
"""The first releases of Kubernetes that restore the entry when a detach fails."""
EVENTS_LIVE: Final = timedelta(minutes=55)
"""Less than the API server keeps Events by default."""
USED_ELSEWHERE: Final = "volume_used_elsewhere"
ATTACH_FAILED: Final = "attach_failed"
DRIVER_MISSING: Final = "csi_driver_missing"
ENTRIES: Final = (USED_ELSEWHERE, ATTACH_FAILED, DRIVER_MISSING)
"""The messages of the catalog that say why a volume is not attached."""
_CSI: Final = re.compile(r"kubernetes\.io/csi/([^^]*)\^.*", re.DOTALL)
_RELEASE: Final = re.compile(r"v?([0-9]+\.[0-9]+\.[0-9]+)(.*)", re.DOTALL)


class Cause(StrEnum):
    """What may be the reason, in words."""

    ELSEWHERE = "another node has it (Multi-Attach)"
    GONE = "a node that was deleted still has it (its VolumeAttachment is left)"
    NOT_ASKED = "no kube-controller-manager attaches it (one makes the VolumeAttachment)"
    FAILING = "attaching or detaching it fails, or its driver's controller does not answer"
    NO_DRIVER = "its CSI driver is not registered on this node"
    LOST = "its entry was lost"


class Explanation(NamedTuple):
    """The one reason that the data show."""

    confidence: Confidence
    text: str
    remedies: tuple[Remedy, ...]


def explain(attachment: Attachment, events: Collection[VolumeEvent]) -> Explanation | None:
    """Return why a volume is not attached; None: nothing shows it.

    `events`: of the pods that wait for it.
    """
    if attachment.attached:
        return None  # whatever an Event says is over

    about = [event for event in events if _is_about(event, attachment)]
    messages = {event.entry: event.message for event in about}
    registered = attachment.driver_registered
    if registered is False or (registered is None and DRIVER_MISSING in messages):
        return _no_driver(attachment)
    if attachment.holders and not attachment.shared:
        return _elsewhere(attachment)

    if words := attachment.detach_error or attachment.attach_error:
        return _failing("VolumeAttachment", words)
    if USED_ELSEWHERE in messages:
        return Explanation(
            Confidence.ELSEWHERE,
            f"{Cause.ELSEWHERE.value}, as an Event says: {messages[USED_ELSEWHERE]}",
            (Remedy("`kubectl get volumeattachments` shows that node: end the pod there"),),
        )

    if ATTACH_FAILED in messages:
        return _failing("Event", messages[ATTACH_FAILED])
    if attachment.failed:
        return _failing("VolumeAttachment", "an attach error")
    if attachment.deleting:
        return _detaching()
    return None


def _is_about(event: VolumeEvent, attachment: Attachment) -> bool:
    """Whether an Event may be about a volume: their PersistentVolumes do not differ."""
    names = {event.persistent_volume, attachment.persistent_volume} - {""}
    return len(names) < 2  # noqa: PLR2004 (both are known and differ)


def _no_driver(attachment: Attachment) -> Explanation:
    matched = _CSI.fullmatch(attachment.volume)
    driver = f" {matched[1]}" if matched else ""
    return Explanation(
        Confidence.NO_DRIVER,
        f"its CSI driver{driver} is not registered on this node",
        (Remedy("look at the pod of the driver's DaemonSet on this node"),),
    )


def _elsewhere(attachment: Attachment) -> Explanation:
    holders = attachment.holders or ()
    names = [holder.node if holder.ready else f"{holder.node} (not Ready)" for holder in holders]
    first = holders[0].node
    remedies = [Remedy(f"end the pod that uses it on {first}")]
    if not holders[0].ready:
        taint = "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute"
        command = f"kubectl taint node {first} {taint}"
        remedies.append(Remedy("if that machine is certainly off", command))

    text = f"{Cause.ELSEWHERE.value}: {join_names(names)}"
    if attachment.shared is None:
        text += " (unverified: its access mode may allow several nodes)"
    return Explanation(Confidence.ELSEWHERE, text, tuple(remedies))


def _failing(source: str, words: str) -> Explanation:
    return Explanation(
        Confidence.FAILING,
        f"attaching or detaching it fails, as its {source} says: {words}",
        (
            Remedy(
                "the cluster tries again: repair what it says, or see the log of the driver's "
                "controller"
            ),
        ),
    )


def _detaching() -> Explanation:
    """Explain an attach that waits for the detach of an earlier use on the same node."""
    return Explanation(
        Confidence.FAILING,
        "its VolumeAttachment for this node is being deleted, and remains: the detach of an "
        "earlier use has not ended",
        (
            Remedy(
                "see the log of the driver's controller (its container csi-attacher), which "
                "removes the finalizer"
            ),
            Remedy("do not remove it by hand while the volume may be attached"),
        ),
    )


def possible_causes(attachment: Attachment, *, events_known: bool) -> list[Cause]:
    """Return the reasons that nothing excludes, at least one.

    `events_known`: the Events of all waiting pods were read, and are too young to have expired.
    """
    if attachment.attached:
        return [Cause.LOST]
    return list(_possible(attachment, events_known=events_known)) or list(Cause)


def _possible(attachment: Attachment, *, events_known: bool) -> Iterator[Cause]:
    is_csi = _CSI.fullmatch(attachment.volume) is not None
    # The Node that has it may have been deleted: then only its VolumeAttachment shows it.
    # Multi-Attach is reported once for a volume and node: pods that come later have no Event.
    if attachment.holders is None and not attachment.shared:
        yield Cause.ELSEWHERE
    elif is_csi and not (attachment.exists or attachment.shared):
        yield Cause.GONE
    if attachment.exists is False:
        yield Cause.NOT_ASKED
    if attachment.exists or (attachment.exists is None and not events_known):
        yield Cause.FAILING
    if is_csi and not (attachment.driver_registered or events_known):
        yield Cause.NO_DRIVER
    # The VolumeAttachment of a lost entry says attached.
    if attachment.exists is None:
        yield Cause.LOST


def list_holders(volume: str) -> str:
    """Return the command that shows which nodes have a volume."""
    if _CSI.fullmatch(volume):
        return "kubectl get volumeattachments"
    columns = "NODE:.metadata.name,ATTACHED:.status.volumesAttached[*].name"
    return f"kubectl get nodes -o custom-columns='{columns}'"


def commands(attachment: Attachment, node: str, pod: Pod) -> list[str]:
    """Return what tells the reasons apart. `pod`: one that waits; its Events live for an hour."""
    where = [list_holders(attachment.volume)]
    if _CSI.fullmatch(attachment.volume):
        where.append(f"kubectl get csinode {node} -o yaml")
    name = pod.name.partition("/")[2]
    return [*where, f"kubectl describe pod -n {pod.namespace} {name}"]


def vendor_build(version: str) -> str | None:
    """Return the release that a vendor's build is of, such as 1.18.4 for v1.18.4-tke.6."""
    matched = _RELEASE.fullmatch(version)
    return matched[1] if matched and matched[2] else None


def describe_version(version: str) -> str:
    """Return what a version of Kubernetes says about lost entries."""
    fixed = is_since(version, FIXED)
    if fixed is None:
        return "it is unknown whether this version of Kubernetes has the known bug"
    if fixed:
        return f"Kubernetes {version} restores such entries"
    bug = "has the known bug that loses such entries"
    if release := vendor_build(version):
        return f"Kubernetes {release} {bug}, and the build {version} may have the fix"
    return f"Kubernetes {version} {bug}"
