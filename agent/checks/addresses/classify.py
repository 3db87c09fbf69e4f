"""Classifies every reservation. Pure: a snapshot and a grace period in, an assessment out.

Evidence of ownership is checked first. A source that could not be read makes the state `unknown`, never `leaked`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TypeAlias

from agent.checks import runtime as runtimes
from agent.model.assessment import Assessment, ClassifiedReservation, State
from agent.model.leak import Leaks
from agent.model.namespaces import mounted_by_sandbox, named_sandboxes
from agent.model.snapshot import Container, Damage, InsufficientData, NotRequested, Reservation, Snapshot, known_or
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


UNORDERED_GRACE = timedelta(minutes=15)
"""A runtime may hold an address for so long before it lists the sandbox: 12 minutes, and some to spare.

The kubelet's and the runtime's time limits for one RunPodSandbox and for its cleanup add up to them.
"""


def classify(snapshot: Snapshot, grace: timedelta, remembered: Mapping[str, str] | None = None) -> Assessment:
    """Return the state of every entry of every network. `leaked` is provisional: the engine confirms it.

    `remembered`: pods by container id from earlier snapshots; used for names only.
    """
    provisional = provisional_states(snapshot, grace, remembered)
    return provisional.assessment(provisional.states)


StateAndReason: TypeAlias = tuple[State, str]


@dataclass(frozen=True, slots=True)
class ProvisionalStates:
    """What every reservation is before leaks are confirmed."""

    snapshot: Snapshot
    reservations: Sequence[Reservation]
    states: Sequence[StateAndReason]
    """One for each reservation."""
    pods: Mapping[str, str]

    def suspects(self) -> Iterator[tuple[int, Reservation]]:
        """Yield the reservations without an owner, each with its place."""
        for place, (state, _) in enumerate(self.states):
            if state is State.LEAKED:
                yield place, self.reservations[place]

    def assessment(self, states: Iterable[StateAndReason], leaks: Leaks | None = None) -> Assessment:
        """Return the assessment with these states of the reservations."""
        entries = (
            ClassifiedReservation(one, state, why, self.pods.get(one.container_id, ""))
            for one, (state, why) in zip(self.reservations, states, strict=True)
        )
        unrecognized = (
            ClassifiedReservation(entry, State.UNRECOGNIZED, entry.why)
            for store in self.snapshot.reservations
            for entry in store.unrecognized
        )
        return Assessment(self.snapshot, (*entries, *unrecognized), leaks or {})


def provisional_states(
    snapshot: Snapshot, grace: timedelta, remembered: Mapping[str, str] | None = None
) -> ProvisionalStates:
    if runtimes.unordered(snapshot):
        grace = max(grace, UNORDERED_GRACE)
    evidence = _Evidence.of(snapshot, remembered or {})
    reservations = tuple(one for store in snapshot.reservations for one in known_or(store.reading, ()))
    single = [_classify_one(one, evidence, grace) for one in reservations]
    return ProvisionalStates(snapshot, reservations, _classify_sandboxes(reservations, single), evidence.pods)


@dataclass(frozen=True, slots=True)
class _Evidence:
    """The snapshot, indexed by what a reservation can be asked about."""

    snapshot: Snapshot
    containers: Mapping[str, Container]
    checkpoints: frozenset[str]
    keeps_checkpoints: bool
    addresses: Mapping[str, str]
    listed: Mapping[str, str]
    """The network that reserves an address for a container of the runtime, by address."""
    claims: Mapping[str, str]
    pods: Mapping[str, str]
    named: frozenset[str]
    """The sandboxes whose network namespace was mounted when they were made."""
    mounted: Mapping[str, str]
    """Where it still is."""
    unread: Mapping[str, str]
    """The files of sandboxes whose result is too large to be read."""

    @classmethod
    def of(cls, snapshot: Snapshot, remembered: Mapping[str, str]) -> "_Evidence":
        containers, checkpoints = known_or(snapshot.containers, ()), known_or(snapshot.checkpoints, ())
        results, ids = known_or(snapshot.cni_results, ()), {container.id: container for container in containers}
        stores = (known_or(store.reading, ()) for store in snapshot.reservations)
        return cls(
            snapshot=snapshot,
            containers=ids,
            checkpoints=frozenset(checkpoint.container_id for checkpoint in checkpoints),
            keeps_checkpoints=runtimes.keeps_checkpoints(snapshot),
            addresses={
                address.ip: f"process {address.pid} ({address.command})" for address in known_or(snapshot.addresses, ())
            },
            listed={one.ip: one.network for store in stores for one in store if one.container_id in ids},
            claims=_claims(snapshot),
            pods={**remembered, **_pods_by_id(snapshot)},
            named=named_sandboxes(results),
            mounted=mounted_by_sandbox(results, known_or(snapshot.mounted_namespaces, ())),
            unread={one.container_id: one.file for one in snapshot.damaged_results if one.damage is Damage.TOO_LARGE},
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


def _classify_one(reservation: Reservation, evidence: _Evidence, grace: timedelta) -> StateAndReason:
    try:
        return _owner(reservation, evidence) or _orphan(reservation, evidence.snapshot.taken_at, grace)
    except InsufficientData as missing:
        return State.UNKNOWN, str(missing)


def _owner(reservation: Reservation, evidence: _Evidence) -> StateAndReason | None:
    snapshot = evidence.snapshot
    if reservation.container_id and (recorded := _record(reservation, evidence)):
        return recorded
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


def _record(reservation: Reservation, evidence: _Evidence) -> StateAndReason | None:
    """Return what the runtime and the kubelet have of the sandbox."""
    snapshot = evidence.snapshot
    snapshot.containers.known()
    if container := evidence.containers.get(reservation.container_id):
        return (State.IN_USE if container.running else State.NOT_READY), f"its container is {container.state}"
    if evidence.keeps_checkpoints:
        snapshot.checkpoints.known()
    if reservation.container_id in evidence.checkpoints:
        return (
            State.TEARDOWN_PENDING,
            "its container is gone, but its checkpoint remains: the kubelet will retry the teardown",
        )
    return None


def _in_namespace(reservation: Reservation, evidence: _Evidence) -> str:
    """Say who has the address in a network namespace; empty if nobody has."""
    snapshot = evidence.snapshot
    snapshot.addresses.known()
    if process := evidence.addresses.get(reservation.ip):
        other = evidence.listed.get(reservation.ip)
        owner = f", which {other} reserves for a container that the runtime has" if other else ""
        return f"{process} has the address{owner}"
    if reservation.container_id:
        snapshot.cni_results.known()
    if file := evidence.unread.get(reservation.container_id):
        raise InsufficientData(f"cni_results: {file} is too large: its network namespace may still be mounted")
    if reservation.container_id in evidence.named:
        snapshot.mounted_namespaces.known()
    place = evidence.mounted.get(reservation.container_id)
    return f"its network namespace is still mounted, without a process: {place}" if place else ""


def _orphan(reservation: Reservation, now: datetime, grace: timedelta) -> StateAndReason:
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


def _classify_sandboxes(
    reservations: Sequence[Reservation], single: Sequence[StateAndReason]
) -> Sequence[StateAndReason]:
    """Classify a sandbox with several addresses (dual stack, several networks) as one."""
    proofs: dict[str, int] = {}
    for place, (state, _) in enumerate(single):
        container_id = reservations[place].container_id
        if container_id and state in _PROTECTING:
            proof = proofs.setdefault(container_id, place)
            if _PROTECTING.index(state) > _PROTECTING.index(single[proof][0]):
                proofs[container_id] = place
    if not proofs:
        return single

    def protected(place: int) -> StateAndReason:
        state, _ = single[place]
        proof = proofs.get(reservations[place].container_id)
        if proof is None or single[proof][0] is state or state not in {State.LEAKED, *_PROTECTING}:
            return single[place]
        stronger, why = single[proof]
        return stronger, f"same sandbox as {reservations[proof].ip}: {why}"

    return [protected(place) for place in range(len(single))]
