"""Whose a network's directory is: the pods', an earlier setup's, or another program's. Pure.

The CNI configuration decides, and running sandboxes with reservations in the directory. Of any other directory nothing
is judged: by the list of the pods' runtime, all of its reservations would look leaked.
"""

import re
from dataclasses import replace
from datetime import timedelta
from posixpath import normpath
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
    is_missing,
    known_or,
)

_PODMAN: Final = re.compile(r"podman|cni-podman\d+")
_PRIMARY: Final = frozenset({"eth0", ""})
"""The interface that gives a pod its address; empty in the format of host-local < 0.8.0."""
_WAITED: Final = timedelta(minutes=1)


def cleanable(snapshot: Snapshot) -> frozenset[str]:
    """Return the networks that the configuration names as those of the pods."""
    return frozenset(one.name for one in known_or(snapshot.networks, ()) if one.may_use_host_local)


def attributed(store: NetworkStore, snapshot: Snapshot) -> NetworkStore:
    """Return the store as it is if it is the pods', else one that is not requested, or unavailable."""
    if _PODMAN.fullmatch(store.network):
        return _not_in_use(store, "its addresses are those of podman", snapshot)
    network = next((one for one in known_or(snapshot.networks, ()) if one.name == store.network), None)
    if network:
        return _configured(store, network, snapshot)
    if not isinstance(store.reading, Known) and not _has_no_kubenet(store, snapshot):
        return store
    # Whoever names a network knows it; kubenet may be named for a fleet of which only some nodes have it.
    if _is_in_use(store, snapshot) or (not store.discovered and store.network != KUBENET):
        return store
    if program := _program(store):
        return _not_in_use(store, f"its addresses are those of {program}", snapshot)
    return _unnamed(store, snapshot)


def _configured(store: NetworkStore, network: RuntimeNetwork, snapshot: Snapshot) -> NetworkStore:
    if not network.may_use_host_local:
        return _not_in_use(store, f"network {network.name} uses {network.ipam}", snapshot)
    if is_missing(store.reading):
        return _missing(store, snapshot, ", ".join(network.plugins) if not network.ipam else "")
    return store


def _missing(store: NetworkStore, snapshot: Snapshot, plugins: str) -> NetworkStore:
    """Return an empty store if host-local may not have made its directory yet."""
    if plugins and not _allocated(store, snapshot):
        why = f"network {store.network} ({plugins}) has no directory of host-local"
        return _not_in_use(store, why, snapshot)
    unavailable = isinstance(snapshot.containers, Unavailable)
    return store if unavailable or not store.absent or _missed(store, snapshot) else replace(store, reading=Known(()))


def _missed(store: NetworkStore, snapshot: Snapshot) -> frozenset[str]:
    """Return the running sandboxes that should have an address in a directory that is missing."""
    pods = {pod.name for pod in known_or(snapshot.pods, ()) if pod.host_network}
    on_host = {one.container_id for one in known_or(snapshot.checkpoints, ()) if one.host_network}
    on_host |= {one.id for one in known_or(snapshot.containers, ()) if one.pod in pods}
    elsewhere = {one.container_id for one in known_or(snapshot.cni_results, ()) if one.network != store.network}
    for other in snapshot.reservations:
        elsewhere |= {one.container_id for one in known_or(other.reading, ())}
    return _running(snapshot) - on_host - (elsewhere - _allocated(store, snapshot))


def _has_no_kubenet(store: NetworkStore, snapshot: Snapshot) -> bool:
    """Return whether it is a missing directory of kubenet, on a node that does not use it."""
    return store.network == KUBENET and is_missing(store.reading) and isinstance(snapshot.networks, Known)


def _unnamed(store: NetworkStore, snapshot: Snapshot) -> NetworkStore:
    for reading in (snapshot.networks, snapshot.containers, snapshot.cni_results):
        if isinstance(reading, Unavailable):
            if store.network == KUBENET or _has_only_pods(store, snapshot):
                return store  # each of its reservations is unknown
            why = f"it is unknown whether pods use network {store.network}: {reading.source}: {reading.why}"
            return replace(store, reading=Unavailable("reservations", why), unrecognized=())
    if isinstance(snapshot.networks, NotRequested):
        kept = store.network == KUBENET or not store.discovered
        return store if kept else _not_in_use(store, snapshot.networks.why, snapshot)
    if any(not one.pod for one in _results(store, snapshot)):
        return _not_in_use(store, "libcni's cache has IDs of this network that are not those of pods", snapshot)
    names = ", ".join(one.name for one in known_or(snapshot.networks, ()))
    why = (
        f"the pods of this node get their addresses from network {names}"
        if names
        else "the kubelet uses no CNI network"
    )
    return _not_in_use(store, why, snapshot)


