"""The kubelet's sandbox checkpoints, in both possible directories."""

import json
import os
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pytest

from agent.model.snapshot import Checkpoint, Container
from agent.sources.source_error import SourceError
from tests.builders import node
from tests.sources.reading import value_of
from tests.wire import ID, as_nobody, error_of
from tests.wired import wired

CONTENT: Final = json.dumps(
    {"version": "v1", "name": "web-0", "namespace": "shop", "data": {}, "checksum": 3_245_176_241}
)
NOW: Final = 10_000


@pytest.fixture
def old(tmp_path: Path) -> Path:
    (tmp_path / "dockershim").mkdir()
    return tmp_path / "dockershim"


@pytest.fixture
def new(tmp_path: Path) -> Path:
    (tmp_path / "cri-dockerd").mkdir()
    return tmp_path / "cri-dockerd"


class Kubelet:
    """What is read of the directories of a kubelet, and looked up in them afterwards."""

    def __init__(self, *directories: Path) -> None:
        self._sources = wired(checkpoint_dir=",".join(map(str, directories)))

    def read(self, *containers: Container) -> list[Checkpoint]:
        so_far = replace(node(containers=containers), taken_at=datetime.fromtimestamp(NOW, UTC))
        return sorted(
            value_of(self._sources.snapshot, "checkpoints", so_far),
            key=lambda found: found.container_id,
        )

    def has(self, container_id: str) -> bool | None:
        return self._sources.recheck.has_checkpoint(container_id)


def test_a_checkpoint_names_its_sandbox_and_pod_and_a_damaged_one_only_the_sandbox(
    tmp_path: Path,
) -> None:
    (tmp_path / ID).write_text(CONTENT)
    assert Kubelet(tmp_path).read() == [Checkpoint(ID, "shop/web-0")]
    for data, host_network in (({"host_network": True}, True), ({}, False), (None, False)):
        (tmp_path / ID).write_text(json.dumps({"name": "web-0", "namespace": "shop", "data": data}))
        assert Kubelet(tmp_path).read() == [Checkpoint(ID, "shop/web-0", host_network)]
    for content in (
        b"", b"{", CONTENT[:-20].encode(), b"[]", b"null", b"7", b'{"name": "web"}', b"\xff\xfe", b"[" * 9000,
        b" " * (1 << 21),
    ):  # fmt: skip
        (tmp_path / ID).write_bytes(content)
        assert Kubelet(tmp_path).read() == [Checkpoint(ID, "")]


def test_all_directories_are_read_and_one_may_be_missing(
    tmp_path: Path, old: Path, new: Path
) -> None:
    with pytest.raises(
        SourceError, match=f"^none of these exists: {tmp_path}/a, {tmp_path}/b .*overlays/docker"
    ):
        Kubelet(tmp_path / "a", tmp_path / "b").read()
    (old / ".3847261").write_text(CONTENT)  # the kubelet's temporary file
    assert Kubelet(tmp_path / "a", old).read() == []
    (new / ID).write_text(CONTENT)
    assert not Kubelet(tmp_path / "a", old).has(ID)
    both = Kubelet(tmp_path / "a", old, new)
    assert (both.read(), both.has(ID), both.has(ID[:12])) == (
        [Checkpoint(ID, "shop/web-0")],
        True,
        False,
    )


def test_an_entry_that_cannot_be_read_counts_and_a_directory_is_never_treated_as_empty(
    open_dir: Path,
) -> None:
    secret, directory, closed = (open_dir / name for name in ("secret", "sandbox", "closed"))
    secret.write_text(CONTENT)
    directory.mkdir(0o755)
    closed.mkdir(0o700)
    (directory / "a").symlink_to(secret)
    (directory / "b").symlink_to("nowhere")
    os.mkfifo(directory / "c")
    (directory / "d").mkdir()
    (directory / "e").touch(0o000)
    with as_nobody():
        assert Kubelet(directory).read() == [Checkpoint(name, "") for name in "abcde"], (
            "none is followed"
        )
        assert all(map(Kubelet(directory).has, "abcde"))
        for path, why in ((closed, "permission denied"), (secret, "not a directory")):
            kubelet = Kubelet(open_dir, path)
            for question in (kubelet.read, lambda: kubelet.has(ID)):  # noqa: B023 (called at once)
                assert error_of(question).startswith(f"cannot read {path}: {why}")


# Left over

FIRST, SECOND, THIRD, GONE = "1" * 64, "2" * 64, "3" * 64, "9" * 64


