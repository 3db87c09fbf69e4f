"""Volumes that have to be attached to the node before they can be mounted.

A volume is named as in the node's status: `kubernetes.io/csi/<driver>^<handle>`,
`kubernetes.io/<plugin>/<id>`, or of a FlexVolume `<driver>/<name>`.
"""

from dataclasses import dataclass, field
from typing import Final

from agent.model.fields import NONE_IS_EMPTY
from agent.model.word import Word

MIGRATED: Final = {
    "kubernetes.io/aws-ebs": "kubernetes.io/csi/ebs.csi.aws.com",
    "kubernetes.io/azure-disk": "kubernetes.io/csi/disk.csi.azure.com",
    "kubernetes.io/cinder": "kubernetes.io/csi/cinder.csi.openstack.org",
    "kubernetes.io/gce-pd": "kubernetes.io/csi/pd.csi.storage.gke.io",
    "kubernetes.io/portworx-volume": "kubernetes.io/csi/pxd.portworx.com",
    "kubernetes.io/rbd": "kubernetes.io/csi/rbd.csi.ceph.com",
    "kubernetes.io/vsphere-volume": "kubernetes.io/csi/csi.vsphere.vmware.com",
}
"""The CSI driver that replaces each in-tree plugin (`csi-translation-lib`), if it attaches."""


class Confidence(Word):
    """How certain it is that a volume's entry in the node's status is lost, or why it is not."""

    CONFIRMED = "confirmed", "Its VolumeAttachment says attached, and a pod waits for it."
    PROBABLE = "probable", "A pod has waited for longer than any attach takes."
    MOUNTED = "mounted", "It is mounted, and thus attached."
    ELSEWHERE = (
        "elsewhere",
        "It is not lost: another node has it (Multi-Attach), which has to let it go first.",
    )
    FAILING = "failing", "It is not lost: the cluster says that attaching or detaching it fails."
    NO_DRIVER = "no_driver", "It is not lost: its CSI driver is not registered on this node."


@dataclass(frozen=True, slots=True)
class Mount:
    """A volume that is mounted on the node."""

    volume: str
    pod_uid: str = ""  # the pod in whose directory it is mounted; empty: it is the node-wide mount


@dataclass(frozen=True, slots=True)
class Holder:
    """Another node to which a volume is attached, by its status."""

    node: str
    ready: bool


@dataclass(frozen=True, slots=True)
class VolumeEvent:
    """The last Event of its kind about attaching or mounting a volume of a pod."""

    pod_uid: str
    entry: str
    """The key of its message in the catalog; empty: it has none."""
    message: str
    persistent_volume: str = ""
    """The PersistentVolume that the message names; empty: none."""


@dataclass(frozen=True, slots=True)
class Attachment:
    """What the API server says about a volume."""

    volume: str
    attached: bool | None = None
    """By its VolumeAttachment, which is not being deleted; None: unknown, or there is none."""
    failed: bool = False  # its VolumeAttachment has an attach error
    claim: str | None = field(default=None, metadata=NONE_IS_EMPTY)
    """`namespace/name` of the claim it is bound to; None: none, or unknown."""
    exists: bool | None = None
    """Whether there is a VolumeAttachment for this node; None: unknown, or it is not CSI's."""
    attach_error: str = ""  # the message of its VolumeAttachment; empty: none, or unknown
    detach_error: str = ""  # likewise
    holders: tuple[Holder, ...] | None = None
    """Other nodes to which it is attached, by their status; None: unknown."""
    shared: bool | None = None
    """Whether its access modes allow several nodes; None: unknown."""
    driver_registered: bool | None = None
    """Whether the CSINode of this node has its driver; None: unknown, or it is not CSI's."""
    persistent_volume: str = ""  # its PersistentVolume; empty: unknown
    deleting: bool = False  # its VolumeAttachment is being deleted: a detach is under way


@dataclass(frozen=True, slots=True)
class Attachments:
    """What the API server was asked, because a volume is missing and a pod waits."""

    volumes: tuple[Attachment, ...] = ()  # the missing ones, and those of the waiting pods' claims
    failed_pods: tuple[str, ...] = ()
    """UIDs of pods with an event that says that attaching a volume failed."""
    not_requested: tuple[str, ...] = ()
    """What was not requested, such as `list events`, without a permission."""
    events: tuple[VolumeEvent, ...] = ()  # of the waiting pods
    events_read: bool | None = None
    """Whether the Events of all of them were read; None: unknown, as in earlier recordings."""
