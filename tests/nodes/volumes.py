"""Nodes with volumes that have to be attached: as seen on a real kubelet 1.20, and similar ones without a problem.

The pods and the node are read from raw objects, as the API server sends them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from agent.model.snapshot import Pod, Snapshot
from agent.model.volumes import Attachment, Mount
from agent.sources.kube import node as node_object
from agent.sources.kube.pods import parse_pod
from tests.builders import attachments, node, processes

NOW: Final = datetime(2026, 3, 26, 20, 0, tzinfo=UTC)
FLEX: Final = "nodeleak/disk/data"
CSI: Final = "kubernetes.io/csi/disk.example.com^vol-0a1b"
CSI_OTHER: Final = "kubernetes.io/csi/disk.example.com^vol-0c2d"
EBS: Final = "kubernetes.io/aws-ebs/aws://zone-a/vol-9"
EBS_BY_CSI: Final = "kubernetes.io/csi/ebs.csi.aws.com^vol-9"
RBD: Final = "kubernetes.io/rbd/rbd:image-1"
RBD_BY_CSI: Final = "kubernetes.io/csi/rbd.csi.ceph.com^mig_mons-b7f694a1_image-1_726264"


def worker(in_use: Sequence[str], attached: Sequence[str] = (), ready: str = "True") -> Mapping[str, Any]:
    return {
        "metadata": {
            "name": "worker-1",
            "annotations": {"volumes.kubernetes.io/controller-managed-attach-detach": "true"},
        },
        "spec": {"podCIDRs": ["10.244.1.0/24"], "providerID": "aws:///zone-a/i-0a1b"},
        "status": {
            "allocatable": {"pods": "110"},
            "conditions": [{"type": "MemoryPressure", "status": "False"}, {"type": "Ready", "status": ready}],
            "volumesInUse": [*in_use],
            "volumesAttached": [{"name": name, "devicePath": "/dev/xvdba"} for name in attached],
        },
    }


def waits(name: str, *volumes: Mapping[str, Any], minutes: int) -> Pod:
    """A pod in ContainerCreating, scheduled this many minutes ago."""
    since = (NOW - timedelta(minutes=minutes)).isoformat()
    return parse_pod({
        "metadata": {"namespace": "shop", "name": name, "uid": f"uid-of-{name}", "creationTimestamp": since},
        "spec": {
            "nodeName": "worker-1",
            "containers": [{"name": "main"}],
            "volumes": [*volumes, {"name": "token", "secret": {"secretName": "default-token"}}],
        },
        "status": {
            "phase": "Pending",
            "conditions": [
                {"type": "Ready", "status": "False", "lastTransitionTime": since},
                {"type": "PodScheduled", "status": "True", "lastTransitionTime": since},
            ],
            "containerStatuses": [{"name": "main", "state": {"waiting": {"reason": "ContainerCreating"}}}],
        },
    })  # fmt: skip


def claim(name: str) -> Mapping[str, Any]:
    return {"name": "data", "persistentVolumeClaim": {"claimName": name}}


FLEX_DATA: Final = {"name": "data", "flexVolume": {"driver": "nodeleak/disk", "fsType": "tmpfs"}}


def cluster(*pods: Pod, of: Mapping[str, Any], **more: Any) -> Snapshot:
    seen = node(*pods, node=[node_object.parse_node(of)], **more)
    return replace(seen, server_version="v1.20.2")


def lost() -> Snapshot:
    """Pods of two StatefulSets returned to the node during the back-off of a failed detach."""
    return cluster(
        waits("db-0", claim("data-db-0"), minutes=3),
        waits("cache-0", FLEX_DATA, minutes=11),
        of=worker([FLEX, CSI]),
        attachments=attachments(Attachment(CSI, attached=True, claim="shop/data-db-0"), Attachment(FLEX)),
    )


def lost_without_rights() -> Snapshot:
    """The same with an account that may only read pods and nodes: which pod waits for which volume is unknown."""
    lacking = ["get volumeattachments", "get persistentvolumeclaims", "list events"]
    return cluster(
        waits("db-0", claim("data-db-0"), minutes=30),
        waits("db-1", claim("data-db-1"), minutes=20),
        of=worker([CSI]),
        attachments=attachments(Attachment(CSI), not_requested=lacking),
    )


def mounted() -> Snapshot:
    """The controller considers a mounted volume unused, and may detach it."""
    return cluster(of=worker([EBS]), mounts=[Mount(EBS), Mount(EBS, "uid of shop/db")])


def migration_disagreement() -> Snapshot:
    """The controller uses the CSI driver for a disk that the kubelet mounted in-tree; of a Ceph image it is unknown."""
    return cluster(
        of=worker([EBS, RBD], [EBS_BY_CSI, RBD_BY_CSI]),
        mounts=[Mount(EBS), Mount(EBS, "uid of shop/db"), Mount(RBD)],
    )


def no_volume_trouble() -> Snapshot:
    """Pods that wait for a volume for other reasons."""
    return cluster(
        waits("slow-0", claim("data-slow-0"), minutes=9),
        waits("elsewhere-0", claim("data-elsewhere-0"), minutes=90),
        waits("full-0", FLEX_DATA, minutes=90),
        of=worker([CSI, CSI_OTHER, FLEX]),
        attachments=attachments(
            Attachment(CSI, attached=False, claim="shop/data-slow-0"),
            Attachment(CSI_OTHER, attached=False, failed=True, claim="shop/data-elsewhere-0"),
            Attachment(FLEX),
            failed_pods=["uid-of-full-0"],
        ),
    )


def kubelet_just_started() -> Snapshot:
    """A kubelet that started a minute ago has not reported its volumes yet."""
    return cluster(
        waits("db-0", FLEX_DATA, minutes=30),
        of=worker([FLEX]),
        processes=[processes(kubelet=timedelta(seconds=60))],
        attachments=attachments(Attachment(FLEX)),
    )


NODES: Final = {
    "volumes-lost": lost,
    "volumes-lost-without-rights": lost_without_rights,
    "volumes-mounted": mounted,
    "volumes-migration-disagreement": migration_disagreement,
    "volumes-no-trouble": no_volume_trouble,
    "volumes-kubelet-just-started": kubelet_just_started,
}
