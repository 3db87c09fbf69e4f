"""The mount table of a node, and the kubelet's vol_data.json of volumes: files as they are on real nodes."""

import json
import re
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


@pytest.mark.parametrize(
    ("place", "note", "uid"),
    [
        ("plugins/kubernetes.io/csi/pv/pvc-1/globalmount", "plugins/kubernetes.io/csi/pv/pvc-1", ""),
        (
            "plugins/kubernetes.io/csi/disk.example.com/9b1c/globalmount",
            "plugins/kubernetes.io/csi/disk.example.com/9b1c",
            "",
        ),
        (f"pods/{UID}/volumes/kubernetes.io~csi/pvc-1/mount", f"pods/{UID}/volumes/kubernetes.io~csi/pvc-1", UID),
        (
            f"plugins/kubernetes.io/csi/volumeDevices/publish/pvc-1/{UID}",
            "plugins/kubernetes.io/csi/volumeDevices/pvc-1/data",
            "",
        ),
    ],
    ids=["until 1.23", "since 1.24", "of a pod", "block"],
)
def test_a_csi_volume_is_identified_by_vol_data_json(node: Node, place: str, note: str, uid: str) -> None:
    node.mount(place)
    node.note(note)
    assert node.read() == (Mount(DISK, uid),)


@pytest.mark.parametrize(
    ("place", "mount"),
    [
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
    ],
    ids=["gce", "aws", "aws, bare", "rbd", "a name with blanks", "flex", "flex of a pod"],
)
def test_other_volumes_are_identified_by_their_path(node: Node, place: str, mount: Mount) -> None:
    node.mount(place)
    assert node.read() == (mount,)


def test_a_volume_has_one_mount_per_path(node: Node) -> None:
    node.mount("plugins/kubernetes.io/gce-pd/mounts/d-1", "plugins/kubernetes.io/gce-pd/mounts/d-1")
    assert node.read() == (Mount("kubernetes.io/gce-pd/d-1"),)


def test_a_volume_unmounted_during_the_reading_is_skipped(node: Node) -> None:
    node.mount("plugins/kubernetes.io/csi/pv/pvc-1/globalmount")
    assert node.read() == ()


@pytest.mark.parametrize("text", ["{", "[]", "null", "7", "{}", '{"driverName": "d"}', "[" * 5000, '{"a":' * 20000])
def test_damaged_volume_data_is_unavailable_and_not_unmounted(node: Node, text: str) -> None:
    node.mount("plugins/kubernetes.io/csi/pv/pvc-1/globalmount")
    node.note("plugins/kubernetes.io/csi/pv/pvc-1", text)
    with pytest.raises(SourceError, match=r"pvc-1/vol_data\.json: not a volume description of the kubelet"):
        node.read()


def test_volume_data_that_is_a_directory_is_unavailable(node: Node) -> None:
    node.mount("plugins/kubernetes.io/csi/pv/pvc-1/globalmount")
    (node.kubelet / "plugins/kubernetes.io/csi/pv/pvc-1/vol_data.json").mkdir(parents=True)
    with pytest.raises(SourceError, match="is a directory"):
        node.read()


def test_without_the_kubelet_directory_mounts_are_unavailable(node: Node) -> None:
    (node.kubelet / "plugins").rmdir()
    with pytest.raises(SourceError, match="kubelet/plugins does not exist: check --kubelet-dir"):
        node.read()


def test_without_a_mount_table_mounts_are_unavailable(node: Node) -> None:
    (node.proc / "1" / "mountinfo").unlink()
    with pytest.raises(SourceError, match=r"/1/mountinfo: no such file"):
        node.read()


@pytest.mark.parametrize("place", ["plugins/kubernetes.io/gce-pd/mounts/d-1", f"pods/{UID}/volumes/nodeleak~disk/data"])
def test_a_symlink_to_the_kubelet_directory_is_unavailable(node: Node, place: str) -> None:
    node.mount(place)
    link = node.kubelet.with_name("link")
    link.symlink_to(node.kubelet)
    with pytest.raises(SourceError) as failed:
        read_mounts(node.proc, link)
    assert (
        str(failed.value)
        == f"volumes are mounted below {node.kubelet}, not below {link}: set --kubelet-dir to the real path"
    )


def test_the_mount_table_of_this_machine_is_readable(tmp_path: Path) -> None:
    (tmp_path / "plugins").mkdir()
    try:
        result = str(read_mounts(Path("/proc"), tmp_path))
    except SourceError as error:
        result = str(error)
    assert re.fullmatch(r"\(\)|volumes are mounted below .*", result), "it may be a node with volumes"
