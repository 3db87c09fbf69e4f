"""host-local's directory: its own formats, everything else that it may contain, and paths that are no directory."""

import json
import os
import re
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent.model.snapshot import Known, NetworkStore, Reservation, Unavailable, UnrecognizedEntry
from agent.sources.host import reservations
from tests.wire import ID, as_nobody, needs, run

HOST_LOCAL = Path("/usr/lib/cni/host-local")


@pytest.fixture
def kubenet(tmp_path: Path) -> Path:
    directory = tmp_path / "kubenet"
    directory.mkdir()
    return directory


def read(directory: Path) -> NetworkStore:
    return reservations.read_reservations(directory.parent, directory.name)


def reservations_by_ip(directory: Path) -> dict[str, Reservation]:
    """Return the reservations by address; nothing may be unrecognized."""
    store = read(directory)
    assert store.unrecognized == ()
    return {one.ip: one for one in store.reading.known()}


def only_unrecognized(directory: Path) -> UnrecognizedEntry:
    store = read(directory)
    assert store.reading == Known(())
    (unrecognized,) = store.unrecognized
    return unrecognized


def why_failed(directory: Path) -> str:
    reading = read(directory).reading
    assert isinstance(reading, Unavailable)
    assert reading.source == "reservations"
    return reading.why


@pytest.mark.parametrize(
    ("content", "container_id", "ifname"),
    [
        (ID, ID, ""),
        (f"{ID}\r\neth0", ID, "eth0"),
        (f"{ID}\neth0", ID, "eth0"),
        (f"{ID}\r\neth0\n", ID, "eth0"),
        (f" {ID}\n", ID, ""),
        (f"{ID}\r\nnet-1.100", ID, "net-1.100"),
        (f"{ID}\r\nfünf", ID, "fünf"),
        ("", "", ""),
    ],
    ids=["0.7", "0.8", "LF only", "trailing LF", "hand-edited", "VLAN", "UTF-8 name", "crashed while writing"],
)
def test_every_host_local_format_is_a_reservation(kubenet: Path, content: str, container_id: str, ifname: str) -> None:
    path = kubenet / "10.244.1.7"
    path.write_bytes(content.encode())
    os.utime(path, ns=(1, 1_700_000_000_123_456_789))
    found = path.stat()
    assert reservations_by_ip(kubenet) == {
        "10.244.1.7": Reservation(
            "kubenet", "10.244.1.7", container_id, ifname, found.st_ino, found.st_size, 1_700_000_000_123_456_789
        )
    }


@pytest.mark.parametrize("ip", ["10.244.1.255", "0.0.0.1", "fd00::2", "fd00:0:0:1::", "2001:db8::1:0:0:1", "::1"])
def test_file_names_are_addresses_as_go_formats_them(kubenet: Path, ip: str) -> None:
    (kubenet / ip).write_text(ID)
    assert list(reservations_by_ip(kubenet)) == [ip]


def test_internal_files_of_host_local_are_ignored(kubenet: Path) -> None:
    for name in ("lock", "last_reserved_ip", "last_reserved_ip.0", "last_reserved_ip.12"):
        (kubenet / name).write_text("10.244.1.7")
    assert reservations_by_ip(kubenet) == {}


@pytest.mark.parametrize(
    "name",
    [
        "010.0.0.1", "10.0.0.01", "10.0.0.1 ", "10.0.0", "167772161", "10.0.0.1.bak", "FD00::2", "fd00::0002",
        "fd00:0:0:0:0:0:0:2", "::ffff:1.2.3.4", "::ffff:102:304", "fe80::1%eth0", "\u0661\u0660.0.0.1",
        "readme", ".10.0.0.1", "last_reserved_ip.x", "last_reserved_ip.0.bak", "lock ", "LOCK", "10_0_0_1",
    ],
)  # fmt: skip
def test_any_other_name_is_unrecognized_and_blocks_no_address(kubenet: Path, name: str) -> None:
    (kubenet / name).write_text(ID)
    unrecognized = only_unrecognized(kubenet)
    assert unrecognized.why == "its name is not an address as host-local writes it"
    assert not unrecognized.blocks


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        (b"10.0.0.1\n10.0.0.2", r"10.0.0.1\n10.0.0.2"),
        (b"\x1b[31mred", r"\x1b[31mred"),
        (b"\xff\xfe", r"\udcff\udcfe"),
        (b"fe80::1%\x1b[2J", r"fe80::1%\x1b[2J"),
    ],
)
def test_an_unprintable_name_is_escaped(kubenet: Path, name: bytes, shown: str) -> None:
    (Path(os.fsdecode(os.fsencode(kubenet) + b"/" + name))).write_text(ID)
    unrecognized = only_unrecognized(kubenet)
    assert (unrecognized.name, unrecognized.why) == (shown, "its name is not an address as host-local writes it")


