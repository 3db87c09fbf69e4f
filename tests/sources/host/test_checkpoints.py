"""The kubelet's sandbox checkpoints, in both possible directories."""

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from types import FrameType

import pytest

from agent.model.snapshot import Checkpoint, Container
from agent.sources.host.checkpoints import CheckpointDirectories
from agent.sources.host.files import names_in
from agent.sources.source_error import SourceError
from tests.wire import ID, as_nobody

CONTENT = json.dumps({"version": "v1", "name": "web-0", "namespace": "shop", "data": {}, "checksum": 3_245_176_241})
NOW = 10_000


def error_of(*directories: Path) -> str:
    with pytest.raises(SourceError) as raised:
        CheckpointDirectories(directories).read((), NOW)
    return str(raised.value)


def test_a_checkpoint_names_its_sandbox_and_pod(tmp_path: Path) -> None:
    (tmp_path / ID).write_text(CONTENT)
    assert CheckpointDirectories([tmp_path]).read((), NOW) == (Checkpoint(ID, "shop/web-0"),)


def test_a_checkpoint_says_whether_the_pod_has_the_network_of_the_node(tmp_path: Path) -> None:
    for data, host_network in (({"host_network": True}, True), ({}, False), (None, False)):
        (tmp_path / ID).write_text(json.dumps({"name": "web-0", "namespace": "shop", "data": data}))
        assert CheckpointDirectories([tmp_path]).read((), NOW) == (Checkpoint(ID, "shop/web-0", host_network),)


def test_both_kubelet_directories_are_read(tmp_path: Path) -> None:
    for name, container_id in (("dockershim", "a" * 64), ("cri-dockerd", "b" * 64)):
        (tmp_path / name).mkdir()
        (tmp_path / name / container_id).write_text(CONTENT)
    found = CheckpointDirectories([tmp_path / "dockershim", tmp_path / "cri-dockerd"]).read((), NOW)
    assert [one.container_id for one in found] == ["a" * 64, "b" * 64]


def test_one_missing_directory_is_skipped_and_an_empty_one_is_empty(tmp_path: Path) -> None:
    (tmp_path / ".3847261").write_text(CONTENT)  # the kubelet's temporary file
    assert CheckpointDirectories([tmp_path / "dockershim", tmp_path]).read((), NOW) == ()
    why = error_of(tmp_path / "a", tmp_path / "b")
    assert why.startswith(f"none of these exists: {tmp_path}/a, {tmp_path}/b (")
    assert "deploy/overlays/docker" in why


def test_a_damaged_checkpoint_counts_without_its_pod_name(tmp_path: Path) -> None:
    for content in (
        b"", b"{", CONTENT[:-20].encode(), b"[]", b"null", b"7", b'{"name": "web"}', b"\xff\xfe", b"[" * 9000,
        b" " * (1 << 21),
    ):  # fmt: skip
        (tmp_path / ID).write_bytes(content)
        assert CheckpointDirectories([tmp_path]).read((), NOW) == (Checkpoint(ID, ""),)


