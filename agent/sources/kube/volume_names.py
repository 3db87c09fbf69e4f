"""The name of a volume in the node's status, from its description in a pod or a PersistentVolume."""

from collections.abc import Mapping
from typing import Any, Final

_ITS_NAME: Final = object()
"""For a FlexVolume: its name in the pod, or that of the PersistentVolume."""
_IDS: Final[Mapping[str, tuple[str, tuple[Any, ...]]]] = {
    "awsElasticBlockStore": ("kubernetes.io/aws-ebs/{}", ("volumeID",)),
    "azureDisk": ("kubernetes.io/azure-disk/{}", ("diskURI",)),
    "cinder": ("kubernetes.io/cinder/{}", ("volumeID",)),
    "csi": ("kubernetes.io/csi/{}^{}", ("driver", "volumeHandle")),
    "flexVolume": ("{}/{}", ("driver", _ITS_NAME)),
    "gcePersistentDisk": ("kubernetes.io/gce-pd/{}", ("pdName",)),
    "iscsi": ("kubernetes.io/iscsi/{}:{}:{}", ("targetPortal", "iqn", "lun")),
    "rbd": ("kubernetes.io/rbd/{}:{}", ("pool", "image")),
    "vsphereVolume": ("kubernetes.io/vsphere-volume/{}", ("volumePath",)),
}
"""How each kind of volume is named, and by which fields. Other kinds (Fibre Channel) cannot be named from here.

The kind `csi` of a pod has no handle: it is never attached.
"""
_ELSE: Final = {"lun": "0", "pool": "rbd"}
"""The defaults of Kubernetes."""


def csi(driver: str, handle: str) -> str:
    return f"kubernetes.io/csi/{driver}^{handle}"


def csi_parts(volume: str) -> tuple[str, str] | None:
    """Return driver and handle; None: it is not a CSI volume."""
    driver, found, handle = volume.removeprefix("kubernetes.io/csi/").partition("^")
    return (driver, handle) if found and volume.startswith("kubernetes.io/csi/") else None


def unique_name(described: Mapping[str, Any], name: str) -> str:
    """Return its name; empty: it need not be attached, or is of an unknown kind.

    `name`: of the PersistentVolume, or of the volume in its pod.
    """
    kind = next((kind for kind in _IDS if isinstance(described.get(kind), Mapping)), None)
    if kind is None:
        return ""
    one, (plugin, fields) = described[kind], _IDS[kind]
    parts = [str(name if field is _ITS_NAME else one.get(field) or _ELSE.get(field, "")) for field in fields]
    return plugin.format(*parts) if all(parts) else ""
