"""Classifies every reservation. Pure: a snapshot and a grace period in, an assessment out.

Evidence of ownership is checked first. A source that could not be read makes the state `unknown`, never `leaked`.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from agent.model.assessment import Assessment, ClassifiedReservation, State
from agent.model.namespaces import mounted_by_sandbox, named_sandboxes
from agent.model.snapshot import Container, InsufficientData, NotRequested, Reservation, Snapshot, known_or
from agent.model.text import format_age
from agent.model.times import from_mtime

CLOCK_SLACK = timedelta(seconds=10)
"""A file written during the snapshot is a moment newer than it; a larger difference means that a clock was set."""

_FIRST_MOMENT, _LAST_MOMENT = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)


def made_at(reservation: Reservation) -> datetime:
    """Return the file's mtime: host-local writes a reservation once, and never again."""
    try:
        return from_mtime(reservation.mtime_ns)
    except OverflowError:
        # A file system's years go further than the calendar's.
        return _LAST_MOMENT if reservation.mtime_ns > 0 else _FIRST_MOMENT


def classify(snapshot: Snapshot, grace: timedelta, remembered: Mapping[str, str] | None = None) -> Assessment:
    """Return the state of every entry of every network. `leaked` is provisional: the engine confirms it.

    `remembered`: pods by container id from earlier snapshots; used for names only.
    """
    evidence = _Evidence.of(snapshot, remembered or {})
    single = tuple(
        _classify_one(reservation, evidence, grace)
        for store in snapshot.reservations
        for reservation in known_or(store.reading, ())
    )
    unrecognized = tuple(
        ClassifiedReservation(entry, State.UNRECOGNIZED, entry.why)
        for store in snapshot.reservations
        for entry in store.unrecognized
    )
    return Assessment(snapshot, (*_classify_sandboxes(single), *unrecognized))


@dataclass(frozen=True, slots=True)
class _Evidence:
    """The snapshot, indexed by what a reservation can be asked about."""

    snapshot: Snapshot
    containers: Mapping[str, Container]
    checkpoints: frozenset[str]
    addresses: Mapping[str, str]
    claims: Mapping[str, str]
    pods: Mapping[str, str]
    named: frozenset[str]
    """The sandboxes whose network namespace was mounted when they were made."""
    mounted: Mapping[str, str]
    """Where it still is."""

    @classmethod
    def of(cls, snapshot: Snapshot, remembered: Mapping[str, str]) -> "_Evidence":
        containers, checkpoints = known_or(snapshot.containers, ()), known_or(snapshot.checkpoints, ())
        results = known_or(snapshot.cni_results, ())
        return cls(
            snapshot=snapshot,
            containers={container.id: container for container in containers},
            checkpoints=frozenset(checkpoint.container_id for checkpoint in checkpoints),
            addresses={
                address.ip: f"process {address.pid} ({address.command})" for address in known_or(snapshot.addresses, ())
            },
            claims=_claims(snapshot),
            pods={**remembered, **_pods_by_id(snapshot)},
            named=named_sandboxes(results),
            mounted=mounted_by_sandbox(results, known_or(snapshot.mounted_namespaces, ())),
        )


def _claims(snapshot: Snapshot) -> dict[str, str]:
    """Return the pods that have an address of their own, by address."""
    pods = (pod for pod in known_or(snapshot.pods, ()) if pod.live and not pod.host_network)
    return {ip: pod.name for pod in pods for ip in pod.ips}


def _pods_by_id(snapshot: Snapshot) -> dict[str, str]:
    """Return the pod of each container id. The runtime's record comes last: it is the best one."""
    records = [
        *((one.container_id, one.pod) for one in known_or(snapshot.cni_results, ())),
        *((one.container_id, one.pod) for one in known_or(snapshot.checkpoints, ())),
        *((one.id, one.pod) for one in known_or(snapshot.containers, ())),
    ]
    return {container_id: pod for container_id, pod in records if pod}


