"""The mount tables of the node and of this process: mounted network namespaces, and what is missing on the node."""

import os
from pathlib import Path

import pytest

from agent.model.index import mounted_by_sandbox
from agent.sources.host.cni_cache import CniResults
from agent.sources.host.mount_table import is_missing_on_node, read_namespaces, shared_storage
from agent.sources.source_error import SourceError
from tests.builders import CIDR, GONE, WEB_ID, cni_result
from tests.network import network

# Linux 6.18, shortened; the last four as an administrator can make them.
TABLE = """\
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda1 rw
26 22 0:24 / /run rw,nosuid shared:5 - tmpfs tmpfs rw,size=800000k
91 26 0:4 net:[4026532281] /run/netns/cni-1 rw shared:40 - nsfs nsfs rw
92 26 0:4 net:[4026532281] /run/netns/cni-1 rw shared:40 - nsfs nsfs rw
93 26 0:4 net:[4026532282] /run/containerd/io.containerd.grpc.v1.cri/netns/cni-2 rw - nsfs nsfs rw
94 26 0:4 user:[4026532283] /run/userns/cni-3 rw - nsfs nsfs rw
95 26 0:24 /netns/cni-4 /run/netns/cni-4 rw - tmpfs tmpfs rw
96 26 0:4 net:[4026532285] /run/netns/with\\040space rw - nsfs nsfs rw
97 26 0:4 net:[4026532286] /run/netns/cni-6//deleted rw - nsfs nsfs rw
99 26 0:4 net:[4026532288] /run/netns/em\u2003space rw - nsfs nsfs rw
98 26 0:51 net:[4026532287] /run/netns/cni-7 rw - fuse.mine mine rw
"""


def table(proc: Path, text: str) -> Path:
    """Write the mount table of the first process, and return the process table."""
    (proc / "1").mkdir(exist_ok=True)
    (proc / "1/mountinfo").write_text(text)
    return proc


def test_only_mounted_network_namespaces_are_listed(tmp_path: Path) -> None:
    assert read_namespaces(table(tmp_path, TABLE), ()) == (
        "/run/netns/cni-1",
        "/run/containerd/io.containerd.grpc.v1.cri/netns/cni-2",
        "/run/netns/with space",
        "/run/netns/cni-6",
        "/run/netns/em\u2003space",
    )
    assert read_namespaces(table(tmp_path, "22 1 254:0 / / rw - ext4 /dev/vda1 rw\n\nshort line\n"), ()) == ()


def test_a_missing_or_endless_mount_table_is_unavailable_and_not_empty(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=f"cannot read {tmp_path}/1/mountinfo: no such file or directory"):
        read_namespaces(tmp_path, ())
    with pytest.raises(SourceError, match="more than the limit"):
        read_namespaces(table(tmp_path, TABLE * (16 * 1024 * 1024 // len(TABLE) + 1)), ())


def test_the_namespace_of_a_sandbox_is_found_below_any_directory() -> None:
    results = (
        cni_result(GONE, "shop/gone", CIDR, namespace="/var/run/netns/cni-1"),
        cni_result(WEB_ID, "shop/web", CIDR, namespace="/run/netns/cni-2"),
        cni_result("3" * 64, "shop/db", CIDR),
    )
    mounted = ("/run/netns/cni-1", "/run/netns/cni-11", "/run/netns/", "/")
    assert mounted_by_sandbox(results, mounted) == {GONE: "/run/netns/cni-1"}


def test_a_real_namespace_is_listed_until_it_is_deleted(tmp_path: Path) -> None:
    with network() as net:
        (tmp_path / "1").symlink_to(f"/proc/{net.pid}")
        others = read_namespaces(tmp_path, ())  # of this machine
        net.ip("netns add cni-9")
        assert set(read_namespaces(tmp_path, ())) - set(others) == {"/run/netns/cni-9"}
        net.ip("netns delete cni-9")
        assert read_namespaces(tmp_path, ()) == others


def test_storage_that_other_nodes_may_have_is_told_by_its_type(tmp_path: Path) -> None:
    device = tmp_path.stat().st_dev
    line = f"42 27 {os.major(device)}:{os.minor(device)} / /anywhere rw,relatime shared:1 - {{}} server:/export rw\n"
    (tmp_path / "70").mkdir()
    for kind, shared in {
        "nfs4": True,
        "ceph": True,
        "fuse": True,
        "fuse.glusterfs": True,
        "fuseblk": False,
        "ext4": False,
        "tmpfs": False,
    }.items():
        (tmp_path / "70/mountinfo").write_text(line.format(kind) + "43 27 0:9999 / /other rw - nfs server:/ rw\n")
        assert shared_storage(tmp_path, tmp_path / "70") == (kind if shared else "")
    (tmp_path / "70/mountinfo").unlink()
    with pytest.raises(SourceError, match="cannot read"):
        shared_storage(tmp_path, tmp_path / "70")
    assert shared_storage(tmp_path) == "", "this machine's own table"


# What is missing on the node

CACHE = Path("/var/lib/cni/results")


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """A node's /proc, with the mounts of a container."""
    for name in ("1/ns/mnt", "70/ns/mnt", "70/mountinfo"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    mounted(tmp_path, "/")
    return tmp_path


def mounted(proc: Path, place: str, root: str = "/") -> None:
    with (proc / "70/mountinfo").open("a") as table:
        table.write(f"42 27 254:0 {root} {place} rw,relatime - ext4 /dev/vda rw\n")


def is_missing(proc: Path, path: Path = CACHE) -> bool:
    return is_missing_on_node(path, proc, proc / "70")


def test_below_a_mounted_directory_what_is_missing_is_missing_on_the_node(proc: Path) -> None:
    mounted(proc, "/var/lib/cni", "/var/lib/cni")
    assert is_missing(proc)


@pytest.mark.parametrize("place", ["/var/lib/cni/networks", "/var/lib/nodeleak", "/var/lib/cn"])
def test_where_no_directory_above_is_mounted_a_mount_may_be_missing(proc: Path, place: str) -> None:
    mounted(proc, place)
    assert not is_missing(proc)


def test_a_mount_of_a_directory_that_the_node_has_removed_shows_nothing_of_the_node(proc: Path) -> None:
    mounted(proc, "/var/lib", "/var/lib")
    mounted(proc, "/var/lib/cni", "/var/lib/cni//deleted")
    assert not is_missing(proc)


def test_a_process_with_the_mounts_of_the_node_misses_none(proc: Path) -> None:
    (proc / "70/ns/mnt").unlink()
    (proc / "70/ns/mnt").hardlink_to(proc / "1/ns/mnt")
    assert is_missing(proc)


@pytest.mark.parametrize("unreadable", ["70/mountinfo", "1/ns/mnt"])
def test_without_a_mount_table_or_namespaces_a_missing_directory_stays_a_gap(proc: Path, unreadable: str) -> None:
    (proc / unreadable).unlink()
    assert not is_missing(proc)


def test_without_namespaces_the_mounts_decide(proc: Path) -> None:
    """Reading them takes CAP_SYS_PTRACE, which the DaemonSet may lack."""
    mounted(proc, "/var/lib/cni", "/var/lib/cni")
    (proc / "1/ns/mnt").unlink()
    assert is_missing(proc)


def test_a_cache_that_is_missing_on_the_node_is_empty_and_any_other_is_a_gap(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    assert CniResults([old, new], lambda _: True).read() == ()
    with pytest.raises(SourceError, match="none of these exists"):
        CniResults([old, new], lambda path: path == old).read()
