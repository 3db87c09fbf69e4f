"""Whose a network's directory is, from the configuration, failed ADDs, results and sandboxes."""

from dataclasses import replace
from datetime import timedelta
from typing import Any, Final

from agent.checks.readings import crosscheck
from agent.cleanup.guards import allowed_networks
from agent.model.assessment import State
from agent.model.runtime import RuntimeNetwork, WrittenRange
from agent.model.snapshot import (
    Known,
    NotRequested,
    Reservation,
    SandboxFailure,
    Snapshot,
    Unavailable,
)
from tests.builders import (
    DB_ID,
    GONE,
    NOW,
    OLD,
    PODS,
    WEB_ID,
    cni_result,
    findings_of,
    gap_of,
    make_limits,
    node,
    reservation,
    state,
    waiting_pod,
)

CREATED: Final = int((NOW - OLD).timestamp())
FULL: Final = "172.24.1.1-172.24.1.254"
FLANNEL: Final = RuntimeNetwork(
    "cbr0", ("flannel",), "host-local", ranges=((WrittenRange("172.24.1.0/24"),),)
)
BRIDGE: Final = RuntimeNetwork("crio-bridge", ("bridge",), "host-local")
OF_PODS: Final = tuple(
    reservation(ip, container_id, network="crio-bridge")
    for ip, container_id in (("10.244.1.2", WEB_ID), ("10.244.1.3", DB_ID))
)
LEAKS: Final = tuple(
    reservation(f"172.24.1.{last}", f"{last:064x}", network="cbr0") for last in range(2, 12)
)


def failure(network: str = "cbr0", **changes: Any) -> SandboxFailure:
    """What a pod that waits was told half a minute ago."""
    told = SandboxFailure(
        "shop/db-0",
        NOW - timedelta(seconds=30),
        f"no IP addresses available in range set: {FULL}",
        plugin="flannel",
        network=network,
        operation="add",
    )
    return replace(told, **changes)


def replaced(
    *failures: SandboxFailure, file_age: timedelta = OLD / 2, waits: bool = True, **given: Any
) -> Snapshot:
    """Running pods have their addresses from CRI-O's bridge; flannel's file came first later."""
    changed_ns = int((NOW - file_age).timestamp()) * 10**9
    first = replace(FLANNEL, changed_ns=changed_ns, later=(BRIDGE,))
    pods = (*PODS, waiting_pod(ago=OLD / 4)) if waits else PODS
    usual: dict[str, Any] = {"networks": (first,), "pods": pods, "cni_results": ()}
    usual |= {"reservations": (*OF_PODS, *LEAKS), "sandbox_failures": failures}
    snapshot = node(**{**usual, **given})
    stores = tuple(replace(store, discovered=True) for store in snapshot.reservations)
    return crosscheck.all_sources(replace(snapshot, reservations=stores))


def reading(snapshot: Snapshot, network: str) -> object:
    return next(store.reading for store in snapshot.reservations if store.network == network)


def why_unknown(snapshot: Snapshot) -> str:
    assert isinstance(snapshot.networks, Unavailable)
    return snapshot.networks.why


# A failed ADD


def test_a_failed_add_names_the_network_that_pods_are_given_now() -> None:
    by_its_range = failure("", exhausted=FULL, operation="")
    for told in (failure(), failure(exhausted=FULL), by_its_range):
        snapshot = replaced(told)
        assert [network.name for network in snapshot.networks.known()] == ["cbr0"]
        assert state(snapshot, "172.24.1.2", "cbr0") is State.LEAKED
        assert allowed_networks(make_limits(networks=frozenset({"auto"})), snapshot) == {"cbr0"}
        # Pods of before are still those of the other network.
        assert isinstance(reading(snapshot, "crio-bridge"), Known)
        assert state(snapshot, "10.244.1.2", "crio-bridge") is State.IN_USE


def test_a_failure_that_is_old_or_of_something_else_names_no_network() -> None:
    for told in (
        failure("other"),
        failure(at=None),
        failure(at=NOW - timedelta(minutes=7)),
        failure(operation="delete"),
        failure("", operation="", exhausted="10.99.0.1-10.99.0.9"),
        failure("", operation="", exhausted="of no range"),
    ):
        assert "it is unknown which of them new pods get" in why_unknown(replaced(told))


def test_a_failed_add_in_a_later_file_shows_that_the_first_is_skipped() -> None:
    snapshot = replaced(failure("crio-bridge"))
    assert [network.name for network in snapshot.networks.known()] == ["crio-bridge"]
    assert isinstance(reading(snapshot, "cbr0"), NotRequested)


