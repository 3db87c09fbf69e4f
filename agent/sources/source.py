"""What a source is.

A new one is a field of `Snapshot`, a module, and a row in `agent/app/sources.py`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeAlias

from agent.checks.waiting_pods import WAITS_AFTER, waiting_host_pods, waiting_pods
from agent.model.snapshot import (
    SANDBOX_NOT_READY,
    Known,
    NotRequested,
    Reservation,
    Snapshot,
    known_or,
)


class Source(Protocol):
    """One thing that is read from a node."""

    name: str
    """The field of `Snapshot` that it fills: also its metric label and its key in recordings."""

    def reason_not_needed(self, snapshot: Snapshot, /) -> str | None:  # noqa: ARG002
        """Return why this node does not need the source; None: it does.

        `snapshot`: what was read before it.
        """
        return None

    def read(self, snapshot: Snapshot, /) -> Any:
        """Return the value, a `Reading`, or either `WithFields`; raises SourceError.

        Anything else that it raises is a bug, and makes the source unavailable. `snapshot`: what
        was read before it.
        """


Sources: TypeAlias = Sequence[Source]


class WithFields(NamedTuple):
    """What a source returns if further fields of the snapshot come with its answer."""

    value: Any
    fields: Mapping[str, Any]


@dataclass(frozen=True)
class ReadBy(Source):
    """A source that a function reads on every node."""

    name: str
    function: Callable[[Snapshot], Any]

    def read(self, snapshot: Snapshot) -> Any:
        return self.function(snapshot)


@dataclass(frozen=True)
class Disabled(Source):
    """A source that this process does not read. `reason`: the setting, such as `--api=off`."""

    name: str
    reason: str

    def read(self, _: Snapshot) -> NotRequested:
        return NotRequested(self.name, self.reason)


def reservations_of(snapshot: Snapshot) -> Iterator[Reservation]:
    """Yield those of every network that was read."""
    for store in snapshot.reservations:
        yield from known_or(store.reading, ())


def unowned_ids(snapshot: Snapshot) -> frozenset[str]:
    """Return the container IDs of reservations without a container; an empty file has an empty ID.

    Empty if the containers are not known.
    """
    if not isinstance(snapshot.containers, Known):
        return frozenset()
    reserved = {reservation.container_id for reservation in reservations_of(snapshot)}
    return frozenset(reserved - {container.id for container in snapshot.containers.value})


def reason_nothing_is_stuck(snapshot: Snapshot) -> str | None:
    """Return why a healthy node does not need a source; None: a pod waits, or a sandbox is stuck.

    A sandbox is stuck if it is not ready and still has its address, or if its pod should be gone.
    """
    overdue = (
        pod.deletion is not None and snapshot.api_time - pod.deletion >= WAITS_AFTER
        for pod in known_or(snapshot.pods, ())
    )
    if waiting_pods(snapshot) or waiting_host_pods(snapshot) or any(overdue):
        return None

    stuck = {
        container.id
        for container in known_or(snapshot.containers, ())
        if container.sandbox and container.state == SANDBOX_NOT_READY
    }
    if any(held.container_id in stuck for held in reservations_of(snapshot)):
        return None
    return "no pod waits for its sandbox, and no sandbox for its teardown"
