"""What is larger than any node has it is not read in part: the source says so."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from agent.model.documents import StoredHistory
from agent.model.runtime import RuntimeNetwork
from agent.sources.host import files
from agent.sources.host.checkpoints import CheckpointDirectories
from agent.sources.host.cni_cache import CniResults
from agent.sources.host.cni_config import read_directory, with_subnet
from agent.sources.host.device_plugins import DeviceManager
from agent.sources.host.processes import ProcessTable
from agent.sources.source_error import SourceError

READERS: list[Callable[[Path], object]] = [
    lambda path: CniResults([path]).read(),
    lambda path: CheckpointDirectories([path]).read((), 0),
    lambda path: DeviceManager(path, path, StoredHistory).read(),
    read_directory,
]


@pytest.mark.parametrize("read", READERS)
def test_a_directory_with_too_many_entries_is_not_read_in_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: Callable[[Path], object]
) -> None:
    monkeypatch.setattr(files, "MAX_ENTRIES", 2)
    (tmp_path / "10-cbr0.conf").write_text(json.dumps({"name": "cbr0", "type": "bridge"}))
    (tmp_path / "b").touch()
    read(tmp_path)
    (tmp_path / "c").touch()
    with pytest.raises(SourceError, match=f"{tmp_path} has more than 2 entries and was not read: find out what fills"):
        read(tmp_path)


def test_a_file_is_read_up_to_its_bound_and_no_other_kind_of_file_is_waited_for(tmp_path: Path) -> None:
    file = tmp_path / "file"
    for size, known in ((files.LARGEST_FILE, True), (files.LARGEST_FILE + 1, False)):
        file.write_bytes(b"x" * size)
        if known:
            assert len(files.read_file(file)[0]) == size
        else:
            with pytest.raises(SourceError, match=f"{file}: it has more than the limit of 1,048,576 bytes"):
                files.read_file(file)
    (tmp_path / "link").symlink_to(file)
    with pytest.raises(OSError, match="symbolic links"):
        files.read_file(tmp_path / "link")


def test_a_command_line_or_a_subnet_in_a_file_that_is_too_large_is_unknown(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "stat").write_text("btime 1\n")
    (tmp_path / "sys/kernel/random").mkdir(parents=True)
    (tmp_path / "sys/kernel/random/boot_id").write_text("b-1\n")
    (tmp_path / "7/stat").write_text(f"7 (kubelet) S {'0 ' * 50}\n")
    (tmp_path / "flannel").mkdir()
    flannel = RuntimeNetwork("cbr0", ("flannel",))
    for filler, known in ((1, True), (files.LARGEST_FILE, False)):
        (tmp_path / "7/cmdline").write_text("kubelet\0--network-plugin=kubenet\0" + "\0" * filler)
        assert ProcessTable(tmp_path).read().network_plugin == ("kubenet" if known else None)
        (tmp_path / "flannel/subnet.env").write_text("#" * filler + "\nFLANNEL_SUBNET=10.244.1.1/24\n")
        assert len(with_subnet([flannel], tmp_path)[0].ranges) == known
