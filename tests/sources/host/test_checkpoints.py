"""The kubelet's sandbox checkpoints, in both possible directories."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from agent.model.snapshot import Checkpoint
from agent.sources.error import SourceError
from agent.sources.host import checkpoints
from tests.wire import ID, as_nobody

CONTENT = json.dumps({"version": "v1", "name": "web-0", "namespace": "shop", "data": {}, "checksum": 3_245_176_241})


def error_of(*directories: Path) -> str:
    with pytest.raises(SourceError) as raised:
        checkpoints.read_checkpoints(directories)
    return str(raised.value)


def test_a_checkpoint_names_its_sandbox_and_pod(tmp_path: Path) -> None:
    (tmp_path / ID).write_text(CONTENT)
    assert checkpoints.read_checkpoints([tmp_path]) == (Checkpoint(ID, "shop/web-0"),)


@pytest.mark.parametrize(("data", "host_network"), [({"host_network": True}, True), ({}, False), (None, False)])
def test_a_checkpoint_says_whether_the_pod_has_the_network_of_the_node(
    tmp_path: Path, data: object, host_network: bool
) -> None:
    (tmp_path / ID).write_text(json.dumps({"name": "web-0", "namespace": "shop", "data": data}))
    assert checkpoints.read_checkpoints([tmp_path]) == (Checkpoint(ID, "shop/web-0", host_network),)


def test_both_kubelet_directories_are_read(tmp_path: Path) -> None:
    for name, container_id in (("dockershim", "a" * 64), ("cri-dockerd", "b" * 64)):
        (tmp_path / name).mkdir()
        (tmp_path / name / container_id).write_text(CONTENT)
    found = checkpoints.read_checkpoints([tmp_path / "dockershim", tmp_path / "cri-dockerd"])
    assert [one.container_id for one in found] == ["a" * 64, "b" * 64]


def test_one_missing_directory_is_skipped(tmp_path: Path) -> None:
    assert checkpoints.read_checkpoints([tmp_path / "dockershim", tmp_path]) == ()


def test_without_any_directory_checkpoints_are_unavailable(tmp_path: Path) -> None:
    assert (
        error_of(tmp_path / "a", tmp_path / "b")
        == f"none of these exists: {tmp_path}/a, {tmp_path}/b (check --checkpoint-dir)"
    )


def test_an_empty_directory_is_empty_and_not_unavailable(tmp_path: Path) -> None:
    assert checkpoints.read_checkpoints([tmp_path]) == ()


def test_a_temporary_file_is_no_checkpoint(tmp_path: Path) -> None:
    (tmp_path / ".3847261").write_text(CONTENT)
    assert checkpoints.read_checkpoints([tmp_path]) == ()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        CONTENT[:-20].encode(),
        b"[]",
        b"null",
        b"7",
        b'{"name": "web"}',
        b"\xff\xfe",
        b"[" * 9000,
        b"{}" * 90000,
    ],
)
def test_a_damaged_checkpoint_counts_without_its_pod_name(tmp_path: Path, content: bytes) -> None:
    (tmp_path / ID).write_bytes(content)
    assert checkpoints.read_checkpoints([tmp_path]) == (Checkpoint(ID, ""),)


def test_an_entry_that_is_no_file_counts_and_is_not_followed(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text(CONTENT)
    directory = tmp_path / "sandbox"
    directory.mkdir()
    (directory / "a").symlink_to(secret)
    os.mkfifo(directory / "b")
    (directory / "c").mkdir()
    assert sorted(checkpoints.read_checkpoints([directory]), key=lambda one: one.container_id) == [
        Checkpoint("a", ""),
        Checkpoint("b", ""),
        Checkpoint("c", ""),
    ]


def test_an_unreadable_file_still_counts(open_dir: Path) -> None:
    (open_dir / ID).write_text(CONTENT)
    (open_dir / ID).chmod(0o000)
    with as_nobody():
        assert checkpoints.read_checkpoints([open_dir]) == (Checkpoint(ID, ""),)


def test_an_unreadable_directory_is_unavailable(open_dir: Path) -> None:
    closed = open_dir / "sandbox"
    closed.mkdir(0o000)
    with as_nobody():
        assert error_of(open_dir, closed) == f"cannot read {closed}: permission denied (run as root)"


def test_a_file_in_place_of_the_directory_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "sandbox").write_text("")
    assert error_of(tmp_path / "sandbox") == f"cannot read {tmp_path}/sandbox: not a directory"


def test_one_sandbox_is_looked_up_by_name_in_every_directory(tmp_path: Path) -> None:
    places = [tmp_path / "missing", tmp_path / "dockershim", tmp_path / "cri-dockerd"]
    for place in places[1:]:
        place.mkdir()
    assert not checkpoints.has(places, ID)
    (places[2] / ID).write_text(CONTENT)
    assert checkpoints.has(places, ID)
    assert not checkpoints.has(places[:2], ID)
    assert not checkpoints.has(places, ID[:12]), "the file's whole name counts"


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo, lambda path: path.symlink_to("nowhere"), Path.touch])
def test_a_checkpoint_that_is_no_file_counts_in_a_lookup(tmp_path: Path, make: Callable[[Path], object]) -> None:
    make(tmp_path / ID)
    assert checkpoints.has([tmp_path], ID)


def test_an_unreadable_directory_is_never_treated_as_gone(open_dir: Path) -> None:
    closed = open_dir / "sandbox"
    closed.mkdir(0o700)
    with as_nobody(), pytest.raises(SourceError, match="permission denied"):
        checkpoints.has([open_dir, closed], ID)


def test_a_file_in_place_of_the_directory_is_never_treated_as_gone(tmp_path: Path) -> None:
    (tmp_path / "sandbox").write_text("")
    with pytest.raises(SourceError, match=f"cannot read {tmp_path}/sandbox: not a directory"):
        checkpoints.has([tmp_path / "sandbox"], ID)


def test_no_handle_is_left_open(tmp_path: Path) -> None:
    (tmp_path / ID).write_text(CONTENT)
    os.mkfifo(tmp_path / "b")
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        checkpoints.read_checkpoints([tmp_path])
    assert len(os.listdir("/proc/self/fd")) == before
