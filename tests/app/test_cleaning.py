"""Whether a release is possible here, on real directories."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent.app.cleaning import cleanup_status
from agent.config import load
from agent.model.snapshot import Snapshot
from tests.builders import node, reservation, scanned, without
from tests.exporters.cleanings import cleaning

LEAKING = node(reservation("10.244.1.9"))


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "networks/kubenet").mkdir(parents=True)
    return tmp_path


def status_of(
    home: Path, snapshot: Snapshot = LEAKING, halted: str = "", **given: Any
) -> dict[str, Any]:
    paths = {"cni_networks_dir": str(home / "networks"), "state_dir": str(home / "state")}
    report = replace(scanned(snapshot), cleaning=cleaning(halted=halted) if halted else None)
    return cleanup_status(
        load("run", {"api": "off", "cleanup_network": "auto", **paths, **given}, {}), report
    )


def test_the_settings_say_the_mode_and_the_networks_of_which_one_is_enough(home: Path) -> None:
    for mode in ("off", "dry-run", "auto"):
        assert status_of(home, cleanup=mode)["mode"] == mode
    unknown, setting = (
        node(networks=()),
        "--cleanup-network (NODELEAK_CLEANUP_NETWORK) is not set: ",
    )
    cases: list[tuple[str, Snapshot, tuple[str, ...], bool | None, str | None]] = [
        ("auto", LEAKING, ("kubenet",), True, None),
        ("kubenet", LEAKING, ("kubenet",), True, None),
        ("kubenet,cbr0", LEAKING, ("kubenet", "cbr0"), True, None),
        ("kubenett", LEAKING, ("kubenett",), None, "--cleanup-network: "),
        ("", LEAKING, (), False, setting),
        ("auto", unknown, (), None, "no network is known that the pods of this node use"),
    ]
    for given, snapshot, networks, possible, why_not in cases:
        more = {"network": given} if why_not is None else {}
        status = status_of(home, snapshot, cleanup_network=given, **more)
        assert (set(status["networks"]), status["release_possible"]) == (set(networks), possible)
        assert len(status["why_not"]) == (0 if why_not is None else 1)
        assert "".join(status["why_not"]).startswith(why_not or "")


def test_obstacles_are_listed_and_a_halt_comes_first_but_one_network_that_can_be_changed_is_enough(
    home: Path,
) -> None:
    given: dict[str, Any] = {"cleanup_network": "cbr0,kubenet", "network": "cbr0,kubenet"}
    (home / "networks/cbr0").write_text("")
    assert status_of(home, **given)["release_possible"] is True
    (home / "networks/kubenet").rmdir()
    status = status_of(home, **given)
    assert (status["release_possible"], len(status["why_not"])) == (False, 1)
    (home / "networks/kubenet").write_text("")
    (why,) = status_of(home)["why_not"]
    assert why.startswith(f"cannot change {home}/networks/kubenet: ")
    (home / "networks/kubenet").unlink()
    (home / "networks/kubenet").mkdir()
    status = status_of(home, without(node(), "containers", "pods"))
    assert (status["release_possible"], status["why_not"]) == (
        False,
        ["unavailable sources: containers, pods"],
    )
    assert status_of(home, without(node(), "device_plugins"))["release_possible"] is True
    journal = home / "state/journal"
    journal.mkdir(parents=True)
    for number in range(2000):
        (journal / f"{number:04}.json").touch()
    halted = "container 950b reappeared"
    first, full = status_of(home, halted=halted)["why_not"]
    assert first == f"cleanup halted: {halted}"
    assert full.startswith("the journal is full, and none of its 2000 entries may be dropped")
