"""One snapshot: each source once, in a safe order, and failures are reported and never guessed."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from agent.checks.devices.history import with_history
from agent.model.assessment import State
from agent.model.snapshot import SOURCES, Checkpoint, Damage, DamagedResult, Known, NotRequested, Snapshot, Unavailable
from tests import builders
from tests.builders import (
    CIDR,
    DISK,
    GONE,
    NON_ADDRESS_SOURCES,
    WEB_ID,
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


def test_a_healthy_node_never_pays_for_what_only_some_nodes_need() -> None:
    other, closed = "kubernetes.io/a/b", Unavailable("cni_results", "no")
    missing = [node_using(DISK, other, attached=[other])]
    all_optional = {"addresses", "mounted_namespaces", "mounts", "attachments"}
    cases: tuple[tuple[Snapshot, str, set[str]], ...] = (
        (node(PINNED), "", set()),
        (node(ORPHAN, sandbox(GONE, "shop/old", "exited")), "", set()),
        (node(ORPHAN, Checkpoint(GONE, "shop/old")), "", set()),
        (node(ORPHAN), "containers", set()),  # it is not known to be without an owner
        (node(ORPHAN), "", {"addresses"}),
        (node(builders.empty_file("10.244.1.9")), "", {"addresses"}),
        (node(ORPHAN, unread_networks=["cbr0"]), "", {"addresses"}),
        (node(ORPHAN, cni_result(WEB_ID, "shop/web", CIDR, namespace=MOUNTED)), "", {"addresses"}),
        (node(ORPHAN, PINNED, cni_results=closed), "", {"addresses"}),
        (node(ORPHAN, PINNED), "", {"addresses", "mounted_namespaces"}),
        (node(waiting_pod(), node=[node_using(DISK, attached=[DISK])]), "", set()),
        (node(waiting_pod(ago=timedelta(seconds=119)), node=missing), "", {"mounts"}),
        (node(waiting_pod(), waiting_pod("shop/new", ago=timedelta(0)), node=missing), "", {"mounts", "attachments"}),
    )
    for snapshot, broken, needed in cases:
        sources = RecordedSources(snapshot, broken)
        taken = sources.take()
        assert all_optional & {*sources.requested} == needed
        assert {name for name in all_optional if isinstance(getattr(taken, name), Known)} == needed
    assert sources.requested.index("attachments") > sources.requested.index("node")


def test_why_something_was_not_needed_is_told() -> None:
    healthy = RecordedSources(node()).take()
    for name, why in {
        "addresses": "no reservation is known to be without an owner",
        "mounted_namespaces": "libcni's cache names no mounted network namespace of a sandbox without an owner",
        "mounts": "no volume is missing from the node's volumesAttached",
        "attachments": "no pod waits for a volume that is missing",
    }.items():
        assert getattr(healthy, name) == NotRequested(name, why)
    why = "network namespaces were not read, because the list of containers is missing"
    assert RecordedSources(node(), broken="containers").take().addresses == NotRequested("addresses", why)


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
