"""Mount tables of the node and of this process: volumes, mounted network namespaces, and what is missing here."""

import json
from pathlib import Path
from typing import Any

import pytest

from agent.model.snapshot import Unavailable
from agent.model.volumes import Mount
from agent.sources.source_error import SourceError
from tests.builders import CLOUD_DISK, DISK
from tests.network import network
from tests.sources.host.own_mounts import own_mounts
from tests.wired import process_table, read, sample, why_unavailable

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

# Linux 6.18, shortened; the last four mounts are as an administrator can make them.
TABLE = sample("proc-mountinfo", 1)


def test_only_mounted_network_namespaces_are_listed(tmp_path: Path) -> None:
    proc = process_table(tmp_path / "proc", "dockerd")
    table = proc / "1/mountinfo"
    why = f"cannot read {table}: no such file or directory"
    assert why_unavailable("mounted_namespaces", proc=proc) == why
    with network() as net:
        (proc / "1").symlink_to(f"/proc/{net.pid}")
        others = read("mounted_namespaces", proc=proc)  # of this machine
        net.ip("netns add cni-9")
        assert set(read("mounted_namespaces", proc=proc)) - set(others) == {"/run/netns/cni-9"}
        net.ip("netns delete cni-9")
        assert read("mounted_namespaces", proc=proc) == others
    (proc / "1").unlink()
    (proc / "1").mkdir()
    table.write_text(TABLE)
    assert read("mounted_namespaces", proc=proc) == (
        "/run/netns/cni-1",
        "/run/containerd/io.containerd.grpc.v1.cri/netns/cni-2",
        "/run/netns/with space",
        "/run/netns/cni-6",
        "/run/netns/em\u2003space",
    )
    table.write_text("22 1 254:0 / / rw - ext4 /dev/vda1 rw\n\nshort line\n")
    assert read("mounted_namespaces", proc=proc) == ()
    table.write_text(TABLE * (16 * 1024 * 1024 // len(TABLE) + 1))
    assert "more than the limit" in why_unavailable("mounted_namespaces", proc=proc)


def test_reservations_on_storage_that_other_nodes_may_have_are_a_gap(tmp_path: Path) -> None:
    """A runtime does not list the sandboxes of other nodes, and all of their addresses would look leaked."""
    directory = tmp_path / "networks/cbr0"
    directory.mkdir(parents=True)
    device = directory.stat().st_dev

    def why_not(**more: str) -> str:
        where = tmp_path / "networks"
        (store,) = read("reservations", network="cbr0", cni_networks_dir=where, **more)
        return store.reading.why if isinstance(store.reading, Unavailable) else ""

    assert why_not() == "", "this machine's own table"
    for kind in (
        "ext4", "xfs", "overlay", "tmpfs", "ramfs", "rootfs", "erofs", "squashfs", "ubifs", "fuse.fuse-overlayfs",
    ):  # fmt: skip
        with own_mounts("/anywhere", kind=kind, device=device):
            assert why_not() == ""
    for kind in ("nfs4", "ceph", "gpfs", "9p", "virtiofs", "fuse.glusterfs", "newfs"):
        with own_mounts("/anywhere", kind=kind, device=device):
            why = f"{directory} is on {kind}, which other nodes may share: it is unknown which reservations are theirs"
            remedy = f"if no other node writes to it, set --local-filesystem={kind}"
            assert why_not() == f"{why} ({remedy})"
            assert why_not(local_filesystem=f"other,{kind}") == ""
            assert why_not(local_filesystem="other,ext4") == f"{why} ({remedy})"
        with own_mounts("/anywhere", kind=kind, device=device + 1):
            assert why_not() == ""
    with own_mounts():
        Path("/proc/self/mountinfo").unlink()
        why = f"it is unknown whether other nodes share {directory}: cannot read /proc/self/mountinfo: no such file"
        assert why_not().startswith(why)


def test_a_cache_that_is_missing_on_the_node_is_empty_and_any_other_is_a_gap(
    tmp_path: Path,
) -> None:
    """Without CAP_SYS_PTRACE, which the DaemonSet may lack, nobody knows whose the mounts of this process are."""
    lib, node = tmp_path / "var/lib", tmp_path / "1/ns/mnt"
    cni, old, new = lib / "cni", lib / "cni/results", lib / "cni/cache/results"

    def is_missing() -> bool:
        try:
            return bool(read("cni_results", cni_cache_dir=f"{old},{new}", proc=tmp_path) == ())
        except SourceError as error:
            assert f"none of these exists: {old}, {new}" in str(error)  # noqa: PT017 (one of both is expected)
            return False

    for mounted, missing in (
        (("/", cni), True),
        (("/", cni / "networks"), False),
        (("/", lib / "nodeleak"), False),
        (("/", lib / "cn"), False),
        (("/", cni / "cache"), False),
        (
            ("/", lib, (cni, f"{cni}//deleted")),
            False,
        ),  # a mount of what the node has removed shows nothing of it
    ):
        with own_mounts(*mounted):
            assert is_missing() is missing, mounted
    with own_mounts("/", cni):
        Path("/proc/self/mountinfo").unlink()
        assert not is_missing()
    node.parent.mkdir(parents=True)
    node.touch()
    with own_mounts("/", namespace=node):
        assert is_missing(), "it has the mounts of the node"
    with own_mounts("/", namespace=tmp_path):
        assert not is_missing()
