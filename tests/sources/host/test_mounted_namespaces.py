"""Where network namespaces are mounted."""

from pathlib import Path

from tests.network import network
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
