"""The kubelet's device manager, from outside: real sockets in a real directory, and the kernel's list of them."""

import json
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from agent.model.devices import Allocation, DevicePlugins, Registered
from tests.builders import KVM
from tests.wire import as_nobody
from tests.wired import read, sample, why_unavailable

GPU = "nvidia.com/gpu"
UID = "0aa1c1f2-1111-2222-3333-444455556666"

# Written by the checkpoint package of Kubernetes 1.20.2; the third by the same, with the older form's types.
BY_NUMA_NODE, EMPTY, LISTED, NULL = (
    sample("device-checkpoint", number).encode() for number in range(4)
)

CHECKPOINT = "kubelet_internal_checkpoint"
MADE = datetime(2026, 3, 26, 12, 0, 0, 424000, tzinfo=UTC)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """The directory of a kubelet in the network namespace of this process."""
    (tmp_path / "devices").mkdir()
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/1").symlink_to("/proc/self")
    return tmp_path / "devices"


def plugins(directory: Path) -> DevicePlugins:
    found: DevicePlugins = read(
        "device_plugins", device_plugins_dir=directory, proc=directory.with_name("proc")
    )
    return found


def without_a_kubelet_of_this_machine(directory: Path) -> None:
    """Keep only the sockets of this test in the kernel's list, as it is now."""
    process = directory.with_name("proc") / "1"
    lines = (process / "net/unix").read_text().splitlines(keepends=True)
    process.unlink()
    (process / "net").mkdir(parents=True)
    own = (line for line in lines[1:] if str(directory.parent) in line)
    (process / "net/unix").write_text("".join((lines[0], *own)))


def why_not(directory: Path) -> str:
    return why_unavailable("device_plugins", device_plugins_dir=directory)


@contextmanager
def bound(*paths: Path, made: datetime = MADE) -> Iterator[list[socket.socket]]:
    """Listen on each of them, and say when that began."""
    with ExitStack() as open_sockets:
        several = [open_sockets.enter_context(socket.socket(socket.AF_UNIX)) for _ in paths]
        for listening, path in zip(several, paths, strict=True):
            listening.bind(str(path))
            listening.listen()
            dated(path, made)
        yield several


def dated(path: Path, made: datetime) -> None:
    os.utime(
        path, ns=(0, int(made.timestamp()) * 10**9 + made.microsecond * 1000), follow_symlinks=False
    )


# Sockets


def test_every_plugin_socket_has_its_time_and_an_entry_that_is_no_socket_is_no_plugin(
    directory: Path,
) -> None:
    assert plugins(directory) == DevicePlugins(None, (), None, (), ())
    later = MADE + timedelta(seconds=9.5)
    names = {
        b"a\x1b[2J.sock": r"a\x1b[2J.sock",
        b"b.sock": "b.sock",
        b"\xc3\xa9": "é",
        b"\xff.sock": r"\udcff.sock",
    }
    with (
        bound(directory / "kubelet.sock"),
        bound(*(directory / os.fsdecode(name) for name in names), made=later),
    ):
        found = plugins(directory)
    assert found.kubelet_socket == MADE
    assert {plugin.name: plugin.made for plugin in found.sockets} == dict.fromkeys(
        names.values(), later
    )
    assert plugins(directory).kubelet_socket == MADE, "its file exists"
    for path in directory.iterdir():
        path.unlink()
    with bound(directory / "kubelet.sock", directory / ".plugin.sock"):
        (directory / "DEPRECATION").touch()
        (directory / "directory.sock").mkdir()
        os.mkfifo(directory / "fifo.sock")
        (directory / "link.sock").symlink_to("kubelet.sock")
        (directory / "dangling.sock").symlink_to("nowhere")
        assert plugins(directory) == DevicePlugins(MADE, (), None, (), ())
    (directory / "kubelet.sock").unlink()
    (directory / "kubelet.sock").touch()
    assert plugins(directory).kubelet_socket is None


def connections(directory: Path) -> dict[str, bool | None]:
    return {plugin.name: plugin.connected for plugin in plugins(directory).sockets}


def test_connections_of_the_kubelet_are_reported(directory: Path) -> None:
    with bound(*(directory / name for name in ("kubelet.sock", "a.sock", "b.sock"))) as (
        itself,
        plugin,
        _,
    ):
        for listening, is_plugin in ((itself, False), (plugin, True)):
            with socket.socket(socket.AF_UNIX) as kubelet:
                kubelet.connect(listening.getsockname())
                accepted, _ = listening.accept()
                with accepted:
                    assert connections(directory) == {"a.sock": is_plugin, "b.sock": False}


