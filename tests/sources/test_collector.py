"""One snapshot: each source once, in a safe order, and failures are reported and never guessed."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from agent.checks.addresses.classify import classify
from agent.checks.devices.history import with_history
from agent.cleanup.guards import release_requests
from agent.model.assessment import State
from agent.model.snapshot import SOURCES, Checkpoint, Damage, DamagedResult, Known, NotRequested, Snapshot, Unavailable
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
    registration,
    reservation,
    sandbox,
    waiting_pod,
)
from tests.sources.recorded import NOW, RecordedSources

ORPHAN = reservation("10.244.1.9", GONE)
MOUNTED = "/var/run/netns/cni-9"
PINNED = cni_result(GONE, "shop/gone", CIDR, namespace=MOUNTED)
ALL_SOURCES_NEEDED = node(ORPHAN, PINNED, waiting_pod(), node=[node_using(DISK)])
"""A node for which every source is read."""


def test_reservations_are_read_before_owners_and_the_api_server_last() -> None:
    # On docker a sandbox exists before its address is reserved: in this order a race can orphan none.
    sources = RecordedSources(node(ORPHAN))
    sources.take()
    order = {source: number for number, source in enumerate(sources.requested)}
    assert (order["networks"], order["reservations"]) == (0, 1)
    assert order["reservations"] < order["containers"] < order["addresses"]
    assert max(order["pods"], order["node"]) > order["containers"]
    # A pod is rejected for what the kubelet did not know then; what it learns later must not be attributed to it.
    assert order["device_plugins"] < order["pods"]


def test_the_snapshot_contains_what_was_read_once_and_how_long_it_took() -> None:
    damaged = DamagedResult("kubenet", GONE, "eth0", Damage.EMPTY)
    given = {"server_version": "v1.20.2", "damaged_results": (damaged,), "api_skew": timedelta(seconds=2)}
    sources = RecordedSources(replace(ALL_SOURCES_NEEDED, **given))  # type: ignore[arg-type]
    snapshot = sources.take()
    assert sorted(sources.requested) == sorted(timing.source for timing in snapshot.timings) == sorted(SOURCES)
    assert {timing.seconds for timing in snapshot.timings} == {1.0}
    expected = with_history(replace(ALL_SOURCES_NEEDED, uptime=NOW.uptime))
    assert list(snapshot.readings()) == list(expected.readings())
    assert (snapshot.node_name, snapshot.taken_at, snapshot.uptime) == ("worker-1", NOW.wall, NOW.uptime)
    assert {name: getattr(snapshot, name) for name in given} == given
    assert {"pods", "node"} <= set(sources.skew_read_after), "the API server's clock comes with its answer"


def test_mounted_namespaces_are_not_read_unless_the_cache_names_one_of_an_orphan() -> None:
    why = "libcni's cache names no mounted network namespace of a sandbox without an owner"
    for snapshot in (
        node(PINNED),
        node(ORPHAN),
        node(ORPHAN, cni_result(WEB_ID, "shop/web", CIDR, namespace=MOUNTED)),
        node(ORPHAN, PINNED, cni_results=Unavailable("cni_results", "no")),
    ):
        sources = RecordedSources(snapshot)
        assert sources.take().mounted_namespaces == NotRequested("mounted_namespaces", why)
        assert "mounted_namespaces" not in sources.requested


def test_namespaces_are_read_only_for_a_reservation_that_is_known_to_be_without_an_owner() -> None:
    no_orphan = "no reservation is known to be without an owner"
    no_list = "network namespaces were not read, because the list of containers is missing"
    for snapshot, broken, why in (
        (node(), "", no_orphan),
        (node(ORPHAN, sandbox(GONE, "shop/old", "exited")), "", no_orphan),
        (node(ORPHAN, Checkpoint(GONE, "shop/old")), "", no_orphan),
        (node(ORPHAN), "containers", no_list),
        (node(ORPHAN), "", ""),
        (node(builders.empty_file("10.244.1.9")), "", ""),
        (node(ORPHAN, unread_networks=["cbr0"]), "", ""),
    ):
        sources = RecordedSources(snapshot, broken)
        addresses = sources.take().addresses
        assert ("addresses" in sources.requested, isinstance(addresses, Known)) == (not why, not why)
        assert not why or addresses == NotRequested("addresses", why)


def test_a_failing_source_is_unavailable_and_the_others_are_read() -> None:
    through_proc = {"addresses", "mounted_namespaces", "mounts"}
    for source in ("checkpoints", "containers", "processes", "device_plugins", "pods", *through_proc):
        snapshot = RecordedSources(ALL_SOURCES_NEEDED, broken=source).take()
        assert getattr(snapshot, source) == Unavailable(source, "it broke")
        others = {reading.source for reading in snapshot.unavailable()} - {source}
        # What is read through the process table of a container is not the node's.
        assert others == (through_proc if source == "processes" else set()), source


def test_the_pods_of_a_deleted_node_make_nothing_leaked() -> None:
    deleted = node(ORPHAN, pods=builders.PODS[:1], node=[], registration=registration(last_seen()))
    for given, state in ((deleted, State.UNKNOWN), (node(ORPHAN), State.LEAKED)):
        assert builders.state(RecordedSources(given).take(), "10.244.1.9") is state


def test_non_address_sources_do_not_affect_addresses() -> None:
    closed: dict[str, Any] = {source: Unavailable(source, "Permission denied") for source in NON_ADDRESS_SOURCES}
    snapshot = replace(RecordedSources(node(ORPHAN), broken="checkpoints").take(), **closed)
    assert snapshot.unavailable() == (Unavailable("checkpoints", "it broke"), *closed.values())
    assert snapshot.unavailable_about_addresses() == (Unavailable("checkpoints", "it broke"),)


def test_a_bug_in_a_source_is_raised() -> None:
    class Broken(RecordedSources):
        def _read(self, source: str, so_far: Snapshot) -> Any:
            if source == "containers":
                raise ZeroDivisionError
            return super()._read(source, so_far)

    with pytest.raises(ZeroDivisionError):
        Broken(node()).take()


def test_attachments_are_asked_for_only_while_a_pod_waits_for_a_volume_that_is_missing() -> None:
    other = "kubernetes.io/a/b"
    healthy = node(waiting_pod(), node=[node_using(DISK, attached=[DISK])])
    just_now = node(waiting_pod(ago=timedelta(seconds=119)), node=[node_using(DISK)])
    both = (waiting_pod(), waiting_pod("shop/new", ago=timedelta(0)))
    missing = node(*both, node=[node_using(DISK, other, attached=[other])])
    for snapshot, read, queried in (
        (healthy, set(), ()),
        (just_now, {"mounts"}, ()),
        (missing, {"mounts", "attachments"}, (DISK, "shop/db-0")),
    ):
        sources = RecordedSources(snapshot)
        taken = sources.take()
        assert {"mounts", "attachments"} & {*sources.requested} == read
        assert sources.queried == queried
        assert isinstance(taken.mounts, Known) == ("mounts" in read)
        assert isinstance(taken.attachments, Known) == ("attachments" in read)
    assert sources.requested.index("attachments") > sources.requested.index("node")
    unneeded = RecordedSources(healthy).take()
    assert unneeded.mounts == NotRequested("mounts", "no volume is missing from the node's volumesAttached")
    assert unneeded.attachments == NotRequested("attachments", "no pod waits for a volume that is missing")


def test_with_another_runtime_no_address_is_leaked_whatever_docker_lists() -> None:
    elsewhere = replace(WORKER, runtime="containerd://1.6.20")
    only_docker = NotRequested("runtimes", "--runtime=docker")
    given = node(ORPHAN, containers=[], checkpoints=[], addresses=[], pods=[], node=[elsewhere], runtimes=only_docker)
    snapshot = RecordedSources(given).take()
    assert isinstance(snapshot.containers, NotRequested)
    assessment = classify(snapshot, timedelta(0))
    assert {reserved.state for reserved in assessment.reservations} == {State.UNKNOWN}
    assert snapshot.unavailable() == ()
    assert release_requests(assessment) == ()
