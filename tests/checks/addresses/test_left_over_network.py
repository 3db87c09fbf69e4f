"""A directory with reservations of an earlier setup of the node."""

from dataclasses import replace
from typing import Final

from agent.model.snapshot import Known, LeftOver, NetworkStore, NotRequested, Snapshot
from tests.builders import findings_of, gap_of, node, unavailable, without

DETECTOR: Final = "left_over_network"
LEFT: Final = LeftOver("/var/lib/cni/networks/old", 2, 0, 86_400 * 10**9, pods=0)
OLD: Final = NetworkStore("old", NotRequested("reservations", "no pod"), left_over=LEFT)


def beside(store: NetworkStore, snapshot: Snapshot) -> Snapshot:
    return replace(snapshot, reservations=(*snapshot.reservations, store))


def test_it_says_what_is_left_over_and_since_when() -> None:
    (finding,) = findings_of(DETECTOR, beside(OLD, node()))
    assert (finding.subject, finding.network, finding.severity) == ("old", "old", "info")
    assert finding.message.endswith(
        "from 1970-01-01 00:00:00Z to 1970-01-02 00:00:00Z; not in use: no pod"
    )
    left = replace(LEFT, files=1, oldest_ns=-(10**30), pods=1)
    (finding,) = findings_of(DETECTOR, beside(replace(OLD, left_over=left), node()))
    assert "1 reservation of an earlier setup, from 1000-01-01 00:00:00Z to" in finding.message


def test_a_directory_that_is_empty_or_in_use_is_no_finding_and_unread_is_neither() -> None:
    for store in (replace(OLD, left_over=None), replace(OLD, reading=Known(()))):
        assert findings_of(DETECTOR, beside(store, node())) == []
    unread = beside(replace(OLD, reading=unavailable("reservations")), node())
    assert gap_of(DETECTOR, unread).startswith("reservations: ")
    assert gap_of(DETECTOR, without(beside(OLD, node()), "containers")).startswith("containers: ")
