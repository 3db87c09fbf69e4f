"""What is missing for a process in a container, and what is missing on the node."""

from pathlib import Path

import pytest

from agent.sources.host.cni_cache import CniResults
from agent.sources.host.mount_table import is_missing_on_node
from agent.sources.source_error import SourceError

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
