"""The kubelet's device manager, from outside: real sockets in a real directory, and the kernel's list of them."""

import os
import re
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from agent.model.devices import Allocation, DevicePlugins, PluginSocket, Registered, TransitionKind
from agent.model.state_files import StoredHistory
from agent.sources.host.device_plugins import DeviceManager
from agent.sources.source_error import SourceError
from tests.builders import KVM, KVM_SOCKET, transition
from tests.sources.host.test_device_checkpoint import BY_NUMA_NODE, EMPTY, LISTED
from tests.wire import as_nobody

CHECKPOINT = "kubelet_internal_checkpoint"
MADE = datetime(2026, 3, 26, 12, 0, 0, 424000, tzinfo=UTC)


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """A process table whose first process lives in our network namespace, as the kubelet would."""
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/1").symlink_to("/proc/self")
    return tmp_path / "proc"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "devices").mkdir()
    return tmp_path / "devices"


@pytest.fixture
def manager(directory: Path, proc: Path) -> DeviceManager:
    return DeviceManager(directory, proc, StoredHistory)


@contextmanager
def bound(*paths: Path, made: datetime = MADE) -> Iterator[list[socket.socket]]:
    """Listen on each of them, and say when that began."""
    with ExitStack() as open_sockets:
        several = [open_sockets.enter_context(socket.socket(socket.AF_UNIX)) for _ in paths]
        for one, path in zip(several, paths, strict=True):
            one.bind(str(path))
            one.listen()
            dated(path, made)
        yield several


def dated(path: Path, made: datetime) -> None:
    os.utime(path, ns=(0, int(made.timestamp()) * 10**9 + made.microsecond * 1000), follow_symlinks=False)


def replace(directory: Path, content: bytes) -> None:
    """Write a checkpoint as the kubelet does: a temporary file that is renamed."""
    (directory / ".38472").write_bytes(content)
    (directory / ".38472").rename(directory / CHECKPOINT)


def error_of(manager: DeviceManager) -> str:
    with pytest.raises(SourceError) as raised:
        manager.read()
    return str(raised.value)


# Sockets


def test_a_node_without_device_plugins_has_only_the_kubelets_socket(manager: DeviceManager, directory: Path) -> None:
    with bound(directory / "kubelet.sock"):
        assert manager.read() == DevicePlugins(MADE, (), None, (), ())


def test_an_empty_directory_is_empty_and_not_unavailable(manager: DeviceManager) -> None:
    assert manager.read() == DevicePlugins(None, (), None, (), ())


def test_every_plugin_socket_has_its_time(manager: DeviceManager, directory: Path) -> None:
    later = MADE + timedelta(seconds=9.5)
    with bound(directory / "kubelet.sock"), bound(directory / "nvidia-gpu.sock", directory / KVM_SOCKET, made=later):
        found = manager.read()
    assert found.kubelet_socket == MADE
    assert [(one.name, one.made) for one in found.sockets] == [(KVM_SOCKET, later), ("nvidia-gpu.sock", later)]


def test_a_stale_socket_counts_while_its_file_exists(manager: DeviceManager, directory: Path) -> None:
    with bound(directory / "kubelet.sock"):
        pass
    assert manager.read().kubelet_socket == MADE


@pytest.mark.parametrize(
    "make",
    [
        Path.touch,
        Path.mkdir,
        os.mkfifo,
        lambda path: path.symlink_to("kubelet.sock"),
        lambda path: path.symlink_to("nowhere"),
    ],
    ids=["file", "directory", "FIFO", "link", "dangling link"],
)
def test_an_entry_that_is_no_socket_is_no_plugin(
    manager: DeviceManager, directory: Path, make: Callable[[Path], object]
) -> None:
    with bound(directory / "kubelet.sock"):
        make(directory / "DEPRECATION")
        make(directory / "plugin.sock")
        assert manager.read() == DevicePlugins(MADE, (), None, (), ())


def test_an_entry_that_is_no_socket_is_not_the_kubelets_socket(manager: DeviceManager, directory: Path) -> None:
    (directory / "kubelet.sock").touch()
    assert manager.read().kubelet_socket is None


def test_hidden_files_are_ignored(manager: DeviceManager, directory: Path) -> None:
    (directory / ".38472").write_bytes(b"half")
    with bound(directory / ".plugin.sock"):
        assert manager.read().sockets == ()


@pytest.mark.parametrize(
    ("name", "shown"), [(b"a\x1b[2J.sock", r"a\x1b[2J.sock"), (b"\xff.sock", r"\udcff.sock"), (b"\xc3\xa9", "é")]
)
def test_an_unprintable_name_is_escaped(manager: DeviceManager, directory: Path, name: bytes, shown: str) -> None:
    path = Path(os.fsdecode(os.fsencode(directory) + b"/" + name))
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(os.fsencode(path))
        (found,) = manager.read().sockets
    assert found.name == shown


