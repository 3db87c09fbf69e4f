"""Which directories are read: real ones."""

import errno
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import pytest

from agent.checks import engine
from agent.checks.confirm import ConfirmationState
from agent.exporters.headline import headline
from agent.model.report import Report
from agent.model.runtime import RuntimeNetwork, WrittenRange
from agent.model.snapshot import Known, NetworkStore, NotRequested, Reading, Reservation, Unavailable
from agent.sources.host.cni_config import with_subnet
from agent.sources.host.network_directories import read_all
from agent.sources.source_error import SourceError
from tests.builders import GRACE, NOW, OLD, node
from tests.wire import as_nobody

SILENT: Final = NotRequested("networks", "docker does not name its networks")
CBR0: Final = RuntimeNetwork("cbr0", ("flannel",))


def read(
    tmp_path: Path, *settings: str, networks: Reading[tuple[RuntimeNetwork, ...]] = SILENT
) -> dict[str, NetworkStore]:
    """Read, with the node's /run mounted in `host/run`."""
    stores = read_all(settings, networks, tmp_path / "networks", lambda path: tmp_path / "host" / path.relative_to("/"))
    return {one.network: one for one in stores}


@pytest.fixture(autouse=True)
def found(tmp_path: Path) -> None:
    for name in ("cbr0", "podman", os.fsdecode(b"\xff")):  # the last can be no network
        (tmp_path / "networks" / name).mkdir(parents=True)
    (tmp_path / "networks/file").touch()


def test_only_what_settings_name_is_read(tmp_path: Path) -> None:
    stores = read(tmp_path, "cbr0", networks=Known((RuntimeNetwork("x", ("bridge",)),)))
    assert stores.keys() == {"cbr0"}
    assert not stores["cbr0"].discovered


def test_auto_reads_what_is_there_and_what_the_runtime_names(tmp_path: Path) -> None:
    x = RuntimeNetwork("x", ("bridge",), "host-local")
    stores = read(tmp_path, "auto", networks=Known((CBR0, x)))
    assert list(stores) == ["cbr0", "x", "podman"]
    assert all(one.discovered for one in stores.values())
    assert stores["x"].absent, "other directories are no evidence that it was made"
    assert stores["cbr0"].data_dir == str(tmp_path / "networks")


def test_all_directories_together_have_a_limit(tmp_path: Path) -> None:
    for network, number in (("cbr0", 2), ("podman", 2), ("podman", 3)):
        (tmp_path / f"networks/{network}/10.244.1.{number}").write_text("a" * 64)

    def stores(most: int) -> dict[str, Reading[tuple[Reservation, ...]]]:
        found = read_all(["auto"], Known((CBR0,)), tmp_path / "networks", lambda path: path, most=most)
        return {one.network: one.reading for one in found}

    assert {name: len(one.known()) for name, one in stores(3).items()} == {"cbr0": 1, "podman": 2}
    why = (
        f"{tmp_path}/networks/podman has more than 2 files, together with the 1 of other networks: raise "
        "--max-reservations, and the memory limit of its container"
    )
    fewer = stores(2)
    assert len(fewer["cbr0"].known()) == 1
    assert fewer["podman"] == Unavailable("reservations", why)


def test_a_name_in_the_settings_wins(tmp_path: Path) -> None:
    stores = read(tmp_path, "auto", "cbr0", networks=Known((CBR0,)))
    assert {name: one.discovered for name, one in stores.items()} == {"cbr0": False, "podman": True}


def test_a_data_directory_of_the_runtime_is_read_where_it_is_mounted(tmp_path: Path) -> None:
    store = tmp_path / "host/run/cni/cbr0"
    store.mkdir(parents=True)
    (store / "10.244.1.2").write_text("a" * 64)
    named = RuntimeNetwork("cbr0", ("bridge",), "host-local", "/run/cni")
    one = read(tmp_path, "auto", networks=Known((named,)))["cbr0"]
    assert [each.ip for each in one.reading.known()] == ["10.244.1.2"]
    assert one.data_dir == "/run/cni"