def make_link_to_shadow(path: Path) -> None:
    path.symlink_to("/etc/shadow")


def make_link_to_nothing(path: Path) -> None:
    path.symlink_to("/no/such/file")


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(path))


def make_sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)


def make(content: bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(content)


@pytest.mark.parametrize(
    ("put", "why"),
    [
        (Path.mkdir, "it is a directory"),
        (make_link_to_shadow, "it is a symbolic link"),
        (make_link_to_nothing, "it is a symbolic link"),
        (os.mkfifo, "it is a FIFO"),
        (make_socket, "it is a socket or a device"),
        (make_sparse, "it holds 1099511627776 bytes; host-local writes 70"),
        (make(b"x" * 4097), "it holds 4097 bytes; host-local writes 70"),
        (make(b"\xff\xfe" * 35), "its content is not text"),
        (make(f"{ID}\r\n\xff".encode("latin-1")), "its content is not text"),
        (make(ID[:63].encode()), "'0123456789abcdef01234...' is not a container id"),
        (make(f"{ID}0".encode()), "'0123456789abcdef01234...' is not a container id"),
        (make(ID.upper().encode()), "'0123456789ABCDEF01234...' is not a container id"),
        (make(b"k8s_POD_web"), "'k8s_POD_web' is not a container id"),
        (make(f"{ID}\r\neth0\r\nmore".encode()), "is not a container id"),
        (make(f"{ID}\r\n../../etc".encode()), "is not a container id"),
        (make(f"{ID}\r\nsixteen-letters-".encode()), "is not a container id"),
        (make(f"{ID}\r\n\x1b[2J".encode()), "is not a container id"),
        (make(b"\x1b[2J"), r"'\x1b[2J' is not a container id"),
        (make(b"\0" * 70), "is not a container id"),
    ],
    ids=[
        "directory", "link to shadow", "dead link", "FIFO", "socket", "a terabyte of nothing", "4097 bytes", "binary",
        "binary name", "63 digits", "65 digits", "upper case", "a name", "three lines", "a path", "a long name",
        "control characters behind an id", "control characters", "zeros after a power loss",
    ],
)  # fmt: skip
def test_a_file_that_host_local_never_writes_is_unrecognized_and_blocks_its_address(
    kubenet: Path, put: Callable[[Path], object], why: str
) -> None:
    put(kubenet / "10.244.1.7")
    unrecognized = only_unrecognized(kubenet)
    assert (unrecognized.name, unrecognized.blocks) == ("10.244.1.7", True)
    assert why in unrecognized.why


def test_no_symlink_is_followed(kubenet: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text(f"{ID}\r\neth0")
    (kubenet / "10.244.1.7").symlink_to(secret)
    store = read(kubenet)
    assert store.reading == Known(())
    assert ID not in repr(store)


def test_a_device_is_unrecognized(kubenet: Path) -> None:
    needs(os.geteuid() == 0, "root, to make a device")
    os.mknod(kubenet / "10.244.1.7", 0o600 | 0o020000, os.makedev(1, 5))
    assert only_unrecognized(kubenet).why == "it is a device"


def test_unrecognized_entries_do_not_hide_reservations(kubenet: Path) -> None:
    (kubenet / "10.244.1.7").write_text(ID)
    (kubenet / "10.244.1.8").mkdir()
    (kubenet / "notes.txt").write_text("do not delete")
    store = read(kubenet)
    assert [one.ip for one in store.reading.known()] == ["10.244.1.7"]
    assert sorted(one.name for one in store.unrecognized) == ["10.244.1.8", "notes.txt"]


def test_a_missing_directory_is_unavailable(tmp_path: Path) -> None:
    why = why_failed(tmp_path / "kubenet")
    assert why.startswith(f"{tmp_path}/kubenet does not exist")
    assert "networks here" not in why


def test_an_empty_directory_is_empty_and_not_unavailable(kubenet: Path) -> None:
    assert read(kubenet) == NetworkStore("kubenet", Known(()))


def test_the_error_of_a_missing_network_names_the_existing_ones(tmp_path: Path) -> None:
    for name in ("cbr0", "k8s-pod-network"):
        (tmp_path / name).mkdir()
    (tmp_path / "a-file").touch()
    assert why_failed(tmp_path / "kubenet").endswith("(networks found: cbr0, k8s-pod-network)")


def test_a_directory_with_too_many_files_is_not_read_in_part(tmp_path: Path, kubenet: Path) -> None:
    for number in range(3):
        (kubenet / f"10.22.0.{number + 2}").write_text(ID)
    assert len(reservations.read_reservations(tmp_path, "kubenet", most=3).reading.known()) == 3
    reading = reservations.read_reservations(tmp_path, "kubenet", most=2).reading
    why = f"{kubenet} has more than 2 files: raise --max-reservations, and the memory limit of its container"
    assert reading == Unavailable("reservations", why)


def test_a_file_in_place_of_the_directory_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "kubenet").write_text(ID)
    assert (
        why_failed(tmp_path / "kubenet") == f"{tmp_path}/kubenet is not a directory (symbolic links are not followed)"
    )


def test_a_symlink_in_place_of_the_directory_is_unavailable(kubenet: Path, tmp_path: Path) -> None:
    (kubenet / "10.244.1.7").write_text(ID)
    (tmp_path / "other").symlink_to(kubenet)
    assert why_failed(tmp_path / "other") == f"{tmp_path}/other is not a directory (symbolic links are not followed)"


def test_an_unreadable_directory_is_unavailable(open_dir: Path) -> None:
    closed = open_dir / "kubenet"
    closed.mkdir(0o000)
    with as_nobody():
        assert why_failed(closed) == f"cannot read {closed}: permission denied (run as root)"


def test_an_unreadable_file_makes_all_reservations_unavailable(open_dir: Path) -> None:
    # host-local >= 1.4 writes 0600: what one file hides could be any container's.
    kubenet = open_dir / "kubenet"
    kubenet.mkdir()
    kubenet.chmod(0o755)
    for ip, mode in (("10.244.1.7", 0o644), ("10.244.1.8", 0o000)):
        (kubenet / ip).write_text(ID)
        (kubenet / ip).chmod(mode)
    with as_nobody():
        assert why_failed(kubenet) == f"cannot read {kubenet}: permission denied (run as root)"


def test_a_file_removed_during_the_reading_is_no_reservation(kubenet: Path) -> None:
    handle = os.open(kubenet, os.O_RDONLY)
    try:
        assert reservations.read_one("kubenet", "10.244.1.7", handle) is None
    finally:
        os.close(handle)


def test_files_that_come_and_go_are_read_completely_or_not_at_all(kubenet: Path) -> None:
    for last in range(2, 60):
        (kubenet / f"10.244.1.{last}").write_text(ID)
    stop = threading.Event()

    def churn() -> None:
        while not stop.is_set():
            for last in range(60, 90):
                path = kubenet / f"10.244.1.{last}"
                path.write_text(f"{ID}\r\neth0")
                path.unlink()

    churning = threading.Thread(target=churn)
    churning.start()
    try:
        for _ in range(60):
            found = reservations_by_ip(kubenet)
            assert {f"10.244.1.{last}" for last in range(2, 60)} <= set(found)
            assert all(one.container_id in {ID, ""} for one in found.values())
    finally:
        stop.set()
        churning.join()


def test_no_handle_is_left_open(kubenet: Path) -> None:
    make_link_to_shadow(kubenet / "10.244.1.7")
    os.mkfifo(kubenet / "10.244.1.8")
    (kubenet / "10.244.1.9").mkdir()
    (kubenet / "10.244.1.10").write_text(ID)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        read(kubenet)
    assert len(os.listdir("/proc/self/fd")) == before


def test_reading_changes_nothing_including_access_times(kubenet: Path) -> None:
    path = kubenet / "10.244.1.7"
    path.write_text(ID)
    before = (path.stat().st_mtime_ns, path.stat().st_ctime_ns, kubenet.stat().st_mtime_ns, os.listdir(kubenet))
    read(kubenet)
    assert (path.stat().st_mtime_ns, path.stat().st_ctime_ns, kubenet.stat().st_mtime_ns, os.listdir(kubenet)) == before


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.one_of(st.binary(max_size=200), st.text(max_size=20).map(lambda text: f"{ID}\r\n{text}".encode())))
def test_any_content_is_a_reservation_or_unrecognized(kubenet: Path, content: bytes) -> None:
    (kubenet / "10.244.1.7").write_bytes(content)
    store = read(kubenet)
    found = store.reading.known()
    assert len(found) + len(store.unrecognized) == 1
    for one in found:
        assert re.fullmatch("([0-9a-f]{64})?", one.container_id)
        assert one.ifname.isprintable()
        assert one.size == len(content)
    for other in store.unrecognized:
        assert other.blocks
        assert other.why.isprintable()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    name=st.binary(min_size=1, max_size=40).filter(lambda name: name not in {b".", b".."} and not set(name) & {0, 47})
)
def test_any_name_is_printable(kubenet: Path, name: bytes) -> None:
    path = Path(os.fsdecode(os.fsencode(kubenet) + b"/" + name))
    path.write_text(ID)
    try:
        store = read(kubenet)
        for shown in (*(one.ip for one in store.reading.known()), *(one.name for one in store.unrecognized)):
            assert shown.isprintable()
            assert shown.encode()
    finally:
        path.unlink()


