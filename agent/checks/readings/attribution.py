"""Whose a network's directory is: the pods', an earlier setup's, or another program's. Pure.

The CNI configuration decides, the last failed ADD, and running sandboxes with reservations in the
directory. Nothing is concluded from any other directory: no runtime lists its containers, so that
all of its reservations would look leaked.
"""

import re
from collections.abc import Collection
from dataclasses import replace
from datetime import timedelta
from posixpath import normpath
from typing import Final, TypeAlias

from agent.checks.readings.copies import configured_networks
from agent.checks.waiting_pods import is_recent, may_wait
from agent.model.assessment import KUBENET, PRIMARY
from agent.model.index import SnapshotIndex
from agent.model.ranges import covers
from agent.model.runtime import RuntimeNetwork, WrittenRange
from agent.model.snapshot import (
    CniResult,
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
_Reservations: TypeAlias = Reading[tuple[Reservation, ...]]

_RELOADED: Final = timedelta(minutes=1)
"""Until then every runtime has read a changed configuration."""


def pod_networks(index: SnapshotIndex) -> Reading[tuple[RuntimeNetwork, ...]]:
    """Return the networks of the pods, unless running sandboxes show that they use another file.

    A runtime uses the first file of the CNI configuration; CRI-O and docker use a later one if a
    plugin of the first is not installed. An ADD that fails now says which one it is, too.
    """
    snapshot = index.snapshot
    networks = known_or(snapshot.networks, ())
    if not networks or not networks[0].changed_ns or not isinstance(snapshot.cni_results, Known):
        return snapshot.networks

    names = {network.name for network in networks}
    reloaded = networks[0].changed_ns / 10**9 + _RELOADED.total_seconds()
    recent = _networks_in_use(names, index, created_after=reloaded)
    used = recent or _networks_in_use(names, index)
    settings_name_all = not any(store.discovered for store in snapshot.reservations)
    adding = _networks_of_failed_adds(snapshot)
    if (used | adding) & names or settings_name_all:
        return snapshot.networks

    first = networks[0]
    evidence = used or adding
    later = tuple(network for network in first.later if network.name in evidence)
    if (recent or evidence <= adding) and later and len(evidence) == 1:
        return Known(later)
    if not recent and not (later and first.may_use_host_local):
        return snapshot.networks
    reason = _why_not_first(first.name, used, since_change=bool(recent), snapshot=snapshot)
    return Unavailable("networks", reason)


def _why_not_first(
    first: str, used: Collection[str], *, since_change: bool, snapshot: Snapshot
) -> str:
    """`since_change`: whether sandboxes that use others are newer than the first file."""
    others = f"have their addresses from network {', '.join(sorted(used))}"
    if not since_change:
        return (
            f"running pods {others}, and no pod has started since {first} came first in the CNI "
            "configuration: it is unknown which of them new pods get (the next pod that starts "
            "shows it; or set --network)"
        )

    # The file may be that of the network that a waiting pod is given.
    remedy = "the Events of a pod that waits name the network that it is given"
    if isinstance(snapshot.pods, Known) and not may_wait(snapshot):
        remedy = "install it, or remove its file if nothing needs it"
    return (
        f"pods that started since {first} came first in the CNI configuration {others}: a plugin "
        f"of {first} may be missing ({remedy}; or set --cni-config-dir or --network)"
    )


def _networks_of_failed_adds(snapshot: Snapshot) -> frozenset[str]:
    """Return the networks that pods are given now: an ADD for one that waits has just failed."""
    names: set[str] = set()
    for failure in known_or(snapshot.sandbox_failures, ()):
        is_add = failure.operation == "add" or failure.exhausted
        if is_add and is_recent(failure, snapshot):
            names.add(failure.network)
            first_address = failure.exhausted.partition("-")[0]
            names |= {
                network.name
                for network in configured_networks(snapshot)
                if first_address and _gives_out(network, first_address)
            }
    return frozenset(names - {""})


def _gives_out(network: RuntimeNetwork, ip: str) -> bool:
    """Whether the written ranges of a network have an address; not if one is invalid."""
    try:
        sets = tuple(tuple(map(WrittenRange.parse, ranges)) for ranges in network.ranges)
        return covers(sets, ip)
    except ValueError:  # the node's pod CIDR in place of a subnet, or no address
        return False


def _networks_in_use(
    names: Collection[str], index: SnapshotIndex, *, created_after: float = 0
) -> frozenset[str]:
    """Return the networks that running sandboxes have their pod's address from.

    Reservations show it, and for the networks `names` libcni's results too.
    """
    sandboxes = {
        sandbox.id
        for sandbox in index.running_sandboxes.values()
        if sandbox.created > created_after
    }

    records: list[CniResult | Reservation] = [*index.reservations]
    results = known_or(index.snapshot.cni_results, ())
    records += [result for result in results if result.network in names]
    return frozenset(
        record.network
        for record in records
        if record.ifname in PRIMARY and record.container_id in sandboxes
    )


def attributed(store: NetworkStore, index: SnapshotIndex) -> NetworkStore:
    """Return the store if it is the pods', else one that is not requested, or unavailable."""
    reading = _believed(store, index)
    if reading is store.reading:
        return store
    if isinstance(reading, Known):
        return replace(store, reading=reading)
    left_over = _left_over(store, index) if isinstance(reading, NotRequested) else None
    return replace(store, reading=reading, unrecognized=(), left_over=left_over)


def _believed(store: NetworkStore, index: SnapshotIndex) -> _Reservations:
    """Return the reservations if they are of pods, else why they are not, or may not be."""
    if not _container_ids(store).isdisjoint(index.running_sandboxes):
        return store.reading
    for network in known_or(index.snapshot.networks, ()):
        if network.name == store.network:
            return _configured(store, network, index)
    if _PODMAN.fullmatch(store.network):
        return _not_used("its addresses are those of podman")
    return _not_configured(store, index)


def may_be_of_podman(reservation: Reservation, index: SnapshotIndex) -> bool:
    """Return whether podman may have made it, for a container of its own that may return.

    Pods may have podman's network, too: a runtime uses any file that is the first. Their results in
    libcni's cache name a pod in a namespace. podman names its container, as the namespace too
    (before 4.0), or none.
    """
    if not _PODMAN.fullmatch(reservation.network):
        return False
    names = [(result.pod or "").partition("/") for result in index.results_of(reservation)]
    return not any(namespace != pod for namespace, _, pod in names)


def is_of_podman_or_pod(reservation: Reservation, index: SnapshotIndex) -> bool:
    """Return whether nothing says which of both it is of, although no runtime has its container."""
    return may_be_of_podman(reservation, index) and not index.results_of(reservation)


def _doubt(store: NetworkStore, reason: str) -> Unavailable:
    reason = f"it is unknown whether pods use network {store.network}: {reason}"
    return Unavailable("reservations", reason)


def _not_used(reason: str) -> NotRequested:
    return NotRequested("reservations", reason)


def _configured(
    store: NetworkStore, network: RuntimeNetwork, index: SnapshotIndex
) -> _Reservations:
    """Return what to believe of a network that the CNI configuration names."""
    if not network.may_use_host_local:
        return _not_used(f"network {network.name} uses {network.ipam}")
    if not is_missing(store.reading):
        return store.reading

    # A plugin without `ipam` gives libcni a result too, whoever allocates: Cilium, Amazon VPC, OVN.
    plugins = "" if network.ipam else ", ".join(network.plugins)
    if plugins and not any(result.plugin for result in _results(store, index)):
        return _not_used(f"network {store.network} ({plugins}) has no directory of host-local")

    if isinstance(index.snapshot.containers, Unavailable) or not store.absent:
        return store.reading
    # If no pod has to have an address yet, host-local may not have made its directory.
    return store.reading if _pod_lacks_address(store, index) else Known(())


def _not_configured(store: NetworkStore, index: SnapshotIndex) -> _Reservations:
    """Return what to believe of a network that the CNI configuration does not name."""
    snapshot = index.snapshot
    kubenet = store.network == KUBENET
    if not isinstance(store.reading, Known):
        no_kubenet = kubenet and is_missing(store.reading) and isinstance(snapshot.networks, Known)
        if not no_kubenet:
            # Only a first file named it, of which running sandboxes show that it may not be used.
            skipped = (
                store.discovered
                and store.absent
                and not isinstance(snapshot.containers, Unavailable)
                and not _pod_lacks_address(store, index)
            )
            return _not_used("its directory does not exist") if skipped else store.reading

    # Whoever names a network knows it; but kubenet may be named for a fleet, and missing on nodes.
    if _is_in_use(store, index) or (not store.discovered and not kubenet):
        return store.reading
    if program := _program(store):
        return _not_used(f"its addresses are those of {program}")
    return _unnamed(store, index)


def _unnamed(store: NetworkStore, index: SnapshotIndex) -> _Reservations:
    """Return what to believe if neither a setting nor the configuration names the network."""
    snapshot = index.snapshot
    if reason := _why_unknown(snapshot):
        results = _results(store, index)
        if store.network == KUBENET or (results and all(result.pod for result in results)):
            return store.reading
        return _doubt(store, reason)

    if isinstance(snapshot.networks, NotRequested):
        return store.reading if store.network == KUBENET else _not_used(snapshot.networks.why)
    if _is_failing(store, index):
        return store.reading

    if first := _skipped_network(store, index):
        reason = (
            f"pods wait, and the runtime skips network {first}, which comes first, if a plugin of "
            "it is not installed"
        )
        return _doubt(store, reason)
    if not snapshot.network_names:
        return _not_used("the kubelet uses no CNI network")
    names = ", ".join(snapshot.network_names)
    return _not_used(f"the pods of this node get their addresses from network {names}")


def _why_unknown(snapshot: Snapshot) -> str | None:
    """Return why it is unknown which networks are those of pods; None: it is known."""
    for reading in (snapshot.networks, snapshot.containers, snapshot.cni_results):
        if isinstance(reading, Unavailable):
            return f"{reading.source}: {reading.why}"
    # dockershim does not say whether it is ready, and may use no network at all.
    if snapshot.networks == Known(()) and snapshot.network_ready is not None:
        return "the container runtime has loaded no CNI configuration"
    return None


def _pod_lacks_address(store: NetworkStore, index: SnapshotIndex) -> bool:
    """Return whether a running sandbox should have an address in a directory that is missing."""
    snapshot = index.snapshot
    host_pods = {pod.name for pod in known_or(snapshot.pods, ()) if pod.host_network}

    explained = {reservation.container_id for reservation in index.reservations}
    for result in known_or(snapshot.cni_results, ()):
        if result.network != store.network:
            explained.add(result.container_id)
    explained -= _allocated(store, index)
    for checkpoint in known_or(snapshot.checkpoints, ()):
        if checkpoint.host_network:
            explained.add(checkpoint.container_id)

    return any(
        sandbox.pod not in host_pods and sandbox.id not in explained
        for sandbox in index.running_sandboxes.values()
    )


def _is_failing(store: NetworkStore, index: SnapshotIndex) -> bool:
    """Return whether an attachment's ADD may never succeed, so that libcni caches no result."""
    completed = {result.container_id for result in _results(store, index)}
    failed = [
        reservation.mtime_ns
        for reservation in known_or(store.reading, ())
        if reservation.container_id not in completed
    ]

    setup = _setup_began_ns(index)
    return max(failed, default=0) > setup and may_wait(index.snapshot)


def _skipped_network(store: NetworkStore, index: SnapshotIndex) -> str | None:
    """Return the first file's network if waiting pods may use this later one instead.

    That is so if this one had the last address.
    """
    for first in known_or(index.snapshot.networks, ())[:1]:
        is_later = any(network.name == store.network for network in first.later)
        newer = _last_reserved_ns(store) > _last_used_ns(first.name, index)
        if is_later and newer and may_wait(index.snapshot):
            return first.name
    return None


def _last_used_ns(network: str, index: SnapshotIndex) -> int:
    """Return when a network last had an address or a result, in nanoseconds; 0: never."""
    stores = index.snapshot.reservations
    reserved = [_last_reserved_ns(store) for store in stores if store.network == network]
    results = known_or(index.snapshot.cni_results, ())
    cached = [result.mtime_ns for result in results if result.network == network]
    return max(reserved + cached, default=0)


def _last_reserved_ns(store: NetworkStore) -> int:
    return max((reservation.mtime_ns for reservation in known_or(store.reading, ())), default=0)


def _is_in_use(store: NetworkStore, index: SnapshotIndex) -> bool:
    """Return whether pods use it: running ones, one that waits, or as a secondary network."""
    if store.network in _networks_of_failed_adds(index.snapshot):
        return True
    if not _allocated(store, index).isdisjoint(index.running_sandboxes):
        return True

    return any(
        result.pod or store.network == KUBENET  # kubenet gives libcni no names of pods
        for result in _results(store, index)
        if result.ifname not in PRIMARY
    )


def _container_ids(store: NetworkStore) -> set[str]:
    return {reservation.container_id for reservation in known_or(store.reading, ())}


def _results(store: NetworkStore, index: SnapshotIndex) -> list[CniResult]:
    """Return libcni's cached results of a network, whatever directory they are of."""
    results = known_or(index.snapshot.cni_results, ())
    return [result for result in results if result.network == store.network]


def _allocated(store: NetworkStore, index: SnapshotIndex) -> set[str]:
    """Return the sandboxes with an address from this directory, according to libcni's cache.

    A result without a `dataDir` is of any directory of that network.
    """
    return {
        result.container_id
        for result in _results(store, index)
        if not (result.data_dir and store.data_dir)
        or normpath(result.data_dir) == normpath(store.data_dir)
    }


def _program(store: NetworkStore) -> str | None:
    """Return the program beside the kubelet whose IDs are in it, as far as it is known."""
    return next((entry.program for entry in store.unrecognized if entry.program), None)


def _left_over(store: NetworkStore, index: SnapshotIndex) -> LeftOver | None:
    """Return what is in the directory, if whoever wrote it is gone.

    Its files are older than every pod, or than the node's start. None while a pod waits for an
    address: the configuration may have been changed.
    """
    snapshot = index.snapshot
    if not isinstance(snapshot.containers, Known) or not known_or(snapshot.networks, ()):
        return None
    if _PODMAN.fullmatch(store.network) or _program(store) or may_wait(snapshot):
        return None

    container_ids = _container_ids(store)
    times = [reservation.mtime_ns for reservation in known_or(store.reading, ())]
    if not times or max(times) >= _setup_began_ns(index):
        return None
    if not container_ids.isdisjoint(index.containers):
        return None

    of_pods = {result.container_id for result in _results(store, index) if result.pod}
    return LeftOver(
        directory=f"{store.data_dir}/{store.network}",
        files=len(times),
        oldest_ns=min(times),
        newest_ns=max(times),
        pods=len(container_ids & of_pods),
    )


def _setup_began_ns(index: SnapshotIndex) -> int:
    """Return the time before which nothing of this setup was made, in nanoseconds; 0: unknown."""
    created = [sandbox.created for sandbox in index.running_sandboxes.values()]
    processes = known_or(index.snapshot.processes, None)
    booted = int(processes.booted.timestamp()) if processes else 0
    return max(min(created, default=0), booted) * 10**9
