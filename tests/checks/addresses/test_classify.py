"""The state of each reservation: one test for each kind of owner, and for each kind of missing data."""

from datetime import timedelta

import pytest

from agent.model.assessment import State
from agent.model.snapshot import Address, Checkpoint, NotRequested, Snapshot
from tests.builders import (
    CIDR,
    DB_ID,
    GONE,
    GRACE,
    RESERVATIONS,
    WEB_ID,
    assessment,
    classify_one,
    cni_result,
    dark_node,
    empty_file,
    node,
    pod,
    reservation,
    sandbox,
    state,
    unrecognized,
    without,
    without_api,
)

LOST = reservation("10.244.1.9")
"""An address whose container nobody knows."""


def test_on_a_healthy_node_every_reservation_is_in_use() -> None:
    assert {one.state for one in assessment(node()).reservations} == {State.IN_USE}


def test_a_reservation_without_any_owner_is_leaked() -> None:
    assert state(node(LOST), LOST.ip) is State.LEAKED


@pytest.mark.parametrize("word", ["running", "paused", "restarting"])
def test_a_container_with_processes_uses_its_address(word: str) -> None:
    assert state(node(LOST, sandbox(GONE, "shop/cart", word)), LOST.ip) is State.IN_USE


@pytest.mark.parametrize("word", ["created", "removing", "exited", "dead", "a word of a later docker"])
def test_a_stopped_container_owns_its_address(word: str) -> None:
    classified = classify_one(node(LOST, sandbox(GONE, "shop/cart", word)), LOST.ip)
    assert (classified.state, classified.why) == (State.NOT_READY, f"its container is {word}")


def test_any_container_owns_its_address_not_only_a_pods_sandbox() -> None:
    (plain,) = (one for one in node().containers.known() if one.id == "c" * 64)
    assert state(node(reservation("10.244.1.9", plain.id)), "10.244.1.9") is State.NOT_READY


def test_a_reservation_with_a_checkpoint_is_teardown_pending() -> None:
    assert state(node(LOST, Checkpoint(GONE, "shop/cart")), LOST.ip) is State.TEARDOWN_PENDING


def test_an_address_configured_in_a_namespace_is_in_use() -> None:
    classified = classify_one(node(LOST, Address(LOST.ip, 4711, "java")), LOST.ip)
    assert classified.state is State.UNMANAGED
    assert "process 4711 (java)" in classified.why


@pytest.mark.parametrize("phase", ["Running", "Pending", "Unknown", ""])
def test_the_address_of_a_live_pod_is_in_use(phase: str) -> None:
    assert state(node(LOST, pod("shop/cart", LOST.ip, phase=phase)), LOST.ip) is State.UNMANAGED


def test_the_address_of_a_terminating_pod_is_in_use() -> None:
    assert state(node(LOST, pod("shop/cart", LOST.ip, deleting=True)), LOST.ip) is State.UNMANAGED


def test_the_second_address_of_a_live_pod_is_in_use() -> None:
    assert state(node(LOST, pod("shop/cart", "fd00::9", LOST.ip)), LOST.ip) is State.UNMANAGED


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_terminated_pod_owns_no_address(phase: str) -> None:
    assert state(node(LOST, pod("shop/cart", LOST.ip, phase=phase)), LOST.ip) is State.LEAKED


def test_a_host_network_pod_owns_no_address() -> None:
    assert state(node(LOST, pod("kube-system/agent", LOST.ip, host_network=True)), LOST.ip) is State.LEAKED


def test_the_strongest_owner_is_named_first() -> None:
    everyone = (sandbox(GONE, "shop/cart"), Checkpoint(GONE, "shop/cart"), Address(LOST.ip, 1, "java"))
    assert state(node(LOST, *everyone), LOST.ip) is State.IN_USE
    assert state(node(LOST, *everyone[1:]), LOST.ip) is State.TEARDOWN_PENDING
    assert state(node(LOST, *everyone[2:]), LOST.ip) is State.UNMANAGED


def test_an_id_is_compared_in_full() -> None:
    almost = GONE[:-1] + "8"
    assert state(node(LOST, sandbox(almost, "shop/cart"), Checkpoint(almost, "shop/cart")), LOST.ip) is State.LEAKED


# Age


@pytest.mark.parametrize(
    ("age", "expected"),
    [
        (GRACE - timedelta(seconds=1), State.CANDIDATE),
        (GRACE, State.LEAKED),
        (timedelta(0), State.CANDIDATE),
        (timedelta(seconds=-9), State.CANDIDATE),
        (timedelta(seconds=-11), State.UNKNOWN),
        (timedelta(days=-400), State.UNKNOWN),
        (timedelta(days=20000), State.LEAKED),
    ],
)
def test_an_ownerless_reservation_is_leaked_only_after_the_grace_period(age: timedelta, expected: State) -> None:
    assert state(node(reservation("10.244.1.9", age=age)), "10.244.1.9") is expected
    assert state(node(empty_file("10.244.1.9", age=age)), "10.244.1.9") is expected


