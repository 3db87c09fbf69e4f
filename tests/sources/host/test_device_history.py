"""The stored history of the device plugins: what is there, and what is said of damage."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from agent.model.device_history import FILE, Chronicle, dumps
from agent.model.devices import Happening
from agent.sources.host.device_history import LARGEST, StoredChronicle
from tests.builders import KVM, milestone
from tests.wire import as_nobody

SEEN = milestone(Happening.REGISTERED, KVM)
LOST = milestone(Happening.LOST, KVM)


def test_what_is_stored_is_read(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text(dumps([SEEN, LOST]))
    assert StoredChronicle(tmp_path).read() == Chronicle((SEEN, LOST))


def test_without_a_file_or_its_directory_there_is_no_history_and_nothing_is_wrong(tmp_path: Path) -> None:
    assert StoredChronicle(tmp_path).read() == Chronicle()
    assert StoredChronicle(tmp_path / "none").read() == Chronicle()


def test_what_is_added_is_seen_by_the_next_look(tmp_path: Path) -> None:
    stored = StoredChronicle(tmp_path)
    (tmp_path / FILE).write_text(dumps([SEEN]))
    assert stored.read() == Chronicle((SEEN,))
    (tmp_path / "new").write_text(dumps([SEEN, LOST]))
    (tmp_path / "new").rename(tmp_path / FILE)
    assert stored.read() == Chronicle((SEEN, LOST))
    (tmp_path / FILE).unlink()
    assert stored.read() == Chronicle()


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "it is not JSON"),
        (dumps([SEEN]).encode()[:-3], "it is not JSON"),
        (b"{}", "its schema is not 'nodeleak.device-plugins/v1'"),
        (b" " * (LARGEST + 1), f"it holds {LARGEST + 1} bytes; at most {LARGEST} are read"),
    ],
    ids=["empty", "half", "another's", "huge"],
)
def test_a_damaged_history_is_none_and_the_damage_is_told(tmp_path: Path, content: bytes, why: str) -> None:
    (tmp_path / FILE).write_bytes(content)
    stored = StoredChronicle(tmp_path)
    for _ in range(2):
        assert stored.read() == Chronicle((), f"{tmp_path}/{FILE}: {why}")


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo, lambda path: path.symlink_to("/etc/passwd")])
def test_what_is_no_file_is_damage(tmp_path: Path, make: Callable[[Path], object]) -> None:
    make(tmp_path / FILE)
    assert StoredChronicle(tmp_path).read().trouble.startswith(f"{tmp_path}/{FILE}: ")


def test_a_history_that_may_not_be_read_is_told(open_dir: Path) -> None:
    (open_dir / FILE).write_text(dumps([SEEN]))
    (open_dir / FILE).chmod(0o600)
    with as_nobody():
        assert StoredChronicle(open_dir).read() == Chronicle((), f"{open_dir}/{FILE}: Permission denied")


def test_a_state_directory_that_is_a_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "state").touch()
    assert StoredChronicle(tmp_path / "state").read() == Chronicle((), f"{tmp_path}/state/{FILE}: Not a directory")
