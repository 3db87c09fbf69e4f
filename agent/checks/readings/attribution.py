"""Whose a network's directory is: the pods', an earlier setup's, or another program's. Pure.

The CNI configuration decides, and running sandboxes with reservations in the directory. Of any other directory nothing
is judged: by the list of the pods' runtime, all of its reservations would look leaked.
"""

import re
from collections.abc import Collection
from dataclasses import replace
from datetime import timedelta
from posixpath import normpath
from typing import Final

from agent.model.assessment import KUBENET
from agent.model.runtime import RuntimeNetwork
from agent.model.snapshot import (
    CniResult,
    Container,
    Known,
    LeftOver,
    NetworkStore,
    NotRequested,
    Reading,
    Reservation,
    Snapshot,
    Unavailable,
    is_missing,
    known_or,
)

_PODMAN: Final = re.compile(r"podman|cni-podman\d+")
_PRIMARY: Final = frozenset(
    {"eth0", ""}
)  # what gives a pod its address; empty: of host-local < 0.8.0
_WAITED: Final = timedelta(minutes=1)
_RELOADED: Final = timedelta(minutes=1)  # until a runtime surely uses a changed configuration


def cleanable(snapshot: Snapshot) -> frozenset[str]:
    """Return the networks that the configuration names as those of the pods."""
    return frozenset(
        network.name for network in known_or(snapshot.networks, ()) if network.may_use_host_local
    )


def of_pods(snapshot: Snapshot) -> Reading[tuple[RuntimeNetwork, ...]]:
    """Return the networks. Where they are of a first file, running sandboxes must not show that another one is used."""
    read = known_or(snapshot.networks, ())
    if not read or not read[0].changed_ns or not isinstance(snapshot.cni_results, Known):
        return snapshot.networks
    names = {network.name for network in read}
    recent = _with_addresses(
        names, snapshot, read[0].changed_ns / 10**9 + _RELOADED.total_seconds()
    )
    used = recent or _with_addresses(names, snapshot)
    if used & names or not any(
        store.discovered for store in snapshot.reservations
    ):  # or settings name all networks
        return snapshot.networks
    return _of_another_file(read[0], used, certain=bool(recent)) or snapshot.networks


def _of_another_file(
    first: RuntimeNetwork, used: frozenset[str], *, certain: bool
) -> Reading[tuple[RuntimeNetwork, ...]] | None:
    """Return the networks where none of the pods uses the first file's; None: it comes next, as far as is known."""
    later = tuple(network for network in first.later if network.name in used)
    if certain and later and len(used) == 1:
        return Known(later)
    if not certain and not (later and first.may_use_host_local):
        return None
    why = f"running pods have their addresses from network {', '.join(sorted(used))}, and none from {first.name}, which"
    remedy = "remove its file, or set --cni-config-dir or --network"
    return Unavailable(
        "networks", f"{why} is first in the CNI configuration: a plugin may be missing ({remedy})"
    )


def _with_addresses(names: Collection[str], snapshot: Snapshot, since: float = 0) -> frozenset[str]:
    """Return the networks that sandboxes made since have their address from; by results too, of these names."""
    made = {
        container.id for container in known_or(snapshot.containers, ()) if container.created > since
    }
    made &= running_sandboxes(snapshot.containers)
    results = (result for result in known_or(snapshot.cni_results, ()) if result.network in names)
    held: list[CniResult | Reservation] = [*results]
    for store in snapshot.reservations:
        held += known_or(store.reading, ())
    return frozenset(
        record.network
        for record in held
        if record.ifname in _PRIMARY and record.container_id in made
    )


def attributed(store: NetworkStore, snapshot: Snapshot) -> NetworkStore:
    """Return the store as it is if it is the pods', else a store that is not requested, or unavailable."""
    has_pods = not _ids(store).isdisjoint(running_sandboxes(snapshot.containers))
    if _PODMAN.fullmatch(store.network):
        why = "its addresses are those of podman"
        return (
            _unavailable(store, f"{why}, and of pods")
            if has_pods
            else _not_in_use(store, why, snapshot)
        )
    if has_pods:
        return store
    named = next(
        (network for network in known_or(snapshot.networks, ()) if network.name == store.network),
        None,
    )
    return _configured(store, named, snapshot) if named else _not_configured(store, snapshot)


def _not_configured(store: NetworkStore, snapshot: Snapshot) -> NetworkStore:
    if not isinstance(store.reading, Known) and not _has_no_kubenet(store, snapshot):
        skipped = _is_of_skipped_file(store, snapshot)
        return _not_in_use(store, "its directory does not exist", snapshot) if skipped else store
    # Whoever names a network knows it; kubenet may be named for a fleet of which only some nodes have it.
    if _is_in_use(store, snapshot) or (not store.discovered and store.network != KUBENET):
        return store
    if program := _program(store):
        return _not_in_use(store, f"its addresses are those of {program}", snapshot)
    return _unnamed(store, snapshot)


