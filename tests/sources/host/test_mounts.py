"""The mounted volumes of a node."""

import json
from pathlib import Path
from typing import Any

import pytest

from agent.model.volumes import Mount
from tests.builders import CLOUD_DISK, DISK
from tests.wired import read, why_unavailable

UID = "26889b19-2663-4de6-b139-280b78fb2ac0"


class Node:
    """A node's `/proc/1/mountinfo`, and its kubelet's directory."""

    def __init__(self, home: Path) -> None:
        self.proc, self.kubelet = home / "proc", home / "kubelet"
        (self.proc / "1").mkdir(parents=True)
        (self.kubelet / "plugins").mkdir(parents=True)

    def mount(self, *paths: str) -> None:
        """Mount only these, which are below the directory of the kubelet if they are relative."""
        points = ("/", "/proc", *(self.kubelet / path for path in paths))
        options = "rw,noatime master:1 - ext3 /dev/root rw,errors=continue"
        (self.proc / "1/mountinfo").write_text(
            "".join(f"36 35 98:0 /mnt1 {point} {options}\n" for point in points)
        )

    def describe(self, directory: str) -> Path:
        """Write what the kubelet writes of a CSI volume."""
        file = self.kubelet / directory / "vol_data.json"
        file.parent.mkdir(parents=True)
        file.write_text(
            json.dumps(
                {"driverName": "disk.example.com", "volumeHandle": "vol-7", "specVolID": "pvc-1"}
            )
        )
        return file

    def read(self) -> Any:
        return read("mounts", proc=self.proc, kubelet_dir=self.kubelet)

    def why_not(self) -> str:
        return why_unavailable("mounts", proc=self.proc, kubelet_dir=self.kubelet)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_a_csi_volume_is_identified_by_vol_data_json_and_others_by_their_path(node: Node) -> None:
    csi = "plugins/kubernetes.io/csi"
    for path, described, uid in (
        (f"{csi}/pv/pvc-1/globalmount", f"{csi}/pv/pvc-1", ""),  # until 1.23
        (
            f"{csi}/disk.example.com/9b1c/globalmount",
            f"{csi}/disk.example.com/9b1c",
            "",
        ),  # since 1.24
        (
            f"pods/{UID}/volumes/kubernetes.io~csi/pvc-1/mount",
            f"pods/{UID}/volumes/kubernetes.io~csi/pvc-1",
            UID,
        ),
        (f"{csi}/volumeDevices/publish/pvc-1/{UID}", f"{csi}/volumeDevices/pvc-1/data", ""),
    ):
        node.mount(path)
        assert node.read() == (), "it was unmounted during the reading"
        node.describe(described)
        assert node.read() == (Mount(DISK, uid),), path
    secret = f"pods/{UID}/volumes/kubernetes.io~secret/token"
    elsewhere = (
        "/var/lib/other/plugins/kubernetes.io/gce-pd/mounts/d-1",
        f"{node.kubelet}s/plugins/x",
    )
    for others in ((f"pods/{UID}/volume-subpaths/x/y/0",), elsewhere):
        node.mount(secret, *others)
        assert node.read() == ()
    for path, mount in (
        ("plugins/kubernetes.io/gce-pd/mounts/d-1", Mount("kubernetes.io/gce-pd/d-1")),
        ("plugins/kubernetes.io/aws-ebs/mounts/aws/zone-a/vol-8", Mount(CLOUD_DISK)),
        ("plugins/kubernetes.io/aws-ebs/mounts/vol-8", Mount("kubernetes.io/aws-ebs/vol-8")),
        ("plugins/kubernetes.io/rbd/mounts/pool-image-disk", Mount("kubernetes.io/rbd/pool:disk")),
        (
            r"plugins/kubernetes.io/vsphere-volume/mounts/[store\0401]\040kubevols/d.vmdk",
            Mount("kubernetes.io/vsphere-volume/[store 1] kubevols/d.vmdk"),
        ),
        ("plugins/kubernetes.io/flexvolume/nodeleak/disk/mounts/data", Mount("nodeleak/disk/data")),
        (f"pods/{UID}/volumes/nodeleak~disk/data", Mount("nodeleak/disk/data", UID)),
    ):
        node.mount(path, path)
        assert node.read() == (mount,), path


def test_what_cannot_be_read_or_is_mounted_at_another_path_is_unavailable_and_not_unmounted(
    node: Node,
) -> None:
    assert node.why_not() == f"cannot read {node.proc}/1/mountinfo: no such file or directory"
    node.mount("plugins/kubernetes.io/csi/pv/pvc-1/globalmount")
    file = node.describe("plugins/kubernetes.io/csi/pv/pvc-1")
    for text in ("{", "[]", "null", "7", "{}", '{"driverName": "d"}', "[" * 5000, '{"a":' * 20000):
        file.write_text(text)
        assert node.why_not().startswith(f"{file}: not a volume description of the kubelet (")
    file.unlink()
    file.mkdir()
    assert node.why_not() == f"{file}: not a regular file"
    link = node.kubelet.with_name("link")
    link.symlink_to(node.kubelet)
    why = f"volumes are mounted below {node.kubelet}, not below {link}: set --kubelet-dir to the real path"
    for path in (
        "plugins/kubernetes.io/gce-pd/mounts/d-1",
        f"pods/{UID}/volumes/nodeleak~disk/data",
    ):
        node.mount(path)
        assert why_unavailable("mounts", proc=node.proc, kubelet_dir=link) == why
    node.kubelet.rename(node.kubelet.with_name("other"))
    assert node.why_not().startswith(f"{node.kubelet}/plugins does not exist: check --kubelet-dir")


# Network namespaces, and what this process does not see of the node
