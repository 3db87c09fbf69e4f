"""One snapshot: each source once, in a safe order, and failures are reported and never guessed."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

import pytest

from agent.checks.addresses.classify import classify
from agent.checks.devices.history import with_history
from agent.cleanup.guards import release_requests
from agent.model.assessment import State
from agent.model.snapshot import (
    SOURCES,
    Checkpoint,
    Damage,
    DamagedResult,
    Known,
    NotRequested,
    Snapshot,
    Unavailable,
)
from agent.sources.collector import Moment, take_snapshot
from tests import builders
from tests.builders import (
    CIDR,
    DISK,
    GONE,
    NON_ADDRESS_SOURCES,
    WEB_ID,
    WORKER,
    cni_result,
    last_seen,
    node,
    node_using,
    processes,
    registration,
    reservation,
    sandbox,
    waiting_pod,
)
from tests.sources.recorded import RecordedSources

NOW = Moment(datetime(2026, 3, 26, 20, 0, tzinfo=UTC), timedelta(days=3))

NO_API = NotRequested("pods", "--api=off")


def ticking() -> Callable[[], float]:
    """A clock on which everything takes a second."""
    ticks: Iterator[int] = count()
    return lambda: float(next(ticks))


def read(sources: RecordedSources) -> Snapshot:
    return take_snapshot(sources.sources, "worker-1", NOW, ticking())


ORPHAN = reservation("10.244.1.9", GONE)
MOUNTED = "/var/run/netns/cni-9"
PINNED = cni_result(GONE, "shop/gone", CIDR, namespace=MOUNTED)
ALL_SOURCES_NEEDED = node(ORPHAN, PINNED, waiting_pod(), node=[node_using(DISK)])
"""A node for which every source is read."""


def test_reservations_are_read_before_owners_and_the_api_server_last() -> None:
    # On docker a sandbox exists before its address is reserved: in this order a race can orphan none.
    sources = RecordedSources(node(ORPHAN))
    read(sources)
    order = {source: number for number, source in enumerate(sources.requested)}
    assert (order["networks"], order["reservations"]) == (0, 1)
    assert order["reservations"] < order["containers"] < order["addresses"]
    assert max(order["pods"], order["node"]) > order["containers"]
    # A pod is rejected for what the kubelet did not know then; what it learns later must not be attributed to it.
    assert order["device_plugins"] < order["pods"]


def test_what_comes_with_the_answers_of_a_source_is_stored() -> None:
    damaged = DamagedResult("kubenet", GONE, "eth0", Damage.EMPTY)
    given = {"server_version": "v1.20.2", "damaged_results": (damaged,), "api_skew": timedelta(seconds=2)}
    sources = RecordedSources(replace(node(), **given))  # type: ignore[arg-type]
    snapshot = read(sources)
    assert {name: getattr(snapshot, name) for name in given} == given
    assert {"pods", "node"} <= set(sources.skew_read_after), "the API server's clock comes with its answer"


def test_the_snapshot_contains_what_was_read_once_and_how_long_it_took() -> None:
    sources = RecordedSources(ALL_SOURCES_NEEDED)
    snapshot = read(sources)
    assert sorted(sources.requested) == sorted(timing.source for timing in snapshot.timings) == sorted(SOURCES)
    assert {timing.seconds for timing in snapshot.timings} == {1.0}
    expected = with_history(replace(ALL_SOURCES_NEEDED, uptime=NOW.uptime))
    assert list(snapshot.readings()) == list(expected.readings())
    assert (snapshot.node_name, snapshot.taken_at, snapshot.uptime) == ("worker-1", NOW.wall, NOW.uptime)


def test_mounted_namespaces_are_not_read_unless_the_cache_names_one_of_an_orphan() -> None:
    for snapshot in (
        node(PINNED),
        node(ORPHAN),
        node(ORPHAN, cni_result(WEB_ID, "shop/web", CIDR, namespace=MOUNTED)),
        node(ORPHAN, PINNED, cni_results=Unavailable("cni_results", "no")),
    ):
        sources = RecordedSources(snapshot)
        assert read(sources).mounted_namespaces == NotRequested(
            "mounted_namespaces", "libcni's cache names no mounted network namespace of a sandbox without an owner"
        )
        assert "mounted_namespaces" not in sources.requested


def test_on_a_healthy_node_namespaces_are_not_read() -> None:
    sources = RecordedSources(node())
    snapshot = read(sources)
    assert "addresses" not in sources.requested
    assert snapshot.addresses == NotRequested("addresses", "no reservation is known to be without an owner")


def test_an_owner_of_any_kind_makes_namespaces_unnecessary() -> None:
    for owner in (sandbox(GONE, "shop/old", "exited"), Checkpoint(GONE, "shop/old")):
        sources = RecordedSources(node(ORPHAN, owner))
        read(sources)
        assert "addresses" not in sources.requested


def test_an_empty_file_has_no_owner() -> None:
    sources = RecordedSources(node(builders.empty_file("10.244.1.9")))
    read(sources)
    assert "addresses" in sources.requested


def test_without_docker_no_reservation_is_known_to_be_ownerless() -> None:
    sources = RecordedSources(node(ORPHAN), broken="containers")
    snapshot = read(sources)
    assert "addresses" not in sources.requested
    assert snapshot.containers == Unavailable("containers", "it broke")


def test_a_failing_source_is_unavailable_and_the_others_are_read() -> None:
    for source in ("checkpoints", "containers", "cni_results", "processes", "addresses"):
        snapshot = read(RecordedSources(node(ORPHAN), broken=source))
        assert getattr(snapshot, source) == Unavailable(source, "it broke")
        others = {one.source for one in snapshot.unavailable()} - {source}
        assert others == ({"addresses"} if source == "processes" else set())


def test_crosschecks_are_applied() -> None:
    empty = read(RecordedSources(node(ORPHAN, containers=[])))
    assert isinstance(empty.containers, Unavailable)
    assert isinstance(read(RecordedSources(node(pods=[], node=[], containers=[]))).pods, Unavailable)
    assert read(RecordedSources(node(pods=[], node=[WORKER], containers=[]))).pods == Known(())


def test_the_pods_of_a_deleted_node_make_nothing_leaked() -> None:
    some = node(ORPHAN, pods=builders.PODS[:1], node=[], registration=registration(last_seen()))
    snapshot = read(RecordedSources(some))
    assert isinstance(snapshot.pods, Unavailable)
    assert builders.state(snapshot, "10.244.1.9") is State.UNKNOWN
    assert builders.state(read(RecordedSources(node(ORPHAN))), "10.244.1.9") is State.LEAKED


def test_non_address_sources_do_not_affect_addresses() -> None:
    closed: dict[str, Any] = {source: Unavailable(source, "Permission denied") for source in NON_ADDRESS_SOURCES}
    snapshot = replace(read(RecordedSources(node(ORPHAN), broken="checkpoints")), **closed)
    assert snapshot.unavailable() == (Unavailable("checkpoints", "it broke"), *closed.values())
    assert snapshot.unavailable_about_addresses() == (Unavailable("checkpoints", "it broke"),)


def test_without_the_api_server_the_other_sources_are_read() -> None:
    snapshot = read(
        RecordedSources(node(ORPHAN, pods=NO_API, node=NotRequested("node", "--api=off"), processes=[processes()]))
    )
    assert snapshot.pods == NO_API
    assert snapshot.unavailable() == ()


def test_an_unavailable_network_does_not_hide_another() -> None:
    snapshot = read(RecordedSources(node(ORPHAN, unread_networks=["cbr0"])))
    assert [one.source for one in snapshot.unavailable()] == ["reservations"]
    assert isinstance(snapshot.addresses, Known)


def test_a_bug_in_a_source_is_raised() -> None:
    class Broken(RecordedSources):
        def _read(self, source: str, so_far: Snapshot) -> Any:
            if source == "containers":
                raise ZeroDivisionError
            return super()._read(source, so_far)

    with pytest.raises(ZeroDivisionError):
        read(Broken(node()))


# Volumes


def test_on_a_healthy_node_attachments_are_not_read() -> None:
    sources = RecordedSources(node(waiting_pod(), node=[node_using(DISK, attached=[DISK])]))
    snapshot = read(sources)
    assert not {"mounts", "attachments"} & {*sources.requested}
    assert snapshot.mounts == NotRequested("mounts", "no volume is missing from the node's volumesAttached")
    assert snapshot.attachments == NotRequested("attachments", "no pod waits for a volume that is missing")


def test_for_an_attached_volume_the_api_server_is_not_queried() -> None:
    just_now = waiting_pod(ago=timedelta(seconds=119))
    sources = RecordedSources(node(just_now, node=[node_using(DISK)]))
    read(sources)
    assert "mounts" in sources.requested
    assert "attachments" not in sources.requested


def test_only_missing_volumes_and_waiting_pods_are_queried() -> None:
    sources = RecordedSources(
        node(
            waiting_pod(),
            waiting_pod("shop/new", ago=timedelta(0)),
            node=[node_using(DISK, "kubernetes.io/a/b", attached=["kubernetes.io/a/b"])],
        )
    )
    read(sources)
    assert sources.queried == (DISK, "shop/db-0")
    assert sources.requested.index("attachments") > sources.requested.index("node")


def test_the_mount_table_of_a_container_is_rejected() -> None:
    snapshot = read(RecordedSources(ALL_SOURCES_NEEDED, broken="processes"))
    assert snapshot.mounts == Unavailable("mounts", "it broke")


def test_with_another_runtime_no_address_is_leaked_whatever_docker_lists() -> None:
    elsewhere = replace(WORKER, runtime="containerd://1.6.20")
    snapshot = read(
        RecordedSources(
            node(
                ORPHAN, containers=[], checkpoints=[], addresses=[], pods=[], node=[elsewhere],
                runtimes=NotRequested("runtimes", "--runtime=docker"),
            )
        )
    )  # fmt: skip
    assert isinstance(snapshot.containers, NotRequested)
    assessment = classify(snapshot, timedelta(0))
    assert {one.state for one in assessment.reservations} == {State.UNKNOWN}
    assert snapshot.unavailable() == ()
    assert release_requests(assessment) == ()
