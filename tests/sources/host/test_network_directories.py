"""Which directories are read: real ones."""

import errno
import os
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest

from agent.model.runtime import RuntimeNetwork, WrittenRange
from agent.model.snapshot import Known, NetworkStore, NotRequested, Unavailable
from tests import wired
from tests.builders import NOW, OLD, node
from tests.fakes.host import configure
from tests.sources.host.own_mounts import own_mounts
from tests.wire import as_nobody

CBR0: Final = RuntimeNetwork("cbr0", ("flannel",))


def read(home: Path, *named: RuntimeNetwork, **options: object) -> dict[str, NetworkStore]:
    """Read the directories of a node whose runtime names these networks, with the node's /run in `run`."""
    networks = named or NotRequested("networks", "docker does not name its networks")
    given = {"cni_networks_dir": home / "networks", "run_dir": home / "run"} | options
    return {
        store.network: store
        for store in wired.read("reservations", node(networks=networks), **given)
    }


def named(data_dir: object) -> RuntimeNetwork:
    return RuntimeNetwork("cbr0", ("bridge",), "host-local", str(data_dir))


def reserve(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("9" * 64)
    os.utime(path, ((NOW - OLD).timestamp(),) * 2)


@pytest.fixture(autouse=True)
def found(tmp_path: Path) -> None:
    for name in ("cbr0", "podman", os.fsdecode(b"\xff")):  # the last can be no network
        (tmp_path / "networks" / name).mkdir(parents=True)
    (tmp_path / "networks/file").touch()


def test_auto_reads_what_is_there_and_what_the_runtime_names_up_to_a_limit(tmp_path: Path) -> None:
    x = RuntimeNetwork("x", ("bridge",), "host-local")
    for network, discovered in (
        ("cbr0", {"cbr0": False}),
        ("auto", {"cbr0": True, "x": True, "podman": True}),
        ("auto,cbr0", {"cbr0": False, "x": True, "podman": True}),
    ):
        stores = read(tmp_path, CBR0, x, network=network)
        assert {name: store.discovered for name, store in stores.items()} == discovered
        assert stores["cbr0"].data_dir == str(tmp_path / "networks")
    assert stores["x"].absent, "other directories are no evidence that it was made"
    for network, number in (("cbr0", 2), ("podman", 2), ("podman", 3), ("storage", 2)):
        reserve(tmp_path / f"networks/{network}/10.244.1.{number}")
    remedy = "raise --max-reservations, and the memory limit of its container"
    together = f"more than 3 files, together with the 3 of other networks: {remedy}"
    for network, limit, expected in (
        ("auto", 4, {"cbr0": 1, "podman": 2, "storage": 1}),
        ("auto", 3, {"cbr0": 1, "podman": 2, "storage": together}),
        ("podman", 1, {"podman": f"more than 1 files: {remedy}"}),
    ):
        for name, store in read(tmp_path, CBR0, network=network, max_reservations=limit).items():
            if isinstance(why := expected[name], str):
                assert store.reading == Unavailable(
                    "reservations", f"{tmp_path}/networks/{name} has {why}"
                )
            else:
                assert len(store.reading.known()) == expected[name]


def test_the_highest_limit_that_can_be_set_is_read_and_one_file_more_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / "networks/cbr0"
    scandir = os.scandir
    listed = 65_536

    def listing(path: Any) -> Any:
        """List names in what is read through an open handle. Their files have just vanished."""
        if not isinstance(path, int):
            return scandir(path)
        return closing(SimpleNamespace(name=f"10.1.{n >> 8}.{n & 255}") for n in range(listed))

    monkeypatch.setattr(os, "scandir", listing)
    highest = {"network": "cbr0", "max_reservations": 65_536}
    assert read(tmp_path, CBR0, **highest)["cbr0"].reading == Known(())
    listed += 1
    remedy = "--max-reservations cannot be higher: find out what fills it"
    assert read(tmp_path, CBR0, **highest)["cbr0"].reading == Unavailable(
        "reservations", f"{store} has more than 65,536 files: {remedy}"
    )


def test_a_data_directory_of_the_runtime_is_read_where_it_is_mounted(tmp_path: Path) -> None:
    """A reservation is known by the directory, also where both have the same file, as two mounts of one have."""
    mounted = tmp_path / "run/cni/cbr0"
    with own_mounts("/"):
        store = read(tmp_path, named("/run/cni"))["cbr0"]
    why = f"{mounted.parent} does not exist: network cbr0 has the dataDir /run/cni, which must be mounted"
    assert (store.reading, store.absent) == (Unavailable("reservations", why, missing=True), False)
    reserve(tmp_path / "networks/cbr0/10.244.1.2")
    mounted.mkdir(parents=True)
    (mounted / "10.244.1.2").hardlink_to(tmp_path / "networks/cbr0/10.244.1.2")
    for data_dir, directory in (("", "cbr0"), ("/run/cni", "/run/cni/cbr0")):
        store = read(tmp_path, named(data_dir))["cbr0"]
        assert [(held.ip, held.directory) for held in store.reading.known()] == [
            ("10.244.1.2", directory)
        ]
        assert store.data_dir == (data_dir or str(tmp_path / "networks"))


def test_of_two_data_directories_one_that_is_known_to_be_missing_is_not_read(
    tmp_path: Path,
) -> None:
    """What is missing below a mounted directory is known to be missing on the node."""
    first, second = tmp_path / "a", tmp_path / "b"

    def directory(*mounted: Path) -> tuple[str, bool]:
        with own_mounts("/", *mounted):
            store = read(tmp_path, named(first), named(second))["cbr0"]
        return store.data_dir, isinstance(store.reading, Known)

    assert directory(first, second) == (str(first), False)
    (second / "cbr0").mkdir(parents=True)
    assert directory(first, second) == (str(second), True), "it exists"
    assert directory(second) == (str(first), False), "the other one may only not be mounted"
    (first / "cbr0").mkdir(parents=True)
    assert directory() == (str(first), False)
    (second / "cbr0").rmdir()
    assert directory(second) == (str(first), True)
    # On the node itself no mount can be missing before the first pod: host-local creates /var/lib/cni too.
    for mounted, absent in ((("/",), False), (("/", tmp_path), True)):
        with own_mounts(*mounted):
            store = read(tmp_path, CBR0, cni_networks_dir=tmp_path / "var/lib/cni/networks")["cbr0"]
        assert store.absent is absent


# A directory that cannot be listed


def test_a_directory_that_cannot_be_listed_is_not_empty(
    tmp_path: Path, open_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed: Any = os.scandir

    def scandir(path: Any) -> Any:
        if path == tmp_path / "networks":
            raise OSError(errno.EIO, "Input/output error", str(path))
        return listed(path)

    networks = open_dir / "networks"
    (networks / "cbr0").mkdir(parents=True)
    (networks / "file").touch()
    networks.chmod(0o711)
    monkeypatch.setattr(
        os, "scandir", scandir
    )  # the disk fails where the networks are listed, and nowhere else
    for path, why in (
        (tmp_path / "networks", "input/output error"),
        (networks, "permission denied (run as root)"),
        (networks / "file", "not a directory"),
    ):
        with as_nobody():
            stores = read(tmp_path, CBR0, cni_networks_dir=path)
        assert stores["auto"].reading == Unavailable("reservations", f"cannot read {path}: {why}")
    assert stores.keys() == {"cbr0", "auto"}
    snapshot = replace(node(), reservations=tuple(stores.values()))
    assert snapshot.unavailable_about_addresses(), (
        "nothing is released, and what is confirmed stays"
    )
    assert read(tmp_path, CBR0)["cbr0"].reading == Known(())
    assert read(tmp_path, network="cbr0").keys() == {"cbr0"}, "nobody asked for the others"
    assert read(tmp_path, cni_networks_dir=networks / "none") == {}, "no directory, no network"


def test_the_range_of_flannel_is_its_subnet(tmp_path: Path) -> None:
    (tmp_path / "flannel").mkdir()
    options = {
        "proc": wired.process_table(tmp_path / "proc", "dockerd"),
        "cni_config_dir": tmp_path / "net.d",
    }
    (tmp_path / "net.d").mkdir()
    both = "FLANNEL_SUBNET=10.244.1.1/24\nFLANNEL_IPV6_SUBNET=fd00:1::1/64\n"
    for text, plugin, ranges in (
        (None, "flannel", ()),
        ("", "flannel", ()),
        ("FLANNEL_SUBNET=none\n", "flannel", ()),
        ("#" * 1024 * 1024 + f"\n{both}", "flannel", ()),  # no flannel writes so much
        (
            f"FLANNEL_NETWORK=10.244.0.0/16\n{both}X=1\n",
            "flannel",
            ("10.244.1.1/24", "fd00:1::1/64"),
        ),
        (both, "bridge", ()),
    ):
        if text is not None:
            (tmp_path / "flannel/subnet.env").write_text(text)
        configure(tmp_path / "net.d/10-cbr0.conflist", "cbr0", {"type": plugin})
        (network,) = wired.read("networks", run_dir=tmp_path, **options)
        assert network.ranges == tuple((WrittenRange(subnet),) for subnet in ranges)
