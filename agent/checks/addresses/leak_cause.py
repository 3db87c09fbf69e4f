"""Why a leak most likely happened: start times, libcni's cache and the runtime's records. Pure.

Each cause is what can be observed, and nothing is guessed. Where two are possible, the less specific one is returned.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, NamedTuple, TypeAlias

from agent.checks import runtime as runtimes
from agent.model.assessment import LONGEST_ADD, PRIMARY, Assessment
from agent.model.finding import RESTARTS, LeakCause
from agent.model.snapshot import Known, ProcessStartTimes, Reservation, known_or

CauseAndTime: TypeAlias = tuple[LeakCause, datetime]
"""The likely cause, and the last start that can have been it; without one, when the address was reserved."""


class Origin(NamedTuple):
    """What is known of the beginning of a leak."""

    cause: LeakCause
    at: datetime
    """The time that belongs to the cause."""
    since: datetime | None
    """When it began, or can have begun at the earliest; None: all that is known is that it had begun by `at`."""


_DURING_ADD: Final = LONGEST_ADD + timedelta(minutes=1)
"""A runtime that starts so soon after a reservation was made died while it waited for the network plugin."""
_AFTER_START: Final = timedelta(minutes=15)
"""What a start makes the kubelet or the runtime forget has leaked by then, with some minutes to spare."""
_FEWEST_LOST: Final = 2
"""One sandbox alone may have been removed by hand."""


@dataclass(frozen=True, slots=True)
class LeakEvidence:
    """What the causes of all leaks of one snapshot are told from."""

    processes: ProcessStartTimes | None
    runtime: str
    keeps_checkpoints: bool
    """The kubelet retries teardowns by itself, as one with docker does."""
    only_runtime: bool
    """No other runtime was asked, so that all records are its own."""
    cached: Mapping[str, set[str]] | None
    """The networks in which libcni has a result of a sandbox, by container ID; None: not known."""
    current: frozenset[str]
    """The networks from which running sandboxes have their address."""
    oldest_record: int | None
    """When the oldest of the runtime's containers was created, in seconds since the epoch."""
    leaked: Mapping[str, datetime]
    """When each leaked sandbox that libcni has a result of reserved its address, by container ID."""
    last_owned: Mapping[Reservation, datetime]

    @classmethod
    def of(cls, assessment: Assessment) -> "LeakEvidence":
        snapshot, index = assessment.snapshot, assessment.index
        cached: dict[str, set[str]] = {}
        for result in known_or(snapshot.cni_results, ()):
            cached.setdefault(result.container_id, set()).add(result.network)
        for damaged in snapshot.damaged_results:
            cached.setdefault(damaged.container_id, set()).add(damaged.network)
        running = (result for container_id in index.running_sandboxes for result in index.results.get(container_id, ()))
        return cls(
            processes=known_or(snapshot.processes, None),
            runtime=runtimes.name_of(snapshot),
            keeps_checkpoints=runtimes.keeps_checkpoints(snapshot),
            only_runtime=len(runtimes.asked(snapshot)) == 1,
            cached=cached if isinstance(snapshot.cni_results, Known) else None,
            current=frozenset(result.network for result in running if result.ifname in PRIMARY),
            oldest_record=min((container.created for container in index.containers.values()), default=None),
            leaked={leak.container_id: leak.mtime for leak in assessment.leaked if leak.container_id in cached},
            last_owned=assessment.last_owned,
        )

    def leaked_before(self, moment: datetime) -> int:
        """Count the leaked sandboxes that were set up before."""
        return sum(made < moment for made in self.leaked.values())

    def replaced(self, network: str) -> bool:
        """Return whether pods have their address from other networks now."""
        return bool(self.current) and network not in self.current


def likely_cause(leak: Reservation, evidence: LeakEvidence) -> Origin:
    cause, at = _by_records(leak, evidence)
    if owned_at := evidence.last_owned.get(leak):
        if at != leak.mtime and at < owned_at - _AFTER_START:
            cause, at = LeakCause.UNKNOWN, leak.mtime  # what that start made somebody forget had leaked before
        return Origin(cause, at, max(at, owned_at))
    # The process may have started before as well, and nobody has seen the sandbox in between.
    dated = cause not in RESTARTS or at - leak.mtime <= _DURING_ADD
    return Origin(cause, at, at if dated else None)


def _by_records(leak: Reservation, evidence: LeakEvidence) -> CauseAndTime:
    processes = evidence.processes
    if not leak.container_id:
        return LeakCause.EMPTY_FILE, leak.mtime
    if processes is None:
        return LeakCause.UNKNOWN, leak.mtime
    if processes.booted > leak.mtime:
        return LeakCause.NODE_REBOOT, processes.booted
    started = processes.start_of(evidence.runtime)
    if evidence.keeps_checkpoints:
        return _restart(leak, processes.kubelet, started)
    # Without checkpoints, the runtime alone knows what is left to tear down: a kubelet that restarts forgets nothing.
    networks = evidence.cached.get(leak.container_id, set()) if evidence.cached is not None else set[str]()
    if leak.network in networks:
        return _torn_down_badly(leak, evidence, started)
    if evidence.cached is None or networks:
        return _restart(leak, None, started)
    return _set_up_badly(leak, evidence, started)


def _restart(leak: Reservation, kubelet: datetime | None, runtime: datetime | None) -> CauseAndTime:
    # The kubelet first: when only the runtime restarts, the kubelet keeps its checkpoints and retries the teardown.
    if kubelet is not None and kubelet > leak.mtime:
        return LeakCause.KUBELET_RESTART, kubelet
    if runtime is not None and runtime > leak.mtime:
        return LeakCause.RUNTIME_RESTART, runtime
    return LeakCause.UNKNOWN, leak.mtime


def _set_up_badly(leak: Reservation, evidence: LeakEvidence, started: datetime | None) -> CauseAndTime:
    """There is no result: libcni writes it after ADD, and removes it after DEL or when the runtime gives up."""
    if started is not None and timedelta(0) < started - leak.mtime <= _DURING_ADD:
        return LeakCause.RUNTIME_RESTART, started
    # A cache without a single result of this network is not that of the runtime.
    if leak.network in evidence.current:
        return LeakCause.SETUP_FAILED, leak.mtime
    return _restart(leak, None, started)


def _torn_down_badly(leak: Reservation, evidence: LeakEvidence, started: datetime | None) -> CauseAndTime:
    """There is the result of ADD: no DEL of this network was completed, or it would have released the address."""
    if started is None or not evidence.only_runtime:
        return LeakCause.TEARDOWN_SKIPPED, leak.mtime
    oldest = evidence.oldest_record
    survived = started <= leak.mtime or (oldest is not None and oldest < started.timestamp())
    replaced = leak.ifname in PRIMARY and evidence.replaced(leak.network)
    if replaced and survived:
        return LeakCause.NETWORK_RENAMED, leak.mtime
    if not replaced and not survived and evidence.leaked_before(started) >= _FEWEST_LOST:
        return LeakCause.RUNTIME_STATE_LOST, started
    return LeakCause.TEARDOWN_SKIPPED, leak.mtime
