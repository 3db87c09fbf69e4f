"""Whose a network's directory is that no setting names: the pods', an earlier setup's, or another program's. Pure.

The word of the kubelet's runtime decides. Where it names no networks (docker, CRI-O), or not this one (Multus), a
directory is the pods' if a running sandbox has a reservation in it and libcni's cache knows no ID of anyone else. Of
any other directory nothing is judged: by the list of the pods' runtime, all of its reservations would look leaked.
"""

import re
from dataclasses import replace
from typing import Final

from agent.model.assessment import KUBENET
from agent.model.runtime import RuntimeNetwork
from agent.model.snapshot import (
    CniResult,
    Known,
    LeftOver,
    NetworkStore,
    NotRequested,
    Snapshot,
    Unavailable,
    known_or,
)
from agent.sources import network_use

_PODMAN: Final = re.compile(r"podman|cni-podman\d+")


def attributed(store: NetworkStore, snapshot: Snapshot) -> NetworkStore:
    """Return the store as it is if it is the pods', else one that is not requested, or unavailable."""
    named = {one.name: one for one in known_or(snapshot.networks, ())}
    if network := named.get(store.network):
        return _of_the_runtime(store, network, snapshot)
    if not isinstance(store.reading, Known) or _is_of_pods(store, snapshot):
        return store
    if missing := _undecided(store, snapshot):
        return replace(store, reading=missing, unrecognized=())
    if not named and _is_newest(store, snapshot):
        return store
    return not_in_use(store, _why_not(store, snapshot, tuple(named)), snapshot)


def not_in_use(store: NetworkStore, why: str, snapshot: Snapshot) -> NetworkStore:
    """Return a store of which nothing is judged, with what is left over in it."""
    reading = NotRequested("reservations", why)
    return replace(store, reading=reading, unrecognized=(), left_over=_left_over(store, snapshot))


def cleanable(snapshot: Snapshot) -> frozenset[str]:
    """Return the networks that the kubelet's runtime names; where it never does, those of the pods' `eth0`."""
    if isinstance(snapshot.networks, NotRequested):
        read = (store for store in snapshot.reservations if isinstance(store.reading, Known))
        return frozenset(store.network for store in read if _is_primary(store, snapshot))
    return frozenset(one.name for one in known_or(snapshot.networks, ()) if one.may_use_host_local)


def _is_primary(store: NetworkStore, snapshot: Snapshot) -> bool:
    if store.network == KUBENET:
        return True
    return _is_of_pods(store, snapshot) and not network_use.is_secondary(store, snapshot)


def _of_the_runtime(store: NetworkStore, network: RuntimeNetwork, snapshot: Snapshot) -> NetworkStore:
    if not network.may_use_host_local:
        return not_in_use(store, f"the runtime's network {network.name} uses {network.ipam}", snapshot)
    if isinstance(store.reading, Unavailable) and " does not exist: " in store.reading.why:
        if network_use.was_never_used(store, snapshot) or _is_for_pods_to_come(store, snapshot):
            return replace(store, reading=Known(()))
        if not network.ipam:
            why = f"the runtime's network {network.name} ({', '.join(network.plugins)}) has no directory of host-local"
            return not_in_use(store, why, snapshot)
    return store


def _is_for_pods_to_come(store: NetworkStore, snapshot: Snapshot) -> bool:
    """Return whether the runtime has changed its network, and all pods that run have addresses of the one before."""
    elsewhere = network_use.where_instead(store, snapshot)
    return store.absent and bool(elsewhere) and not network_use.is_in_use(store, snapshot)


def _is_of_pods(store: NetworkStore, snapshot: Snapshot) -> bool:
    """Return whether a running pod has an address from it, and no other program has."""
    return network_use.is_in_use(store, snapshot) and _has_only_pods(store, snapshot)


def _has_only_pods(store: NetworkStore, snapshot: Snapshot) -> bool:
    """Return whether libcni's cache knows the network, and each ID as that of a pod. podman names no namespace."""
    cached = _cached(store, snapshot)
    return bool(cached) and all(one.pod for one in cached) and not _program(store)


def _cached(store: NetworkStore, snapshot: Snapshot) -> tuple[CniResult, ...]:
    return tuple(one for one in known_or(snapshot.cni_results, ()) if one.network == store.network)


def _undecided(store: NetworkStore, snapshot: Snapshot) -> Unavailable | None:
    """Return why it is not known whose the directory is."""
    if _program(store):
        return None
    for reading in (snapshot.networks, snapshot.containers, snapshot.cni_results):
        if isinstance(reading, Unavailable):
            why = f"it is unknown whether pods use network {store.network}: {reading.source}: {reading.why}"
            return Unavailable("reservations", why)
    return None


def _is_newest(store: NetworkStore, snapshot: Snapshot) -> bool:
    """Return whether the last sandbox with an address of its own had it from here: no pod runs that shows more."""
    if network_use.where_instead(store, snapshot) or network_use.newest_is_elsewhere(store, snapshot):
        return False
    return _has_only_pods(store, snapshot)


def _why_not(store: NetworkStore, snapshot: Snapshot, named: tuple[str, ...]) -> str:
    if program := _program(store):
        return f"its addresses are those of {program}"
    if named:
        return f"the runtime gives pods addresses from network {', '.join(named)}"
    if any(not one.pod for one in _cached(store, snapshot)):
        return "libcni's cache has IDs of this network that are not those of pods"
    return network_use.where_instead(store, snapshot) or "no running pod of this node has an address from it"


def _program(store: NetworkStore) -> str:
    """Return the program beside the kubelet whose addresses these are; empty: none that is known."""
    if _PODMAN.fullmatch(store.network):
        return "podman"
    return next((one.program for one in store.unrecognized if one.program), "")


def _left_over(store: NetworkStore, snapshot: Snapshot) -> LeftOver | None:
    """Return what is in the directory, if whoever wrote it is gone: older than every pod, or than the node's start."""
    reservations = known_or(store.reading, ())
    containers = known_or(snapshot.containers, None)
    if not reservations or containers is None or _program(store):
        return None
    ids = {one.container_id for one in reservations}
    times = [one.mtime_ns for one in reservations]
    if max(times) >= _since(snapshot) or not ids.isdisjoint(one.id for one in containers):
        return None
    pods = len(ids.intersection(one.container_id for one in _cached(store, snapshot) if one.pod))
    return LeftOver(f"{store.data_dir}/{store.network}", len(times), min(times), max(times), pods)


def _since(snapshot: Snapshot) -> int:
    """Return the time before which nothing of this setup was made, in nanoseconds; 0: not known."""
    made = [one.created for one in known_or(snapshot.containers, ()) if one.sandbox and one.running]
    processes = known_or(snapshot.processes, None)
    booted = int(processes.booted.timestamp()) if processes else 0
    return max(min(made, default=0), booted) * 10**9