def test_without_a_grace_period_the_newest_file_is_leaked_too() -> None:
    assert state(node(reservation("10.244.1.9", age=timedelta(0))), "10.244.1.9", grace=timedelta(0)) is State.LEAKED


def test_a_file_from_the_future_is_reported_as_such() -> None:
    classified = classify_one(node(reservation("10.244.1.9", age=timedelta(hours=-1))), "10.244.1.9")
    assert classified.why == "its file is 1h newer than this snapshot: the clock was changed"


@pytest.mark.parametrize("mtime_ns", [-(2**63), 2**63 - 1, 253402300800 * 10**9, 10**30, -(10**30)])
def test_a_file_with_an_mtime_out_of_range_is_classified(mtime_ns: int) -> None:
    from dataclasses import replace  # noqa: PLC0415

    classified = classify_one(node(replace(LOST, mtime_ns=mtime_ns)), LOST.ip)
    assert classified.state is (State.UNKNOWN if mtime_ns > 0 else State.LEAKED)


@pytest.mark.parametrize("age", [timedelta(days=-1), timedelta(0), timedelta(days=400)])
def test_an_address_in_use_does_not_depend_on_the_clock(age: timedelta) -> None:
    assert state(node(reservations=[reservation("10.244.1.2", WEB_ID, age=age)]), "10.244.1.2") is State.IN_USE


# Empty files


def test_an_old_empty_file_is_leaked() -> None:
    assert state(node(empty_file("10.244.1.9")), "10.244.1.9") is State.LEAKED


PINNED = cni_result(GONE, "shop/gone", CIDR, namespace="/var/run/netns/cni-9")
"""What libcni keeps of a sandbox whose network namespace was mounted."""


def test_an_address_whose_namespace_is_mounted_is_in_use_and_so_is_its_whole_sandbox() -> None:
    snapshot = node(LOST, reservation("fd00::9"), PINNED, mounted_namespaces=["/run/netns/cni-9"])
    for ip in (LOST.ip, "fd00::9"):
        one = classify_one(snapshot, ip)
        assert one.state is State.UNMANAGED
        assert one.why.endswith("its network namespace is still mounted, without a process: /run/netns/cni-9")


def test_an_address_whose_namespace_was_unmounted_is_leaked() -> None:
    snapshot = node(LOST, PINNED, mounted_namespaces=["/run/netns/cni-8"])
    assert classify_one(snapshot, LOST.ip).state is State.LEAKED


def test_without_the_mount_table_only_reservations_with_a_named_namespace_are_unknown() -> None:
    other = reservation("10.244.1.8", "8" * 64)
    blind = without(node(LOST, other, PINNED), "mounted_namespaces")
    assert classify_one(blind, LOST.ip).state is State.UNKNOWN
    assert classify_one(blind, LOST.ip).why == "mounted_namespaces: it gave no word"
    assert classify_one(blind, other.ip).state is State.LEAKED


def test_an_empty_file_whose_address_is_configured_is_in_use() -> None:
    assert state(node(empty_file("10.244.1.2"), reservations=[]), "10.244.1.2") is State.UNMANAGED


def test_an_empty_file_is_classified_without_docker() -> None:
    snapshot = without(node(empty_file("10.244.1.9")), "containers", "checkpoints")
    assert state(snapshot, "10.244.1.9") is State.LEAKED


def test_empty_files_are_classified_separately() -> None:
    recent, old = empty_file("10.244.1.8", age=timedelta(0)), empty_file("10.244.1.9")
    snapshot = node(recent, old)
    assert (state(snapshot, recent.ip), state(snapshot, old.ip)) == (State.CANDIDATE, State.LEAKED)


# Unread


def test_a_node_without_data_has_no_reservations_to_classify() -> None:
    assert assessment(dark_node()).reservations == ()


def test_without_docker_everything_is_unknown() -> None:
    snapshot = without(node(LOST), "containers")
    assert {one.state for one in assessment(snapshot).reservations} == {State.UNKNOWN}
    assert classify_one(snapshot, LOST.ip).why == "containers: it gave no word"


@pytest.mark.parametrize(
    "snapshot",
    [
        without(node(LOST, sandbox(DB_ID, "shop/db", "exited")), "checkpoints"),
        without(node(LOST), "addresses"),
        node(LOST, addresses=NotRequested("addresses", "nobody needed them")),
        without(node(LOST), "pods"),
    ],
    ids=["checkpoints unread", "addresses unread", "addresses not asked", "pods unread"],
)
def test_an_unavailable_source_makes_only_its_dependents_unknown(snapshot: Snapshot) -> None:
    assert state(snapshot, LOST.ip) is State.UNKNOWN
    assert state(snapshot, "10.244.1.2") is State.IN_USE
    assert state(snapshot, "10.244.1.3") in {State.IN_USE, State.NOT_READY}


def test_a_checkpoint_is_enough_without_namespaces_and_pods() -> None:
    snapshot = without(node(LOST, Checkpoint(GONE, "shop/cart")), "addresses", "pods")
    assert state(snapshot, LOST.ip) is State.TEARDOWN_PENDING