def _is_of_skipped_file(store: NetworkStore, snapshot: Snapshot) -> bool:
    """Return whether only a first file named it, of which running sandboxes show that it may not be used."""
    known = store.discovered and not isinstance(snapshot.containers, Unavailable)
    return known and store.absent and not _missed(store, snapshot)


def _has_no_kubenet(store: NetworkStore, snapshot: Snapshot) -> bool:
    """Return whether it is a missing directory of kubenet, on a node that does not use it."""
    return (
        store.network == KUBENET
        and is_missing(store.reading)
        and isinstance(snapshot.networks, Known)
    )


def _configured(store: NetworkStore, network: RuntimeNetwork, snapshot: Snapshot) -> NetworkStore:
    if not network.may_use_host_local:
        return _not_in_use(store, f"network {network.name} uses {network.ipam}", snapshot)
    if not is_missing(store.reading):
        return store
    # A plugin without `ipam` gives libcni a result as well, whoever allocates the address: Cilium, Amazon VPC, OVN.
    plugins = "" if network.ipam else ", ".join(network.plugins)
    if plugins and not any(result.plugin for result in _results(store, snapshot)):
        return _not_in_use(
            store, f"network {store.network} ({plugins}) has no directory of host-local", snapshot
        )
    unavailable = isinstance(snapshot.containers, Unavailable)
    # Without any pod that has to have an address, host-local may not have made its directory yet.
    return (
        store
        if unavailable or not store.absent or _missed(store, snapshot)
        else replace(store, reading=Known(()))
    )


def _missed(store: NetworkStore, snapshot: Snapshot) -> frozenset[str]:
    """Return the running sandboxes that should have an address in a directory that is missing."""
    pods = {pod.name for pod in known_or(snapshot.pods, ()) if pod.host_network}
    on_host = {
        checkpoint.container_id
        for checkpoint in known_or(snapshot.checkpoints, ())
        if checkpoint.host_network
    }
    on_host |= {
        container.id for container in known_or(snapshot.containers, ()) if container.pod in pods
    }
    results = known_or(snapshot.cni_results, ())
    elsewhere = {result.container_id for result in results if result.network != store.network}
    elsewhere = elsewhere.union(*(_ids(other) for other in snapshot.reservations))
    return (
        running_sandboxes(snapshot.containers) - on_host - (elsewhere - _allocated(store, snapshot))
    )


def _unnamed(store: NetworkStore, snapshot: Snapshot) -> NetworkStore:
    """Return a store that neither a setting nor the configuration names."""
    for reading in (snapshot.networks, snapshot.containers, snapshot.cni_results):
        if isinstance(reading, Unavailable):
            return _undecided(store, f"{reading.source}: {reading.why}", snapshot)
    if isinstance(snapshot.networks, NotRequested):
        return (
            store
            if store.network == KUBENET
            else _not_in_use(store, snapshot.networks.why, snapshot)
        )
    if _is_failing(store, snapshot):
        return store
    if first := _skipped(store, snapshot):
        why = f"pods wait, and the runtime skips network {first}, which comes first, if a plugin of it is not installed"
        return _unavailable(store, why)
    names = ", ".join(network.name for network in known_or(snapshot.networks, ()))
    why = f"the pods of this node get their addresses from network {names}"
    return _not_in_use(store, why if names else "the kubelet uses no CNI network", snapshot)


def _is_failing(store: NetworkStore, snapshot: Snapshot) -> bool:
    """Return whether it may be that of an attachment whose ADD never succeeds, so that libcni caches no result."""
    done = {result.container_id for result in _results(store, snapshot)}
    failed = (
        found.mtime_ns for found in known_or(store.reading, ()) if found.container_id not in done
    )
    return max(failed, default=0) > _since(snapshot) and _waits(snapshot)


def _skipped(store: NetworkStore, snapshot: Snapshot) -> str:
    """Return the network of the first file if pods that wait may use this network instead: it had the last address."""
    for first in known_or(snapshot.networks, ())[:1]:
        is_later = store.network in {network.name for network in first.later}
        if is_later and _waits(snapshot) and _last(store) > _last_of(first.name, snapshot):
            return first.name
    return ""


def _last_of(network: str, snapshot: Snapshot) -> int:
    """Return when a network last had an address or a result, in nanoseconds; 0: never."""
    stores = [_last(store) for store in snapshot.reservations if store.network == network]
    results = [
        result.mtime_ns
        for result in known_or(snapshot.cni_results, ())
        if result.network == network
    ]
    return max(stores + results, default=0)


