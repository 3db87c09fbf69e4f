"""The history on disk: written when it changes, completely or not at all, and errors never end the daemon."""

import os
import resource
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

from agent.checks import engine
from agent.checks.devices.history import derive, with_history
from agent.model.devices import DevicePlugins, TransitionKind
from agent.model.documents import HISTORY_FILE, StoredHistory, dump_history, load_history
from agent.model.report import Report
from agent.model.snapshot import Known, Snapshot
from agent.state.device_history import DeviceHistoryStore
from tests.builders import KVM, device_plugins, node, plugin_socket, registered, transition, unavailable
from tests.wire import as_nobody, open_directory

SEEN = node(
    device_plugins=device_plugins(
        plugin_socket(ago=timedelta(seconds=20)),
        registered(KVM, "d0"),
        kubelet_socket=timedelta(seconds=30.000001),
        checkpoint_written=timedelta(seconds=20),
    )
)


def report(snapshot: Snapshot) -> Report:
    return engine.run(with_history(snapshot), None, grace=timedelta(0), confirm_after=timedelta(0))[0]


def read_back(snapshot: Snapshot, state_dir: Path) -> Snapshot:
    """Take the next snapshot: its source reads what was written."""
    devices = snapshot.device_plugins.known()
    stored = load_history((state_dir / HISTORY_FILE).read_text()).transitions
    return replace(snapshot, device_plugins=Known(replace(devices, history=stored)))


def test_a_stored_history_is_read_by_the_next_snapshot(tmp_path: Path) -> None:
    exporter = DeviceHistoryStore(tmp_path)
    exporter.export(report(SEEN), 0.1)
    assert derive(read_back(SEEN, tmp_path)) == derive(SEEN)
    assert load_history((tmp_path / HISTORY_FILE).read_text()).transitions == derive(SEEN)


def test_the_file_is_private_and_no_temporary_file_is_left(tmp_path: Path) -> None:
    state_dir = tmp_path / "var" / "nodeleak"
    DeviceHistoryStore(state_dir).export(report(SEEN), 0.1)
    assert (state_dir / HISTORY_FILE).stat().st_mode & 0o777 == 0o600
    assert state_dir.stat().st_mode & 0o777 == 0o700
    assert os.listdir(state_dir) == [HISTORY_FILE]


def test_only_changes_replace_the_file(tmp_path: Path) -> None:
    exporter = DeviceHistoryStore(tmp_path)
    exporter.export(report(SEEN), 0.1)
    before = (tmp_path / HISTORY_FILE).stat().st_ino
    later = read_back(SEEN, tmp_path)
    for unchanged in (SEEN, later):
        exporter.export(report(unchanged), 0.1)
    assert (tmp_path / HISTORY_FILE).stat().st_ino == before
    devices = later.device_plugins.known()
    exporter.export(report(replace(later, device_plugins=Known(replace(devices, sockets=())))), 0.1)
    assert load_history((tmp_path / HISTORY_FILE).read_text()).transitions[-1].what.value == "socket_gone"


def test_a_sync_without_device_plugins_does_not_change_the_file(tmp_path: Path) -> None:
    exporter = DeviceHistoryStore(tmp_path)
    exporter.export(report(SEEN), 0.1)
    before = (tmp_path / HISTORY_FILE).read_text()
    exporter.export(report(node(device_plugins=unavailable("device_plugins"))), 0.1)
    assert (tmp_path / HISTORY_FILE).read_text() == before


def test_without_a_kubelet_nothing_is_stored(tmp_path: Path) -> None:
    empty = DevicePlugins(None, (), None, (), ())
    DeviceHistoryStore(tmp_path).export(report(node(device_plugins=empty)), 0.1)
    assert os.listdir(tmp_path) == []


KILLED = """
import os, sys
from pathlib import Path
from agent.state.atomic_file import StateFile
os.fsync = lambda _: os._exit(9)
StateFile(Path(sys.argv[1]), print).write(b"half of it")
"""


def test_what_a_process_left_that_was_killed_is_removed_by_the_next_write(tmp_path: Path) -> None:
    (tmp_path / f".{HISTORY_FILE}.original").touch()  # somebody else's
    for _ in range(2):
        command = (sys.executable, "-c", KILLED, str(tmp_path / HISTORY_FILE))
        assert subprocess.run(command, check=False).returncode == 9  # noqa: S603 (a command of ours)
    assert len(os.listdir(tmp_path)) == 2, "what the first left, the second removed"
    DeviceHistoryStore(tmp_path).export(report(SEEN), 0.1)
    assert sorted(os.listdir(tmp_path)) == [f".{HISTORY_FILE}.original", HISTORY_FILE]