def _not_in_use(store: NetworkStore, why: str, snapshot: Snapshot) -> NetworkStore:
    """Return a store of which nothing is judged, with what is left over in it."""
    reading = NotRequested("reservations", why)
    return replace(store, reading=reading, unrecognized=(), left_over=_left_over(store, snapshot))


def _is_in_use(store: NetworkStore, snapshot: Snapshot) -> bool:
    """Return whether running pods show that it is theirs, or libcni's cache that it gives pods a further interface."""
    reserved = {one.container_id for one in known_or(store.reading, ())} | _allocated(store, snapshot)
    if not reserved.isdisjoint(_running(snapshot)):
        return True
    results = _results(store, snapshot)
    # kubenet passes no names of pods.
    only_pods = store.network == KUBENET or all(one.pod for one in results)
    return only_pods and any(one.ifname not in _PRIMARY for one in results)


def _results(store: NetworkStore, snapshot: Snapshot) -> tuple[CniResult, ...]:
    return tuple(one for one in known_or(snapshot.cni_results, ()) if one.network == store.network)


def _has_only_pods(store: NetworkStore, snapshot: Snapshot) -> bool:
    results = _results(store, snapshot)
    return bool(results) and all(result.pod for result in results)


def _allocated(store: NetworkStore, snapshot: Snapshot) -> frozenset[str]:
    """Return the sandboxes with an address from this directory by libcni's cache; without a `dataDir`, the network."""
    return frozenset(
        one.container_id
        for one in _results(store, snapshot)
        if not (one.data_dir and store.data_dir) or normpath(one.data_dir) == normpath(store.data_dir)
    )


def _running(snapshot: Snapshot) -> frozenset[str]:
    return frozenset(one.id for one in known_or(snapshot.containers, ()) if one.sandbox and one.running)


def _program(store: NetworkStore) -> str:
    """Return the program beside the kubelet whose IDs are in it; empty: none that is known."""
    return next((one.program for one in store.unrecognized if one.program), "")


def _left_over(store: NetworkStore, snapshot: Snapshot) -> LeftOver | None:
    """Return what is in the directory, if whoever wrote it is gone: older than every pod, or than the node's start.

    None while a pod waits for an address: the configuration may have been changed.
    """
    reservations = known_or(store.reading, ())
    containers = known_or(snapshot.containers, None)
    if not reservations or containers is None or not _is_settled(store, snapshot):
        return None
    ids = {one.container_id for one in reservations}
    times = [one.mtime_ns for one in reservations]
    if max(times) >= _since(snapshot) or not ids.isdisjoint(one.id for one in containers):
        return None
    pods = len(ids.intersection(one.container_id for one in _results(store, snapshot) if one.pod))
    return LeftOver(f"{store.data_dir}/{store.network}", len(times), min(times), max(times), pods)


def _is_settled(store: NetworkStore, snapshot: Snapshot) -> bool:
    """Return whether nobody else's addresses are in it, and no pod waits for one."""
    others = _PODMAN.fullmatch(store.network) or _program(store)
    return bool(known_or(snapshot.networks, ())) and not others and not _waits(snapshot)


def _waits(snapshot: Snapshot) -> bool:
    pods = (pod for pod in known_or(snapshot.pods, ()) if pod.live and not (pod.ips or pod.host_network))
    return any(not pod.scheduled or snapshot.taken_at - pod.scheduled > _WAITED for pod in pods)


def _since(snapshot: Snapshot) -> int:
    """Return the time before which nothing of this setup was made, in nanoseconds; 0: not known."""
    made = [one.created for one in known_or(snapshot.containers, ()) if one.sandbox and one.running]
    processes = known_or(snapshot.processes, None)
    booted = int(processes.booted.timestamp()) if processes else 0
    return max(min(made, default=0), booted) * 10**9
