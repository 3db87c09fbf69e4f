"""The history on disk: written when it changes, completely or not at all, and errors never end the daemon."""

import json
import os
import resource
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from agent.checks import engine
from agent.checks.devices import history
from agent.model.devices import DevicePlugins, DeviceTransition
from agent.model.documents import StoredHistory, dump_history, load_history
from agent.model.report import Report
from agent.model.snapshot import Known, Snapshot
from agent.state.stores import DeviceHistoryStore
from tests.builders import KVM, device_plugins, node, plugin_socket, registered, unavailable
from tests.wire import as_nobody, open_directory, until

SEEN = node(
    device_plugins=device_plugins(
        plugin_socket(ago=timedelta(seconds=20)),
        registered(KVM, "d0"),
        kubelet_socket=timedelta(seconds=30.000001),
        checkpoint_written=timedelta(seconds=20),
    )
)


def report(snapshot: Snapshot) -> Report:
    now = history.with_history(snapshot)
    return engine.run(now, None, grace=timedelta(0), confirm_after=timedelta(0))[0]


def advanced(snapshot: Snapshot) -> tuple[DeviceTransition, ...]:
    return history.advance(snapshot.device_plugins.known().history, snapshot)


def read_back(snapshot: Snapshot, path: Path) -> Snapshot:
    """Take the next snapshot: its source reads what was written."""
    return replace(
        snapshot,
        device_plugins=Known(replace(snapshot.device_plugins.known(), history=stored(path))),
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state/device-plugins.json"


@pytest.fixture
def store(path: Path) -> DeviceHistoryStore:
    """Return a store that has written the history of a node."""
    made = DeviceHistoryStore(path.parent)
    made.export(report(SEEN), 0.1)
    return made


def stored(path: Path) -> tuple[DeviceTransition, ...]:
    return load_history(path.read_text()).transitions


@pytest.mark.usefixtures("store")
def test_a_private_file_is_read_once_after_a_start_and_no_temporary_file_is_left(
    path: Path, tmp_path: Path
) -> None:
    assert advanced(read_back(SEEN, path)) == advanced(SEEN) == stored(path)
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    assert os.listdir(path.parent) == [path.name]
    assert DeviceHistoryStore(tmp_path / "none").read() == StoredHistory()
    following = DeviceHistoryStore(path.parent)
    for _ in range(2):
        assert following.read() == StoredHistory(advanced(SEEN))
        path.unlink(missing_ok=True)


@pytest.mark.usefixtures("store")
def test_a_stored_time_that_cannot_be_costs_one_entry_and_no_sync(path: Path) -> None:
    tree = json.loads(path.read_text())
    tree["transitions"][-1]["uptime"] = 86400.0 * 999999999
    path.write_text(json.dumps(tree))
    found = DeviceHistoryStore(path.parent).read()
    assert found.transitions == advanced(SEEN)[:-1]
    assert found.trouble is not None
    assert f"transitions[{len(found.transitions)}].uptime: " in found.trouble
    assert "is out of range" in found.trouble
    devices = replace(SEEN.device_plugins.known(), history=found.transitions, trouble=found.trouble)
    assert advanced(replace(SEEN, device_plugins=Known(devices))) == advanced(SEEN)


def test_only_changes_replace_the_file_and_without_a_kubelet_none_is_written(
    store: DeviceHistoryStore, path: Path, tmp_path: Path
) -> None:
    before, later = path.stat().st_ino, read_back(SEEN, path)
    for unchanged in (SEEN, later, node(device_plugins=unavailable("device_plugins"))):
        store.export(report(unchanged), 0.1)
    assert path.stat().st_ino == before
    devices = later.device_plugins.known()
    store.export(report(replace(later, device_plugins=Known(replace(devices, sockets=())))), 0.1)
    assert stored(path)[-1].what.value == "socket_gone"
    DeviceHistoryStore(tmp_path).export(
        report(node(device_plugins=DevicePlugins(None, (), None, (), ()))), 0.1
    )
    assert os.listdir(tmp_path) == [path.parent.name]


KILLED = """
import os, sys
from pathlib import Path
from agent.state.directory import StateFile
os.fsync = lambda _: os._exit(9)
StateFile(Path(sys.argv[1]), print).write(b"half of it")
"""


def test_what_a_process_left_that_was_killed_is_removed_by_the_next_write(path: Path) -> None:
    path.parent.mkdir()
    other = path.with_name(f".{path.name}.original")
    other.touch()  # somebody else's
    for _ in range(2):
        done = subprocess.run((sys.executable, "-c", KILLED, str(path)), check=False)  # noqa: S603 (a command of ours)
        assert done.returncode == 9
    assert len(os.listdir(path.parent)) == 2, "what the first left, the second removed"
    DeviceHistoryStore(path.parent).export(report(SEEN), 0.1)
    assert sorted(os.listdir(path.parent)) == [other.name, path.name]


def test_a_fifo_in_place_of_the_temporary_file_is_reported_and_holds_up_no_sync(
    path: Path,
) -> None:
    path.parent.mkdir()
    os.mkfifo(path.with_name(f".{path.name}.nodeleak"))
    warnings: list[str] = []
    exported = threading.Event()

    def export() -> None:
        DeviceHistoryStore(path.parent, warnings.append).export(report(SEEN), 0.1)
        exported.set()

    threading.Thread(target=export, daemon=True).start()
    until(exported.is_set, "the sync goes on")
    assert warnings == [f"{path.parent}: No such device or address"]


def test_an_unwritable_state_directory_is_logged_once_and_loses_nothing_while_the_agent_runs(
    path: Path,
) -> None:
    in_the_way, reasons = path.parent, list[str]()
    in_the_way.write_text("a file")
    store = DeviceHistoryStore(in_the_way, reasons.append)
    for _ in range(2):
        store.export(report(SEEN), 0.1)
    assert reasons == [f"{in_the_way}: File exists"]
    assert store.read().transitions == advanced(SEEN)
    in_the_way.unlink()
    store.export(report(SEEN), 0.1)
    assert DeviceHistoryStore(in_the_way).read().transitions == advanced(SEEN)


def test_on_a_full_disk_the_old_file_stays_and_no_temporary_file_is_left(
    store: DeviceHistoryStore, path: Path
) -> None:
    before, news = path.read_text(), read_back(node(device_plugins=device_plugins()), path)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        store.export(report(news), 0.1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (store.write_error or "").endswith(": File too large")
    assert (path.read_text(), os.listdir(path.parent)) == (before, [path.name])
    store.export(report(news), 0.1)
    assert stored(path) == advanced(news)


def test_a_history_that_cannot_be_read_is_empty_reported_and_replaced(path: Path) -> None:
    path.parent.mkdir()
    makes: tuple[tuple[Callable[[], object], str], ...] = (
        (lambda: path.write_bytes(b""), f"{path}: not JSON"),
        (lambda: path.write_text(dump_history(advanced(SEEN))[:-3]), f"{path}: not JSON"),
        (
            lambda: path.write_bytes(b"{}"),
            f"{path}: its schema is not 'nodeleak.device-plugins/v1'",
        ),
        (
            lambda: path.write_bytes(b" " * (1 << 21)),
            f"{path}: it has more than the limit of 1,048,576 bytes",
        ),
        (lambda: path.symlink_to("/etc/passwd"), f"{path}: "),
        (lambda: os.mkfifo(path), f"{path}: "),
    )
    for make, why in makes:
        make()
        store = DeviceHistoryStore(path.parent)
        for _ in range(2):
            found = store.read()
            assert found.transitions == ()
            assert (found.trouble or "").removeprefix("cannot read ").startswith(why)
        store.export(report(SEEN), 0.1)
        assert (
            store.read() == DeviceHistoryStore(path.parent).read() == StoredHistory(advanced(SEEN))
        )
        path.unlink()
    path.touch()
    assert (
        DeviceHistoryStore(path).read().trouble
        == f"cannot read {path}/{path.name}: not a directory"
    )
    with open_directory() as directory:
        secret = directory / path.name
        secret.write_text(dump_history(advanced(SEEN)))
        secret.chmod(0o600)
        with as_nobody():
            why = f"cannot read {secret}: permission denied (run as root)"
            assert DeviceHistoryStore(directory).read() == StoredHistory((), why)
