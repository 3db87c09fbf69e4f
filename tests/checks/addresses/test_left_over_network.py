"""A directory with reservations of an earlier setup of the node."""

from dataclasses import replace
from typing import Final

import pytest

from agent.checks.addresses import left_over_network
from agent.model.snapshot import InsufficientData, Known, LeftOver, NetworkStore, NotRequested, Snapshot
from tests.builders import findings_of, node, unavailable, without

LEFT: Final = LeftOver("/var/lib/cni/networks/old", 2, 0, 86_400 * 10**9, pods=0)
OLD: Final = NetworkStore("old", NotRequested("reservations", "no pod"), left_over=LEFT)


def beside(store: NetworkStore, snapshot: Snapshot) -> Snapshot:
    return replace(snapshot, reservations=(*snapshot.reservations, store))


def test_it_says_what_is_left_over_and_since_when() -> None:
    (finding,) = findings_of(left_over_network, beside(OLD, node()))
    assert (finding.subject, finding.network, finding.severity) == ("old", "old", "info")
    assert finding.message == (
        "/var/lib/cni/networks/old has 2 reservations of an earlier setup, from 1970-01-01 00:00:00Z to "
        "1970-01-02 00:00:00Z; not in use: no pod"
    )


def test_it_says_how_many_were_of_pods_and_survives_any_time() -> None:
    left = replace(LEFT, files=1, oldest_ns=-(10**30), pods=1)
    (finding,) = findings_of(left_over_network, beside(replace(OLD, left_over=left), node()))
    assert "1 reservation of an earlier setup, from 1-01-01 00:00:00Z to" in finding.message
    assert "1970-01-02 00:00:00Z, 1 of them for pods according to libcni's cache; not in use" in finding.message


@pytest.mark.parametrize("store", [replace(OLD, left_over=None), replace(OLD, reading=Known(()))])
def test_a_directory_that_is_empty_or_in_use_is_no_finding(store: NetworkStore) -> None:
    assert list(findings_of(left_over_network, beside(store, node()))) == []


def test_it_needs_the_directories_and_the_containers() -> None:
    with pytest.raises(InsufficientData, match="reservations: "):
        findings_of(left_over_network, beside(replace(OLD, reading=unavailable("reservations")), node()))
    with pytest.raises(InsufficientData, match="containers: "):
        findings_of(left_over_network, without(beside(OLD, node()), "containers"))
