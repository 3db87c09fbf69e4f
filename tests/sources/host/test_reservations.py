"""host-local's directory: its own formats, everything else that it may contain, and paths that are no directory."""

import json
import os
import re
import stat
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent.model.snapshot import EntryKind, Known, NetworkStore, Reservation, Unavailable
from tests import wired
from tests.wire import ID, as_nobody, needs, run

HOST_LOCAL = Path("/usr/lib/cni/host-local")


@pytest.fixture
def kubenet(tmp_path: Path) -> Path:
    directory = tmp_path / "kubenet"
    directory.mkdir()
    return directory


def read(directory: Path) -> NetworkStore:
    store: NetworkStore
    (store,) = wired.read("reservations", cni_networks_dir=directory.parent, network=directory.name)
    return store


def reservations_by_ip(directory: Path) -> dict[str, Reservation]:
    """Return the reservations by address; nothing may be unrecognized."""
    store = read(directory)
    assert store.unrecognized == ()
    return {reservation.ip: reservation for reservation in store.reading.known()}


def why_failed(directory: Path) -> str:
    reading = read(directory).reading
    assert isinstance(reading, Unavailable)
    return reading.why


def test_every_format_of_host_local_is_a_reservation_and_reading_changes_nothing(
    kubenet: Path,
) -> None:
    path = kubenet / "10.244.1.7"
    for content, container_id, ifname in (
        (ID, ID, ""),  # <= 0.7
        (f"{ID}\r\neth0", ID, "eth0"),  # >= 0.8
        (f"{ID}\neth0", ID, "eth0"),
        (f"{ID}\r\neth0\n", ID, "eth0"),
        (f" {ID}\n", ID, ""),
        (f"{ID}\r\nnet-1.100", ID, "net-1.100"),
        (f"{ID}\r\nfünf", ID, "fünf"),
        ("", "", ""),  # it crashed while writing
    ):
        path.write_bytes(content.encode())
        os.utime(path, ns=(1, 1_700_000_000_123_456_789))
        found = path.stat()
        identity = (found.st_ino, found.st_size, 1_700_000_000_123_456_789)
        expected = Reservation("kubenet", "10.244.1.7", container_id, ifname, *identity)
        before = (path.stat().st_ctime_ns, kubenet.stat().st_ctime_ns)
        assert reservations_by_ip(kubenet) == {"10.244.1.7": expected}, content
        assert (path.stat().st_ctime_ns, kubenet.stat().st_ctime_ns, os.listdir(kubenet)) == (
            *before,
            [path.name],
        )


def test_file_names_are_addresses_as_go_formats_them_those_of_host_local_or_unrecognized(
    kubenet: Path,
) -> None:
    names = ["10.244.1.255", "0.0.0.1", "fd00::2", "fd00:0:0:1::", "2001:db8::1:0:0:1", "::1"]
    for name in (*names, "lock", "last_reserved_ip", "last_reserved_ip.0", "last_reserved_ip.12"):
        (kubenet / name).write_text(ID)
    assert sorted(reservations_by_ip(kubenet)) == sorted(names)
    others = [
        "010.0.0.1", "10.0.0.01", "10.0.0.1 ", "10.0.0", "167772161", "10.0.0.1.bak", "FD00::2", "fd00::0002",
        "fd00:0:0:0:0:0:0:2", "::ffff:1.2.3.4", "::ffff:102:304", "fe80::1%eth0", "\u0661\u0660.0.0.1",
        "readme", ".10.0.0.1", "last_reserved_ip.x", "last_reserved_ip.0.bak", "lock ", "LOCK", "10_0_0_1",
    ]  # fmt: skip
    unprintable = {
        b"10.0.0.1\n10.0.0.2": r"10.0.0.1\n10.0.0.2",
        b"\x1b[31mred": r"\x1b[31mred",
        b"\xff": r"\udcff",
    }
    for name in (*others, *map(os.fsdecode, unprintable)):
        (kubenet / name).write_text(ID)
    store = read(kubenet)
    assert len(store.reading.known()) == len(names), "the others block no address"
    assert sorted(entry.name for entry in store.unrecognized) == sorted(
        [*others, *unprintable.values()]
    )
    reasons = {(entry.why, entry.blocks) for entry in store.unrecognized}
    assert reasons == {("its name is not an address as host-local writes it", False)}


