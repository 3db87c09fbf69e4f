"""Since when the teardown of a sandbox is due, and which evidence says so. Pure.

All but what earlier snapshots showed is evidence of a single snapshot, which no restart of the
agent loses. A kubelet or a runtime that has just started tries anew, so nothing counts that is
older than its start.
"""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from enum import Enum, auto
from typing import NamedTuple

from agent.checks.kubelet_service import lacks_kubelet
from agent.model.assessment import Assessment, ClassifiedReservation, State
from agent.model.index import SnapshotIndex
from agent.model.snapshot import (
    Container,
    Pod,
    Reservation,
    Snapshot,
    known_or,
    require_available,
)
from agent.model.versions import version_numbers


class Evidence(Enum):
    SEEN = auto()
    """Earlier snapshots showed it, or this is the first one."""
    POD_DELETED = auto()
    """The pod should be gone: its deletion and its grace period are over."""
    REPLACED = auto()
    """The pod has a newer sandbox, which the kubelet makes after the teardown of the old one."""
    POWER_CUT = auto()
    """It is older than the boot, and its cached result is damaged.

    The time of the sandbox alone proves nothing: a node may create some before its clock is set.
    """
    FORGOTTEN = auto()
    """The kubelet does not look for sandboxes of which only a checkpoint is left."""


class Due(NamedTuple):
    evidence: Evidence
    since: datetime  # by the node's clock
    lasted: timedelta
    """How long nothing has come of it while the kubelet and the runtime ran."""


def teardown_due(
    reservation: Reservation, entry: ClassifiedReservation, assessment: Assessment
) -> Due | None:
    """Return the evidence that reaches back furthest; None: the sandbox is not due for teardown."""
    found = _evidence(reservation, entry, assessment)
    return max(found, key=lambda due: due.lasted, default=None)


def _evidence(
    reservation: Reservation, entry: ClassifiedReservation, assessment: Assessment
) -> Iterator[Due]:
    """Yield all evidence. None of it counts for longer than teardowns have been tried."""
    snapshot = assessment.snapshot
    trying = trying_for(assessment)
    if (pending := assessment.memory.get(reservation).pending_since) is not None:
        lasted = min(snapshot.uptime - pending.uptime, trying)
        yield Due(Evidence.SEEN, pending.wall, lasted)

    dated = {
        Evidence.POD_DELETED: _should_be_gone(reservation, entry, assessment.index),
        Evidence.REPLACED: _replaced_at(reservation, entry, assessment.index),
        Evidence.POWER_CUT: _power_cut(entry, assessment.index),
        Evidence.FORGOTTEN: _forgotten_at(reservation, entry, snapshot),
    }
    for evidence, since in dated.items():
        if since is not None:
            yield Due(evidence, since, min(snapshot.taken_at - since, trying))


def trying_for(assessment: Assessment) -> timedelta:
    """Return for how long the kubelet has tried to tear sandboxes down.

    While no kubelet runs, nobody tries: stopped_kubelet reports that. Raises InsufficientData if
    none was found and the Node, which says whether an unknown program is one, could not be read.
    """
    snapshot = assessment.snapshot
    processes = known_or(snapshot.processes, None)
    if processes is not None and processes.kubelet is None:
        require_available(snapshot.node)
    return timedelta(0) if lacks_kubelet(snapshot) else running_for(assessment)


def running_for(assessment: Assessment) -> timedelta:
    """Return for how long the kubelet and the runtime have run, as far as that is known."""
    snapshot = assessment.snapshot
    processes = known_or(snapshot.processes, None)
    if processes is None:
        return snapshot.uptime

    starts = [processes.start_of(name) for name in assessment.runtime.names]
    known = [start for start in (processes.booted, processes.kubelet, *starts) if start]
    return snapshot.taken_at - max(known)


def _should_be_gone(
    reservation: Reservation, entry: ClassifiedReservation, index: SnapshotIndex
) -> datetime | None:
    """Return when the pod should have been gone, by the node's clock; None: it should not."""
    snapshot = index.snapshot
    pod = _pod_of(reservation, entry, index)
    # The kubelet runs a static pod on while the API server deletes its mirror.
    if pod is None or pod.static or not pod.deleting or pod.deletion is None:
        return None
    return pod.deletion - (snapshot.api_time - snapshot.taken_at)


def _pod_of(
    reservation: Reservation, entry: ClassifiedReservation, index: SnapshotIndex
) -> Pod | None:
    """Return the pod that the sandbox is of, not a successor with the same name."""
    container = index.containers.get(entry.container_id)
    if container is not None and container.pod_uid:
        return index.pods_by_uid.get(container.pod_uid)
    pod = index.pods_by_name.get(entry.pod)
    is_older = pod is not None and pod.created and pod.created <= reservation.mtime
    return pod if is_older else None


def _replaced_at(
    reservation: Reservation, entry: ClassifiedReservation, index: SnapshotIndex
) -> datetime | None:
    """Return since when the kubelet has run with a newer sandbox of the pod; None: without one."""
    started = index.snapshot.kubelet_started
    if started is None or entry.state is State.IN_USE:
        return None

    old = index.containers.get(entry.container_id)
    created = old.created if old else reservation.mtime.timestamp()
    newer = [
        container.created
        for container in index.containers.values()
        if _is_of_the_pod(container, old, entry, index)
        and created < container.created <= index.snapshot.taken_at.timestamp()
    ]

    if not newer:
        return None
    return max(started, datetime.fromtimestamp(min(newer), UTC))


def _is_of_the_pod(
    container: Container,
    old: Container | None,
    entry: ClassifiedReservation,
    index: SnapshotIndex,
) -> bool:
    """Return whether it is another sandbox of the pod."""
    if not container.sandbox or container.id == entry.container_id:
        return False
    if old is not None:
        # The pods of a StatefulSet have the names of their predecessors.
        return old.sandbox and bool(old.pod_uid) and container.pod_uid == old.pod_uid
    return container.pod == index.pods.get(entry.container_id)


def _power_cut(entry: ClassifiedReservation, index: SnapshotIndex) -> datetime | None:
    """Return when the node booted if the sandbox is older, and its cached result damaged."""
    processes = known_or(index.snapshot.processes, None)
    container = index.containers.get(entry.container_id)
    if processes is None or container is None or container.running:
        return None

    damaged = any(sandbox == container.id for _, sandbox in index.damaged_results)
    is_older = container.created < int(processes.booted.timestamp())
    return processes.booted if damaged and is_older else None


def _forgotten_at(
    reservation: Reservation, entry: ClassifiedReservation, snapshot: Snapshot
) -> datetime | None:
    """Return since when the kubelet has run with a checkpoint that it leaves alone."""
    started = snapshot.kubelet_started
    if entry.state is not State.TEARDOWN_PENDING or not forgets_checkpoints(snapshot):
        return None
    return None if started is None else max(started, reservation.mtime)


def forgets_checkpoints(snapshot: Snapshot) -> bool:
    """Return whether the kubelet leaves a sandbox alone of which only a checkpoint is left.

    From 1.36 it lists sandboxes with an empty filter, and cri-dockerd then omits these (0.4.3).
    """
    return (version_numbers(snapshot.kubelet_version) or ()) >= (1, 36)
