"""What a sync leaves to the next about each reservation. Pure.

One rule holds for all of it: what cannot be read now stays as it was.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from agent.model.assessment import Assessment, ClassifiedReservation, State
from agent.model.clocks import Moment
from agent.model.index import SnapshotIndex
from agent.model.memory import Memory, ReservationMemory
from agent.model.snapshot import (
    SANDBOX_OF_ANOTHER_CLIENT,
    Known,
    Pod,
    PortMapping,
    Reservation,
    Snapshot,
    known_or,
)

_OWNED: Final = {State.IN_USE, State.NOT_READY, State.TEARDOWN_PENDING}


def advance(before: Memory, assessment: Assessment, *, clock_stepped: bool) -> Memory:
    """Return the memory after a snapshot in which every reservation was classified.

    `clock_stepped`: the wall clock was set since the last snapshot.
    """
    snapshot = assessment.snapshot
    read = networks_read(snapshot)
    pods = {pod.name: pod for pod in known_or(snapshot.pods, ())}

    # A time by the wall clock says nothing any more once that clock was set.
    reservations = {
        reservation: replace(memory, owned_at=None) if clock_stepped else memory
        for reservation, memory in before.reservations.items()
        if reservation.network not in read
    }

    for reservation, entry in assessment.classified.items():
        earlier = before.get(reservation)
        owned_at = None if clock_stepped else earlier.owned_at
        if entry.state in _OWNED:
            owned_at = snapshot.taken_at
        reservations[reservation] = ReservationMemory(
            pod=entry.pod,
            owned_at=owned_at,
            pending_since=_pending_since(entry, earlier, assessment.index),
            host_ports=_host_ports(reservation, entry, earlier, assessment.index, pods),
        )

    return Memory(
        last_taken=Moment(snapshot.taken_at, snapshot.uptime),
        reservations=reservations,
        pods_of_other_process=before.pods_of_other_process,
    )


def networks_read(snapshot: Snapshot) -> set[str]:
    """Return the networks whose reservations were read."""
    return {store.network for store in snapshot.reservations if isinstance(store.reading, Known)}


def _pending_since(
    entry: ClassifiedReservation,
    earlier: ReservationMemory,
    index: SnapshotIndex,
) -> Moment | None:
    """Return since when snapshots have shown a pending teardown."""
    if entry.state is State.UNKNOWN:
        return earlier.pending_since

    # A runtime lists a sandbox, or has its record, until its teardown is completed. Whatever it
    # calls the state: one that is being created runs within minutes, or is as stuck as the others.
    is_pending = entry.state is State.TEARDOWN_PENDING
    container = index.containers.get(entry.container_id)
    if entry.state is State.NOT_READY and container is not None:
        in_use = container.state == SANDBOX_OF_ANOTHER_CLIENT and entry.name in index.holders
        is_pending = container.sandbox and not in_use

    if not is_pending:
        return None
    return earlier.pending_since or Moment(index.snapshot.taken_at, index.snapshot.uptime)


def _host_ports(
    reservation: Reservation,
    entry: ClassifiedReservation,
    earlier: ReservationMemory,
    index: SnapshotIndex,
    pods: Mapping[str, Pod],
) -> tuple[PortMapping, ...] | None:
    """Return the ports in the spec of the pod that had the address."""
    if earlier.host_ports is not None:
        return earlier.host_ports
    pod = pods.get(entry.pod)
    if pod is None:
        return None

    # The pods of a StatefulSet have the names of their predecessors.
    if container := index.containers.get(reservation.container_id):
        had_address = container.pod_uid == pod.uid
    else:
        had_address = pod.created is not None and pod.created <= reservation.mtime
    return pod.host_ports if had_address else None
