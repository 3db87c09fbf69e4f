"""Free space, of file systems that are really mounted."""

import os
import threading
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from agent.model.snapshot import SANDBOX_NOT_READY, Container
from agent.sources.deadline import Deadline, Late
from agent.sources.host.disks import DisksSource
from tests.builders import GONE, NOW, PODS, node, reservation, waiting_pod
from tests.sources.reading import HEALTHY
from tests.wire import error_of


def _proc(root: Path, mounts: str = "") -> Path:
    """Write a process table whose first process has the mounts of this one, and this table of mounts."""
    (root / "1/ns").mkdir(parents=True)
    (root / "1/ns/mnt").symlink_to("/proc/self/ns/mnt")
    (root / "1/mountinfo").write_text(mounts)
    return root


def _source(proc: Path, *directories: Path, root: Path | None = None) -> DisksSource:
    return DisksSource(directories, lambda: root, lambda path: path, proc)


def test_each_directory_of_the_node_has_its_file_system(tmp_path: Path) -> None:
    cni, kubelet = tmp_path / "cni", tmp_path / "kubelet"
    for directory in (cni / "networks", kubelet):
        directory.mkdir(parents=True)
    proc = _proc(tmp_path / "proc")
    places = (cni, cni / "networks", tmp_path / "none", kubelet, Path("/proc"), Path("/proc/1"))
    first, second, third, fourth = _source(proc, *places, root=Path("/dev")).read(HEALTHY)
    expected = [str(cni), str(kubelet), "/proc", "/dev"]
    assert [first.path, second.path, third.path, fourth.path] == expected
    assert third.total_inodes == 0, "it does not count them"
    status = os.statvfs(tmp_path)
    assert first.total_bytes == status.f_blocks * status.f_frsize
    assert first.total_inodes == status.f_files
    assert 0 <= first.free_bytes <= first.total_bytes
    assert not first.read_only


def test_a_file_system_is_read_only_if_that_of_the_node_is(tmp_path: Path) -> None:
    cni = tmp_path / "cni"
    cni.mkdir()
    line = "36 35 98:0 / {} {} master:1 - ext4 /dev/sdb {}\n"
    for number, (point, options, of_all, expected) in enumerate(
        (
            (cni, "rw,relatime", "rw", False),
            (cni, "ro,relatime", "rw", True),
            (tmp_path, "rw,relatime", "ro,errors=remount-ro", True),
            (tmp_path / "cn", "ro", "ro", False),
        )
    ):
        table = line.format("/", "rw", "rw") + line.format(point, options, of_all)
        (disk,) = _source(_proc(tmp_path / f"{number}", table), cni).read(HEALTHY)
        assert disk.read_only is expected, table


def test_what_is_not_the_nodes_is_not_told(tmp_path: Path) -> None:
    proc = _proc(tmp_path / "proc")
    (proc / "1/ns/mnt").unlink()
    assert _source(proc, tmp_path).read(HEALTHY) == ()


def test_a_file_system_that_hangs_is_waited_for_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proc = _proc(tmp_path / "proc")
    released = threading.Event()
    statvfs = os.statvfs

    def hang(path: Path) -> os.statvfs_result:
        assert released.wait(60)
        return statvfs(path)

    source = DisksSource(
        (tmp_path,), lambda: None, lambda path: path, proc, Deadline("disks", 0.05)
    )
    monkeypatch.setattr(os, "statvfs", hang)
    try:
        with pytest.raises(Late):
            source.read(HEALTHY)
        waiting = threading.active_count()
        assert "still waiting" in error_of(lambda: source.read(HEALTHY))
        assert threading.active_count() == waiting
    finally:
        released.set()


def test_disks_are_read_while_a_pod_waits_or_a_sandbox_keeps_its_address(tmp_path: Path) -> None:
    source = _source(tmp_path, Path("/"))
    ended = Container(GONE, SANDBOX_NOT_READY, 0, "shop/gone", "u", sandbox=True)
    assert source.reason_not_needed(node()) is not None
    assert source.reason_not_needed(node(ended)) is not None, "a Job that ended is healthy"
    assert source.reason_not_needed(node(ended, reservation("10.244.1.9", GONE))) is None
    assert source.reason_not_needed(node(waiting_pod())) is None
    for since, is_needed in ((timedelta(seconds=59), False), (timedelta(minutes=1), True)):
        ending = replace(PODS[0], deleting=True, deletion=NOW - since)
        assert (source.reason_not_needed(node(pods=[ending])) is None) is is_needed
