"""The kubelet does not complete the teardown of a sandbox, and its address stays reserved.

The kubelet retries a teardown until it succeeds. It fails every time if the network plugin fails: a CNI configuration
or plugin binary was removed, or kubenet has no pod CIDR. After a power cut, libcni's cached result of a sandbox may be
empty: containerd before 2.0 then cannot stop the sandbox.

Means: with docker, the reservation has had a checkpoint and no container for 15 minutes (severity info) or an hour
(warning). Or its sandbox has ended an hour (info) or a day (warning) ago, and the runtime still lists it or has its
record.
Do: find the sandbox's ID in the kubelet's log (`journalctl -u kubelet | grep ID`), and repair what its teardown fails
on. If libcni's cached result is damaged, remove that file. The kubelet then releases the address itself. Never remove
the sandbox with `ctr`: its address would leak. One that the runtime has recorded but does not list is unknown to the
kubelet: restart the runtime, which loads its records again.
"""

from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from typing import Final, TypeAlias

from agent.checks import runtime as runtimes
from agent.model.assessment import Assessment, ClassifiedReservation, State
from agent.model.finding import Finding, Severity
from agent.model.index import SnapshotIndex
from agent.model.snapshot import ENDED, Reservation, known_or
from agent.model.text import format_time

NAME = "stuck_teardown"
SEVERITIES: Final = (Severity.INFO, Severity.WARNING)

Since: TypeAlias = tuple[datetime, timedelta]  # by the wall clock and by the boot clock
_HOUR: Final = timedelta(hours=1)
_LIMITS: Final = {State.TEARDOWN_PENDING: (_HOUR / 4, _HOUR), State.NOT_READY: (_HOUR, 24 * _HOUR)}
"""When a teardown is late, and when it is stuck. It takes up to 4 minutes, and the kubelet tries every minute.

A sandbox that is not ready is torn down by a kubelet that is up: an hour leaves time to restart it.
"""


def find(assessment: Assessment) -> Iterator[Finding]:
    assessment.require_reservations()
    assessment.snapshot.containers.known()
    if runtimes.keeps_checkpoints(assessment.snapshot):
        assessment.snapshot.checkpoints.known()
    for reservation, entry in assessment.classified.items():
        if reservation in assessment.pending and entry.state in _LIMITS:
            yield from _late(entry, reservation, assessment)


def _late(entry: ClassifiedReservation, reservation: Reservation, assessment: Assessment) -> Iterator[Finding]:
    since, uptime = assessment.pending[reservation]
    lasted, (late, stuck) = assessment.snapshot.uptime - uptime, _LIMITS[entry.state]
    if lasted >= late:
        severity = Severity.WARNING if lasted >= stuck else Severity.INFO
        left, why = _what_is_left(entry, format_time(since)), _why(reservation, assessment.index)
        subject, message = str(reservation.key), f"{entry.name} is reserved for {left}{why}"
        identity = entry.container_id, severity
        yield Finding(NAME, subject, message, severity, entry.network, entry.pod, since=since, identity=identity)


def _what_is_left(entry: ClassifiedReservation, since: str) -> str:
    pod = f" of pod {entry.pod}" if entry.pod else ""
    if entry.state is State.NOT_READY:
        return f"sandbox {entry.container_id[:12]}{pod}, which has not been ready since {since} and is not torn down"
    gone = f"container {entry.container_id[:12]}{pod}, which no longer exists"
    return f"{gone}; the kubelet has not completed its teardown since {since}"


def _why(reservation: Reservation, index: SnapshotIndex) -> str:
    damaged = index.damaged_results.get((reservation.network, reservation.container_id))
    if damaged is None:
        return ""
    remedy = "remove this file below /var/lib/cni/results or /var/lib/cni/cache"
    return f"; likely cause: libcni's cached result {damaged.file} is damaged ({damaged.damage}); {remedy}"


def pending_since(assessment: Assessment, earlier: Mapping[Reservation, Since]) -> Mapping[Reservation, Since]:
    """Return since when each teardown is pending, which no disk says. If it cannot be checked now, it stays pending."""
    entries, index = assessment.classified.items(), assessment.index
    unknown = [reservation for reservation, entry in entries if entry.state is State.UNKNOWN and reservation in earlier]
    pending = [reservation for reservation, entry in entries if _is_pending(entry, index)]
    return {held: earlier.get(held) or _first_seen(held, index) for held in (*pending, *unknown)}


def _is_pending(entry: ClassifiedReservation, index: SnapshotIndex) -> bool:
    # A runtime lists a sandbox, or has its record, until its teardown is completed.
    container = index.containers.get(entry.container_id)
    ended = container is not None and container.sandbox and container.state in ENDED
    return entry.state is State.TEARDOWN_PENDING or (entry.state is State.NOT_READY and ended)


def _first_seen(reservation: Reservation, index: SnapshotIndex) -> Since:
    """Return now, or the boot of the node for a sandbox that a power cut ended: it has not run since.

    Its time alone is no proof, because a node may create sandboxes before its clock is set.
    """
    snapshot, container = index.snapshot, index.containers.get(reservation.container_id)
    processes = known_or(snapshot.processes, None)
    damaged = (reservation.network, reservation.container_id) in index.damaged_results
    if processes and container and damaged and container.created < int(processes.booted.timestamp()):
        return processes.booted, timedelta(0)
    return snapshot.taken_at, snapshot.uptime