def test_without_running_pods_a_failed_add_alone_names_a_later_file() -> None:
    for failures, expected in (((failure("crio-bridge"),), "crio-bridge"), ((), "cbr0")):
        snapshot = replaced(*failures, containers=(), pods=(waiting_pod(),), checkpoints=())
        assert [network.name for network in snapshot.networks.known()] == [expected]


def test_a_further_network_is_in_use_while_adds_fail_in_it() -> None:
    old = tuple(replace(leak, network="storage") for leak in LEAKS)
    for told, expected in ((failure("storage"), Known), (failure("cbr0"), NotRequested)):
        snapshot = replaced(told, reservations=(*OF_PODS, *old))
        assert isinstance(reading(snapshot, "storage"), expected)
        # It is judged, and nothing of it may be released without its name.
        allowed = allowed_networks(make_limits(networks=frozenset({"auto"})), snapshot)
        assert "storage" not in allowed


def test_no_advice_removes_the_file_of_a_network_that_a_waiting_pod_may_be_given() -> None:
    removal = "remove its file"
    skipped = "a plugin of cbr0 may be missing"
    before: dict[str, Any] = {"networks": (replace(FLANNEL, changed_ns=1),)}
    assert removal not in why_unknown(replaced())
    waiting = why_unknown(replaced(**before))
    assert skipped in waiting
    assert removal not in waiting
    assert "the Events of a pod that waits name the network" in waiting
    unknown = why_unknown(replaced(pods=NotRequested("pods", "--api=off"), **before))
    assert removal not in unknown
    quiet = why_unknown(replaced(waits=False, **before))
    assert f"{skipped} (install it, or {removal}" in quiet


# podman's network

OF_A_POD: Final = "10.88.0.20"
OF_PODMAN: Final = "10.88.0.30"
PODMAN: Final = RuntimeNetwork("podman", ("bridge",), "host-local")


def on_podman(*held: Reservation, results: tuple[Any, ...] = (), **given: Any) -> Snapshot:
    usual: dict[str, Any] = {"networks": (PODMAN,), "cni_results": results}
    snapshot = node(reservations=held, **{**usual, **given})
    stores = tuple(replace(store, discovered=True) for store in snapshot.reservations)
    return crosscheck.all_sources(replace(snapshot, reservations=stores))


def of_podman(ip: str, container_id: str = GONE) -> Reservation:
    return reservation(ip, container_id, network="podman")


def test_pods_may_have_podmans_network_and_podmans_own_addresses_are_kept() -> None:
    running = of_podman("10.88.0.2", WEB_ID)
    leak, container = of_podman(OF_A_POD), of_podman(OF_PODMAN, "8" * 64)
    for name in ("", "db/db", None):  # podman 4, before 4.0, libcni before 0.8
        results = (
            cni_result(GONE, "apps/old-0", "10.88.0.0/16", network="podman"),
            cni_result("8" * 64, name, "10.88.0.0/16", network="podman"),
        )
        snapshot = on_podman(running, leak, container, results=results)
        assert state(snapshot, OF_A_POD, "podman") is State.LEAKED
        assert state(snapshot, OF_PODMAN, "podman") is State.UNKNOWN
        assert state(snapshot, "10.88.0.2", "podman") is State.IN_USE
        leaks = [finding.subject for finding in findings_of("leaked_reservation", snapshot)]
        assert leaks == [f"podman/{OF_A_POD}"]
    # Nothing says whose they are.
    snapshot = on_podman(running, leak, of_podman("10.88.0.31", ""))
    assert state(snapshot, OF_A_POD, "podman") is State.UNKNOWN
    assert state(snapshot, "10.88.0.31", "podman") is State.UNKNOWN
    assert "cni_default_network" in gap_of("leaked_reservation", snapshot)


def test_a_network_of_podman_that_no_pod_has_is_podmans() -> None:
    for name in ("podman", "cni-podman1"):
        held = replace(of_podman(OF_PODMAN), network=name)
        result = cni_result(GONE, "apps/old-0", "10.88.0.0/16", network=name)
        snapshot = on_podman(held, networks=(BRIDGE,), results=(result,))
        seen = reading(snapshot, name)
        assert isinstance(seen, NotRequested)
        assert seen.why == "its addresses are those of podman"
    # Before the first pod, the configuration says it.
    snapshot = on_podman(of_podman(OF_PODMAN), containers=())
    assert state(snapshot, OF_PODMAN, "podman") is State.UNKNOWN
