"""The kubelet's device manager, from outside: real sockets in a real directory, and the kernel's list of them."""

import json
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pytest

from agent.model.devices import Allocation, DevicePlugins, Registered, TransitionKind
from agent.model.documents import StoredHistory
from agent.sources.host.device_plugins import DeviceManager
from agent.sources.source_error import SourceError
from tests.builders import KVM, KVM_SOCKET, transition
from tests.wire import as_nobody

GPU = "nvidia.com/gpu"
UID = "0aa1c1f2-1111-2222-3333-444455556666"

# Written by the checkpoint package of Kubernetes 1.20.2; the last by the same, with the older form's types.
EMPTY: Final = b'{"Data":{"PodDeviceEntries":[],"RegisteredDevices":{}},"Checksum":2932075448}'
NULL: Final = b'{"Data":{"PodDeviceEntries":null,"RegisteredDevices":{"a.b/c":[]}},"Checksum":4221852588}'
BY_NUMA_NODE: Final = (
    b'{"Data":{"PodDeviceEntries":[{"PodUID":"0aa1c1f2-1111-2222-3333-444455556666","ContainerName":"compute",'
    b'"ResourceName":"devices.kubevirt.io/kvm","DeviceIDs":{"0":["kvm7","kvm12"]},"AllocResp":"GgIKAA=="},'
    b'{"PodUID":"0aa1c1f2-1111-2222-3333-444455556666","ContainerName":"compute","ResourceName":"nvidia.com/gpu",'
    b'"DeviceIDs":{"0":["GPU-a"],"1":["GPU-b"]},"AllocResp":null}],"RegisteredDevices":{"devices.kubevirt.io/kvm":[],'
    b'"nvidia.com/gpu":["GPU-a","GPU-b"]}},"Checksum":3920981445}'
)
LISTED: Final = (
    b'{"Data":{"PodDeviceEntries":[{"PodUID":"0aa1c1f2-1111-2222-3333-444455556666","ContainerName":"compute",'
    b'"ResourceName":"devices.kubevirt.io/kvm","DeviceIDs":["kvm7","kvm12"],"AllocResp":"GgIKAA=="}],'
    b'"RegisteredDevices":{"devices.kubevirt.io/kvm":[],"nvidia.com/gpu":["GPU-a","GPU-b"]}},"Checksum":1436041437}'
)

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


def test_every_plugin_socket_has_its_time(manager: DeviceManager, directory: Path) -> None:
    later = MADE + timedelta(seconds=9.5)
    with bound(directory / "kubelet.sock"), bound(directory / "nvidia-gpu.sock", directory / KVM_SOCKET, made=later):
        found = manager.read()
    assert found.kubelet_socket == MADE
    assert [(one.name, one.made) for one in found.sockets] == [(KVM_SOCKET, later), ("nvidia-gpu.sock", later)]


def test_a_stale_socket_counts_while_its_file_exists(manager: DeviceManager, directory: Path) -> None:
    assert manager.read() == DevicePlugins(None, (), None, (), ())
    with bound(directory / "kubelet.sock"):
        pass
    assert manager.read().kubelet_socket == MADE


def test_an_entry_that_is_no_socket_is_no_plugin(manager: DeviceManager, directory: Path) -> None:
    with bound(directory / "kubelet.sock", directory / ".plugin.sock"):
        (directory / "DEPRECATION").touch()
        (directory / "directory.sock").mkdir()
        os.mkfifo(directory / "fifo.sock")
        (directory / "link.sock").symlink_to("kubelet.sock")
        (directory / "dangling.sock").symlink_to("nowhere")
        assert manager.read() == DevicePlugins(MADE, (), None, (), ())
    (directory / "kubelet.sock").unlink()
    (directory / "kubelet.sock").touch()
    assert manager.read().kubelet_socket is None


def test_an_unprintable_name_is_escaped(manager: DeviceManager, directory: Path) -> None:
    names = {b"a\x1b[2J.sock": r"a\x1b[2J.sock", b"\xff.sock": r"\udcff.sock", b"\xc3\xa9": "é"}
    with bound(*(directory / os.fsdecode(name) for name in names)):
        assert sorted(plugin.name for plugin in manager.read().sockets) == sorted(names.values())


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


def parsed(manager: DeviceManager, directory: Path, content: bytes) -> DevicePlugins:
    replace(directory, content)
    return manager.read()


def changed(**fields: Any) -> bytes:
    """Say something else in the first entry."""
    tree = json.loads(BY_NUMA_NODE)
    tree["Data"]["PodDeviceEntries"][0].update(fields)
    return json.dumps(tree).encode()


def test_the_checkpoint_lists_resources_and_allocations(manager: DeviceManager, directory: Path) -> None:
    kvm, gpus = Allocation(UID, "compute", KVM, ("kvm12", "kvm7")), Allocation(UID, "compute", GPU, ("GPU-a", "GPU-b"))
    reordered = json.dumps(dict(reversed(json.loads(BY_NUMA_NODE).items())), indent=2).encode()
    for content, allocations in (
        (BY_NUMA_NODE, (kvm, gpus)),  # kubelet 1.20 and later
        (LISTED, (kvm,)),  # up to 1.19
        (reordered, (kvm, gpus)),
        (changed(DeviceIDs={"0": ["kvm12", "kvm7"]}), (kvm, gpus)),
    ):
        found = parsed(manager, directory, content)
        assert found.registered == (Registered(KVM, ()), Registered(GPU, ("GPU-a", "GPU-b")))
        assert found.allocations == allocations
    dated(directory / CHECKPOINT, MADE)
    assert manager.read().checkpoint_written == MADE
    assert parsed(manager, directory, NULL).registered == (Registered("a.b/c", ()),)


