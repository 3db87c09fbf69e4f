"""Takes a snapshot: reads each source once, in the order that is safe."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from agent.checks.readings import crosscheck
from agent.model.bug import bug_of
from agent.model.clocks import Moment
from agent.model.settings import AUTO
from agent.model.snapshot import (
    SOURCES,
    Known,
    NetworkStore,
    NotRequested,
    Snapshot,
    Unavailable,
)
from agent.sources.source import Source, Sources, WithFields
from agent.sources.source_error import NotFound, SourceError

# The networks come first, because they name directories. What the runtime says of its network comes
# with them, and so do the files of its configuration, which may change.
#
# A reservation is read before its owner. docker, containerd since 1.5.15 and 1.6.9, and CRI-O
# record a sandbox before its address is reserved, so a race can hide a new reservation and never
# orphan a live one. Checkpoints are written after the container is created and removed after it is
# gone, so either order is safe for them; the containers show which directories are in use. The API
# server comes after the runtimes: it can only prove that an address is in use, and the later it is
# asked the more it knows. The watches have the clock and the version that come with its answers. A
# failed ADD, which an Event tells, names the network that pods are given now.
_ORDER: Final = (
    "networks", "runtime_status", "cni_files", "reservations", "containers", "runtimes",
    "checkpoints", "cni_results", "processes", "device_plugins", "pods", "node",
    "sandbox_failures", "registration", "watches", "state",
)  # fmt: skip
"""What other sources depend on. All others are read afterwards, in the order of `sources`."""


def take_snapshot(
    sources: Sources, node_name: str, now: Moment, clock: Callable[[], float]
) -> Snapshot:
    """Read every source that this node needs, once.

    `clock`: seconds, to time the reading with. A source that is not given is not requested.
    """
    reason = "this process does not read it"
    unread: dict[str, Any] = {name: NotRequested(name, reason) for name in SOURCES}
    unread["reservations"] = ()
    snapshot = Snapshot(node_name=node_name, taken_at=now.wall, uptime=now.uptime, **unread)

    remaining = {source.name: source for source in sources}
    for name in _ORDER:
        if source := remaining.pop(name, None):
            snapshot = _read(source, snapshot, clock)
    snapshot = crosscheck.all_sources(snapshot)

    for source in remaining.values():
        snapshot = _read(source, snapshot, clock)
    return crosscheck.namespaces(snapshot)


def _read(source: Source, snapshot: Snapshot, clock: Callable[[], float]) -> Snapshot:
    """Return the snapshot with this source, and with the seconds that it took."""
    name = source.name
    fields: dict[str, Any] = {}
    start = clock()

    try:
        if reason := source.reason_not_needed(snapshot):
            fields[name] = NotRequested(name, reason)
            return replace(snapshot, **fields)

        value = source.read(snapshot)
        if isinstance(value, WithFields):
            fields |= value.fields
            value = value.value
    except SourceError as error:
        value = Unavailable(name, str(error), isinstance(error, NotFound), error.remedy)
    except Exception as error:  # noqa: BLE001 (the bug of one source must not end the others)
        bug = bug_of("source", name, error)
        fields["bugs"] = (*snapshot.bugs, bug)
        value = Unavailable(name, bug.reason)

    fields[name] = _reading(name, value)
    fields["timings"] = (*snapshot.timings, (name, clock() - start))
    return replace(snapshot, **fields)


def _reading(name: str, value: Any) -> Any:
    """Return what a source returned as its field of the snapshot has it."""
    is_unread = isinstance(value, (Unavailable, NotRequested))
    if name == "reservations":  # a store for each network; `auto` is no network's name
        return (NetworkStore(AUTO, value, discovered=True),) if is_unread else value
    return value if is_unread or isinstance(value, Known) else Known(value)
