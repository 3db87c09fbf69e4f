"""Classifies every reservation. Pure: a snapshot and a grace period in, an assessment out.

Evidence of ownership is checked first. A source that could not be read makes the state `unknown`, never `leaked`.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import TypeAlias

from agent.checks.kubelet_runtime import kubelet_runtime
from agent.model.assessment import KUBENET, Assessment, ClassifiedReservation, State
from agent.model.clocks import FILE_AHEAD
from agent.model.index import SnapshotIndex
from agent.model.memory import NO_MEMORY, Memory
from agent.model.snapshot import (
    InsufficientData,
    Reservation,
    Snapshot,
    known_or,
    require_available,
)
from agent.model.text import format_age

UNORDERED_GRACE = timedelta(minutes=15)
"""A runtime may hold an address for so long before it lists the sandbox: 12 minutes, and some to spare.

The kubelet's and the runtime's time limits for one RunPodSandbox and for its cleanup add up to them.
"""

_TAKEN = "; host-local cannot give out the address"
StateAndReason: TypeAlias = tuple[State, str]


def classify(snapshot: Snapshot, grace: timedelta, memory: Memory = NO_MEMORY) -> Assessment:
    """Return the state of every entry. The engine confirms what is `leaked`."""
    index = SnapshotIndex(snapshot)
    runtime = kubelet_runtime(snapshot)
    if runtime.without_record_order:
        grace = max(grace, UNORDERED_GRACE)
    reservations = [
        entry for store in snapshot.reservations for entry in known_or(store.reading, ())
    ]
    single = [
        _state(reservation, index, runtime.keeps_checkpoints, grace) for reservation in reservations
    ]
    pods = {**memory.pods, **index.pods}
    pairs = zip(reservations, _whole_sandboxes(reservations, single), strict=True)
    classified = [
        ClassifiedReservation(entry, *state, pods.get(entry.container_id, ""))
        for entry, state in pairs
    ]
    odd = (entry for store in snapshot.reservations for entry in store.unrecognized)
    classified += [
        ClassifiedReservation(entry, State.UNRECOGNIZED, entry.why + _TAKEN * entry.blocks)
        for entry in odd
    ]
    return Assessment(index, runtime, tuple(classified))


def _state(
    reservation: Reservation, index: SnapshotIndex, keeps_checkpoints: bool, grace: timedelta
) -> StateAndReason:
    try:
        owned = _recorded(reservation, index, keeps_checkpoints) or _in_use(reservation, index)
        return owned or _without_owner(reservation, index.snapshot.taken_at, grace)
    except InsufficientData as missing:
        return State.UNKNOWN, str(missing)


def _recorded(
    reservation: Reservation, index: SnapshotIndex, keeps_checkpoints: bool
) -> StateAndReason | None:
    """Return what the runtime and the kubelet have of the sandbox."""
    if not reservation.container_id:
        return None
    index.snapshot.containers.known()
    if container := index.containers.get(reservation.container_id):
        return (
            State.IN_USE if container.running else State.NOT_READY
        ), f"its container is {container.state}"
    if keeps_checkpoints:
        index.snapshot.checkpoints.known()
    # A process that has the address, and is of no pod of another network, shows that the runtime lost the container.
    lost = reservation.ip in index.holders and not index.accounts_for(reservation.ip)
    if reservation.container_id in index.checkpoints and not lost:
        return (
            State.TEARDOWN_PENDING,
            "its container is gone, but its checkpoint remains: its teardown is incomplete",
        )
    return None


def _in_use(reservation: Reservation, index: SnapshotIndex) -> StateAndReason | None:
    """Return who uses the address without a container that the runtime knows."""
    snapshot = index.snapshot
    if holder := _in_namespace(reservation, index):
        return State.UNMANAGED, f"the runtime does not know its container, but {holder}"
    # Pod status can only prove use. Not requested (no credentials), the other evidence decides; unavailable, none does.
    require_available(snapshot.pods)
    if claimant := index.claims.get(reservation.ip):
        return (
            State.UNMANAGED,
            f"the runtime does not know its container, but pod {claimant} has the address",
        )
    if reservation.container_id:
        # A sandbox is classified whole, and it may be in use in a network that could not be read.
        require_available(*(store.reading for store in snapshot.reservations))
    results = index.results.get(reservation.container_id, ())
    own = (result for result in results if result.network == reservation.network != KUBENET)
    if any(result.pod == "" for result in own):
        return (
            State.UNKNOWN,
            "libcni's cache names no pod of its sandbox, which may be another program's",
        )
    return None


def _in_namespace(reservation: Reservation, index: SnapshotIndex) -> str:
    """Say who has the address in a network namespace; empty if nobody has."""
    snapshot, container_id = index.snapshot, reservation.container_id
    snapshot.addresses.known()
    if holders := index.holders.get(reservation.ip):
        owners = " and ".join(index.accounts_for(reservation.ip))
        owner = f", which {owners} reserves for a container that the runtime has" if owners else ""
        return (
            f"{' and '.join(holders)} {'has' if len(holders) == 1 else 'have'} the address{owner}"
        )
    if not container_id:
        return ""
    snapshot.cni_results.known()
    if file := index.too_large.get(container_id):
        raise InsufficientData(
            f"cni_results: {file} is too large: its network namespace may still be mounted"
        )
    if any(result.namespace for result in index.results.get(container_id, ())):
        snapshot.mounted_namespaces.known()
    path = index.mounted_namespaces.get(container_id)
    return f"its network namespace is still mounted, without a process: {path}" if path else ""


def _without_owner(reservation: Reservation, now: datetime, grace: timedelta) -> StateAndReason:
    age = now - reservation.mtime
    if age < -FILE_AHEAD:
        return (
            State.UNKNOWN,
            f"its file is {format_age(-age)} newer than this snapshot: the clock was changed",
        )
    if age < grace:
        why = f"no owner of any kind, but its file is younger than the grace period ({format_age(grace)})"
        return State.CANDIDATE, why
    if not reservation.container_id:
        return (
            State.LEAKED,
            "its file is empty and no process has the address: nothing will ever release it",
        )
    return State.LEAKED, "its container is gone, and nothing on the node will ever release it"


_PROTECTING = (State.CANDIDATE, State.UNKNOWN, State.UNMANAGED)
"""A state that protects one address of a sandbox protects all of them; the strongest comes last."""


def _whole_sandboxes(
    reservations: Sequence[Reservation], single: Sequence[StateAndReason]
) -> Iterable[StateAndReason]:
    """Yield the state of each reservation, with the addresses of a sandbox classified together."""
    strongest: dict[str, tuple[Reservation, StateAndReason]] = {}
    for reservation, (state, why) in zip(reservations, single, strict=True):
        if reservation.container_id and state in _PROTECTING:
            _, (known, _) = strongest.setdefault(
                reservation.container_id, (reservation, (state, why))
            )
            if _PROTECTING.index(state) > _PROTECTING.index(known):
                strongest[reservation.container_id] = reservation, (state, why)
    for reservation, (state, why) in zip(reservations, single, strict=True):
        other, (protecting, reason) = strongest.get(
            reservation.container_id, (reservation, (state, why))
        )
        if protecting is not state and state in {State.LEAKED, *_PROTECTING}:
            yield protecting, f"same sandbox as {other.ip}: {reason}"
        else:
            yield state, why