@pytest.fixture
def host_local(tmp_path: Path) -> Iterator[Callable[[str, str, str], dict[str, object]]]:
    """Run the real plugin on a store of its own."""
    needs(HOST_LOCAL.exists(), f"{HOST_LOCAL} (Debian: containernetworking-plugins)")

    def plugin(command: str, container_id: str, ifname: str) -> dict[str, object]:
        ipam = {
            "type": "host-local",
            "dataDir": str(tmp_path),
            "ranges": [[{"subnet": "10.22.0.0/24"}], [{"subnet": "fd00:22::/64"}]],
        }
        configuration = {"cniVersion": "0.4.0", "name": "kubenet", "type": "bridge", "ipam": ipam}
        environment = {
            "CNI_COMMAND": command,
            "CNI_CONTAINERID": container_id,
            "CNI_NETNS": "/proc/self/ns/net",
            "CNI_NETNS_OVERRIDE": "1",  # newer plugins refuse their own
            "CNI_IFNAME": ifname,
            "CNI_PATH": str(HOST_LOCAL.parent),
        }
        return dict(json.loads(run(str(HOST_LOCAL), environment=environment, given=json.dumps(configuration)) or "{}"))

    yield plugin
    shutil.rmtree(tmp_path / "kubenet", ignore_errors=True)


def test_files_of_the_real_host_local_are_reservations(
    host_local: Callable[[str, str, str], dict[str, object]], tmp_path: Path
) -> None:
    other = "f" * 64
    host_local("ADD", ID, "eth0")
    host_local("ADD", other, "net1")
    found = reservations_by_ip(tmp_path / "kubenet")
    assert {ip: (one.container_id, one.ifname) for ip, one in found.items()} == {
        "10.22.0.2": (ID, "eth0"),
        "fd00:22::2": (ID, "eth0"),
        "10.22.0.3": (other, "net1"),
        "fd00:22::3": (other, "net1"),
    }
    assert {one.size for one in found.values()} == {70}
    host_local("DEL", ID, "eth0")
    assert sorted(reservations_by_ip(tmp_path / "kubenet")) == ["10.22.0.3", "fd00:22::3"]
    host_local("DEL", other, "net1")
    assert reservations_by_ip(tmp_path / "kubenet") == {}
