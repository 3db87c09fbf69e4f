"""A copy of a network's directory, as people make before they clean up, is no network."""

from dataclasses import replace
from typing import Any, Final

from agent.checks.readings import crosscheck
from agent.checks.readings.copies import is_backup_name
from agent.cleanup.guards import release_requests
from agent.model.assessment import State
from agent.model.runtime import RuntimeNetwork
from agent.model.snapshot import Known, NetworkStore, NotRequested, Reservation, Snapshot
from tests.builders import (
    CIDR,
    DB_ID,
    GONE,
    NOW,
    OLD,
    WEB_ID,
    assessment,
    cni_result,
    findings_of,
    node,
    reservation,
    scanned,
    unavailable,
)

LEAK: Final = "10.244.1.9"
PODS: Final = (reservation("10.244.1.2", WEB_ID), reservation("10.244.1.3", DB_ID))
WITH_LEAK: Final = (*PODS, reservation(LEAK))


def copied(
    network: str, held: tuple[Reservation, ...] = WITH_LEAK, *, mtime_ns: int | None = None
) -> NetworkStore:
    """A directory with the same files; `cp -a` keeps their times."""
    copies = tuple(
        replace(one, network=network, inode=one.inode + 1, mtime_ns=mtime_ns or one.mtime_ns)
        for one in held
    )
    return NetworkStore(network, Known(copies), data_dir="/var/lib/cni/networks", discovered=True)


def beside(store: NetworkStore, *kept: Reservation, **given: Any) -> Snapshot:
    """A node of kubenet with `kept` in its own directory, and with another directory beside it."""
    snapshot = node(reservations=kept or WITH_LEAK, **given)
    stores = tuple(replace(one, discovered=True) for one in snapshot.reservations)
    return crosscheck.all_sources(replace(snapshot, reservations=(*stores, store)))


def test_names_of_copies() -> None:
    for name in (
        "cbr0.bak", "cbr0-backup", "cbr0.old", "cbr0_20240101", "cbr0 copy", "cbr0~", "cbr0bak",
        "cbr0.bak.2", "cbr0.2024-01-31_12:30", "cbr0-20240131T123000Z", "cbr0.orig", "bak.cbr0",
        "old-cbr0", "cbr0.BAK", "20240131-cbr0",
    ):  # fmt: skip
        assert is_backup_name(name, "cbr0"), name
    for name in ("cbr0", "cbr02", "cbr0-1", "cbr0-storage", "cbr0.v2", "cbr1.bak", "storage", "0"):
        assert not is_backup_name(name, "cbr0"), name


def test_a_copy_is_told_and_nothing_in_it_counts() -> None:
    for name in ("kubenet.bak", "kubenet copy", "kubenet_20240101", "before-the-cleanup"):
        for mtime_ns in (None, int(NOW.timestamp()) * 10**9):  # cp -a, cp -r
            snapshot = beside(copied(name, mtime_ns=mtime_ns))
            (finding,) = findings_of("left_over_network", snapshot)
            assert (finding.subject, finding.severity) == (name, "info")
            assert f"/{name} has 3 reservations, from" in finding.message
            assert "it is a copy of the directory of network kubenet" in finding.message
            assert findings_of("overlapping_ranges", snapshot) == []
            report = scanned(snapshot, snapshot)
            summary = {network.name: network for network in report.networks}
            assert summary[name].states is None
            assert (summary["kubenet"].states or {})[State.LEAKED] == 1
            assert report.gaps == ()


def test_nothing_of_a_copy_is_released_or_part_of_a_request() -> None:
    snapshot = beside(copied("kubenet.bak"))
    (request,) = release_requests(assessment(snapshot))
    assert [str(leak.key) for leak in request.reservations] == [f"kubenet/{LEAK}"]
    # Not even if a setting names it.
    named = replace(copied("kubenet.bak"), discovered=False)
    (request,) = release_requests(assessment(beside(named)))
    assert request.networks == ("kubenet",)


def test_a_copy_whose_original_was_cleaned_since_is_one_by_its_name() -> None:
    only_leaks = copied("kubenet.bak", (reservation(LEAK),))
    snapshot = beside(only_leaks, *PODS)
    (finding,) = findings_of("left_over_network", snapshot)
    assert "has the name of a copy of network kubenet's directory" in finding.message
    assert findings_of("leaked_reservation", snapshot) == []
    # Somebody moved it away under running pods: they have their addresses without a reservation.
    moved = beside(copied("kubenet.old", PODS), reservation("10.244.1.7", WEB_ID, ifname="net1"))
    (finding,) = findings_of("left_over_network", moved)
    assert "it was moved away while pods ran" in finding.message
    assert findings_of("overlapping_ranges", moved) == []
    assert len(findings_of("unreserved_pod_ip", moved)) == 2


def test_what_is_named_by_anything_is_no_copy() -> None:
    store = copied("kubenet.bak")
    first = RuntimeNetwork("kubenet", ("bridge",), "host-local")
    own = RuntimeNetwork("kubenet.bak", ("bridge",), "host-local")
    multus = cni_result(GONE, "shop/gone", CIDR, network="kubenet.bak")
    named_by: tuple[dict[str, Any], ...] = (
        {"networks": (first, own)},
        {"networks": (replace(first, later=(own,)),)},
        {"cni_results": (multus,)},
    )
    for given in named_by:
        seen = beside(store, **given).reservations[1]
        assert not seen.left_over or not seen.left_over.copy_of
        assert not isinstance(seen.reading, NotRequested) or "copy" not in seen.reading.why


def test_what_is_not_known_makes_no_copy() -> None:
    # Without the configuration, either may be the network.
    for source in ("networks", "cni_results"):
        given: dict[str, Any] = {source: unavailable(source)}
        seen = beside(copied("pods"), **given).reservations[1]
        assert not isinstance(seen.reading, NotRequested)
        seen = beside(copied("kubenet.bak"), **given).reservations[1]
        assert isinstance(seen.reading, NotRequested), "its name and its files say it"
    # One sandbox has addresses of several networks, but not the same one twice.
    second = copied("storage", (reservation("10.99.0.2", WEB_ID, ifname="net1"),))
    assert isinstance(beside(second).reservations[1].reading, Known)


def test_a_copy_hides_no_leak_of_the_original_that_is_newer() -> None:
    younger = reservation("10.244.1.40", "7" * 64, age=OLD / 2)
    snapshot = beside(copied("kubenet.bak"), *WITH_LEAK, younger)
    leaks = findings_of("leaked_reservation", snapshot)
    assert [leak.subject for leak in leaks] == [f"kubenet/{LEAK}", "kubenet/10.244.1.40"]
