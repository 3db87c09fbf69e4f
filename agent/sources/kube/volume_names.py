"""What a volume is called in the node's status, from how a pod or a PersistentVolume describes it."""

from collections.abc import Mapping
from typing import Any, Final

_ITS_NAME: Final = object()
"""Of a FlexVolume, the name by which the pod or the PersistentVolume has it."""
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
"""How each kind of volume is named, and by what. Of others (Fibre Channel) the name cannot be told from here.

The kind `csi` of a pod has no handle: nobody attaches it.
"""
_ELSE: Final = {"lun": "0", "pool": "rbd"}
"""What Kubernetes takes where nothing is said."""


def csi(driver: str, handle: str) -> str:
    return f"kubernetes.io/csi/{driver}^{handle}"


def csi_parts(volume: str) -> tuple[str, str] | None:
    """Return driver and handle; None: it is no volume of CSI."""
    driver, found, handle = volume.removeprefix("kubernetes.io/csi/").partition("^")
    return (driver, handle) if found and volume.startswith("kubernetes.io/csi/") else None


def unique_name(described: Mapping[str, Any], name: str) -> str:
    """Return what it is called; empty: it need not be attached, or is of a kind that we cannot tell.

    `name`: of the PersistentVolume, or of the volume in its pod.
    """
    kind = next((kind for kind in _IDS if isinstance(described.get(kind), Mapping)), None)
    if kind is None:
        return ""
    one, (plugin, fields) = described[kind], _IDS[kind]
    parts = [str(name if field is _ITS_NAME else one.get(field) or _ELSE.get(field, "")) for field in fields]
    return plugin.format(*parts) if all(parts) else ""
