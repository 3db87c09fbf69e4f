"""Why a leak most likely happened: start times, libcni's cache and the runtime's records. Pure.

Each cause is what can be observed, and nothing is guessed. Where two are possible, the less specific one is returned.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final, TypeAlias

from agent.checks import runtime as runtimes
from agent.checks.addresses.classify import made_at
from agent.model.assessment import LONGEST_ADD
from agent.model.finding import LeakCause
from agent.model.leak import Leak
from agent.model.snapshot import (
    CniResult,
    DamagedResult,
    Known,
    ProcessStartTimes,
    Reservation,
    Snapshot,
    known_or,
)

Origin: TypeAlias = tuple[LeakCause, datetime]
"""The likely cause, and the last start that can have been it; without one, when the address was reserved."""

_DURING_ADD: Final = LONGEST_ADD + timedelta(minutes=1)
"""A runtime that starts so soon after a reservation was made died while it waited for the network plugin."""
_AFTER_START: Final = timedelta(minutes=15)
"""What a start makes the kubelet or the runtime forget has leaked by then, with some minutes to spare."""
_FEWEST_LOST: Final = 2
"""One sandbox alone may have been removed by hand."""
_PRIMARY: Final = frozenset({"eth0", ""})


@dataclass(frozen=True, slots=True)
class LeakEvidence:
    """What the causes of all leaks of one snapshot are told from."""

    processes: ProcessStartTimes | None
    runtime: str
    keeps_checkpoints: bool
    """The kubelet retries teardowns by itself, as one with docker does."""
    only_runtime: bool = True
    """No other runtime was asked, so that all records are its own."""
    cached: Mapping[str, frozenset[str]] | None = None
    """The networks in which libcni has a result of a sandbox, by container ID; None: not known."""
    current: frozenset[str] = field(default=frozenset())
    """The networks from which running sandboxes have their address."""
    oldest_record: int | None = None
    """When the oldest of the runtime's containers was created, in seconds since the epoch."""
    leaked: Mapping[str, datetime] = field(default_factory=dict)
    """When each leaked sandbox that libcni has a result of reserved its address, by container ID."""

    @classmethod
    def of(cls, snapshot: Snapshot, leaks: Iterable[Reservation]) -> "LeakEvidence":
        cached = _cached(snapshot)
        created = [one.created for one in known_or(snapshot.containers, ())]
        return cls(
            processes=known_or(snapshot.processes, None),
            runtime=runtimes.name_of(snapshot),
            keeps_checkpoints=runtimes.keeps_checkpoints(snapshot),
            only_runtime=len(runtimes.asked(snapshot)) == 1,
            cached=cached,
            current=frozenset(_current(snapshot)),
            oldest_record=min(created, default=None),
            leaked={one.container_id: made_at(one) for one in leaks if one.container_id in (cached or {})},
        )

    def leaked_before(self, moment: datetime) -> int:
        """Count the leaked sandboxes that were set up before."""
        return sum(made < moment for made in self.leaked.values())


def _cached(snapshot: Snapshot) -> dict[str, frozenset[str]] | None:
    if not isinstance(snapshot.cni_results, Known):
        return None
    networks: defaultdict[str, set[str]] = defaultdict(set)
    results: tuple[CniResult | DamagedResult, ...] = (*snapshot.cni_results.value, *snapshot.damaged_results)
    for one in results:
        networks[one.container_id].add(one.network)
    return {container_id: frozenset(names) for container_id, names in networks.items()}


def _current(snapshot: Snapshot) -> Iterator[str]:
    running = {one.id for one in known_or(snapshot.containers, ()) if one.sandbox and one.running}
    for one in known_or(snapshot.cni_results, ()):
        if one.container_id in running and one.ifname in _PRIMARY:
            yield one.network


def first_observation(
    reservation: Reservation, evidence: LeakEvidence, snapshot: Snapshot, owned_at: datetime | None = None
) -> Leak:
    """`owned_at`: when the last snapshot found its sandbox; None: it did not, or is the first."""
    cause, since = likely_cause(reservation, evidence)
    at_file = since == made_at(reservation)
    if not at_file and owned_at and since < owned_at - _AFTER_START:
        cause, at_file = LeakCause.UNKNOWN, True
    return Leak(snapshot.taken_at, snapshot.uptime, cause, None if at_file else since, evidence.runtime)


def likely_cause(reservation: Reservation, evidence: LeakEvidence) -> Origin:
    made, processes = made_at(reservation), evidence.processes
    if not reservation.container_id:
        return LeakCause.EMPTY_FILE, made
    if processes is None:
        return LeakCause.UNKNOWN, made
    if processes.booted > made:
        return LeakCause.NODE_REBOOT, processes.booted
    started = processes.start_of(evidence.runtime)
    if evidence.keeps_checkpoints:
        return _restart(made, processes.kubelet, started)
    # Without checkpoints, the runtime alone knows what is left to tear down: a kubelet that restarts forgets nothing.
    networks = frozenset() if evidence.cached is None else evidence.cached.get(reservation.container_id, frozenset())
    if reservation.network in networks:
        return _torn_down_badly(reservation, evidence, started)
    if evidence.cached is None or networks:
        return _restart(made, None, started)
    return _set_up_badly(reservation, evidence, started)


def _restart(made: datetime, kubelet: datetime | None, runtime: datetime | None) -> Origin:
    # The kubelet first: when only the runtime restarts, the kubelet keeps its checkpoints and retries the teardown.
    if kubelet is not None and kubelet > made:
        return LeakCause.KUBELET_RESTART, kubelet
    if runtime is not None and runtime > made:
        return LeakCause.RUNTIME_RESTART, runtime
    return LeakCause.UNKNOWN, made


def _set_up_badly(reservation: Reservation, evidence: LeakEvidence, started: datetime | None) -> Origin:
    """There is no result: libcni writes it after ADD, and removes it after DEL or when the runtime gives up."""
    made = made_at(reservation)
    if started is not None and timedelta(0) < started - made <= _DURING_ADD:
        return LeakCause.RUNTIME_RESTART, started
    # A cache without a single result of this network is not that of the runtime.
    if reservation.network in evidence.current:
        return LeakCause.SETUP_FAILED, made
    return _restart(made, None, started)


def _torn_down_badly(reservation: Reservation, evidence: LeakEvidence, started: datetime | None) -> Origin:
    """There is the result of ADD: no DEL of this network was completed, or it would have released the address."""
    made = made_at(reservation)
    if started is None or not evidence.only_runtime:
        return LeakCause.TEARDOWN_SKIPPED, made
    oldest = evidence.oldest_record
    survived = started <= made or (oldest is not None and oldest < started.timestamp())
    match _replaced(reservation, evidence), survived:
        case True, True:
            return LeakCause.NETWORK_RENAMED, made
        case False, False if evidence.leaked_before(started) >= _FEWEST_LOST:
            return LeakCause.RUNTIME_STATE_LOST, started
        case _:
            return LeakCause.TEARDOWN_SKIPPED, made


def _replaced(reservation: Reservation, evidence: LeakEvidence) -> bool:
    """Return whether pods have their address from other networks now."""
    primary = reservation.ifname in _PRIMARY
    return primary and bool(evidence.current) and reservation.network not in evidence.current
