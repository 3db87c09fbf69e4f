"""An address is reserved for a container that no longer exists, and nothing on the node will ever release it.

host-local keeps one file for each address. The kubelet removes it when it tears the sandbox down. If the runtime has
lost the sandbox and the kubelet has dropped its checkpoint (for example because it restarted before it knew its pod
CIDR), nobody removes it. After enough leaks, pods hang with `no IP addresses available in range set`.

Means: the file outlived its container: no container, no checkpoint, no process, no mounted network namespace that
libcni's cache names, and no live pod has the address.
Do: release the address with `nodeleak clean`; afterwards find out what restarted or removed containers at the time
shown, or addresses will leak again. Never delete reservation files by hand: comparing `docker ps` with a directory
listing takes addresses that are in use.
"""

from collections.abc import Iterator
from datetime import datetime
from typing import Final

from agent.checks.addresses.classify import made_at
from agent.model.assessment import Assessment, ClassifiedReservation, State
from agent.model.finding import Finding, LeakCause, Severity
from agent.model.snapshot import NotRequested, ProcessStartTimes, Reservation, Snapshot, Unavailable, known_or
from agent.model.text import format_time

NAME = "leaked_reservation"
SEVERITIES: Final = (Severity.WARNING,)


def find(assessment: Assessment) -> Iterator[Finding]:
    snapshot = assessment.snapshot
    processes = known_or(snapshot.processes, None)

    for classified in assessment.reservations:
        if classified.state is not State.LEAKED or not isinstance(classified.entry, Reservation):
            continue
        reservation = classified.entry
        cause, since = _origin(reservation, processes)
        because = CAUSES[cause].format(since=format_time(since))
        yield Finding(
            detector=NAME,
            subject=str(reservation.key),
            message=f"{reservation.ip} is reserved for {_owner(classified)}; {because}",
            network=reservation.network,
            pod=classified.pod,
            cause=cause,
            since=since,
            identity=(reservation.container_id, reservation.inode, reservation.size, reservation.mtime_ns),
        )
    # After the findings: where one of these is unavailable, there may be more leaks.
    for network in assessment.networks:
        assessment.of(network)
    snapshot.containers.known()
    _check_evidence(snapshot)


def _check_evidence(snapshot: Snapshot) -> None:
    """Raise InsufficientData where an unavailable source may hide a leak."""
    for reading in (snapshot.checkpoints, snapshot.addresses, snapshot.mounted_namespaces, snapshot.pods):
        if isinstance(reading, Unavailable):
            reading.known()
    if not isinstance(snapshot.addresses, NotRequested):  # a reservation has no owner
        snapshot.cni_results.known()


def _owner(classified: ClassifiedReservation) -> str:
    if not classified.container_id:
        return "no container (the file is empty)"
    pod = f" of pod {classified.pod}" if classified.pod else ""
    return f"container {classified.container_id[:12]}{pod}, which no longer exists"


CAUSES: Final = {
    LeakCause.KUBELET_RESTART: "likely cause: kubelet restart at {since}",
    LeakCause.RUNTIME_RESTART: "likely cause: container runtime restart at {since}",
    LeakCause.NODE_REBOOT: "likely cause: node reboot at {since}",
    LeakCause.EMPTY_FILE: "likely cause: a crash or power cut at {since}",
    LeakCause.UNKNOWN: "cause unknown: reserved at {since}, no restart since",
}


def _origin(reservation: Reservation, processes: ProcessStartTimes | None) -> tuple[LeakCause, datetime]:
    """Return the likely cause, and the earliest moment at which it can have become a leak."""
    made = made_at(reservation)
    if not reservation.container_id:
        return LeakCause.EMPTY_FILE, made
    if processes is None:
        return LeakCause.UNKNOWN, made
    if processes.booted > made:
        return LeakCause.NODE_REBOOT, processes.booted
    # The kubelet first: when only the runtime restarts, the kubelet keeps its checkpoints and retries the teardown.
    if processes.kubelet is not None and processes.kubelet > made:
        return LeakCause.KUBELET_RESTART, processes.kubelet
    if processes.docker is not None and processes.docker > made:
        return LeakCause.RUNTIME_RESTART, processes.docker
    return LeakCause.UNKNOWN, made
