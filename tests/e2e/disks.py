"""Disks of the real node: FlexVolumes of hack/cluster's own driver, and one of CSI whose external attacher we are.

No disk is behind either; the API server, the controller-manager and the kubelet are real, and get no false data. The
controller-manager fails to detach: the driver says no, and RBAC forbids to delete the VolumeAttachment.
"""

import contextlib
import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from .node import Cluster, eventually, pod_with

_STATE: Final = Path("/run/nodeleak-flexdisk")
_DRIVER, _HANDLE, _CLAIM = "disk.nodeleak.example", "vol-e2e-7", "e2e-disk"
CSI_DISK: Final = f"kubernetes.io/csi/{_DRIVER}^{_HANDLE}"
_CONTROLLER: Final = (
    "/apis/rbac.authorization.k8s.io/v1/clusterroles/system:controller:attachdetach-controller"
)
_ATTACHMENTS: Final = "/apis/storage.k8s.io/v1/volumeattachments"


def flex_disk(name: str) -> str:
    """Return the name of a disk in the node's status."""
    return f"nodeleak/disk/{name}"


class Disks:
    """Pods with disks."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def make(self, name: str, attach_seconds: int = 0) -> None:
        """Create a pod with a disk of the same name."""
        options = {"attachSeconds": str(attach_seconds)}
        self._make(
            name, {"flexVolume": {"driver": "nodeleak/disk", "fsType": "tmpfs", "options": options}}
        )

    def make_with_claim(self, name: str) -> None:
        """Create a pod with the CSI disk."""
        self._make(name, {"persistentVolumeClaim": {"claimName": _CLAIM}})

    def _make(self, name: str, volume: dict[str, Any]) -> None:
        pod = pod_with(self._cluster, name)
        pod["spec"]["terminationGracePeriodSeconds"] = 0
        pod["spec"]["volumes"] = [{"name": name, **volume}]
        pod["spec"]["containers"][0]["volumeMounts"] = [{"name": name, "mountPath": "/data"}]
        self._cluster.apply(pod)

    def delete(self, *names: str) -> None:
        self._cluster.kubectl("delete", "pods", *names, "--timeout=60s")

    def phase(self, name: str) -> str:
        return str(self.get(f"/api/v1/namespaces/default/pods/{name}")["status"]["phase"])

    def runs(self, name: str, seconds: float = 130) -> None:
        """A kubelet that waits for a disk for long checks every two minutes only."""
        eventually(lambda: self.phase(name), seconds, equal="Running")

    def lists(self) -> tuple[set[str], set[str]]:
        """Return the node's volumesInUse and volumesAttached."""
        status = self.get(f"/api/v1/nodes/{self._cluster.node}")["status"]
        return {*status.get("volumesInUse", ())}, {
            one["name"] for one in status.get("volumesAttached", ())
        }

    def attached(self, *volumes: str) -> None:
        eventually(lambda: {*volumes} - self.lists()[1], equal=set())

    def gone(self, *volumes: str) -> None:
        """Wait until volumes are in neither list."""
        eventually(lambda: {*volumes} & set().union(*self.lists()), equal=set())

    def lost(self, *volumes: str) -> bool:
        """Return whether volumes are in use, not attached, and stay like that."""
        in_use, attached = self.lists()
        return {*volumes} <= in_use - attached

    def looks_old(self, *names: str) -> None:
        """Set the PodScheduled time of pods to eleven minutes ago; a running kubelet would undo it."""
        long_ago = (datetime.now(UTC) - timedelta(minutes=11)).isoformat(timespec="seconds")  # noqa: TID251 (as the API server)
        for name in names:
            path = f"/api/v1/namespaces/default/pods/{name}"
            pod = self.get(path)
            (scheduled,) = (
                one for one in pod["status"]["conditions"] if one["type"] == "PodScheduled"
            )
            scheduled["lastTransitionTime"] = long_ago.replace("+00:00", "Z")
            self._put(f"{path}/status", pod)

    @contextlib.contextmanager
    def claim(self) -> Iterator[None]:
        """Bind a claim to a CSI disk during the block."""
        meta = {"name": _CLAIM, "namespace": "default"}
        size, modes = {"storage": "1Gi"}, ["ReadWriteOnce"]
        volume = {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": f"pv-{_CLAIM}"},
            "spec": {
                "capacity": size,
                "accessModes": modes,
                "claimRef": meta,
                "persistentVolumeReclaimPolicy": "Retain",
                "csi": {"driver": _DRIVER, "volumeHandle": _HANDLE},
            },
        }
        claim = {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": meta,
            "spec": {
                "accessModes": modes,
                "resources": {"requests": size},
                "storageClassName": "",
                "volumeName": f"pv-{_CLAIM}",
            },
        }
        self._cluster.apply(volume, claim)
        try:
            yield
        finally:
            self._cluster.kubectl("delete", "pvc", _CLAIM, "--wait=false")
            self._cluster.kubectl("delete", "pv", f"pv-{_CLAIM}", "--wait=false")

    def attach_by_csi(self) -> None:
        """Act as the external attacher: set a new VolumeAttachment to attached.

        After failures the controller waits up to two minutes before it makes one.
        """

        def check() -> None:
            found = [
                item
                for item in self.get(_ATTACHMENTS)["items"]
                if item["spec"]["attacher"] == _DRIVER
            ]
            assert len(found) == 1
            (made,) = found
            made |= {"apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttachment"}
            made["status"] = {"attached": True}
            self._put(f"{_ATTACHMENTS}/{made['metadata']['name']}/status", made)

        eventually(check)

    @contextlib.contextmanager
    def detaching_fails(self) -> Iterator[None]:
        """Fail detaching during the block."""
        role = self.get(_CONTROLLER)
        less = json.loads(json.dumps(role))
        for rule in less["rules"]:
            if "volumeattachments" in rule.get("resources", ()):
                rule["verbs"].remove("delete")
        self._put(_CONTROLLER, less)
        (_STATE / "detach-fails").touch()
        try:
            yield
        finally:
            (_STATE / "detach-fails").unlink()
            patch = json.dumps({"rules": role["rules"]})
            self._cluster.kubectl(
                "patch", "clusterrole", role["metadata"]["name"], "--type=merge", "-p", patch
            )

    def refused(self, name: str) -> int:
        """Return the number of detach calls to the driver."""
        return (_STATE / "log").read_text().count(f" detach {name} ")

    def get(self, path: str) -> Any:
        return json.loads(self._cluster.kubectl("get", "--raw", path))

    def _put(self, path: str, tree: Any) -> None:
        self._cluster.kubectl("replace", "--raw", path, "-f", "-", text=json.dumps(tree))
