"""The state of each reservation: with each kind of owner, of each age, and with each kind of missing data."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

from agent.model.assessment import State
from agent.model.snapshot import Address, Checkpoint, NotRequested, Snapshot
from tests import builders as b
from tests.builders import (
    GONE,
    assessment,
    cni_result,
    empty_file,
    node,
    pod,
    reservation,
    sandbox,
    state,
    without,
)

LOST = reservation("10.244.1.9")  # An address whose container nobody knows
V6 = reservation("fd00::9")
SECOND = reservation("10.99.0.9", network="storage", ifname="net1")  # Two more of the same sandbox
CART, KEPT, JAVA = (
    sandbox(GONE, "shop/cart"),
    Checkpoint(GONE, "shop/cart"),
    Address(LOST.ip, 1, "java"),
)
PINNED = cni_result(GONE, "shop/gone", b.CIDR, namespace="/var/run/netns/cni-9")
"""What libcni keeps of a sandbox whose network namespace was mounted."""
IN_USE, NOT_READY, LEAKED, UNKNOWN = State.IN_USE, State.NOT_READY, State.LEAKED, State.UNKNOWN
CANDIDATE, UNMANAGED = State.CANDIDATE, State.UNMANAGED


def lost(*owners: Any) -> State:
    return state(node(LOST, *owners), LOST.ip)


def why(snapshot: Snapshot) -> str:
    return b.classify_one(snapshot, LOST.ip).why


def test_who_owns_an_address() -> None:
    assert {entry.state for entry in assessment(node()).reservations} == {IN_USE}
    almost = GONE[:-1] + "8"
    not_ready = [
        sandbox(GONE, "", word)
        for word in ("created", "removing", "exited", "dead", "a word of a later docker")
    ]
    for expected, owners in (
        (LEAKED, ()),
        (
            LEAKED,
            (sandbox(almost, "shop/cart"), Checkpoint(almost, "shop/cart")),
        ),  # IDs count in full
        *((IN_USE, (sandbox(GONE, "", word),)) for word in ("running", "paused", "restarting")),
        *((NOT_READY, (container,)) for container in not_ready),
        (NOT_READY, (replace(not_ready[0], sandbox=False),)),
        # The strongest is named first.
        (IN_USE, (CART, KEPT, JAVA)),
        (State.TEARDOWN_PENDING, (KEPT,)),
        *((UNMANAGED, (*kept, JAVA)) for kept in ((), (KEPT,))),  # no checkpoint hides a process
        # A live pod owns each of its own addresses.
        *(
            (UNMANAGED, (pod("shop/cart", LOST.ip, phase=phase),))
            for phase in ("Running", "Pending", "Unknown", "")
        ),
        (UNMANAGED, (pod("shop/cart", LOST.ip, deleting=True),)),
        (UNMANAGED, (pod("shop/cart", "fd00::9", LOST.ip),)),
        (LEAKED, (pod("shop/cart", LOST.ip, phase="Succeeded"),)),
        (LEAKED, (pod("shop/cart", LOST.ip, phase="Failed"),)),
        (LEAKED, (pod("kube-system/agent", LOST.ip, host_network=True),)),
    ):
        assert lost(*owners) is expected, owners
    assert why(node(LOST, not_ready[0])) == "its container is created"
    assert "process 1 (java)" in why(node(LOST, JAVA))


def test_an_address_whose_namespace_is_mounted_is_in_use_and_so_is_its_whole_sandbox() -> None:
    snapshot = node(LOST, V6, PINNED, mounted_namespaces=["/run/netns/cni-9"])
    assert {state(snapshot, ip) for ip in (LOST.ip, V6.ip)} == {UNMANAGED}
    assert why(snapshot).endswith(
        "its network namespace is still mounted, without a process: /run/netns/cni-9"
    )
    assert state(node(LOST, PINNED, mounted_namespaces=["/run/netns/cni-8"]), LOST.ip) is LEAKED
    # Without the mount table, only reservations with a named namespace are unknown.
    other = reservation("10.244.1.8", "8" * 64)
    blind = without(node(LOST, other, PINNED), "mounted_namespaces")
    assert (state(blind, LOST.ip), state(blind, other.ip)) == (UNKNOWN, LEAKED)
    assert why(blind) == "mounted_namespaces: it gave no word"


def test_a_sandbox_whose_own_result_names_no_pod_may_be_another_programs() -> None:
    for network, pod_name, expected in (
        ("storage", "", UNKNOWN),
        ("storage", "shop/cart", LEAKED),
        ("storage", None, LEAKED),  # libcni < 0.8 keeps no names
        ("kubenet", "", LEAKED),  # it passes none
    ):
        result, there = (
            cni_result(GONE, pod_name, network=network),
            reservation("10.99.0.9", network=network),
        )
        assert state(node(there, result), there.ip, network) is expected
        assert (
            state(node(there, result, Address(there.ip, 1, "java")), there.ip, network) is UNMANAGED
        )
    assert lost(cni_result(GONE, "", network="storage")) is LEAKED


def test_an_ownerless_reservation_is_leaked_only_after_the_grace_period() -> None:
    for age, expected in (
        (b.GRACE - timedelta(seconds=1), CANDIDATE),
        (b.GRACE, LEAKED),
        (timedelta(0), CANDIDATE),
        (timedelta(seconds=-9), CANDIDATE),
        (timedelta(seconds=-11), UNKNOWN),
        (timedelta(days=-400), UNKNOWN),
        (timedelta(days=20000), LEAKED),
    ):
        assert state(node(reservation(LOST.ip, age=age)), LOST.ip) is expected
        assert state(node(empty_file(LOST.ip, age=age)), LOST.ip) is expected
        in_use = node(reservations=[reservation("10.244.1.2", b.WEB_ID, age=age)])
        assert state(in_use, "10.244.1.2") is IN_USE, "whatever the clock"
    assert (
        state(node(reservation(LOST.ip, age=timedelta(0))), LOST.ip, grace=timedelta(0)) is LEAKED
    )
    future = node(reservation(LOST.ip, age=timedelta(hours=-1)))
    assert why(future) == "its file is 1h newer than this snapshot: the clock was changed"
    for mtime_ns in (-(2**63), 2**63 - 1, 253402300800 * 10**9, 10**30, -(10**30)):
        expected = UNKNOWN if mtime_ns > 0 else LEAKED
        assert state(node(replace(LOST, mtime_ns=mtime_ns)), LOST.ip) is expected


def test_an_unavailable_source_makes_only_its_dependents_unknown() -> None:
    assert assessment(b.dark_node()).reservations == ()
    no_runtime = without(node(LOST), "containers")
    assert {entry.state for entry in assessment(no_runtime).reservations} == {UNKNOWN}
    assert why(no_runtime) == "containers: it gave no word"
    for snapshot in (
        without(node(LOST, sandbox(b.DB_ID, "shop/db", "exited")), "checkpoints"),
        without(node(LOST), "addresses"),
        node(LOST, addresses=NotRequested("addresses", "nobody needed them")),
        without(node(LOST), "pods"),
        without(node(LOST), "runtimes"),
    ):
        assert state(snapshot, LOST.ip) is UNKNOWN
        assert state(snapshot, "10.244.1.2") is IN_USE
        assert state(snapshot, "10.244.1.3") in {IN_USE, NOT_READY}
    assert why(without(node(LOST), "cni_results")) == "cni_results: it gave no word"
    assert state(b.without_api(node(LOST)), LOST.ip) is LEAKED, "the others decide"
    # One proof of use is enough.
    assert state(without(node(LOST, KEPT), "addresses", "pods"), LOST.ip) is State.TEARDOWN_PENDING
    assert state(without(node(LOST, JAVA), "pods"), LOST.ip) is UNMANAGED
    # An empty file names no sandbox.
    old, recent = empty_file("10.244.1.9"), empty_file("10.244.1.8", age=timedelta(0))
    assert [state(node(old, recent), reserved.ip) for reserved in (old, recent)] == [
        LEAKED,
        CANDIDATE,
    ]
    assert state(node(empty_file("10.244.1.2"), reservations=[]), "10.244.1.2") is UNMANAGED, (
        "configured"
    )
    for sources in (("containers", "checkpoints"), ("cni_results",)):
        assert state(without(node(old), *sources), old.ip) is LEAKED


def test_a_sandbox_is_leaked_as_a_whole_or_not_at_all() -> None:
    assert {state(node(LOST, V6), ip) for ip in (LOST.ip, V6.ip)} == {LEAKED}
    for owner in (Address(V6.ip, 1, "java"), pod("shop/cart", V6.ip)):
        assert state(node(LOST, V6, owner), LOST.ip) is UNMANAGED
        assert why(node(LOST, V6, owner)).startswith(f"same sandbox as {V6.ip}: ")
    for age, expected in ((timedelta(0), CANDIDATE), (timedelta(days=-1), UNKNOWN)):
        assert state(node(LOST, reservation(V6.ip, age=age)), LOST.ip) is expected
    recent, strange = (
        reservation("10.244.1.10", age=timedelta(0)),
        reservation("10.244.1.11", age=timedelta(days=-1)),
    )
    for order in ((recent, strange, LOST), (LOST, strange, recent)):
        assert {state(node(*order, JAVA), reserved.ip) for reserved in order} == {UNMANAGED}
    # Across networks too.
    snapshot = node(LOST, SECOND, Address(SECOND.ip, 1, "java"))
    assert (state(snapshot, LOST.ip), state(snapshot, SECOND.ip, "storage")) == (
        UNMANAGED,
        UNMANAGED,
    )
    unread = node(LOST, empty_file("10.244.1.10"), unread_networks=["storage"])
    assert state(unread, LOST.ip) is UNKNOWN, "it may be in use there"
    assert [state(unread, ip) for ip in ("10.244.1.2", "10.244.1.10")] == [IN_USE, LEAKED]
    assert state(node(LOST, JAVA, unread_networks=["storage"]), LOST.ip) is UNMANAGED


def test_the_pod_of_a_leak_comes_from_any_source_that_knows_it() -> None:
    cached, kept = (
        cni_result(GONE, "shop/from-cni", b.CIDR),
        Checkpoint(GONE, "shop/from-checkpoint"),
    )
    listed = sandbox(GONE, "shop/from-docker")
    for records, name in (
        ((), ""),
        ((cached,), "shop/from-cni"),
        ((cached, kept), "shop/from-checkpoint"),
        ((kept, listed), "shop/from-docker"),
    ):
        assert b.classify_one(node(LOST, *records), LOST.ip).pod == name
    # Files not written by host-local are listed as unrecognized.
    classified = b.classify_one(node(b.unrecognized("10.244.1.9", blocks=True)), "10.244.1.9")
    why = "it is a directory; host-local cannot give out the address"
    assert (classified.state, classified.why, classified.blocks) == (State.UNRECOGNIZED, why, True)
    assert (
        state(without(node(b.unrecognized("notes.txt")), "containers"), "notes.txt")
        is State.UNRECOGNIZED
    )
