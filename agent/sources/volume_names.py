"""What a volume is called in the node's status, from how a pod or a PersistentVolume describes it."""

from collections.abc import Mapping
from typing import Any, Final

_IDS: Final = {
    "awsElasticBlockStore": ("aws-ebs", "volumeID"),
    "azureDisk": ("azure-disk", "diskURI"),
    "cinder": ("cinder", "volumeID"),
    "gcePersistentDisk": ("gce-pd", "pdName"),
    "vsphereVolume": ("vsphere-volume", "volumePath"),
}
"""Where each kind of volume has its id. Of others (Fibre Channel) the name cannot be told from here."""


def csi(driver: str, handle: str) -> str:
    return f"kubernetes.io/csi/{driver}^{handle}"


def csi_parts(volume: str) -> tuple[str, str] | None:
    """Return driver and handle; None: it is no volume of CSI."""
    driver, found, handle = volume.removeprefix("kubernetes.io/csi/").partition("^")
    return (driver, handle) if found and volume.startswith("kubernetes.io/csi/") else None


def unique_name(described: Mapping[str, Any], name: str) -> str:
    """Return what it is called; empty: it need not be attached, or is of a kind that we cannot tell.

    `name`: of the PersistentVolume, or of the volume in its pod. Raises KeyError, TypeError or AttributeError.
    """
    for kind, (plugin, field) in _IDS.items():
        if one := described.get(kind):
            return f"kubernetes.io/{plugin}/{one[field]}"
    if (one := described.get("csi")) and "volumeHandle" in one:
        return csi(one["driver"], one["volumeHandle"])
    if one := described.get("rbd"):
        return f"kubernetes.io/rbd/{one.get('pool') or 'rbd'}:{one['image']}"
    if one := described.get("iscsi"):
        return f"kubernetes.io/iscsi/{one['targetPortal']}:{one['iqn']}:{one.get('lun') or 0}"
    if one := described.get("flexVolume"):
        return f"{one['driver']}/{name}"
    return ""
