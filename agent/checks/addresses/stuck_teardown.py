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
from datetime import timedelta
from typing import Final

from agent.checks import runtime as runtimes
from agent.checks.addresses.pending_teardown import damaged_result
from agent.model.assessment import Assessment, ClassifiedReservation, PendingTeardown, State
from agent.model.finding import Finding, Severity
from agent.model.snapshot import Reservation, Snapshot
from agent.model.text import format_time

NAME = "stuck_teardown"
SEVERITIES: Final = (Severity.INFO, Severity.WARNING)

_HOUR: Final = timedelta(hours=1)
LIMITS: Final[Mapping[State, tuple[timedelta, timedelta]]] = {
    State.TEARDOWN_PENDING: (timedelta(minutes=15), _HOUR),
    State.NOT_READY: (_HOUR, 24 * _HOUR),
}
"""When a teardown is late, and when it is stuck. It takes up to 4 minutes, and the kubelet starts one every minute.

A sandbox that is not ready is torn down by a kubelet that is up: an hour leaves time to restart one.
"""


def find(assessment: Assessment) -> Iterator[Finding]:
    for network in assessment.networks:
        assessment.of(network)
    assessment.snapshot.containers.known()
    if runtimes.keeps_checkpoints(assessment.snapshot):
        assessment.snapshot.checkpoints.known()
    for one in assessment.reservations:
        if not isinstance(one, PendingTeardown) or one.state not in LIMITS or not isinstance(one.entry, Reservation):
            continue
        late, stuck = LIMITS[one.state]
        if one.lasted < late:
            continue
        severity = Severity.WARNING if one.lasted >= stuck else Severity.INFO
        since = format_time(one.since)
        yield Finding(
            detector=NAME,
            subject=f"{one.network}/{one.name}",
            message=f"{one.name} is reserved for {_what_is_left(one, since)}{_why(one.entry, assessment.snapshot)}",
            severity=severity,
            network=one.network,
            pod=one.pod,
            since=one.since,
            identity=(one.container_id, severity),
        )


def _what_is_left(one: ClassifiedReservation, since: str) -> str:
    pod = f" of pod {one.pod}" if one.pod else ""
    if one.state is State.NOT_READY:
        return f"sandbox {one.container_id[:12]}{pod}, which has not been ready since {since} and is not torn down"
    return (
        f"container {one.container_id[:12]}{pod}, which no longer exists; "
        f"the kubelet has not completed its teardown since {since}"
    )


def _why(reservation: Reservation, snapshot: Snapshot) -> str:
    if (damaged := damaged_result(snapshot, reservation)) is None:
        return ""
    file = f"libcni's cached result {damaged.file}"
    return f"; likely cause: {file} is damaged ({damaged.damage}); remove this file"
