"""Classifies every reservation: a snapshot and a grace period in, an assessment out. Pure.

Evidence of ownership is checked first. A source that could not be read makes the state `unknown`,
never `leaked`.
"""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final, TypeAlias

from agent.checks.readings.attribution import may_be_of_podman
from agent.model.assessment import KUBENET, Assessment, ClassifiedReservation, State
from agent.model.clocks import FILE_AHEAD
from agent.model.index import SnapshotIndex
from agent.model.memory import Memory
from agent.model.runtime import KubeletRuntime
from agent.model.snapshot import (
    InsufficientData,
    Reservation,
    require_available,
)
from agent.model.text import format_age

UNORDERED_GRACE: Final = timedelta(minutes=15)
"""A runtime may hold an address for so long before it lists the sandbox: 12 minutes, and some more.

The kubelet's and the runtime's time limits for one RunPodSandbox and for its cleanup add up to
that.
"""

StateAndReason: TypeAlias = tuple[State, str]

_PODMANS: Final = (
    "may be podman's, whose network pods use here: give pods another one, in CRI-O's "
    "cni_default_network or in a file of the CNI configuration that sorts before podman's "
    "(87-podman-bridge.conflist)"
)

_PROTECTING: Final = (State.CANDIDATE, State.UNKNOWN, State.UNMANAGED)
"""A state that protects one address of a sandbox protects all of them; the strongest comes last."""


def classify(
    index: SnapshotIndex, runtime: KubeletRuntime, grace: timedelta, memory: Memory
) -> Assessment:
    """Return the state of every entry. The engine confirms what is `leaked`."""
    if runtime.without_record_order:
        grace = max(grace, UNORDERED_GRACE)

    pods = {**memory.pods, **index.pods}
    entries: list[ClassifiedReservation] = []
    for reservation in index.reservations:
        state, reason = _state(reservation, index, runtime.keeps_checkpoints, grace)
        pod = pods.get(reservation.container_id, "")
        entries.append(ClassifiedReservation(reservation, state, reason, pod))

    entries = _protect_sandboxes(entries)
    for store in index.snapshot.reservations:
        for entry in store.unrecognized:
            reason = entry.why
            if entry.blocks:
                reason += "; host-local cannot give out the address"
            entries.append(ClassifiedReservation(entry, State.UNRECOGNIZED, reason))
    return Assessment(index, runtime, tuple(entries))


def _state(
    reservation: Reservation, index: SnapshotIndex, keeps_checkpoints: bool, grace: timedelta
) -> StateAndReason:
    """Return the state of a reservation. Records come first, then whoever uses the address."""
    try:
        return (
            _recorded(reservation, index, keeps_checkpoints)
            or _in_use(reservation, index)
            or _without_owner(reservation, index.snapshot.taken_at, grace)
        )
    except InsufficientData as missing:
        return State.UNKNOWN, str(missing)


def _recorded(
    reservation: Reservation, index: SnapshotIndex, keeps_checkpoints: bool
) -> StateAndReason | None:
    """Return the state if the runtime or the kubelet has a record of the sandbox."""
    if not reservation.container_id:
        return None
    index.snapshot.containers.known()
    if container := index.containers.get(reservation.container_id):
        state = State.IN_USE if container.running else State.NOT_READY
        return state, f"its container is {container.state}"

    if keeps_checkpoints:
        index.snapshot.checkpoints.known()
    if reservation.container_id not in index.checkpoints:
        return None

    # If a process has the address and no other network's pod explains it, the runtime has lost
    # this container: `_in_use` finds the process.
    if reservation.ip in index.holders and not index.explaining_networks(reservation.ip):
        return None
    reason = "its container is gone, but its checkpoint remains: its teardown is incomplete"
    return State.TEARDOWN_PENDING, reason


def _in_use(reservation: Reservation, index: SnapshotIndex) -> StateAndReason | None:
    """Return the state if anything uses the address without a container that the runtime knows."""
    snapshot = index.snapshot
    if user := _user_of_namespace(reservation, index):
        return State.UNMANAGED, f"the runtime does not know its container, but {user}"

    # Pod status can only prove use. If it is not requested (no credentials), the other evidence
    # decides; if it is unavailable, nothing does.
    require_available(snapshot.pods)
    if pod := index.claims.get(reservation.ip):
        reason = f"the runtime does not know its container, but pod {pod} has the address"
        return State.UNMANAGED, reason
    if reservation.container_id:
        # A sandbox is classified whole, and it may be in use in a network that could not be read.
        require_available(*(store.reading for store in snapshot.reservations))

    # Whether a sandbox without a record may yet get one depends on the runtime's version.
    require_available(snapshot.runtimes)
    if may_be_of_podman(reservation, index):
        return State.UNKNOWN, _PODMANS

    if reservation.network == KUBENET:
        return None  # which gives libcni no names of pods
    for result in index.results_of(reservation):
        if result.pod == "":
            reason = "libcni's cache names no pod of its sandbox, which may be another program's"
            return State.UNKNOWN, reason
    return None


def _user_of_namespace(reservation: Reservation, index: SnapshotIndex) -> str | None:
    """Say who has the address in a network namespace."""
    snapshot = index.snapshot
    container_id = reservation.container_id
    snapshot.addresses.known()
    if holders := index.holders.get(reservation.ip):
        has = "has" if len(holders) == 1 else "have"
        user = f"{' and '.join(holders)} {has} the address"
        if networks := index.explaining_networks(reservation.ip):
            owner = " and ".join(networks)
            user += f", which {owner} reserves for a container that the runtime has"
        return user

    if not container_id:
        return None
    snapshot.cni_results.known()
    if file := index.too_large.get(container_id):
        raise InsufficientData(
            f"cni_results: {file} is too large: its network namespace may still be mounted"
        )

    if any(result.namespace for result in index.results.get(container_id, ())):
        snapshot.mounted_namespaces.known()
    if path := index.mounted_namespaces.get(container_id):
        return f"its network namespace is still mounted, without a process: {path}"
    return None


def _without_owner(reservation: Reservation, now: datetime, grace: timedelta) -> StateAndReason:
    """Return the state of what no record, process or pod explains."""
    age = now - reservation.mtime
    if age < -FILE_AHEAD:
        reason = f"its file is {format_age(-age)} newer than this snapshot: the clock was changed"
        return State.UNKNOWN, reason
    if age < grace:
        reason = "no owner of any kind, but its file is younger than the grace period"
        return State.CANDIDATE, f"{reason} ({format_age(grace)})"
    if not reservation.container_id:
        reason = "its file is empty and no process has the address: nothing will ever release it"
        return State.LEAKED, reason
    return State.LEAKED, "its container is gone, and nothing on the node will ever release it"


def _protect_sandboxes(
    entries: Sequence[ClassifiedReservation],
) -> list[ClassifiedReservation]:
    """Return the entries with the addresses of each sandbox classified together."""
    strongest: dict[str, ClassifiedReservation] = {}
    for entry in entries:
        if entry.container_id and entry.state in _PROTECTING:
            other = strongest.setdefault(entry.container_id, entry)
            if _PROTECTING.index(entry.state) > _PROTECTING.index(other.state):
                strongest[entry.container_id] = entry

    protected: list[ClassifiedReservation] = []
    for entry in entries:
        other = strongest.get(entry.container_id, entry)
        if other.state is not entry.state and entry.state in {State.LEAKED, *_PROTECTING}:
            reason = f"same sandbox as {other.name}: {other.why}"
            protected.append(replace(entry, state=other.state, why=reason))
        else:
            protected.append(entry)
    return protected
