"""Whether a release is possible here, on real directories."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent.app.cleaning import cleanup_status
from agent.cleanup.journal import MAX_ENTRIES
from agent.config import Config, load
from agent.model.runtime import RuntimeNetwork
from agent.model.snapshot import Snapshot
from tests.builders import node, reservation, scanned, without
from tests.exporters.cleanings import cleaning

LEAK = reservation("10.244.1.9")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "networks/kubenet").mkdir(parents=True)
    return tmp_path


def config(home: Path, **given: Any) -> Config:
    paths = {"cni_networks_dir": str(home / "networks"), "state_dir": str(home / "state")}
    return load("run", {"api": "off", "cleanup_network": "auto", **paths, **given}, {})


def on_docker(*records: Any) -> Snapshot:
    return node(*records)


@pytest.mark.parametrize("given", ["auto", "kubenet", "kubenet,cbr0"])
def test_the_networks_are_those_that_the_setting_allows(home: Path, given: str) -> None:
    named = {} if given == "auto" else {"network": given}
    status = cleanup_status(config(home, cleanup_network=given, **named), scanned(on_docker(LEAK)))
    assert (status.mode, set(status.networks)) == ("off", set(given.replace("auto", "kubenet").split(",")))
    assert (status.release_possible, status.why_not) == (True, ())


def test_a_network_that_does_not_exist_promises_no_release(home: Path) -> None:
    status = cleanup_status(config(home, cleanup_network="kubenett"), scanned(on_docker(LEAK)))
    assert (status.networks, status.release_possible) == (("kubenett",), None)
    assert status.why_not == (f"--cleanup-network: {home}/networks has no network kubenett",)


def test_without_a_network_that_may_be_cleaned_no_release_is_possible(home: Path) -> None:
    status = cleanup_status(config(home, cleanup_network=""), scanned(on_docker(LEAK)))
    assert (status.networks, status.release_possible) == ((), False)
    (why,) = status.why_not
    assert why.startswith("--cleanup-network (NODELEAK_CLEANUP_NETWORK) is not set: ")


def test_one_network_that_can_be_changed_is_enough(home: Path) -> None:
    (home / "networks/cbr0").write_text("")
    given = {"cleanup_network": "cbr0,kubenet", "network": "cbr0,kubenet"}
    assert cleanup_status(config(home, **given), scanned(on_docker(LEAK))).release_possible is True
    (home / "networks/kubenet").rmdir()
    status = cleanup_status(config(home, **given), scanned(on_docker(LEAK)))
    assert (status.release_possible, len(status.why_not)) == (False, 1)


@pytest.mark.parametrize("mode", ["off", "dry-run", "auto"])
def test_the_mode_is_the_setting(home: Path, mode: str) -> None:
    assert cleanup_status(config(home, cleanup=mode, cleanup_network="auto"), scanned(node())).mode == mode


def test_without_a_known_network_it_is_not_known(home: Path) -> None:
    status = cleanup_status(config(home), scanned(node(LEAK, networks=())))
    assert (status.release_possible, len(status.why_not)) == (None, 1)


def test_the_networks_of_the_runtime_count(home: Path) -> None:
    named = (RuntimeNetwork("kubenet", ("bridge",), "host-local"),)
    assert cleanup_status(config(home), scanned(node(LEAK, networks=named))).release_possible is True


def why_not(home: Path, snapshot: Snapshot, **more: Any) -> tuple[str, ...]:
    status = cleanup_status(config(home), replace(scanned(snapshot), **more))
    assert status.release_possible is False
    return status.why_not


def test_halted_cleanup_comes_first(home: Path) -> None:
    (home / "state").write_text("")
    halted, journal = why_not(home, on_docker(), cleaning=cleaning(halted="container 950b reappeared"))
    assert halted == "cleanup halted: container 950b reappeared"
    assert journal.startswith(f"cannot use the journal: {home}/state is not a directory: ")


def test_a_source_that_cleanup_needs_is_an_obstacle_and_another_is_not(home: Path) -> None:
    assert why_not(home, without(on_docker(), "containers", "pods")) == ("unavailable sources: containers, pods",)
    status = cleanup_status(config(home), scanned(without(on_docker(), "device_plugins")))
    assert status.release_possible is True


def test_a_full_journal_is_an_obstacle(home: Path) -> None:
    journal = home / "state/journal"
    journal.mkdir(parents=True)
    for number in range(MAX_ENTRIES):
        (journal / f"{number:04}.json").touch()
    assert why_not(home, on_docker()) == (f"the journal is full until {journal}/0000.json is 24 hours old",)


def test_a_network_directory_that_is_none_is_an_obstacle(home: Path) -> None:
    (home / "networks/kubenet").rmdir()
    (home / "networks/kubenet").write_text("")
    (why,) = why_not(home, on_docker())
    assert why.startswith(f"cannot change {home}/networks/kubenet: ")
