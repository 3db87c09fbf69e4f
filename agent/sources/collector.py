"""Takes a snapshot: reads each source once, in the order that is safe. `app/sources.py` gives it the readers."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple, TypeAlias

from agent.checks import detached_volume
from agent.checks.devices.state import with_history
from agent.checks.waiting_pods import waiting_pods
from agent.model.index import named_sandboxes
from agent.model.snapshot import SOURCES, Known, NotRequested, Snapshot, Unavailable, known_or
from agent.sources import crosscheck
from agent.sources.source_error import NotFound, SourceError

Reader: TypeAlias = Callable[[Snapshot], Any]
"""Reads one source, given what was read before it. Returns the value, or a `Reading`; raises SourceError."""
Sources: TypeAlias = Mapping[str, Reader]
"""The readers of a node, by the field of `Snapshot` that they fill. A source without a reader is not requested."""


class Moment(NamedTuple):
    """Now, by both clocks of the node."""

    wall: datetime
    uptime: timedelta


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
    for name, why_not in _WHERE_NEEDED.items():
        why = why_not(snapshot)
        given: dict[str, Any] = {name: NotRequested(name, why)}
        snapshot = replace(snapshot, **given) if why else _read(name, snapshot, sources, clock)
    return with_history(crosscheck.namespaces(snapshot))


def _read(name: str, snapshot: Snapshot, sources: Sources, clock: Callable[[], float]) -> Snapshot:
    """Return the snapshot with one field more, and how long its source took."""
    if name not in sources:
        return snapshot
    start = clock()
    try:
        value = sources[name](snapshot)
    except SourceError as error:
        value = Unavailable(name, str(error), isinstance(error, NotFound))
    if name not in SOURCES:
        return replace(snapshot, **{name: value})
    is_reading = name == "reservations" or isinstance(value, (Known, Unavailable, NotRequested))
    read: dict[str, Any] = {name: value if is_reading else Known(value)}
    return replace(snapshot, timings=(*snapshot.timings, (name, clock() - start)), **read)


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