def _last(store: NetworkStore) -> int:
    return max((reservation.mtime_ns for reservation in known_or(store.reading, ())), default=0)


def _undecided(store: NetworkStore, why: str, snapshot: Snapshot) -> NetworkStore:
    results = _results(store, snapshot)
    if store.network == KUBENET or (results and all(result.pod for result in results)):
        return store  # each of its reservations is unknown
    return _unavailable(store, why)


def _unavailable(store: NetworkStore, why: str) -> NetworkStore:
    why = f"it is unknown whether pods use network {store.network}: {why}"
    return replace(store, reading=Unavailable("reservations", why), unrecognized=())


def _not_in_use(store: NetworkStore, why: str, snapshot: Snapshot) -> NetworkStore:
    """Return a store of which nothing is judged, with what is left over in it."""
    reading = NotRequested("reservations", why)
    return replace(store, reading=reading, unrecognized=(), left_over=_left_over(store, snapshot))


def _is_in_use(store: NetworkStore, snapshot: Snapshot) -> bool:
    """Return whether running pods show that it is theirs, or libcni's cache that it gives pods a further interface."""
    if not _allocated(store, snapshot).isdisjoint(running_sandboxes(snapshot.containers)):
        return True
    further = (result for result in _results(store, snapshot) if result.ifname not in _PRIMARY)
    return any(
        result.pod or store.network == KUBENET for result in further
    )  # which passes no names of pods


def _ids(store: NetworkStore) -> frozenset[str]:
    return frozenset(reservation.container_id for reservation in known_or(store.reading, ()))


def _results(store: NetworkStore, snapshot: Snapshot) -> tuple[CniResult, ...]:
    return tuple(
        result for result in known_or(snapshot.cni_results, ()) if result.network == store.network
    )


def _allocated(store: NetworkStore, snapshot: Snapshot) -> frozenset[str]:
    """Return the sandboxes with an address from this directory by libcni's cache; without a `dataDir`, the network."""
    return frozenset(
        result.container_id
        for result in _results(store, snapshot)
        if not (result.data_dir and store.data_dir)
        or normpath(result.data_dir) == normpath(store.data_dir)
    )


def running_sandboxes(containers: Reading[tuple[Container, ...]]) -> frozenset[str]:
    """Return their IDs; none where the list is not known."""
    return frozenset(
        container.id
        for container in known_or(containers, ())
        if container.sandbox and container.running
    )


def _program(store: NetworkStore) -> str:
    """Return the program beside the kubelet whose IDs are in it; empty: none that is known."""
    return next((entry.program for entry in store.unrecognized if entry.program), "")


def _left_over(store: NetworkStore, snapshot: Snapshot) -> LeftOver | None:
    """Return what is in the directory, if whoever wrote it is gone: older than every pod, or than the node's start."""
    # None while a pod waits for an address: the configuration may have been changed.
    ids, times = _ids(store), [reservation.mtime_ns for reservation in known_or(store.reading, ())]
    if not ids or not _is_settled(store, snapshot) or max(times) >= _since(snapshot):
        return None
    if not ids.isdisjoint(container.id for container in known_or(snapshot.containers, ())):
        return None
    pods = len(
        ids.intersection(result.container_id for result in _results(store, snapshot) if result.pod)
    )
    return LeftOver(f"{store.data_dir}/{store.network}", len(times), min(times), max(times), pods)


def _is_settled(store: NetworkStore, snapshot: Snapshot) -> bool:
    """Return whether nobody else's addresses are in it, and no pod waits for an address."""
    if not isinstance(snapshot.containers, Known) or not known_or(snapshot.networks, ()):
        return False
    return not (_PODMAN.fullmatch(store.network) or _program(store) or _waits(snapshot))


def _waits(snapshot: Snapshot) -> bool:
    pods = (
        pod for pod in known_or(snapshot.pods, ()) if pod.live and not (pod.ips or pod.host_network)
    )
    return any(not pod.scheduled or snapshot.taken_at - pod.scheduled > _WAITED for pod in pods)


def _since(snapshot: Snapshot) -> int:
    """Return the time before which nothing of this setup was made, in nanoseconds; 0: not known."""
    running = running_sandboxes(snapshot.containers)
    made = [
        container.created
        for container in known_or(snapshot.containers, ())
        if container.id in running
    ]
    processes = known_or(snapshot.processes, None)
    booted = int(processes.booted.timestamp()) if processes else 0
    return max(min(made, default=0), booted) * 10**9