def test_a_removed_socket_is_gone(manager: DeviceManager, directory: Path) -> None:
    with bound(directory / KVM_SOCKET):
        assert len(manager.read().sockets) == 1
    (directory / KVM_SOCKET).unlink()
    assert manager.read().sockets == ()


# Who is connected


@contextmanager
def connected_to(plugin: socket.socket) -> Iterator[None]:
    with socket.socket(socket.AF_UNIX) as kubelet:
        kubelet.connect(plugin.getsockname())
        accepted, _ = plugin.accept()
        with accepted:
            yield


def connections(manager: DeviceManager) -> dict[str, bool | None]:
    return {one.name: one.connected for one in manager.read().sockets}


def test_connections_of_the_kubelet_are_reported(manager: DeviceManager, directory: Path) -> None:
    paths = [directory / name for name in ("kubelet.sock", "a.sock", "b.sock")]
    with bound(*paths) as (_, plugin, _other), connected_to(plugin):
        assert connections(manager) == {"a.sock": True, "b.sock": False}


def test_a_connection_to_the_kubelet_is_no_plugin_connection(manager: DeviceManager, directory: Path) -> None:
    with bound(directory / "kubelet.sock", directory / "a.sock") as (kubelet, _), connected_to(kubelet):
        assert connections(manager) == {"a.sock": False}


def test_without_the_nodes_socket_list_connections_are_unknown(directory: Path) -> None:
    manager = DeviceManager(directory, directory / "none", StoredHistory)
    with bound(directory / "kubelet.sock", directory / "a.sock") as (_, plugin), connected_to(plugin):
        assert connections(manager) == {"a.sock": None}


HEADER = "Num       RefCount Protocol Flags    Type St Inode Path\n"
LISTENS = "0000000000000000: 00000002 00000000 00010000 0001 01 60713 "
CONNECTED = "0000000000000000: 00000003 00000000 00000000 0001 03 60716 "
CANONICAL = "/var/lib/kubelet/device-plugins"


def listing(home: Path, *lines: str) -> Path:
    """Write a list of sockets. The kernel's own may hold a real kubelet's."""
    (home / "table/1/net").mkdir(parents=True)
    (home / "table/1/net/unix").write_text(HEADER + "".join(f"{line}\n" for line in lines))
    return home / "table"


def test_a_socket_list_without_the_kubelets_socket_is_rejected(directory: Path, tmp_path: Path) -> None:
    proc = listing(tmp_path, f"{LISTENS}{directory}/a.sock", f"{CONNECTED}{directory}/a.sock")
    with bound(directory / "kubelet.sock", directory / "a.sock"):
        assert connections(DeviceManager(directory, proc, StoredHistory)) == {"a.sock": None}


def test_the_kubelets_path_counts_if_the_directory_is_mounted_elsewhere(directory: Path, tmp_path: Path) -> None:
    proc = listing(
        tmp_path,
        f"{LISTENS}{CANONICAL}/kubelet.sock",
        f"{CONNECTED}{CANONICAL}/a.sock",
        f"{CONNECTED}/elsewhere/b.sock",
    )
    with bound(directory / "a.sock", directory / "b.sock"):
        assert connections(DeviceManager(directory, proc, StoredHistory)) == {"a.sock": True, "b.sock": False}


# The checkpoint


@pytest.mark.parametrize("content", [BY_NUMA_NODE, LISTED], ids=["1.20 and later", "up to 1.19"])
def test_the_checkpoint_lists_resources_and_allocations(
    manager: DeviceManager, directory: Path, content: bytes
) -> None:
    replace(directory, content)
    dated(directory / CHECKPOINT, MADE)
    found = manager.read()
    assert found.checkpoint_written == MADE
    assert found.registered == (Registered(KVM, ()), Registered("nvidia.com/gpu", ("GPU-a", "GPU-b")))
    uid = "0aa1c1f2-1111-2222-3333-444455556666"
    assert found.allocations[0] == Allocation(uid, "compute", KVM, ("kvm12", "kvm7"))


def test_a_replaced_checkpoint_is_read_again(manager: DeviceManager, directory: Path) -> None:
    replace(directory, BY_NUMA_NODE)
    assert manager.read().registered
    replace(directory, EMPTY)
    assert manager.read().registered == ()
    (directory / CHECKPOINT).unlink()
    assert manager.read().checkpoint_written is None


