"""The mount tables of the node and of this process: mounted network namespaces, and what is missing on the node."""

from pathlib import Path

from agent.model.snapshot import Unavailable
from agent.sources.source_error import SourceError
from tests.network import network
from tests.sources.host.own_mounts import own_mounts
from tests.wired import process_table, read, sample, why_unavailable

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

    def why_not() -> str:
        (store,) = read("reservations", network="cbr0", cni_networks_dir=tmp_path / "networks")
        return store.reading.why if isinstance(store.reading, Unavailable) else ""

    assert why_not() == "", "this machine's own table"
    for kind in ("fuseblk", "ext4", "tmpfs"):
        with own_mounts("/anywhere", kind=kind, device=device):
            assert why_not() == ""
    for kind in ("nfs4", "ceph", "fuse", "fuse.glusterfs"):
        with own_mounts("/anywhere", kind=kind, device=device):
            why = f"{directory} is on {kind}, which other nodes may share: it is unknown which reservations are theirs"
            assert why_not() == why
        with own_mounts("/anywhere", kind=kind, device=device + 1):
            assert why_not() == ""
    with own_mounts():
        Path("/proc/self/mountinfo").unlink()
        why = f"it is unknown whether other nodes share {directory}: cannot read /proc/self/mountinfo: no such file"
        assert why_not().startswith(why)


def test_a_cache_that_is_missing_on_the_node_is_empty_and_any_other_is_a_gap(tmp_path: Path) -> None:
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
        (("/", lib, (cni, f"{cni}//deleted")), False),  # a mount of what the node has removed shows nothing of it
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