def _classify_one(reservation: Reservation, evidence: _Evidence, grace: timedelta) -> ClassifiedReservation:
    try:
        state, why = _owner(reservation, evidence) or _orphan(reservation, evidence.snapshot.taken_at, grace)
    except InsufficientData as missing:
        state, why = State.UNKNOWN, str(missing)
    return ClassifiedReservation(reservation, state, why, evidence.pods.get(reservation.container_id, ""))


def _owner(reservation: Reservation, evidence: _Evidence) -> tuple[State, str] | None:
    snapshot = evidence.snapshot
    if reservation.container_id:
        snapshot.containers.known()
        if container := evidence.containers.get(reservation.container_id):
            return (State.IN_USE if container.running else State.NOT_READY), f"its container is {container.state}"
        snapshot.checkpoints.known()
        if reservation.container_id in evidence.checkpoints:
            return (
                State.TEARDOWN_PENDING,
                "its container is gone, but its checkpoint remains: the kubelet will retry the teardown",
            )
    if holder := _in_namespace(reservation, evidence):
        return State.UNMANAGED, f"the runtime does not know its container, but {holder}"
    # Pod status can only prove use. Not requested (no credentials), the other evidence decides; unavailable, none does.
    if not isinstance(snapshot.pods, NotRequested):
        snapshot.pods.known()
    if claimant := evidence.claims.get(reservation.ip):
        return State.UNMANAGED, f"the runtime does not know its container, but pod {claimant} has the address"
    if reservation.container_id:
        # A sandbox is classified whole, and it may be in use in a network that could not be read.
        for store in snapshot.reservations:
            if not isinstance(store.reading, NotRequested):
                store.reading.known()
    return None


def _in_namespace(reservation: Reservation, evidence: _Evidence) -> str:
    """Say who has the address in a network namespace; empty if nobody has."""
    snapshot = evidence.snapshot
    snapshot.addresses.known()
    if process := evidence.addresses.get(reservation.ip):
        return f"{process} has the address"
    if reservation.container_id:
        snapshot.cni_results.known()
    if reservation.container_id in evidence.named:
        snapshot.mounted_namespaces.known()
    place = evidence.mounted.get(reservation.container_id)
    return f"its network namespace is still mounted, without a process: {place}" if place else ""


def _orphan(reservation: Reservation, now: datetime, grace: timedelta) -> tuple[State, str]:
    age = now - made_at(reservation)
    if age < -CLOCK_SLACK:
        return State.UNKNOWN, f"its file is {format_age(-age)} newer than this snapshot: the clock was changed"
    if age < grace:
        return (
            State.CANDIDATE,
            f"no owner of any kind, but its file is younger than the grace period ({format_age(grace)})",
        )
    if not reservation.container_id:
        return State.LEAKED, "its file is empty and no process has the address: nothing will ever release it"
    return State.LEAKED, "its container is gone, and nothing on the node will ever release it"


_PROTECTING = (State.CANDIDATE, State.UNKNOWN, State.UNMANAGED)
"""A state that protects one address of a sandbox protects all of them; the strongest comes last."""


def _classify_sandboxes(single: Sequence[ClassifiedReservation]) -> tuple[ClassifiedReservation, ...]:
    """Classify a sandbox with several addresses (dual stack, several networks) as one."""
    sandboxes: defaultdict[str, list[ClassifiedReservation]] = defaultdict(list)
    for classified in single:
        if classified.state in _PROTECTING:
            sandboxes[classified.container_id].append(classified)
    sandboxes.pop("", None)
    evidence_by_id = {
        container_id: max(siblings, key=lambda sibling: _PROTECTING.index(sibling.state))
        for container_id, siblings in sandboxes.items()
    }
    return tuple(_protected(classified, evidence_by_id.get(classified.container_id)) for classified in single)


def _protected(classified: ClassifiedReservation, proof: ClassifiedReservation | None) -> ClassifiedReservation:
    if proof is None or proof.state is classified.state or classified.state not in {State.LEAKED, *_PROTECTING}:
        return classified
    return replace(classified, state=proof.state, why=f"same sandbox as {proof.name}: {proof.why}")
