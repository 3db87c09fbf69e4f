"""Whether the pods of this node have their addresses from a network's directory. Pure.

A node that moved to another network, runtime or data directory keeps the old directory. Judged like one in use, all of
its reservations look leaked, its range exhausted, and every pod unreserved. A directory is not in use only by evidence
that pods have their addresses elsewhere; an empty or fully leaked one without that evidence is judged.
"""

from posixpath import normpath

from agent.model.snapshot import CniResult, Known, NetworkStore, Snapshot, Unavailable, known_or

_PRIMARY = frozenset({"eth0", ""})
"""The interface that gives a pod its address; empty in the format of host-local < 0.8.0."""


def is_in_use(store: NetworkStore, snapshot: Snapshot) -> bool:
    """Return whether a running pod is known to have an address from this directory."""
    results = _of_running_pods(snapshot)
    running = _running(snapshot).union(one.container_id for one in results)
    reserved = any(one.container_id in running for one in known_or(store.reading, ()))
    return reserved or any(_allocated_in(store, one) for one in results)


def where_instead(store: NetworkStore, snapshot: Snapshot) -> str:
    """Say from where the running pods have their addresses, if it is known and not this directory."""
    if is_secondary(store, snapshot):
        return ""
    places = (_place(one, store) for one in _of_running_pods(snapshot) if one.ifname in _PRIMARY)
    # One of them, and always the same.
    place = min(places, default="")
    return place and f"the pods of this node get their addresses from {place}"


def was_never_used(store: NetworkStore, snapshot: Snapshot) -> bool:
    """Return whether a missing directory is one that host-local did not have to make: no pod had an address from it."""
    cached = any(_allocated_in(store, one) for one in known_or(snapshot.cni_results, ()))
    return store.absent and not cached and _all_on_the_host(snapshot)


def _all_on_the_host(snapshot: Snapshot) -> bool:
    """Return whether every pod here uses the node's own network; False where it is not known."""
    pods, containers = snapshot.pods, snapshot.containers
    if isinstance(containers, Unavailable) or not (isinstance(pods, Known) or isinstance(containers, Known)):
        return False
    elsewhere = any(pod.live and pod.ips and not pod.host_network for pod in known_or(pods, ()))
    return not elsewhere and _running(snapshot) <= _sandboxes_on_the_host(snapshot)


def _sandboxes_on_the_host(snapshot: Snapshot) -> frozenset[str]:
    """Return the sandboxes on the node's own network, according to the API server or to their checkpoints."""
    names = {pod.name for pod in known_or(snapshot.pods, ()) if pod.host_network}
    ids = {one.container_id for one in known_or(snapshot.checkpoints, ()) if one.host_network}
    return frozenset(ids).union(one.id for one in known_or(snapshot.containers, ()) if one.pod in names)


def newest_is_elsewhere(store: NetworkStore, snapshot: Snapshot) -> bool:
    """Return whether the last sandbox with an address here, as far as libcni's cache knows, has it from elsewhere."""
    results = [one for one in known_or(snapshot.cni_results, ()) if one.ifname in _PRIMARY]
    return bool(results) and not _allocated_in(store, max(results, key=lambda one: one.mtime_ns))


def _allocated_in(store: NetworkStore, result: CniResult) -> bool:
    """Return whether a result's address is reserved in this directory. Without a `dataDir` the network decides."""
    if result.network != store.network:
        return False
    return not (result.data_dir and store.data_dir) or normpath(result.data_dir) == normpath(store.data_dir)


def _running(snapshot: Snapshot) -> frozenset[str]:
    return frozenset(one.id for one in known_or(snapshot.containers, ()) if one.sandbox and one.running)


def _of_running_pods(snapshot: Snapshot) -> tuple[CniResult, ...]:
    """Return the results of the running sandboxes; where they are not known, the newest of each running pod."""
    results = known_or(snapshot.cni_results, ())
    if isinstance(snapshot.containers, Known):
        running = _running(snapshot)
        return tuple(one for one in results if one.container_id in running)
    pods = {pod.name for pod in known_or(snapshot.pods, ()) if pod.phase == "Running" and not pod.host_network}
    by_age = sorted(results, key=lambda one: one.mtime_ns)
    return tuple({(one.pod, one.ifname): one for one in by_age if one.pod in pods}.values())


def is_secondary(store: NetworkStore, snapshot: Snapshot) -> bool:
    """Return whether it gives pods an additional interface: then their address from elsewhere says nothing."""
    interfaces = {one.ifname for one in known_or(store.reading, ())}
    interfaces |= {one.ifname for one in known_or(snapshot.cni_results, ()) if one.network == store.network}
    return not interfaces <= _PRIMARY


def _place(result: CniResult, store: NetworkStore) -> str:
    if result.network != store.network:
        return f"network {result.network}"
    return f"network {result.network} in {result.data_dir}: check --cni-networks-dir"