def test_a_namespace_is_enough_without_the_api_server() -> None:
    assert state(without(node(LOST, Address(LOST.ip, 1, "java")), "pods"), LOST.ip) is State.UNMANAGED


def test_with_the_api_disabled_the_other_owners_decide() -> None:
    assert state(without_api(node(LOST)), LOST.ip) is State.LEAKED


def test_without_libcnis_cache_it_is_unknown_whether_the_namespace_is_mounted() -> None:
    blind = without(node(LOST, empty_file("10.244.1.8")), "cni_results")
    assert classify_one(blind, LOST.ip).why == "cni_results: it gave no word"
    assert state(blind, LOST.ip) is State.UNKNOWN
    assert state(blind, "10.244.1.8") is State.LEAKED, "an empty file names no sandbox"


@pytest.mark.parametrize("source", ["node", "processes"])
def test_sources_that_only_name_pods_change_no_state(source: str) -> None:
    snapshot = without(node(LOST), source)
    assert [one.state for one in assessment(snapshot).reservations] == [
        one.state for one in assessment(node(LOST)).reservations
    ]


# Sandboxes with several addresses

V6 = reservation("fd00::9")


def test_a_dual_stack_sandbox_is_leaked_as_a_whole() -> None:
    snapshot = node(LOST, V6)
    assert (state(snapshot, LOST.ip), state(snapshot, V6.ip)) == (State.LEAKED, State.LEAKED)


@pytest.mark.parametrize(
    ("owner", "expected"),
    [(Address(V6.ip, 1, "java"), State.UNMANAGED), (pod("shop/cart", V6.ip), State.UNMANAGED)],
    ids=["in a namespace", "of a live pod"],
)
def test_one_address_in_use_keeps_the_other_in_use(owner: Address, expected: State) -> None:
    classified = classify_one(node(LOST, V6, owner), LOST.ip)
    assert classified.state is expected
    assert classified.why.startswith(f"same sandbox as {V6.ip}: ")


def test_one_candidate_address_keeps_the_other_a_candidate() -> None:
    assert state(node(LOST, reservation(V6.ip, age=timedelta(0))), LOST.ip) is State.CANDIDATE


def test_one_address_from_the_future_keeps_the_other_from_being_leaked() -> None:
    assert state(node(LOST, reservation(V6.ip, age=timedelta(days=-1))), LOST.ip) is State.UNKNOWN


def test_in_use_takes_precedence_over_candidate_and_unknown() -> None:
    recent, strange = reservation("10.244.1.10", age=timedelta(0)), reservation("10.244.1.11", age=timedelta(days=-1))
    snapshot = node(recent, strange, LOST, Address(LOST.ip, 1, "java"))
    assert {state(snapshot, one.ip) for one in (recent, strange, LOST)} == {State.UNMANAGED}


def test_a_sandbox_is_classified_as_a_whole_across_networks() -> None:
    second = reservation("10.99.0.9", network="storage", ifname="net1")
    snapshot = node(LOST, second, Address(second.ip, 1, "java"))
    assert (state(snapshot, LOST.ip), state(snapshot, second.ip, "storage")) == (State.UNMANAGED, State.UNMANAGED)


def test_with_another_network_unavailable_a_sandbox_may_be_in_use_there() -> None:
    snapshot = node(LOST, empty_file("10.244.1.10"), unread_networks=["storage"])
    assert state(snapshot, LOST.ip) is State.UNKNOWN
    assert state(snapshot, "10.244.1.2") is State.IN_USE
    assert state(snapshot, "10.244.1.10") is State.LEAKED, "an empty file has no sandbox that could be in use elsewhere"
    in_use = node(LOST, Address(LOST.ip, 1, "java"), unread_networks=["storage"])
    assert state(in_use, LOST.ip) is State.UNMANAGED


# Names


def test_the_pod_of_a_leak_comes_from_any_source_that_knows_it() -> None:
    assert classify_one(node(LOST), LOST.ip).pod == ""
    assert classify_one(node(LOST, cni_result(GONE, "shop/from-cni", CIDR)), LOST.ip).pod == "shop/from-cni"
    remembered = node(LOST, cni_result(GONE, "shop/from-cni"), Checkpoint(GONE, "shop/from-checkpoint"))
    assert classify_one(remembered, LOST.ip).pod == "shop/from-checkpoint"
    listed = node(LOST, Checkpoint(GONE, "shop/from-checkpoint"), sandbox(GONE, "shop/from-docker"))
    assert classify_one(listed, LOST.ip).pod == "shop/from-docker"


def test_files_not_written_by_host_local_are_listed_as_unrecognized() -> None:
    classified = classify_one(node(unrecognized("10.244.1.9", blocks=True)), "10.244.1.9")
    assert (classified.state, classified.why, classified.blocks) == (State.UNRECOGNIZED, "it is a directory", True)


def test_unrecognized_entries_do_not_depend_on_other_sources() -> None:
    assert state(without(node(unrecognized("notes.txt")), "containers"), "notes.txt") is State.UNRECOGNIZED


def test_healthy_pods_have_the_reservations_of_the_builders() -> None:
    assert [one.entry for one in assessment(node()).reservations] == list(RESERVATIONS)
