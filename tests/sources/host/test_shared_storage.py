"""Directories that other nodes may write to."""

from pathlib import Path

from agent.model.snapshot import Unavailable
from tests.sources.host.own_mounts import own_mounts
from tests.wired import read


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