def test_a_kubelet_that_listens_on_a_removed_socket_is_told(directory: Path) -> None:
    """As after `rm -rf device-plugins/*`, and a restart of the plugin, which cannot register."""
    plugin = directory / "kubevirt-kvm.sock"

    def seen() -> tuple[bool, dict[str, bool | None], bool]:
        found = plugins(directory)
        return found.kubelet_socket is not None, connections(directory), found.listens_without_file

    with bound(directory / "kubelet.sock"):
        with bound(plugin) as (listening,), socket.socket(socket.AF_UNIX) as stream:
            stream.connect(str(plugin))
            accepted, _ = listening.accept()
            with accepted:
                assert seen() == (True, {"kubevirt-kvm.sock": True}, False)
                for path in directory.iterdir():
                    path.unlink()
                assert seen() == (False, {}, True)
        with bound(plugin):
            assert seen() == (False, {"kubevirt-kvm.sock": False}, True)
    with bound(directory.with_name("kubelet.sock")):
        without_a_kubelet_of_this_machine(directory)
        assert seen() == (False, {"kubevirt-kvm.sock": None}, False), "in another directory"


def test_a_connection_of_the_kubelet_is_a_line_of_the_kernels_list_of_sockets(
    directory: Path,
) -> None:
    """Lists as other namespaces have them. The kubelet's path counts, wherever the directory is mounted."""
    listens = "0000000000000000: 00000002 00000000 00010000 0001 01 60713 "
    connected = "0000000000000000: 00000003 00000000 00000000 0001 03 60716 "
    canonical = "/var/lib/kubelet/device-plugins"
    kubelet, plugin = f"{listens}{canonical}/kubelet.sock\n", f"{canonical}/a.sock"
    others = [plugin[1:], "/a.sock"]
    others += [form.format(plugin) for form in ("/run{}", "{}.old", "@{}", "{} (deleted)", "x {}")]
    (directory.with_name("proc") / "1").unlink()
    with bound(directory / "a.sock"):
        assert connections(directory) == {"a.sock": None}, "there is no list"
        (directory.with_name("proc") / "1/net").mkdir(parents=True)
        for lines, expected in (
            ("", None),
            (f"{listens}{plugin}\n{connected}{plugin}\n", None),
            (kubelet.replace("00010000", "00000000"), None),
            (kubelet, False),
            (
                f"ffff888104f1cc00: 00000003 00000000 00000000 0001 03     7\n{kubelet}{connected}{plugin}\n",
                True,
            ),
            (f"{kubelet}{connected}{directory}/a.sock\n", True),
            (f"{kubelet}{connected}//{plugin}\n", True),
            (f"{kubelet}{connected}{plugin.replace('/', '//')}\n", True),
            (f"{kubelet}{listens}{plugin}\n", False),
            (f"{kubelet}{connected.replace(' 03 ', ' 02 ')}{plugin}\n", False),  # pending
            *((f"{kubelet}{connected}{path}\n", False) for path in others),
            *(
                (f"{kubelet}{line}", False)
                for line in ("\n", f"{plugin}\n", f"1 2 3 {plugin}\n", f"\udcff{plugin}")
            ),
            (f"{kubelet}a b c zz e f g {plugin}\n", False),
        ):
            text = f"Num       RefCount Protocol Flags    Type St Inode Path\n{lines}"
            (directory.with_name("proc") / "1/net/unix").write_text(text, errors="surrogateescape")
            assert connections(directory) == {"a.sock": expected}, lines


def test_sockets_of_the_registry_are_read_and_those_of_drivers_are_not(directory: Path) -> None:
    registry = directory.with_name("plugins_registry")
    registry.mkdir()
    (registry / "nested").mkdir()
    names = ("vf.sock", "csi-reg.sock", "dra-reg.sock")
    with (
        bound(directory / "kubelet.sock", directory / "a.sock"),
        bound(*(registry / name for name in names)) as (plugin, *_),
        socket.socket(socket.AF_UNIX) as kubelet,
    ):
        kubelet.connect(plugin.getsockname())
        accepted, _ = plugin.accept()
        with accepted:
            found = plugins(directory).sockets
            assert plugins(directory).drivers == ("csi", "dra")
        assert [(each.name, each.made, each.connected, each.registry) for each in found] == [
            ("a.sock", MADE, False, False),
            ("vf.sock", MADE, True, True),
        ]


