"""Which network namespaces are mounted: from mount tables as the kernel writes them, and from the kernel itself."""

from collections.abc import Callable
from pathlib import Path

import pytest

from agent.model.index import mounted_by_sandbox
from agent.sources.host import mount_table, namespaces
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
98 26 0:51 net:[4026532287] /run/netns/cni-7 rw - fuse.mine mine rw
"""


@pytest.fixture
def table(tmp_path: Path) -> Callable[[str], Path]:
    """Return what writes the mount table of the first process, and returns the process table."""

    def write(text: str) -> Path:
        (tmp_path / "1").mkdir(exist_ok=True)
        (tmp_path / "1/mountinfo").write_text(text)
        return tmp_path

    return write


Table = Callable[[str], Path]


def test_only_mounted_network_namespaces_are_listed(table: Table) -> None:
    assert namespaces.read_namespaces(table(TABLE)) == (
        "/run/netns/cni-1",
        "/run/containerd/io.containerd.grpc.v1.cri/netns/cni-2",
        "/run/netns/with space",
        "/run/netns/cni-6",
    )


def test_a_node_without_mounted_namespaces_has_none(table: Table) -> None:
    assert namespaces.read_namespaces(table("22 1 254:0 / / rw - ext4 /dev/vda1 rw\n\nshort line\n")) == ()


def test_a_missing_mount_table_is_unavailable_and_not_empty(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=f"cannot read {tmp_path}/1/mountinfo: no such file or directory"):
        namespaces.read_namespaces(tmp_path)


def test_an_endless_mount_table_is_unavailable(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mount_table, "_LARGEST", len(TABLE))
    assert namespaces.read_namespaces(table(TABLE))
    with pytest.raises(SourceError, match="larger than"):
        namespaces.read_namespaces(table(f"{TABLE}\n"))


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
        others = namespaces.read_namespaces(tmp_path)  # of this machine
        net.ip("netns add cni-9")
        assert set(namespaces.read_namespaces(tmp_path)) - set(others) == {"/run/netns/cni-9"}
        net.ip("netns delete cni-9")
        assert namespaces.read_namespaces(tmp_path) == others