def write(directory: Path, container_id: str, when: int) -> None:
    (directory / container_id).write_text(CONTENT)
    os.utime(directory / container_id, (when, when))


def sandbox(container_id: str, created: int, state: str = "running") -> Container:
    return Container(container_id, state, created, "shop/web-0", "", sandbox=True)


def ids(checkpoints: Iterable[Checkpoint]) -> list[str]:
    return [checkpoint.container_id for checkpoint in checkpoints]


def test_a_directory_that_the_kubelet_no_longer_uses_is_left_over(old: Path, new: Path) -> None:
    in_use, later = sandbox(SECOND, 2000), sandbox(THIRD, 2500)
    no_sandbox = replace(sandbox("a" * 64, 500), sandbox=False)
    cases: dict[str, tuple[int, tuple[Container, ...], bool]] = {
        "all that runs is in the other directory": (1000, (in_use,), True),
        "and what stopped too": (1000, (in_use, sandbox(THIRD, 1500, "exited")), True),
        "and is younger": (1000, (in_use, later), True),
        "no sandbox": (1000, (in_use, no_sandbox), True),
        "it is younger than the oldest that runs": (2200, (in_use, later), False),
        "it is younger than all that runs": (3000, (in_use,), False),
        "it is as old as what runs": (2000, (in_use,), False),
        "one of its sandboxes runs": (1000, (sandbox(FIRST, 1000), in_use), False),
        "one stopped": (1000, (sandbox(FIRST, 1000, "exited"), in_use), False),
        "one starts": (1000, (sandbox(FIRST, 1000, "created"), in_use), False),
        "the other's sandbox is from the future": (1000, (sandbox(SECOND, NOW + 1),), False),
        "the other's youngest is from the future": (1000, (in_use, sandbox(THIRD, NOW + 1)), True),
        "nothing runs": (1000, (), False),
        "only a stopped sandbox": (1000, (sandbox(SECOND, 2000, "exited"),), False),
        "no running sandbox has a checkpoint": (1000, (sandbox("a" * 64, 2000),), False),
        "a running sandbox has none": (1000, (sandbox("a" * 64, 2000), in_use), False),
    }
    for case, (made, containers, left_over) in cases.items():
        write(old, GONE, made)
        write(old, FIRST, 1000)
        write(new, SECOND, 2000)
        write(new, THIRD, 2500)
        kubelet = Kubelet(old, new)
        assert ids(kubelet.read(*containers)) == (
            [SECOND, THIRD] if left_over else [FIRST, SECOND, THIRD, GONE]
        ), case
        assert (kubelet.has(GONE), kubelet.has(SECOND)) == (not left_over, True), case


def test_an_old_sandbox_from_the_future_does_not_hide_the_directory_in_use(
    old: Path, new: Path
) -> None:
    write(old, FIRST, NOW + 1000)
    write(new, SECOND, NOW - 100)
    write(new, THIRD, NOW - 5)
    kubelet, ahead = Kubelet(old, new), sandbox(FIRST, NOW + 1000)
    for containers in ((ahead, sandbox(SECOND, NOW - 100)), (ahead,)):
        assert ids(kubelet.read(*containers)) == [FIRST, SECOND, THIRD]
        assert kubelet.has(THIRD)


def test_a_checkpoint_that_appears_after_the_reading_or_vanishes_in_it_counts(
    old: Path, new: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(old, GONE, 1000)
    write(new, SECOND, 2000)
    kubelet = Kubelet(old, new)
    kubelet.read(sandbox(SECOND, 2000))
    write(old, FIRST, NOW)
    write(new, THIRD, NOW)
    assert [kubelet.has(container_id) for container_id in (GONE, FIRST, SECOND, THIRD)] == [
        False,
        True,
        True,
        True,
    ]
    write(new, GONE, NOW)
    assert kubelet.has(GONE), "the directory in use has it too"
    (new / GONE).unlink()
    (new / THIRD).unlink()
    for directory, container_id in ((old, GONE), (old, FIRST), (new, SECOND)):
        write(directory, container_id, 1000)
    stat: Any = os.stat

    def vanishing(path: Any, **more: Any) -> Any:
        if path == FIRST:
            (old / FIRST).unlink(missing_ok=True)
        return stat(path, **more)

    monkeypatch.setattr(os, "stat", vanishing)
    assert GONE in ids(Kubelet(old, new).read(sandbox(SECOND, 2000)))
