"""The state of each reservation: one test for each kind of owner, and for each kind of missing data."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

from agent.model.assessment import State
from agent.model.snapshot import Address, Checkpoint, NotRequested
from tests.builders import (
    CIDR,
    DB_ID,
    GONE,
    GRACE,
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


STRANGE_MTIMES = (-(2**63), 2**63 - 1, 253402300800 * 10**9, 10**30, -(10**30))


def lost(*owners: Any) -> State:
    return state(node(LOST, *owners), LOST.ip)


def test_without_any_owner_a_reservation_is_leaked() -> None:
    assert {entry.state for entry in assessment(node()).reservations} == {State.IN_USE}
    assert lost() is State.LEAKED
    almost = GONE[:-1] + "8"
    assert lost(sandbox(almost, "shop/cart"), Checkpoint(almost, "shop/cart")) is State.LEAKED, "IDs count in full"


def test_a_container_owns_its_address_in_any_state() -> None:
    for word in ("running", "paused", "restarting"):
        assert lost(sandbox(GONE, "shop/cart", word)) is State.IN_USE
    for word in ("created", "removing", "exited", "dead", "a word of a later docker"):
        classified = classify_one(node(LOST, sandbox(GONE, "shop/cart", word)), LOST.ip)
        assert (classified.state, classified.why) == (State.NOT_READY, f"its container is {word}")
    (plain,) = (container for container in node().containers.known() if container.id == "c" * 64)
    assert state(node(reservation("10.244.1.9", plain.id)), "10.244.1.9") is State.NOT_READY, "not only a sandbox"


def test_the_strongest_owner_is_named_first() -> None:
    everyone = (sandbox(GONE, "shop/cart"), Checkpoint(GONE, "shop/cart"), Address(LOST.ip, 1, "java"))
    assert lost(*everyone) is State.IN_USE
    assert lost(*everyone[1:]) is State.TEARDOWN_PENDING
    assert lost(*everyone[2:]) is State.UNMANAGED
    assert "process 1 (java)" in classify_one(node(LOST, everyone[2]), LOST.ip).why


def test_a_live_pod_owns_each_of_its_own_addresses() -> None:
    for owner in (
        *(pod("shop/cart", LOST.ip, phase=phase) for phase in ("Running", "Pending", "Unknown", "")),
        pod("shop/cart", LOST.ip, deleting=True),
        pod("shop/cart", "fd00::9", LOST.ip),
    ):
        assert lost(owner) is State.UNMANAGED
    for other in (
        pod("shop/cart", LOST.ip, phase="Succeeded"),
        pod("shop/cart", LOST.ip, phase="Failed"),
        pod("kube-system/agent", LOST.ip, host_network=True),
    ):
        assert lost(other) is State.LEAKED


# Age


def test_an_ownerless_reservation_is_leaked_only_after_the_grace_period() -> None:
    for age, expected in (
        (GRACE - timedelta(seconds=1), State.CANDIDATE),
        (GRACE, State.LEAKED),
        (timedelta(0), State.CANDIDATE),
        (timedelta(seconds=-9), State.CANDIDATE),
        (timedelta(seconds=-11), State.UNKNOWN),
        (timedelta(days=-400), State.UNKNOWN),
        (timedelta(days=20000), State.LEAKED),
    ):
        assert state(node(reservation("10.244.1.9", age=age)), "10.244.1.9") is expected
        assert state(node(empty_file("10.244.1.9", age=age)), "10.244.1.9") is expected
    now = node(reservation("10.244.1.9", age=timedelta(0)))
    assert state(now, "10.244.1.9", grace=timedelta(0)) is State.LEAKED


def test_a_file_from_the_future_or_out_of_the_calendar_is_classified() -> None:
    classified = classify_one(node(reservation("10.244.1.9", age=timedelta(hours=-1))), "10.244.1.9")
    assert classified.why == "its file is 1h newer than this snapshot: the clock was changed"
    for mtime_ns in STRANGE_MTIMES:
        expected = State.UNKNOWN if mtime_ns > 0 else State.LEAKED
        assert state(node(replace(LOST, mtime_ns=mtime_ns)), LOST.ip) is expected


def test_an_address_in_use_does_not_depend_on_the_clock() -> None:
    for age in (timedelta(days=-1), timedelta(0), timedelta(days=400)):
        assert state(node(reservations=[reservation("10.244.1.2", WEB_ID, age=age)]), "10.244.1.2") is State.IN_USE


# Namespaces and empty files

PINNED = cni_result(GONE, "shop/gone", CIDR, namespace="/var/run/netns/cni-9")
"""What libcni keeps of a sandbox whose network namespace was mounted."""


def test_an_address_whose_namespace_is_mounted_is_in_use_and_so_is_its_whole_sandbox() -> None:
    snapshot = node(LOST, reservation("fd00::9"), PINNED, mounted_namespaces=["/run/netns/cni-9"])
    for ip in (LOST.ip, "fd00::9"):
        entry = classify_one(snapshot, ip)
        assert entry.state is State.UNMANAGED
        assert entry.why.endswith("its network namespace is still mounted, without a process: /run/netns/cni-9")
    assert state(node(LOST, PINNED, mounted_namespaces=["/run/netns/cni-8"]), LOST.ip) is State.LEAKED


def test_without_the_mount_table_only_reservations_with_a_named_namespace_are_unknown() -> None:
    other = reservation("10.244.1.8", "8" * 64)
    blind = without(node(LOST, other, PINNED), "mounted_namespaces")
    named = classify_one(blind, LOST.ip)
    assert (named.state, named.why) == (State.UNKNOWN, "mounted_namespaces: it gave no word")
    assert state(blind, other.ip) is State.LEAKED


def test_an_empty_file_names_no_sandbox() -> None:
    old, recent = empty_file("10.244.1.9"), empty_file("10.244.1.8", age=timedelta(0))
    assert [state(node(old, recent), reserved.ip) for reserved in (old, recent)] == [State.LEAKED, State.CANDIDATE]
    assert state(node(empty_file("10.244.1.2"), reservations=[]), "10.244.1.2") is State.UNMANAGED, "configured"
    assert state(without(node(old), "containers", "checkpoints"), old.ip) is State.LEAKED


# Unread


def test_without_the_runtime_everything_is_unknown() -> None:
    assert assessment(dark_node()).reservations == ()
    snapshot = without(node(LOST), "containers")
    assert {entry.state for entry in assessment(snapshot).reservations} == {State.UNKNOWN}
    assert classify_one(snapshot, LOST.ip).why == "containers: it gave no word"


def test_an_unavailable_source_makes_only_its_dependents_unknown() -> None:
    for snapshot in (
        without(node(LOST, sandbox(DB_ID, "shop/db", "exited")), "checkpoints"),
        without(node(LOST), "addresses"),
        node(LOST, addresses=NotRequested("addresses", "nobody needed them")),
        without(node(LOST), "pods"),
    ):
        assert state(snapshot, LOST.ip) is State.UNKNOWN
        assert state(snapshot, "10.244.1.2") is State.IN_USE
        assert state(snapshot, "10.244.1.3") in {State.IN_USE, State.NOT_READY}
    blind = without(node(LOST, empty_file("10.244.1.8")), "cni_results")
    assert classify_one(blind, LOST.ip).why == "cni_results: it gave no word"
    assert state(blind, "10.244.1.8") is State.LEAKED, "an empty file names no sandbox"


def test_one_proof_of_use_is_enough() -> None:
    pending = without(node(LOST, Checkpoint(GONE, "shop/cart")), "addresses", "pods")
    assert state(pending, LOST.ip) is State.TEARDOWN_PENDING
    assert state(without(node(LOST, Address(LOST.ip, 1, "java")), "pods"), LOST.ip) is State.UNMANAGED
    assert state(without_api(node(LOST)), LOST.ip) is State.LEAKED, "the others decide"


# Sandboxes with several addresses

V6 = reservation("fd00::9")


def test_a_sandbox_is_leaked_as_a_whole_or_not_at_all() -> None:
    assert {state(node(LOST, V6), ip) for ip in (LOST.ip, V6.ip)} == {State.LEAKED}
    for owner in (Address(V6.ip, 1, "java"), pod("shop/cart", V6.ip)):
        classified = classify_one(node(LOST, V6, owner), LOST.ip)
        assert classified.state is State.UNMANAGED
        assert classified.why.startswith(f"same sandbox as {V6.ip}: ")
    for age, expected in ((timedelta(0), State.CANDIDATE), (timedelta(days=-1), State.UNKNOWN)):
        assert state(node(LOST, reservation(V6.ip, age=age)), LOST.ip) is expected
    recent, strange = reservation("10.244.1.10", age=timedelta(0)), reservation("10.244.1.11", age=timedelta(days=-1))
    snapshot = node(recent, strange, LOST, Address(LOST.ip, 1, "java"))
    assert {state(snapshot, reserved.ip) for reserved in (recent, strange, LOST)} == {State.UNMANAGED}


def test_a_sandbox_is_classified_as_a_whole_across_networks() -> None:
    second = reservation("10.99.0.9", network="storage", ifname="net1")
    snapshot = node(LOST, second, Address(second.ip, 1, "java"))
    assert (state(snapshot, LOST.ip), state(snapshot, second.ip, "storage")) == (State.UNMANAGED, State.UNMANAGED)
    unread = node(LOST, empty_file("10.244.1.10"), unread_networks=["storage"])
    assert state(unread, LOST.ip) is State.UNKNOWN, "it may be in use there"
    assert state(unread, "10.244.1.2") is State.IN_USE
    assert state(unread, "10.244.1.10") is State.LEAKED
    assert state(node(LOST, Address(LOST.ip, 1, "java"), unread_networks=["storage"]), LOST.ip) is State.UNMANAGED


def test_a_sandbox_whose_own_result_names_no_pod_may_be_another_programs() -> None:
    for network, pod_name, expected in (
        ("storage", "", State.UNKNOWN),
        ("storage", "shop/cart", State.LEAKED),
        ("storage", None, State.LEAKED),  # libcni < 0.8 keeps no names
        ("kubenet", "", State.LEAKED),  # it passes none
    ):
        result, there = cni_result(GONE, pod_name, network=network), reservation("10.99.0.9", network=network)
        assert state(node(there, result), there.ip, network) is expected
        assert state(node(there, result, Address(there.ip, 1, "java")), there.ip, network) is State.UNMANAGED
    elsewhere = cni_result(GONE, "", network="storage")
    assert lost(elsewhere) is State.LEAKED


# Names


def test_the_pod_of_a_leak_comes_from_any_source_that_knows_it() -> None:
    cached, kept = cni_result(GONE, "shop/from-cni", CIDR), Checkpoint(GONE, "shop/from-checkpoint")
    listed = sandbox(GONE, "shop/from-docker")
    for records, name in (
        ((), ""),
        ((cached,), "shop/from-cni"),
        ((cached, kept), "shop/from-checkpoint"),
        ((kept, listed), "shop/from-docker"),
    ):
        assert classify_one(node(LOST, *records), LOST.ip).pod == name


def test_files_not_written_by_host_local_are_listed_as_unrecognized() -> None:
    classified = classify_one(node(unrecognized("10.244.1.9", blocks=True)), "10.244.1.9")
    assert (classified.state, classified.why, classified.blocks) == (State.UNRECOGNIZED, "it is a directory", True)
    assert state(without(node(unrecognized("notes.txt")), "containers"), "notes.txt") is State.UNRECOGNIZED
