"""How the status of a Node names a volume."""

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


def unique_volume_name(described: Object, name: str) -> str | None:
    """Return a volume's name in the node's status.

    None: it need not be attached, or is of an unknown kind. `name`: of the PersistentVolume, or of
    the volume in its pod.
    """
    for kind, pattern in _VOLUMES.items():
        source = described.get(kind)
        if isinstance(source, Mapping):
            fields = {**source, "object name": name}
            values = {field: value for field, value in fields.items() if value}
            try:
                return pattern.format_map(_DEFAULTS | values)
            except KeyError:
                return None
    return None
