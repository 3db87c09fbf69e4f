"""Volumes that have to be attached to the node before they can be mounted. Facts; nothing here judges.

A volume is named as the kubelet and the controller name it in the node's status: `kubernetes.io/csi/<driver>^<handle>`,
`kubernetes.io/<plugin>/<id>`, or of a FlexVolume `<driver>/<name>`.
"""

from dataclasses import dataclass
from enum import StrEnum


class Strength(StrEnum):
    """How sure it is that a volume was lost from the node's status."""

    CONFIRMED = "confirmed"
    """Its VolumeAttachment says attached, and a pod waits for it."""
    PROBABLE = "probable"
    """A pod has waited for longer than any attaching takes."""
    MOUNTED = "mounted"
    """It is mounted, and so it is attached."""


@dataclass(frozen=True, slots=True)
class Mount:
    """A volume that is mounted on the node."""

    volume: str
    pod_uid: str = ""
    """The pod in whose directory it is; empty: where all pods of the node have it from."""


@dataclass(frozen=True, slots=True)
class Attachment:
    """What the API server says of one volume."""

    volume: str
    attached: bool | None = None
    """Its VolumeAttachment says attached, and nobody deletes that; None: not known, or it has none by its kind."""
    failed: bool = False
    """Its VolumeAttachment tells of an error."""
    claim: str = ""
    """`namespace/name` of the claim that it is bound to; empty: none, or not known."""


@dataclass(frozen=True, slots=True)
class Attachments:
    """What the API server was asked because a volume is missing and a pod waits."""

    volumes: tuple[Attachment, ...] = ()
    """Those that are missing, and those of the claims that were looked up."""
    failed_pods: tuple[str, ...] = ()
    """Uids of pods of which an event says that attaching a volume failed."""
    not_requested: tuple[str, ...] = ()
    """What could not be asked, such as `list events`: a right that the account lacks."""
