"""The node's condition: from `exhausted_range`, patched when it changes and every five minutes."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

from hypothesis import given

from agent.model.snapshot import NetworkStore, Node, NotRequested, Snapshot
from tests.builders import node, reservation, scanned, unavailable, without
from tests.kube_events.agent import stored
from tests.strategies import nodes

EXHAUSTED, SCARCE, AVAILABLE, UNKNOWN = (
    f"CNIAddresses{word}" for word in ("Exhausted", "Scarce", "Available", "Unknown")
)
TINY = Node(
    "worker-1", ("10.244.1.0/29",), 6
)  # Five addresses for at most five pods with one; the pods have two
FULL = tuple(reservation(f"10.244.1.{n}") for n in (4, 5, 6))
SMALLER = node(FULL[0], node=[TINY])  # A leak takes the address of a pod that may come
WIDE = Node("worker-1", ("10.244.1.0/24",), 110)


def conditions(*snapshots: Snapshot) -> list[dict[str, Any]]:
    """Return what an agent sends in consecutive syncs."""
    with stored() as agent:
        return agent.sync(*snapshots)


def reasons(*snapshots: Snapshot) -> list[str]:
    return [condition["reason"] for condition in conditions(*snapshots)]


def test_the_condition_of_a_node() -> None:
    no_range = node(node=[], cni_results=[], reservations=[])
    for snapshot, status, reason, message in (
        (node(), "False", AVAILABLE, "kubenet: 251 of 253 addresses are free"),
        # A range smaller than the pod limit is no pressure.
        (
            node(node=[replace(TINY, max_pods=110)]),
            "False",
            AVAILABLE,
            "kubenet: 3 of 5 addresses are free",
        ),
        (no_range, "False", AVAILABLE, "kubenet: no address is reserved"),
        (SMALLER, "True", SCARCE, "kubenet: 2 free addresses for 3 more pods"),
        (node(*FULL, node=[TINY]), "True", EXHAUSTED, "kubenet: no free addresses"),
        *(
            (without(node(), source), "Unknown", UNKNOWN, source)
            for source in ("reservations", "node", "pods")
        ),
    ):
        (condition,) = conditions(*[snapshot] * 3)
        assert (condition["type"], condition["status"], condition["reason"]) == (
            "CNIAddressPressure",
            status,
            reason,
        )
        assert condition["message"].startswith(message)
    assert conditions(SMALLER) == [], "a candidate leaves the condition as it is"
    # A full network is reported though another one is unavailable.
    full = node(*FULL, node=[TINY])
    unread = NetworkStore("storage", unavailable("reservations"))
    both = replace(full, reservations=(*full.reservations, unread))
    assert reasons(both, both, both) == [EXHAUSTED]
    # A node without kubenet gets no condition, and keeps no old status.
    why = NotRequested("reservations", "no kubenet on this node: its runtime is containerd://1.6.4")
    for stored_status, expected in (("", []), ("True", [UNKNOWN])):
        elsewhere = replace(WIDE, runtime="containerd://1.6.4", address_pressure=stored_status)
        assert (
            reasons(replace(node(node=[elsewhere]), reservations=(NetworkStore("kubenet", why),)))
            == expected
        )


@given(nodes())
def test_the_status_is_never_false_without_data(snapshot: Snapshot) -> None:
    report = scanned(snapshot)
    full = any(tracked.finding.detector == "exhausted_range" for tracked in report.problems)
    has_gap = "exhausted_range" in {gap.detector for gap in report.gaps}
    (*_, condition) = conditions(snapshot, snapshot, snapshot)
    assert (condition["status"] == "True") == full
    assert (condition["status"] == "False") == (not full and not has_gap)


def test_the_condition_is_patched_every_five_minutes_and_when_it_changes() -> None:
    syncs = [without(node(), "node", "pods") if number == 30 else node() for number in range(41)]
    assert reasons(*syncs) == [AVAILABLE, AVAILABLE, UNKNOWN, AVAILABLE]
    # A change is patched at once with its transition time.
    with stored() as agent:
        (first,) = agent.sync(node())
        assert first["lastTransitionTime"] == first["lastHeartbeatTime"] == "2026-03-26T20:00:15Z"
        (scarce,) = agent.sync(*[node(FULL[0], node=[replace(TINY, address_pressure="False")])] * 3)
        assert (scarce["status"], scarce["lastTransitionTime"]) == ("True", "2026-03-26T20:01:00Z")
        # Scarce becomes exhausted: patched at once, without a transition.
        (exhausted,) = agent.sync(node(*FULL, node=[replace(TINY, address_pressure="True")]))
        assert exhausted["reason"] == EXHAUSTED
        assert "lastTransitionTime" not in exhausted


def test_a_restarted_agent_takes_the_status_from_the_node_object() -> None:
    for stored_status, turned in (("False", False), ("True", True), ("Unknown", True), ("", True)):
        (condition,) = conditions(node(node=[replace(WIDE, address_pressure=stored_status)]))
        assert ("lastTransitionTime" in condition) == turned, stored_status
    # An unavailable Node object is not one without the condition.
    silent = without(node(), "node")
    with stored() as agent:
        sent = [*agent.sync(silent), *agent.sync(silent, after=timedelta(hours=1))]
    assert ["lastTransitionTime" in condition for condition in sent] == [True, False]
