"""Which directories are read: real ones."""

import os
from pathlib import Path
from typing import Final

import pytest

from agent.model.runtime import RuntimeNetwork, WrittenRange
from agent.model.snapshot import Known, NetworkStore, NotRequested, Reading, Reservation, Unavailable
from agent.sources.host.flannel import with_subnet
from agent.sources.host.network_directories import read_all
from tests.wire import as_nobody, open_directory

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
    for name in ("cbr0", "podman"):
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


@pytest.mark.parametrize("networks", [SILENT, Known(()), Unavailable("networks", "no answer")])
def test_no_runtime_names_kubenet(tmp_path: Path, networks: Reading[tuple[RuntimeNetwork, ...]]) -> None:
    assert read(tmp_path, "auto", networks=networks).keys() == {"cbr0", "podman", "kubenet"}


def test_where_the_directories_cannot_be_listed_none_is_read() -> None:
    with open_directory() as above:
        for name in ("cbr0", "podman"):
            (above / name).mkdir(mode=0o755)
            (above / name).chmod(0o755)
        above.chmod(0o711)  # what is in it can be read by name
        with as_nobody():
            for networks in (Known((CBR0,)), SILENT):
                (store,) = read_all(["auto"], networks, above, lambda path: path)
                assert isinstance(store.reading, Unavailable)
                assert store.reading.why == f"cannot read {above}: permission denied (run as root)"
                assert not store.absent
            (named,) = read_all(["cbr0"], SILENT, above, lambda path: path)
            assert named.reading == Known(())
        assert len(read_all(["auto"], Known((CBR0,)), above, lambda path: path)) == 2


def test_a_directory_whose_name_is_no_text_is_no_network(tmp_path: Path) -> None:
    (tmp_path / "networks" / os.fsdecode(b"\xff")).mkdir()
    (tmp_path / "networks/déjà").mkdir()
    assert list(read(tmp_path, "auto", networks=Known((CBR0,)))) == ["cbr0", "déjà", "podman"]


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


def test_a_data_directory_that_is_not_mounted_is_a_gap(tmp_path: Path) -> None:
    named = RuntimeNetwork("cbr0", ("bridge",), "host-local", "/data/cni")
    one = read(tmp_path, "auto", networks=Known((named,)))["cbr0"]
    assert one.reading == Unavailable(
        "reservations",
        f"{tmp_path}/host/data/cni does not exist: network cbr0 has the dataDir /data/cni, which must be mounted",
    )
    assert not one.absent


# flannel


def test_the_range_of_flannel_is_its_subnet(tmp_path: Path) -> None:
    (tmp_path / "flannel").mkdir()
    text = "FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.1.1/24\nFLANNEL_IPV6_SUBNET=fd00:1::1/64\nX=1\n"
    (tmp_path / "flannel/subnet.env").write_text(text)
    bridge = RuntimeNetwork("x", ("bridge",), "host-local")
    one, other = with_subnet([CBR0, bridge], tmp_path)
    assert one.ranges == ((WrittenRange("10.244.1.1/24"),), (WrittenRange("fd00:1::1/64"),))
    assert other == bridge


@pytest.mark.parametrize("text", ["", "FLANNEL_SUBNET=none\n", "\0" * 10_000 + "\nFLANNEL_SUBNET=10.0.0.1/24\n"])
def test_without_a_subnet_flannel_has_no_range(tmp_path: Path, text: str) -> None:
    assert with_subnet([CBR0], tmp_path) == (CBR0,)
    (tmp_path / "flannel").mkdir()
    (tmp_path / "flannel/subnet.env").write_text(text)
    assert with_subnet([CBR0], tmp_path) == (CBR0,)
