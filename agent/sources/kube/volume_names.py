"""The name of a volume in the node's status, from its description in a pod or a PersistentVolume."""

from collections.abc import Mapping
from typing import Any, Final

_OBJECT_NAME: Final = ""
"""For a FlexVolume: its name in the pod, or that of the PersistentVolume."""
_FIELDS: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "awsElasticBlockStore": ("kubernetes.io/aws-ebs/{}", ("volumeID",)),
    "azureDisk": ("kubernetes.io/azure-disk/{}", ("diskURI",)),
    "cinder": ("kubernetes.io/cinder/{}", ("volumeID",)),
    "csi": ("kubernetes.io/csi/{}^{}", ("driver", "volumeHandle")),
    "flexVolume": ("{}/{}", ("driver", _OBJECT_NAME)),
    "gcePersistentDisk": ("kubernetes.io/gce-pd/{}", ("pdName",)),
    "iscsi": ("kubernetes.io/iscsi/{}:{}:{}", ("targetPortal", "iqn", "lun")),
    "rbd": ("kubernetes.io/rbd/{}:{}", ("pool", "image")),
    "vsphereVolume": ("kubernetes.io/vsphere-volume/{}", ("volumePath",)),
}
"""How each kind of volume is named, and by which fields. Other kinds (Fibre Channel) cannot be named from here.

The kind `csi` of a pod has no handle: it is never attached.
"""
_DEFAULTS: Final = {"lun": "0", "pool": "rbd"}
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
    kind = next((kind for kind in _FIELDS if isinstance(described.get(kind), Mapping)), None)
    if kind is None:
        return ""
    volume, (form, fields) = {_OBJECT_NAME: name, **described[kind]}, _FIELDS[kind]
    parts = [str(volume.get(field) or _DEFAULTS.get(field, "")) for field in fields]
    return form.format(*parts) if all(parts) else ""