def test_an_entry_that_is_no_file_counts_and_is_not_followed(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text(CONTENT)
    directory = tmp_path / "sandbox"
    directory.mkdir()
    (directory / "a").symlink_to(secret)
    os.mkfifo(directory / "b")
    (directory / "c").mkdir()
    assert sorted(CheckpointDirectories([directory]).read((), NOW), key=lambda one: one.container_id) == [
        Checkpoint("a", ""),
        Checkpoint("b", ""),
        Checkpoint("c", ""),
    ]


def test_an_unreadable_file_still_counts(open_dir: Path) -> None:
    (open_dir / ID).write_text(CONTENT)
    (open_dir / ID).chmod(0o000)
    with as_nobody():
        assert CheckpointDirectories([open_dir]).read((), NOW) == (Checkpoint(ID, ""),)


def test_an_unreadable_directory_is_unavailable(open_dir: Path) -> None:
    closed = open_dir / "sandbox"
    closed.mkdir(0o000)
    with as_nobody():
        assert error_of(open_dir, closed) == f"cannot read {closed}: permission denied (run as root)"


def test_one_sandbox_is_looked_up_by_name_in_every_directory(tmp_path: Path) -> None:
    places = [tmp_path / "missing", tmp_path / "dockershim", tmp_path / "cri-dockerd"]
    for place in places[1:]:
        place.mkdir()
    assert not CheckpointDirectories(places).has(ID)
    (places[2] / ID).write_text(CONTENT)
    assert CheckpointDirectories(places).has(ID)
    assert not CheckpointDirectories(places[:2]).has(ID)
    assert not CheckpointDirectories(places).has(ID[:12]), "the file's whole name counts"


def test_a_checkpoint_that_is_no_file_counts_in_a_lookup(tmp_path: Path) -> None:
    for number, make in enumerate((Path.mkdir, os.mkfifo, lambda path: path.symlink_to("nowhere"), Path.touch)):
        make(tmp_path / str(number))  # type: ignore[operator]
        assert CheckpointDirectories([tmp_path]).has(str(number))


def test_what_cannot_be_looked_into_is_never_treated_as_gone(open_dir: Path) -> None:
    closed = open_dir / "sandbox"
    closed.mkdir(0o700)
    with as_nobody(), pytest.raises(SourceError, match="permission denied"):
        CheckpointDirectories([open_dir, closed]).has(ID)
    (open_dir / "file").touch()
    assert error_of(open_dir / "file") == f"cannot read {open_dir}/file: not a directory"
    with pytest.raises(SourceError, match=f"cannot read {open_dir}/file: not a directory"):
        CheckpointDirectories([open_dir / "file"]).has(ID)


# Left over

FIRST, SECOND, THIRD, GONE = "1" * 64, "2" * 64, "3" * 64, "9" * 64


def written(directory: Path, container_id: str, when: int) -> None:
    directory.mkdir(exist_ok=True)
    path = directory / container_id
    path.write_text(CONTENT)
    os.utime(path, (when, when))


def running(container_id: str, created: int) -> Container:
    return Container(container_id, "running", created, "shop/web-0", "", sandbox=True)


@pytest.fixture
def old(tmp_path: Path) -> Path:
    return tmp_path / "dockershim"


@pytest.fixture
def new(tmp_path: Path) -> Path:
    return tmp_path / "cri-dockerd"


CASES: dict[str, tuple[int, tuple[Container, ...], bool]] = {
    "all that runs is in the other directory": (1000, (running(SECOND, 2000),), True),
    "and what stopped too": (1000, (running(SECOND, 2000), replace(running(THIRD, 1500), state="exited")), True),
    "and is younger": (1000, (running(SECOND, 2000), running(THIRD, 2500)), True),
    "no sandbox": (1000, (running(SECOND, 2000), replace(running("a" * 64, 500), sandbox=False)), True),
    "it is younger than the oldest that runs": (2200, (running(SECOND, 2000), running(THIRD, 2500)), False),
    "it is younger than all that runs": (3000, (running(SECOND, 2000),), False),
    "it is as old as what runs": (2000, (running(SECOND, 2000),), False),
    "one of its sandboxes runs": (1000, (running(FIRST, 1000), running(SECOND, 2000)), False),
    "one stopped": (1000, (replace(running(FIRST, 1000), state="exited"), running(SECOND, 2000)), False),
    "one starts": (1000, (replace(running(FIRST, 1000), state="created"), running(SECOND, 2000)), False),
    "the other's sandbox is from the future": (1000, (running(SECOND, NOW + 1),), False),
    "the other's youngest is from the future": (1000, (running(SECOND, 2000), running(THIRD, NOW + 1)), True),
    "nothing runs": (1000, (), False),
    "only a stopped sandbox": (1000, (replace(running(SECOND, 2000), state="exited"),), False),
    "no running sandbox has a checkpoint": (1000, (running("a" * 64, 2000),), False),
    "a running sandbox has none": (1000, (running("a" * 64, 2000), running(SECOND, 2000)), False),
}


@pytest.mark.parametrize(("made", "containers", "left_over"), CASES.values(), ids=CASES)
def test_a_directory_that_the_kubelet_no_longer_uses_is_left_over(
    old: Path, new: Path, made: int, containers: tuple[Container, ...], left_over: bool
) -> None:
    written(old, GONE, made)
    written(old, FIRST, 1000)
    written(new, SECOND, 2000)
    written(new, THIRD, 2500)
    both = CheckpointDirectories([old, new])
    found = {one.container_id for one in both.read(containers, NOW)}
    assert found == ({SECOND, THIRD} if left_over else {GONE, FIRST, SECOND, THIRD})
    assert (both.has(GONE), both.has(SECOND)) == (not left_over, True)


def test_an_old_sandbox_from_the_future_does_not_hide_the_directory_in_use(old: Path, new: Path) -> None:
    written(old, FIRST, NOW + 1000)
    written(new, SECOND, NOW - 100)
    written(new, THIRD, NOW - 5)
    both = CheckpointDirectories([old, new])
    for containers in ((running(FIRST, NOW + 1000), running(SECOND, NOW - 100)), (running(FIRST, NOW + 1000),)):
        assert {one.container_id for one in both.read(containers, NOW)} == {FIRST, SECOND, THIRD}
        assert both.has(THIRD)


def test_a_checkpoint_that_appears_after_the_reading_counts(old: Path, new: Path) -> None:
    written(old, GONE, 1000)
    written(new, SECOND, 2000)
    both = CheckpointDirectories([old, new])
    both.read((running(SECOND, 2000),), NOW)
    written(old, FIRST, NOW)
    written(new, THIRD, NOW)
    assert [both.has(one) for one in (GONE, FIRST, SECOND, THIRD)] == [False, True, True, True]
    written(new, GONE, NOW)
    assert both.has(GONE), "the directory in use has it too"


def test_a_directory_from_which_a_file_vanishes_is_in_use(old: Path, new: Path) -> None:
    written(old, GONE, 1000)
    written(old, FIRST, 1000)
    written(new, SECOND, 2000)

    def after_each_list(frame: FrameType, event: str, _: object) -> None:
        if event == "return" and frame.f_code is names_in.__code__:
            (old / FIRST).unlink(missing_ok=True)

    sys.setprofile(after_each_list)
    try:
        found = CheckpointDirectories([old, new]).read((running(SECOND, 2000),), NOW)
    finally:
        sys.setprofile(None)
    assert GONE in {one.container_id for one in found}
