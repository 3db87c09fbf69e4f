"""How the status of a Node names a volume."""

import re
from collections.abc import Mapping
from typing import Final

from agent.sources.kube.fields import Object

_VOLUMES: Final[Mapping[str, str]] = {
    "awsElasticBlockStore": "kubernetes.io/aws-ebs/{volumeID}",
    "azureDisk": "kubernetes.io/azure-disk/{diskURI}",
    "cinder": "kubernetes.io/cinder/{volumeID}",
    "csi": "kubernetes.io/csi/{driver}^{volumeHandle}",
    "flexVolume": "{driver}/{object name}",
    "gcePersistentDisk": "kubernetes.io/gce-pd/{pdName}",
    "iscsi": "kubernetes.io/iscsi/{targetPortal}:{iqn}:{lun}",
    "rbd": "kubernetes.io/rbd/{pool}:{image}",
    "vsphereVolume": "kubernetes.io/vsphere-volume/{volumePath}",
}
"""How the node's status names a volume of each kind, by the fields of its source.

Other kinds (Fibre Channel) cannot be named from here. The kind `csi` of a pod has no handle: it is
never attached.
"""
_DEFAULTS: Final = {"lun": "0", "pool": "rbd"}
"""What Kubernetes takes for fields that are missing."""

_OTHER_KINDS: Final = frozenset({
    "azureFile", "cephfs", "configMap", "downwardAPI", "emptyDir", "ephemeral", "fc", "flocker",
    "gitRepo", "glusterfs", "hostPath", "image", "local", "nfs", "persistentVolumeClaim",
    "photonPersistentDisk", "portworxVolume", "projected", "quobyte", "scaleIO", "secret",
    "storageos",
})  # fmt: skip
"""The other kinds of Kubernetes. What is none of these is a vendor's, such as `qcloudCbs`."""
_NO_SOURCES: Final = frozenset({"capacity", "claimRef", "nodeAffinity"})
"""Fields of a PersistentVolume that are objects and no source."""
_WORD: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def unique_volume_names(described: Object, name: str) -> tuple[str, ...]:
    """Return what a volume may be called in the node's status; of a known kind, its one name.

    Empty: it need not be attached, or is of an unknown kind. `name`: of the PersistentVolume, or of
    the volume in its pod. A vendor's in-tree plugin is called like its source, and the ID is one of
    the source's fields: `qcloudCbs: {cbsDiskId: disk-1}` is `kubernetes.io/qcloud-cbs/disk-1`.
    """
    for kind, pattern in _VOLUMES.items():
        source = described.get(kind)
        if isinstance(source, Mapping):
            fields = {**source, "object name": name}
            values = {field: value for field, value in fields.items() if value}
            try:
                return (pattern.format_map(_DEFAULTS | values),)
            except KeyError:
                return ()

    if not _OTHER_KINDS.isdisjoint(described):
        return ()
    return tuple(
        f"kubernetes.io/{_WORD.sub('-', kind).lower()}/{value}"
        for kind, source in described.items()
        if isinstance(source, Mapping) and kind not in _NO_SOURCES
        for value in source.values()
        if isinstance(value, str) and value
    )