def test_what_host_local_never_writes_is_unrecognized_and_blocks_its_address(
    kubenet: Path, tmp_path: Path
) -> None:
    needs(os.geteuid() == 0, "root, to make a device")
    contents = {
        b" " * 4097: "it holds 4097 bytes; host-local writes 70",
        ID.encode() + b" " * 4097: "it holds 4161 bytes; host-local writes 70",
        b"\xff\xfe" * 35: "its content is not text",
        f"{ID}\r\n\xff".encode("latin-1"): "its content is not text",
        ID[:63].encode(): "'0123456789abcdef01234...' is not a container id",
        f"{ID}0".encode(): "'0123456789abcdef01234...' is not a container id",
        ID.upper().encode(): "'0123456789ABCDEF01234...' is not a container id",
        b"k8s_POD_web": "'k8s_POD_web' is not a container id",
        f"{ID}\r\neth0\r\nmore".encode(): "is not a container id",
        f"{ID}\r\n../../etc".encode(): "is not a container id",
        f"{ID}\r\nsixteen-letters-".encode(): "is not a container id",
        f"{ID}\r\n\x1b[2J".encode(): "is not a container id",
        b"\x1b[2J": r"'\x1b[2J' is not a container id",
        b"\0" * 69 + b"1": "is not a container id",
    }
    entries: list[tuple[Callable[[Path], object], str]] = [
        (Path.mkdir, "it is a directory"),
        (lambda path: path.symlink_to("/etc/shadow"), "it is a symbolic link"),
        (lambda path: path.symlink_to("/no/such/file"), "it is a symbolic link"),
        (os.mkfifo, "it is a FIFO"),
        (lambda path: os.mknod(path, stat.S_IFSOCK), "it is a socket"),
        (
            lambda path: run("truncate", "--size=1T", str(path)),
            "it holds 1099511627776 bytes; host-local writes 70",
        ),
        *(
            (lambda path, content=content: path.write_bytes(content), why)
            for content, why in contents.items()
        ),
        (lambda path: os.mknod(path, stat.S_IFCHR, os.makedev(1, 5)), "it is a device"),
    ]
    path, before = kubenet / "10.244.1.7", len(os.listdir("/proc/self/fd"))
    (kubenet / "10.244.1.8").write_text(ID)
    for number, (put, why) in enumerate(entries):
        put(path)
        store = read(kubenet)
        assert [reservation.ip for reservation in store.reading.known()] == ["10.244.1.8"]
        assert [(entry.name, entry.blocks) for entry in store.unrecognized] == [
            ("10.244.1.7", True)
        ]
        assert why in store.unrecognized[0].why
        assert len(os.listdir("/proc/self/fd")) == before
        path.rename(tmp_path / f"{number}")


def test_a_fifo_is_seen_by_whatever_name_because_host_local_waits_for_its_writer(
    kubenet: Path,
) -> None:
    (kubenet / "lock").touch()
    (kubenet / "cbr0.bak").mkdir()
    for name in ("10.244.1.7", "notes", "last_reserved_ip.0"):
        os.mkfifo(kubenet / name)
    store = read(kubenet)
    assert store.reading == Known(())
    assert sorted((entry.name, entry.kind) for entry in store.unrecognized) == [
        ("10.244.1.7", EntryKind.FIFO),
        ("cbr0.bak", EntryKind.DIRECTORY),
        ("last_reserved_ip.0", EntryKind.FIFO),
        ("notes", EntryKind.FIFO),
    ]


