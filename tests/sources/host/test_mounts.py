"""The mount table of a node, and the kubelet's vol_data.json of volumes: files as they are on real nodes."""

import json
from pathlib import Path

import pytest

from agent.model.volumes import Mount
from agent.sources.host.mounts import read_mounts
from agent.sources.source_error import SourceError
from tests.builders import CLOUD_DISK, DISK

UID = "26889b19-2663-4de6-b139-280b78fb2ac0"


class Node:
    """A node's `/proc/1/mountinfo`, and its kubelet's directory."""

    def __init__(self, at: Path) -> None:
        self.proc, self.kubelet = at / "proc", at / "kubelet"
        (self.proc / "1").mkdir(parents=True)
        (self.kubelet / "plugins").mkdir(parents=True)
        self.mount_at("/", "/proc")

    def mount_at(self, *places: str) -> None:
        with (self.proc / "1" / "mountinfo").open("a") as table:
            for place in places:
                table.write(f"36 35 98:0 /mnt1 {place} rw,noatime master:1 - ext3 /dev/root rw,errors=continue\n")

    def mount(self, *places: str) -> None:
        self.mount_at(*(f"{self.kubelet}/{place}" for place in places))

    def note(self, directory: str, text: str = "") -> None:
        (self.kubelet / directory).mkdir(parents=True)
        noted = {"driverName": "disk.example.com", "volumeHandle": "vol-7", "specVolID": "pvc-1"}
        (self.kubelet / directory / "vol_data.json").write_text(text or json.dumps(noted))

    def read(self) -> tuple[Mount, ...]:
        return read_mounts(self.proc, self.kubelet)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_a_node_without_volumes_has_no_mounts(node: Node) -> None:
    node.mount(f"pods/{UID}/volumes/kubernetes.io~secret/token", f"pods/{UID}/volume-subpaths/x/y/0")
    node.mount_at("/var/lib/other/plugins/kubernetes.io/gce-pd/mounts/d-1", f"{node.kubelet}s/plugins/x")
    assert node.read() == ()


def test_a_csi_volume_is_identified_by_vol_data_json(node: Node) -> None:
    csi = "plugins/kubernetes.io/csi"
    for place, note, uid in (
        (f"{csi}/pv/pvc-1/globalmount", f"{csi}/pv/pvc-1", ""),  # until 1.23
        (f"{csi}/disk.example.com/9b1c/globalmount", f"{csi}/disk.example.com/9b1c", ""),  # since 1.24
        (f"pods/{UID}/volumes/kubernetes.io~csi/pvc-1/mount", f"pods/{UID}/volumes/kubernetes.io~csi/pvc-1", UID),
        (f"{csi}/volumeDevices/publish/pvc-1/{UID}", f"{csi}/volumeDevices/pvc-1/data", ""),
    ):
        (node.proc / "1/mountinfo").write_text("")
        node.mount(place)
        node.note(note)
        assert node.read() == (Mount(DISK, uid),), place


def test_other_volumes_are_identified_by_their_path(node: Node) -> None:
    for place, mount in (
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
        (node.proc / "1/mountinfo").write_text("")
        node.mount(place)
        assert node.read() == (mount,), place


def test_a_volume_has_one_mount_per_path(node: Node) -> None:
    node.mount("plugins/kubernetes.io/gce-pd/mounts/d-1", "plugins/kubernetes.io/gce-pd/mounts/d-1")
    assert node.read() == (Mount("kubernetes.io/gce-pd/d-1"),)


def test_a_volume_unmounted_during_the_reading_is_skipped(node: Node) -> None:
    node.mount("plugins/kubernetes.io/csi/pv/pvc-1/globalmount")
    assert node.read() == ()


def test_damaged_volume_data_is_unavailable_and_not_unmounted(node: Node) -> None:
    node.mount("plugins/kubernetes.io/csi/pv/pvc-1/globalmount")
    node.note("plugins/kubernetes.io/csi/pv/pvc-1")
    file = node.kubelet / "plugins/kubernetes.io/csi/pv/pvc-1/vol_data.json"
    for text in ("{", "[]", "null", "7", "{}", '{"driverName": "d"}', "[" * 5000, '{"a":' * 20000):
        file.write_text(text)
        with pytest.raises(SourceError, match=r"pvc-1/vol_data\.json: not a volume description of the kubelet"):
            node.read()
    file.unlink()
    file.mkdir()
    with pytest.raises(SourceError, match="not a regular file"):
        node.read()


def test_without_the_kubelet_directory_mounts_are_unavailable(node: Node) -> None:
    (node.kubelet / "plugins").rmdir()
    with pytest.raises(SourceError, match="kubelet/plugins does not exist: check --kubelet-dir"):
        node.read()


def test_without_a_mount_table_mounts_are_unavailable(node: Node) -> None:
    (node.proc / "1" / "mountinfo").unlink()
    with pytest.raises(SourceError, match=r"/1/mountinfo: no such file"):
        node.read()


def test_a_symlink_to_the_kubelet_directory_is_unavailable(node: Node) -> None:
    link = node.kubelet.with_name("link")
    link.symlink_to(node.kubelet)
    for place in ("plugins/kubernetes.io/gce-pd/mounts/d-1", f"pods/{UID}/volumes/nodeleak~disk/data"):
        (node.proc / "1/mountinfo").write_text("")
        node.mount(place)
        with pytest.raises(SourceError) as failed:
            read_mounts(node.proc, link)
        why = f"volumes are mounted below {node.kubelet}, not below {link}: set --kubelet-dir to the real path"
        assert str(failed.value) == why
