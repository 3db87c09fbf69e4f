"""Since when each teardown is pending: on no disk, so it is kept from snapshot to snapshot. Pure."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TypeAlias

from agent.model.assessment import Assessment, ClassifiedReservation, PendingTeardown, State
from agent.model.snapshot import (
    ENDED,
    Container,
    Damage,
    DamagedResult,
    Known,
    Reservation,
    Snapshot,
    known_or,
)

Since: TypeAlias = tuple[datetime, timedelta]
"""By the wall clock and by the boot clock."""


def pending_since(assessment: Assessment, earlier: Mapping[Reservation, Since]) -> dict[Reservation, Since]:
    """Return since when each teardown is pending. One that cannot be checked now stays so."""
    snapshot = assessment.snapshot
    if not any(isinstance(store.reading, Known) for store in snapshot.reservations):
        return dict(earlier)
    # A runtime lists a sandbox, or has its record, until its teardown is completed.
    stopped = {one.id: one for one in known_or(snapshot.containers, ()) if one.sandbox and one.state in ENDED}
    pending: dict[Reservation, Since] = {}
    for one in assessment.reservations:
        sandbox = stopped.get(one.container_id)
        if isinstance(one.entry, Reservation) and _is_pending(one, sandbox, known_before=one.entry in earlier):
            pending[one.entry] = earlier.get(one.entry) or _first_seen(one.entry, sandbox, snapshot)
    return pending


def _is_pending(one: ClassifiedReservation, stopped: Container | None, *, known_before: bool) -> bool:
    match one.state:
        case State.TEARDOWN_PENDING:
            return True
        case State.NOT_READY:
            return stopped is not None
        case State.UNKNOWN:
            return known_before
        case _:
            return False


def _first_seen(reservation: Reservation, stopped: Container | None, snapshot: Snapshot) -> Since:
    """Return now, or the boot of the node for a sandbox that a power cut ended: it has not run since.

    Its time alone is no proof, because a node may create sandboxes before its clock is set.
    """
    processes = known_or(snapshot.processes, None)
    ended = stopped is not None and processes is not None and stopped.created < int(processes.booted.timestamp())
    if processes is not None and ended and damaged_result(snapshot, reservation):
        return processes.booted, timedelta(0)
    return snapshot.taken_at, snapshot.uptime


def damaged_result(snapshot: Snapshot, reservation: Reservation) -> DamagedResult | None:
    """Return what libcni's cache has in place of the sandbox's result; None: it is not known to be damaged."""
    sandbox = (reservation.network, reservation.container_id)
    damaged = (result for result in snapshot.damaged_results if result.damage is not Damage.TOO_LARGE)
    return next((result for result in damaged if (result.network, result.container_id) == sandbox), None)


def with_durations(assessment: Assessment, pending: Mapping[Reservation, Since]) -> Assessment:
    """Add to each reservation since when its teardown is pending."""

    def dated(one: ClassifiedReservation) -> ClassifiedReservation:
        if not isinstance(one.entry, Reservation) or one.entry not in pending:
            return one
        since, uptime = pending[one.entry]
        lasted = assessment.snapshot.uptime - uptime
        return PendingTeardown(one.entry, one.state, one.why, one.pod, since=since, lasted=lasted)

    return replace(assessment, reservations=tuple(map(dated, assessment.reservations))) if pending else assessment
