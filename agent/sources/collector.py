"""Takes a snapshot: reads each source once, in the order that is safe. `app/sources.py` gives it the readers."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final, TypeAlias

from agent.checks.cluster import detached_volume
from agent.checks.readings import crosscheck
from agent.checks.waiting_pods import waiting_pods
from agent.model.bug import bug_of
from agent.model.clocks import Moment
from agent.model.index import named_sandboxes
from agent.model.runtime import AUTO
from agent.model.snapshot import (
    SOURCES,
    Known,
    NetworkStore,
    NotRequested,
    Snapshot,
    Unavailable,
    known_or,
)
from agent.sources.source_error import NotFound, SourceError

Reader: TypeAlias = Callable[[Snapshot], Any]
"""Reads one source, given what was read before it. Returns the value, or a `Reading`.

Raises SourceError. Anything else that it raises is a bug, and makes its source unavailable.
"""
Sources: TypeAlias = Mapping[str, Reader]
"""The readers of a node, by the field of `Snapshot` that they fill. A source without a reader is not requested."""


# The networks come first, because they name directories.
#
# A reservation is read before its owner. docker, containerd since 1.5.15 and 1.6.9, and CRI-O record a sandbox before
# its address is reserved, so a race can hide a new reservation and never orphan a live one. Checkpoints are written
# after the container is created and removed after it is gone, so either order is safe for them; the containers show
# which directories are in use. The API server comes last: it can only prove that an address is in use, and the later it
# is asked the more it knows.
_ALWAYS: Final = (
    "networks", "reservations", "containers", "runtimes", "checkpoints", "cni_results", "processes", "device_plugins",
    "pods", "node", "registration", "watches", "state", "api_skew", "server_version", "damaged_results",
)  # fmt: skip
"""The last three are no sources. They come with the answers of sources."""


def take_snapshot(
    sources: Sources, node_name: str, now: Moment, clock: Callable[[], float]
) -> Snapshot:
    """Read every source that this node needs. `clock`: seconds, to time the reading with."""
    unread: dict[str, Any] = {
        name: NotRequested(name, "this process does not read it") for name in SOURCES
    }
    unread["reservations"] = ()
    snapshot = Snapshot(node_name=node_name, taken_at=now.wall, uptime=now.uptime, **unread)
    for name in _ALWAYS:
        snapshot = _read(name, snapshot, sources, clock)
    snapshot = crosscheck.all_sources(snapshot)
    for name in _WHERE_NEEDED:
        snapshot = _read_where_needed(name, snapshot, sources, clock)
    return crosscheck.namespaces(snapshot)


def _read(name: str, snapshot: Snapshot, sources: Sources, clock: Callable[[], float]) -> Snapshot:
    """Return the snapshot with one field more, and how long its source took."""
    if name not in sources:
        return snapshot
    start = clock()
    bugs = snapshot.bugs
    try:
        value = sources[name](snapshot)
    except SourceError as error:
        value = Unavailable(name, str(error), isinstance(error, NotFound))
    except Exception as error:  # noqa: BLE001 (the bug of one reader must not end the others)
        bug = bug_of("source", name, error)
        value = Unavailable(name, bug.reason)
        bugs = (*bugs, bug)
    if name not in SOURCES:
        return replace(snapshot, bugs=bugs, **_beside_sources(name, value))
    read = {name: _reading(name, value)}
    timings = (*snapshot.timings, (name, clock() - start))
    return replace(snapshot, timings=timings, bugs=bugs, **read)


def _reading(name: str, value: Any) -> Any:
    """Return what a reader returned as its field of the snapshot has it."""
    is_unread = isinstance(value, (Unavailable, NotRequested))
    if name == "reservations":  # a store for each network; `auto` is no network's name
        return (NetworkStore(AUTO, value, discovered=True),) if is_unread else value
    return value if is_unread or isinstance(value, Known) else Known(value)


def _beside_sources(name: str, value: Any) -> dict[str, Any]:
    """Return what changes by a reader of no source; an unavailable clock or version stays unknown."""
    if not isinstance(value, Unavailable):
        return {name: value}
    # The cache is not known to be complete without the list of its damaged files.
    is_of_cache = name == "damaged_results"
    return {"cni_results": Unavailable("cni_results", value.why)} if is_of_cache else {}


def _read_where_needed(
    name: str, snapshot: Snapshot, sources: Sources, clock: Callable[[], float]
) -> Snapshot:
    """Return the snapshot with a source that only some nodes need, or why it was not requested."""
    try:
        why = _WHERE_NEEDED[name](snapshot)
    except Exception as error:  # noqa: BLE001 (it is not known whether this source is needed)
        bug = bug_of("source", name, error)
        unread: dict[str, Any] = {name: Unavailable(name, bug.reason)}
        return replace(snapshot, bugs=(*snapshot.bugs, bug), **unread)
    not_needed: dict[str, Any] = {name: NotRequested(name, why)}
    return replace(snapshot, **not_needed) if why else _read(name, snapshot, sources, clock)


def unowned(snapshot: Snapshot) -> frozenset[str]:
    """Return the container IDs of reservations without a container. An empty file has an empty ID."""
    if not isinstance(snapshot.containers, Known):
        return frozenset()
    reserved = (known_or(store.reading, ()) for store in snapshot.reservations)
    ids = frozenset(
        reservation.container_id for reservations in reserved for reservation in reservations
    )
    return ids - {container.id for container in snapshot.containers.value}


def _addresses_not_needed(snapshot: Snapshot) -> str:
    """A healthy node never pays for looking into network namespaces."""
    if not isinstance(snapshot.containers, Known):
        return "network namespaces were not read, because the list of containers is missing"
    return "" if unowned(snapshot) else "no reservation is known to be without an owner"


def _namespaces_not_needed(snapshot: Snapshot) -> str:
    if not named_sandboxes(known_or(snapshot.cni_results, ())).isdisjoint(unowned(snapshot)):
        return ""
    return "libcni's cache names no mounted network namespace of a sandbox without an owner"


def _mounts_not_needed(snapshot: Snapshot) -> str:
    node = known_or(snapshot.node, None)
    return (
        ""
        if node and detached_volume.missing(node)
        else "no volume is missing from the node's volumesAttached"
    )


_WHERE_NEEDED: Final[Mapping[str, Callable[[Snapshot], str]]] = {
    "addresses": _addresses_not_needed,
    "mounted_namespaces": _namespaces_not_needed,
    "mounts": _mounts_not_needed,
    "attachments": lambda found: (
        "" if detached_volume.request(found) else "no pod waits for a volume that is missing"
    ),
    "sandbox_failures": lambda found: "" if waiting_pods(found) else "no pod waits for its sandbox",
    # It may take its time, and nothing that is read before waits for it.
    "autoscaler": lambda _: "",
}
"""The sources that only some nodes need, in the order of reading. The function says why a source is not requested."""