def test_a_reservation_is_known_by_its_data_directory_also_after_it_changed(tmp_path: Path) -> None:
    """The two directories have the very same file, as two mounts of one directory have."""
    (tmp_path / "host/run/cni/cbr0").mkdir(parents=True)
    (tmp_path / "networks/cbr0/10.244.1.2").write_text("a" * 64)
    (tmp_path / "host/run/cni/cbr0/10.244.1.2").hardlink_to(tmp_path / "networks/cbr0/10.244.1.2")

    def directories(data_dir: str) -> list[str]:
        named = Known((RuntimeNetwork("cbr0", ("bridge",), "host-local", data_dir),))
        stores = read_all(("auto",), named, tmp_path / "networks", lambda path: tmp_path / f"host{path}")
        return [one.directory for store in stores for one in store.reading.known()]

    assert (directories(""), directories("/run/cni")) == (["cbr0"], ["/run/cni/cbr0"])


def test_a_data_directory_that_is_not_mounted_is_a_gap(tmp_path: Path) -> None:
    named = RuntimeNetwork("cbr0", ("bridge",), "host-local", "/data/cni")
    one = read(tmp_path, "auto", networks=Known((named,)))["cbr0"]
    assert one.reading == Unavailable(
        "reservations",
        f"{tmp_path}/host/data/cni does not exist: network cbr0 has the dataDir /data/cni, which must be mounted",
        missing=True,
    )
    assert not one.absent


def test_of_two_data_directories_one_that_is_known_to_be_missing_is_not_read(tmp_path: Path) -> None:
    first, second = (RuntimeNetwork("x", ("bridge",), "host-local", f"{tmp_path}/{name}") for name in ("a", "b"))

    def directories(*missing: str) -> list[tuple[str, bool]]:
        absent = {tmp_path / name / "x" for name in missing}
        stores = read_all(
            ["auto"], Known((first, second)), tmp_path / "networks", lambda path: path, is_missing=absent.__contains__
        )
        return [(store.data_dir, isinstance(store.reading, Known)) for store in stores if store.network == "x"]

    assert directories("a", "b") == [(f"{tmp_path}/a", False)]
    (tmp_path / "b/x").mkdir(parents=True)
    assert directories("a", "b") == [(f"{tmp_path}/b", True)], "it exists"
    assert directories("b") == [(f"{tmp_path}/a", False)], "the other one may only not be mounted"
    (tmp_path / "a/x").mkdir(parents=True)
    assert directories() == [(f"{tmp_path}/a", False)]
    (tmp_path / "b/x").rmdir()
    assert directories("b") == [(f"{tmp_path}/a", True)]


def test_a_directory_that_other_nodes_may_share_is_a_gap(tmp_path: Path) -> None:
    """A runtime does not list the sandboxes of other nodes, and all of their addresses would look leaked."""

    def silent(_: Path) -> str:
        raise SourceError("cannot read the mount table")

    def why(shared: Callable[[Path], str]) -> str:
        (store,) = read_all(["cbr0"], SILENT, tmp_path / "networks", lambda path: path, shared=shared)
        return "" if isinstance(store.reading, Known) else store.reading.why

    where = tmp_path / "networks/cbr0"
    assert why(lambda _: "") == ""
    assert why(lambda _: "nfs4").startswith(f"{where} is on nfs4, which other nodes may share")
    assert why(silent) == f"it is unknown whether other nodes share {where}: cannot read the mount table"


def test_on_the_node_itself_no_mount_can_be_missing_before_the_first_pod(tmp_path: Path) -> None:
    """host-local creates /var/lib/cni too."""
    networks_dir = tmp_path / "var/lib/cni/networks"
    (inside,) = read_all(["auto"], Known((CBR0,)), networks_dir, lambda path: path)
    (on_node,) = read_all(["auto"], Known((CBR0,)), networks_dir, lambda path: path, is_missing=lambda _: True)
    assert (inside.absent, on_node.absent) == (False, True)


# A directory that cannot be listed


@pytest.fixture
def unlistable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """Return what makes the disk fail where the networks are listed, and nowhere else."""
    listed: Any = os.scandir

    def scandir(path: Any) -> Any:
        if path == tmp_path / "networks":
            raise OSError(errno.EIO, "Input/output error", str(path))
        return listed(path)

    yield lambda: monkeypatch.setattr(os, "scandir", scandir)
    monkeypatch.undo()