def test_an_unchanged_checkpoint_is_not_parsed_again(manager: DeviceManager, directory: Path) -> None:
    replace(directory, BY_NUMA_NODE)
    dated(directory / CHECKPOINT, MADE)
    known = manager.read()
    # In place and of the same length and time, which no kubelet does: it would be damage if it were parsed.
    (directory / CHECKPOINT).write_bytes(b"x" * len(BY_NUMA_NODE))
    dated(directory / CHECKPOINT, MADE)
    assert manager.read() == known


def test_an_unchanged_damaged_checkpoint_is_not_parsed_again(manager: DeviceManager, directory: Path) -> None:
    replace(directory, b"x" * len(BY_NUMA_NODE))
    dated(directory / CHECKPOINT, MADE)
    with pytest.raises(SourceError) as first:
        manager.read()
    (directory / CHECKPOINT).write_bytes(BY_NUMA_NODE)
    dated(directory / CHECKPOINT, MADE)
    with pytest.raises(SourceError, match=re.escape(str(first.value))):
        manager.read()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "not JSON (0 bytes)"),
        (BY_NUMA_NODE[:200], "not JSON (200 bytes)"),
        (b"{}", "unknown format (KeyError: 'Data')"),
        (b" " * (1024 * 1024 + 1), "it has 1048577 bytes, more than the limit of 1048576"),
    ],
    ids=["empty", "truncated", "unknown", "huge"],
)
def test_a_damaged_checkpoint_is_unavailable(
    manager: DeviceManager, directory: Path, content: bytes, reason: str
) -> None:
    replace(directory, BY_NUMA_NODE)
    manager.read()
    replace(directory, content)
    for _ in range(2):
        message = error_of(manager)
        assert message.startswith(f"{CHECKPOINT}: ")
        assert message.endswith(reason)
    replace(directory, EMPTY)
    assert manager.read().registered == ()


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (Path.mkdir, "not a regular file"),
        (os.mkfifo, "not a regular file"),
        (lambda path: path.symlink_to("elsewhere"), "too many levels of symbolic links"),
    ],
)
def test_a_checkpoint_that_is_no_file_is_unavailable(
    manager: DeviceManager, directory: Path, make: Callable[[Path], object], reason: str
) -> None:
    (directory / "elsewhere").write_bytes(BY_NUMA_NODE)
    make(directory / CHECKPOINT)
    assert f"{CHECKPOINT}: {reason}" in error_of(manager)


# The directory


def test_a_missing_directory_is_unavailable(proc: Path, tmp_path: Path) -> None:
    assert error_of(DeviceManager(tmp_path / "none", proc, StoredHistory)) == f"{tmp_path}/none does not exist"


def test_unreadable_files_are_unavailable(open_dir: Path, proc: Path) -> None:
    manager = DeviceManager(open_dir, proc, StoredHistory)
    replace(open_dir, BY_NUMA_NODE)
    (open_dir / CHECKPOINT).chmod(0o600)
    with as_nobody():
        assert error_of(manager) == f"cannot read {CHECKPOINT}: permission denied (run as root)"
    (open_dir / "closed").mkdir(0o000)
    with as_nobody():
        assert (
            error_of(DeviceManager(open_dir / "closed", proc, StoredHistory))
            == f"cannot read {open_dir}/closed: permission denied (run as root)"
        )


def test_a_file_in_place_of_the_directory_is_unavailable(directory: Path, proc: Path) -> None:
    (directory / "file").touch()
    assert (
        error_of(DeviceManager(directory / "file", proc, StoredHistory))
        == f"cannot read {directory}/file: not a directory"
    )


# Earlier snapshots


def test_the_stored_history_is_loaded(directory: Path, proc: Path) -> None:
    seen = transition(TransitionKind.REGISTERED, KVM)
    found = DeviceManager(directory, proc, lambda: StoredHistory((seen,))).read()
    assert (found.history, found.trouble) == ((seen,), "")


def test_a_damaged_history_loses_only_the_history(directory: Path, proc: Path) -> None:
    replace(directory, BY_NUMA_NODE)
    found = DeviceManager(directory, proc, lambda: StoredHistory(trouble="not JSON")).read()
    assert (found.history, found.trouble) == ((), "not JSON")
    assert len(found.registered) == 2


def test_no_handle_is_left_open(manager: DeviceManager, directory: Path) -> None:
    with bound(directory / "kubelet.sock", directory / "a.sock"):
        before = len(os.listdir("/proc/self/fd"))
        for content in (BY_NUMA_NODE, b"{"):
            replace(directory, content)
            for _ in range(3):
                try:
                    assert manager.read().sockets[0] == PluginSocket("a.sock", MADE, connected=False)
                except SourceError:
                    assert content == b"{"
        assert len(os.listdir("/proc/self/fd")) == before