def test_every_format_that_go_may_write(manager: DeviceManager, directory: Path) -> None:
    for listed, devices in (
        ({"-1": ["kvm7"]}, ("kvm7",)),  # no topology
        ({"10": ["c"], "2": ["b"], "-1": ["a"]}, ("a", "b", "c")),
        ({"0": None}, ()),
        ({}, ()),
        (None, ()),
        ({"0": ["\ud800"]}, ("\\ud800",)),
    ):
        found = parsed(manager, directory, changed(DeviceIDs=listed, ContainerName="a\x1b[2J"))
        assert (found.allocations[0].container, found.allocations[0].devices) == ("a\\x1b[2J", devices)


def test_a_replaced_checkpoint_is_read_again(manager: DeviceManager, directory: Path) -> None:
    replace(directory, BY_NUMA_NODE)
    assert manager.read().registered
    replace(directory, EMPTY)
    assert manager.read().registered == ()
    (directory / CHECKPOINT).unlink()
    assert manager.read().checkpoint_written is None


def test_a_damaged_checkpoint_is_unavailable_and_not_empty(manager: DeviceManager, directory: Path) -> None:
    for content in (b"", b"{", BY_NUMA_NODE[:-1], BY_NUMA_NODE[:200], b"\xff\xfe", b"[" * 9000):
        replace(directory, content)
        assert error_of(manager) == f"{CHECKPOINT}: not JSON ({len(content)} bytes)"
    for content in (
        b"null", b"[]", b"7", b'"text"', b"{}", b'{"Data":{}}', b'{"Data":null,"Checksum":1}',
        b'{"Data":{"PodDeviceEntries":[]},"Checksum":1}', b'{"Data":{"RegisteredDevices":{}},"Checksum":1}',
        b'{"Data":{"PodDeviceEntries":7,"RegisteredDevices":{}},"Checksum":1}',
        b'{"Data":{"PodDeviceEntries":[7],"RegisteredDevices":{}},"Checksum":1}',
        b'{"Data":{"PodDeviceEntries":[],"RegisteredDevices":[]},"Checksum":1}',
        b'{"Data":{"PodDeviceEntries":[],"RegisteredDevices":{"a/b":"x"}},"Checksum":1}',
        b'{"Data":{"PodDeviceEntries":[],"RegisteredDevices":{"a/b":[7]}},"Checksum":1}',
        changed(PodUID=7), changed(DeviceIDs="kvm7"), changed(ResourceName=None),
    ):  # fmt: skip
        replace(directory, content)
        assert error_of(manager).startswith(f"{CHECKPOINT}: unknown format (")
    replace(directory, b" " * (1024 * 1024 + 1))
    assert error_of(manager) == f"{CHECKPOINT}: it has more than the limit of 1,048,576 bytes"
    assert parsed(manager, directory, EMPTY).registered == ()


def test_a_checkpoint_that_is_no_file_is_unavailable(manager: DeviceManager, directory: Path) -> None:
    for make, reason in (
        (Path.touch, "not JSON (0 bytes)"),
        (os.mkfifo, "not a regular file"),
        (lambda path: path.symlink_to("kubelet.sock"), "too many levels of symbolic links"),
    ):
        make(directory / CHECKPOINT)
        assert error_of(manager).endswith(reason)
        (directory / CHECKPOINT).unlink()


# The directory


def test_what_cannot_be_read_is_unavailable(open_dir: Path, proc: Path) -> None:
    replace(open_dir, BY_NUMA_NODE)
    (open_dir / CHECKPOINT).chmod(0o600)
    (open_dir / "closed").mkdir(0o000)
    (open_dir / "file").touch()
    with as_nobody():
        for path in (open_dir, open_dir / "closed"):
            why = f"cannot read {path}: permission denied (run as root)"
            assert error_of(DeviceManager(path, proc, StoredHistory)) == why
    assert error_of(DeviceManager(open_dir / "none", proc, StoredHistory)) == f"{open_dir}/none does not exist"
    why = f"cannot read {open_dir}/file: not a directory"
    assert error_of(DeviceManager(open_dir / "file", proc, StoredHistory)) == why


# Earlier snapshots


def test_the_history_up_to_the_last_snapshot_comes_with_it(directory: Path, proc: Path) -> None:
    replace(directory, BY_NUMA_NODE)
    seen = transition(TransitionKind.REGISTERED, KVM)
    for history in (StoredHistory((seen,)), StoredHistory(trouble="not JSON")):
        found = DeviceManager(directory, proc, lambda: history).read()  # noqa: B023
        assert (found.history, found.trouble, len(found.registered)) == (history.transitions, history.trouble, 2)