def test_an_unwritable_state_directory_is_logged_once_and_loses_nothing_while_the_agent_runs(tmp_path: Path) -> None:
    in_the_way, reasons = tmp_path / "nodeleak", list[str]()
    in_the_way.write_text("a file")
    store = DeviceHistoryStore(in_the_way, reasons.append)
    for _ in range(2):
        store.export(report(SEEN), 0.1)
    assert reasons == [f"{in_the_way}: File exists"]
    assert store.read().transitions == derive(SEEN)
    in_the_way.unlink()
    store.export(report(SEEN), 0.1)
    assert DeviceHistoryStore(in_the_way).read().transitions == derive(SEEN)


def test_on_a_full_disk_the_old_file_stays_and_no_temporary_file_is_left(tmp_path: Path) -> None:
    exporter = DeviceHistoryStore(tmp_path)
    exporter.export(report(SEEN), 0.1)
    before = (tmp_path / HISTORY_FILE).read_text()
    news = read_back(node(device_plugins=device_plugins()), tmp_path)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        exporter.export(report(news), 0.1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert exporter.failed.endswith(": File too large")
    assert (tmp_path / HISTORY_FILE).read_text() == before
    assert os.listdir(tmp_path) == [HISTORY_FILE]
    exporter.export(report(news), 0.1)
    assert load_history((tmp_path / HISTORY_FILE).read_text()).transitions == derive(news)


# At the next start


def test_a_stored_history_is_read_once(tmp_path: Path) -> None:
    assert DeviceHistoryStore(tmp_path).read() == DeviceHistoryStore(tmp_path / "none").read() == StoredHistory()
    store, stored = DeviceHistoryStore(tmp_path), transition(TransitionKind.REGISTERED, KVM)
    (tmp_path / HISTORY_FILE).write_text(dump_history([stored]))
    assert store.read() == StoredHistory((stored,))
    (tmp_path / HISTORY_FILE).unlink()
    assert store.read() == StoredHistory((stored,))


def test_a_history_that_cannot_be_read_is_empty_and_reported(tmp_path: Path) -> None:
    path = tmp_path / HISTORY_FILE
    makes: tuple[tuple[Callable[[], object], str], ...] = (
        (lambda: path.write_bytes(b""), f"{path}: not JSON"),
        (lambda: path.write_text(dump_history(derive(SEEN))[:-3]), f"{path}: not JSON"),
        (lambda: path.write_bytes(b"{}"), f"{path}: its schema is not 'nodeleak.device-plugins/v1'"),
        (lambda: path.write_bytes(b" " * (1 << 21)), f"{path}: it has more than the limit of 1,048,576 bytes"),
        (lambda: path.symlink_to("/etc/passwd"), f"{path}: "),
        (lambda: os.mkfifo(path), f"{path}: "),
    )
    for make, why in makes:
        make()
        store = DeviceHistoryStore(tmp_path)
        for _ in range(2):
            found = store.read()
            assert (found.transitions, found.trouble.removeprefix("cannot read ").startswith(why)) == ((), True)
        path.unlink()
    path.touch()
    assert DeviceHistoryStore(path).read().trouble == f"cannot read {path}/{HISTORY_FILE}: not a directory"


def test_an_unreadable_history_is_reported() -> None:
    with open_directory() as open_dir:
        path = open_dir / HISTORY_FILE
        path.write_text(dump_history(derive(SEEN)))
        path.chmod(0o600)
        with as_nobody():
            why = f"cannot read {path}: permission denied (run as root)"
            assert DeviceHistoryStore(open_dir).read() == StoredHistory((), why)


def test_a_damaged_history_is_replaced_and_reported_until_then(tmp_path: Path) -> None:
    (tmp_path / HISTORY_FILE).write_text("{")
    store = DeviceHistoryStore(tmp_path)
    assert store.read().trouble
    store.export(report(SEEN), 0.1)
    assert store.read() == DeviceHistoryStore(tmp_path).read()
    assert store.read().trouble == ""