def test_a_directory_that_cannot_be_listed_is_not_empty(tmp_path: Path, unlistable: Callable[[], None]) -> None:
    unlistable()
    stores = read(tmp_path, "auto", networks=Known((CBR0,)))
    why = f"cannot read {tmp_path}/networks: input/output error"
    assert {name: one.reading for name, one in stores.items()} == {
        "cbr0": Known(()),
        "auto": Unavailable("reservations", why),
    }
    assert read(tmp_path, "cbr0").keys() == {"cbr0"}, "nobody asked for the others"


def test_a_directory_that_may_be_entered_and_not_listed_is_not_empty(open_dir: Path) -> None:
    networks = open_dir / "networks"
    (networks / "cbr0").mkdir(parents=True)
    (networks / "cbr0").chmod(0o755)
    (networks / "file").touch()
    networks.chmod(0o711)

    def unread(path: Path) -> Reading[tuple[Reservation, ...]]:
        stores = read_all(["auto"], Known((CBR0,)), path, lambda path: path)
        return {store.network: store.reading for store in stores}["auto"]

    with as_nobody():
        why = f"cannot read {networks}: permission denied (run as root)"
        assert unread(networks) == Unavailable("reservations", why)
    why = f"cannot read {networks}/file: not a directory"
    assert unread(networks / "file") == Unavailable("reservations", why)
    assert read_all(["auto"], SILENT, networks / "none", lambda path: path) == (), "no directory, no network"


def test_leaks_that_cannot_be_listed_for_a_while_stay_confirmed(
    tmp_path: Path, unlistable: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "networks/storage").mkdir()
    for network, ip in (("cbr0", "10.244.1.7"), ("storage", "10.244.1.8")):
        (tmp_path / f"networks/{network}/{ip}").write_text("9" * 64)
        os.utime(tmp_path / f"networks/{network}/{ip}", ((NOW - OLD).timestamp(),) * 2)
    memory: ConfirmationState | None = None

    def sync(minutes: int) -> Report:
        nonlocal memory
        stores = tuple(read(tmp_path, "auto", networks=Known((CBR0,))).values())
        snapshot = replace(node(later=timedelta(minutes=minutes)), networks=Known((CBR0,)), reservations=stores)
        report, memory = engine.run(snapshot, memory, grace=GRACE, confirm_after=timedelta(seconds=30))
        return report

    sync(0)
    leaks = sync(1).confirmed_leaks
    assert {one.network for one in leaks} == {"cbr0", "storage"}
    unlistable()
    blind = sync(2)
    assert [one.source for one in blind.unavailable] == ["reservations"]
    assert "leaked_reservation" in {gap.detector for gap in blind.gaps}
    assert headline(blind).endswith(f"cannot read {tmp_path}/networks: input/output error")
    assert blind.assessment.snapshot.unavailable_about_addresses(), "nothing is released"
    monkeypatch.undo()
    again = sync(3)
    assert again.confirmed_leaks == leaks
    assert not again.newly_confirmed, "none of them counts twice"


# flannel


def test_the_range_of_flannel_is_its_subnet(tmp_path: Path) -> None:
    (tmp_path / "flannel").mkdir()
    text = "FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.1.1/24\nFLANNEL_IPV6_SUBNET=fd00:1::1/64\nX=1\n"
    (tmp_path / "flannel/subnet.env").write_text(text)
    bridge = RuntimeNetwork("x", ("bridge",), "host-local")
    one, other = with_subnet([CBR0, bridge], tmp_path)
    assert one.ranges == ((WrittenRange("10.244.1.1/24"),), (WrittenRange("fd00:1::1/64"),))
    assert other == bridge


def test_without_a_subnet_flannel_has_no_range(tmp_path: Path) -> None:
    assert with_subnet([CBR0], tmp_path) == (CBR0,)
    (tmp_path / "flannel").mkdir()
    for text in ("", "FLANNEL_SUBNET=none\n"):
        (tmp_path / "flannel/subnet.env").write_text(text)
        assert with_subnet([CBR0], tmp_path) == (CBR0,)