def test_of_the_sockets_that_dead_plugins_leave_in_the_registry_the_newest_are_read(
    directory: Path,
) -> None:
    """Nothing removes them, and with the history each costs time in every snapshot."""
    registry = directory.with_name("plugins_registry")
    registry.mkdir()
    for number in range(140):
        # Files may be of the same time, as after a restore. Then the names decide.
        made = MADE + timedelta(seconds=number // 100)
        with bound(registry / f"gpu-{number:03}.sock", made=made):
            pass
    assert set(connections(directory)) == {f"gpu-{number:03}.sock" for number in range(12, 140)}


def test_the_root_directory_has_no_plugins(directory: Path) -> None:
    """It has no name beside which a registry could be."""
    root = Path("/")
    proc = directory.with_name("proc")
    assert read("device_plugins", device_plugins_dir=root, proc=proc).sockets == ()


# The checkpoint


def write(directory: Path, content: bytes) -> None:
    """Write a checkpoint as the kubelet does: a temporary file that is renamed."""
    (directory / ".38472").write_bytes(content)
    (directory / ".38472").rename(directory / CHECKPOINT)


def changed(**fields: Any) -> bytes:
    """Say something else in the first entry."""
    tree = json.loads(BY_NUMA_NODE)
    tree["Data"]["PodDeviceEntries"][0].update(fields)
    return json.dumps(tree).encode()


def test_the_checkpoint_lists_resources_and_allocations_in_every_format_that_go_may_write(
    directory: Path,
) -> None:
    kvm, gpus = (
        Allocation(UID, "compute", KVM, ("kvm12", "kvm7")),
        Allocation(UID, "compute", GPU, ("GPU-a", "GPU-b")),
    )
    reordered = json.dumps(dict(reversed(json.loads(BY_NUMA_NODE).items())), indent=2).encode()
    for content, allocations in (
        (BY_NUMA_NODE, (kvm, gpus)),  # kubelet 1.20 and later
        (LISTED, (kvm,)),  # up to 1.19
        (reordered, (kvm, gpus)),
        (changed(DeviceIDs={"0": ["kvm12", "kvm7"]}), (kvm, gpus)),
    ):
        write(directory, content)
        found = plugins(directory)
        assert found.registered == (Registered(KVM, ()), Registered(GPU, ("GPU-a", "GPU-b")))
        assert found.allocations == allocations
    dated(directory / CHECKPOINT, MADE)
    assert plugins(directory).checkpoint_written == MADE
    for content, registered in ((NULL, (Registered("a.b/c", ()),)), (EMPTY, ())):
        write(directory, content)
        assert plugins(directory).registered == registered
    (directory / CHECKPOINT).unlink()
    assert plugins(directory).checkpoint_written is None
    for listed, devices in (
        ({"-1": ["kvm7"]}, ("kvm7",)),  # no topology
        ({"10": ["c"], "2": ["b"], "-1": ["a"]}, ("a", "b", "c")),
        ({"0": None}, ()),
        ({}, ()),
        (None, ()),
        ({"0": ["\ud800"]}, ("\\ud800",)),
    ):
        write(directory, changed(DeviceIDs=listed, ContainerName="a\x1b[2J"))
        allocation, _ = plugins(directory).allocations
        assert (allocation.container, allocation.devices) == ("a\\x1b[2J", devices)


def test_a_damaged_checkpoint_is_unavailable_and_not_empty(directory: Path) -> None:
    for content in (b"", b"{", BY_NUMA_NODE[:-1], BY_NUMA_NODE[:200], b"\xff\xfe", b"[" * 9000):
        write(directory, content)
        assert why_not(directory) == f"{CHECKPOINT}: not JSON ({len(content)} bytes)"
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
        write(directory, content)
        assert why_not(directory).startswith(f"{CHECKPOINT}: unknown format (")
    write(directory, b" " * (1024 * 1024 + 1))
    assert why_not(directory) == f"{CHECKPOINT}: it has more than the limit of 1,048,576 bytes"
    for make, reason in (
        (os.mkfifo, "not a regular file"),
        (lambda path: path.symlink_to("kubelet.sock"), "too many levels of symbolic links"),
    ):
        (directory / CHECKPOINT).unlink()
        make(directory / CHECKPOINT)
        assert why_not(directory).endswith(reason)


def test_a_directory_that_cannot_be_read_is_unavailable(open_dir: Path) -> None:
    write(open_dir, BY_NUMA_NODE)
    (open_dir / CHECKPOINT).chmod(0o600)
    (open_dir / "closed").mkdir(0o000)
    (open_dir / "file").touch()
    for path, why in (
        (open_dir, f"cannot read {open_dir}: permission denied (run as root)"),
        (open_dir / "closed", f"cannot read {open_dir}/closed: permission denied (run as root)"),
        (open_dir / "none", f"{open_dir}/none does not exist"),
        (open_dir / "file", f"cannot read {open_dir}/file: not a directory"),
    ):
        with as_nobody():
            assert why_not(path) == why
    registry = open_dir.with_name("plugins_registry")
    registry.touch()
    (open_dir / CHECKPOINT).chmod(0o644)
    assert why_not(open_dir) == f"cannot read {registry}: not a directory"