def test_what_is_missing_unreadable_or_no_directory_is_unavailable_and_an_empty_one_is_empty(
    tmp_path: Path, open_dir: Path
) -> None:
    (tmp_path / "a-file").touch()
    assert why_failed(tmp_path / "kubenet").startswith(f"{tmp_path}/kubenet does not exist")
    for name in ("cbr0", "k8s-pod-network"):
        (tmp_path / name).mkdir()
    (tmp_path / "a-link").symlink_to("cbr0")
    assert why_failed(tmp_path / "kubenet").endswith("(networks found: cbr0, k8s-pod-network)")
    assert read(tmp_path / "cbr0") == NetworkStore("cbr0", Known(()), data_dir=str(tmp_path))
    why = f"{tmp_path}/a-file is not a directory (symbolic links are not followed)"
    assert why_failed(tmp_path / "a-file") == why
    linked = read(tmp_path / "a-link").reading
    assert isinstance(linked, Unavailable)
    assert linked.why.startswith(f"{tmp_path}/a-link is a symbolic link")
    assert "mount cbr0 on it (`mount --bind`" in str(linked.remedy)
    # In a pod, a link may lead out of what is mounted: nothing is known to be missing.
    elsewhere = tmp_path / "elsewhere"
    elsewhere.symlink_to("/data/cni/networks")
    store = read(elsewhere / "kubenet")
    assert isinstance(store.reading, Unavailable)
    assert (store.reading.missing, store.absent) == (False, False)
    assert str(store.reading.remedy) == "mount /data/cni/networks at this path, too"
    # host-local >= 1.4 writes 0600: what one file hides could be any container's.
    (open_dir / "closed").mkdir(0o000)
    kubenet = open_dir / "kubenet"
    kubenet.mkdir()
    kubenet.chmod(0o755)
    for ip, mode in (("10.244.1.7", 0o644), ("10.244.1.8", 0o000)):
        (kubenet / ip).write_text(ID)
        (kubenet / ip).chmod(mode)
    with as_nobody():
        for path in (open_dir / "closed", kubenet):
            assert why_failed(path) == f"cannot read {path}: permission denied (run as root)"


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
            assert all(reservation.container_id in {ID, ""} for reservation in found.values())
    finally:
        stop.set()
        churning.join()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    content=st.one_of(
        st.binary(max_size=200), st.text(max_size=20).map(lambda text: f"{ID}\r\n{text}".encode())
    )
)
def test_any_content_is_a_reservation_or_unrecognized(kubenet: Path, content: bytes) -> None:
    (kubenet / "10.244.1.7").write_bytes(content)
    store = read(kubenet)
    found = store.reading.known()
    assert len(found) + len(store.unrecognized) == 1
    for reservation in found:
        assert re.fullmatch("([0-9a-f]{64})?", reservation.container_id)
        assert reservation.ifname.isprintable()
        assert reservation.size == len(content)
    assert all(entry.blocks and entry.why.isprintable() for entry in store.unrecognized)


def test_files_of_the_real_host_local_are_reservations(tmp_path: Path) -> None:
    needs(HOST_LOCAL.exists(), f"{HOST_LOCAL} (Debian: containernetworking-plugins)")
    ranges = [[{"subnet": "10.22.0.0/24"}], [{"subnet": "fd00:22::/64"}]]
    ipam = {"type": "host-local", "dataDir": str(tmp_path), "ranges": ranges}
    configuration = json.dumps(
        {"cniVersion": "0.4.0", "name": "kubenet", "type": "bridge", "ipam": ipam}
    )

    def host_local(command: str, container_id: str, ifname: str) -> None:
        # Newer plugins refuse their own namespace.
        namespace = {
            "CNI_NETNS": "/proc/self/ns/net",
            "CNI_NETNS_OVERRIDE": "1",
            "CNI_PATH": str(HOST_LOCAL.parent),
        }
        asked = {"CNI_COMMAND": command, "CNI_CONTAINERID": container_id, "CNI_IFNAME": ifname}
        run(str(HOST_LOCAL), environment=namespace | asked, given=configuration)

    other = "f" * 64
    host_local("ADD", ID, "eth0")
    host_local("ADD", other, "net1")
    found = reservations_by_ip(tmp_path / "kubenet")
    assert {ip: (held.container_id, held.ifname) for ip, held in found.items()} == {
        "10.22.0.2": (ID, "eth0"),
        "fd00:22::2": (ID, "eth0"),
        "10.22.0.3": (other, "net1"),
        "fd00:22::3": (other, "net1"),
    }
    assert {held.size for held in found.values()} == {70}
    host_local("DEL", ID, "eth0")
    assert sorted(reservations_by_ip(tmp_path / "kubenet")) == ["10.22.0.3", "fd00:22::3"]
    host_local("DEL", other, "net1")
    assert reservations_by_ip(tmp_path / "kubenet") == {}
