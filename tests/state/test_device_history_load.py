"""The stored history of the device plugins: its content, and how damage is reported."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from agent.model.devices import TransitionKind
from agent.model.documents import HISTORY_FILE, StoredHistory, dump_history
from agent.state.device_history import DeviceHistoryStore
from tests.builders import KVM, transition
from tests.wire import as_nobody, open_directory

SEEN = transition(TransitionKind.REGISTERED, KVM)
LOST = transition(TransitionKind.LOST, KVM)


def test_a_stored_history_is_read(tmp_path: Path) -> None:
    (tmp_path / HISTORY_FILE).write_text(dump_history([SEEN, LOST]))
    assert DeviceHistoryStore(tmp_path).read() == StoredHistory((SEEN, LOST))


def test_without_a_file_or_directory_the_history_is_empty_without_error(tmp_path: Path) -> None:
    assert DeviceHistoryStore(tmp_path).read() == StoredHistory()
    assert DeviceHistoryStore(tmp_path / "none").read() == StoredHistory()


def test_the_history_is_read_once(tmp_path: Path) -> None:
    stored = DeviceHistoryStore(tmp_path)
    (tmp_path / HISTORY_FILE).write_text(dump_history([SEEN]))
    assert stored.read() == StoredHistory((SEEN,))
    (tmp_path / HISTORY_FILE).unlink()
    assert stored.read() == StoredHistory((SEEN,))


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "not JSON"),
        (dump_history([SEEN]).encode()[:-3], "not JSON"),
        (b"{}", "its schema is not 'nodeleak.device-plugins/v1'"),
        (b" " * (1 << 21), "it has more than the limit of 1,048,576 bytes"),
    ],
    ids=["empty", "half", "another's", "huge"],
)
def test_a_damaged_history_is_empty_and_reported(tmp_path: Path, content: bytes, why: str) -> None:
    (tmp_path / HISTORY_FILE).write_bytes(content)
    stored = DeviceHistoryStore(tmp_path)
    for _ in range(2):
        assert stored.read() == StoredHistory((), f"{tmp_path}/{HISTORY_FILE}: {why}")


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo, lambda path: path.symlink_to("/etc/passwd")])
def test_a_history_that_is_no_file_is_reported(tmp_path: Path, make: Callable[[Path], object]) -> None:
    make(tmp_path / HISTORY_FILE)
    assert (
        DeviceHistoryStore(tmp_path)
        .read()
        .trouble.removeprefix("cannot read ")
        .startswith(f"{tmp_path}/{HISTORY_FILE}: ")
    )


def test_an_unreadable_history_is_reported() -> None:
    with open_directory() as open_dir:
        (open_dir / HISTORY_FILE).write_text(dump_history([SEEN]))
        (open_dir / HISTORY_FILE).chmod(0o600)
        with as_nobody():
            assert DeviceHistoryStore(open_dir).read() == StoredHistory(
                (), f"cannot read {open_dir}/{HISTORY_FILE}: permission denied (run as root)"
            )


def test_a_state_directory_that_is_a_file_is_reported(tmp_path: Path) -> None:
    (tmp_path / "state").touch()
    assert DeviceHistoryStore(tmp_path / "state").read() == StoredHistory(
        (), f"cannot read {tmp_path}/state/{HISTORY_FILE}: not a directory"
    )
