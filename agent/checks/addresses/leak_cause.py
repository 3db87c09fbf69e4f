"""Why a leak most likely happened: start times, libcni's cache and the runtime's records. Pure.

Each cause is what can be observed, and nothing is guessed. Where two are possible, it is the less specific cause.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from typing import Final, NamedTuple, TypeAlias

from agent.checks import runtime as runtimes
from agent.model.assessment import LONGEST_ADD, PRIMARY, Assessment
from agent.model.finding import RESTARTS, LeakCause
from agent.model.snapshot import Known, ProcessStartTimes, Reservation, known_or

CauseAndTime: TypeAlias = tuple[LeakCause, datetime]
"""The likely cause, and the last start that can have been it; without a start, when the address was reserved."""


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
"""A single sandbox may have been removed by hand."""


@dataclass(frozen=True)
class LeakEvidence:
    """What the causes of all leaks of a snapshot are told from."""

    assessment: Assessment

    @cached_property
    def processes(self) -> ProcessStartTimes | None:
        return known_or(self.assessment.snapshot.processes, None)

    @cached_property
    def runtime(self) -> str:
        return runtimes.name_of(self.assessment.snapshot)

    @cached_property
    def runtime_started(self) -> datetime | None:
        return self.processes.start_of(self.runtime) if self.processes else None

    @cached_property
    def retries_teardowns(self) -> bool:
        """Whether the kubelet itself retries them, as a kubelet with docker does."""
        return runtimes.keeps_checkpoints(self.assessment.snapshot)

    @cached_property
    def current_networks(self) -> frozenset[str]:
        """The networks from which running sandboxes have their address."""
        index = self.assessment.index
        running = (result for container_id in index.running_sandboxes for result in index.results.get(container_id, ()))
        return frozenset(result.network for result in running if result.ifname in PRIMARY)

    def has_replaced(self, network: str) -> bool:
        """Return whether running sandboxes have their address from other networks only."""
        return bool(self.current_networks) and network not in self.current_networks

    @cached_property
    def has_older_record(self) -> bool:
        """Whether the runtime has a container from before its start."""
        started, containers = self.runtime_started, self.assessment.index.containers.values()
        return started is not None and any(container.created < started.timestamp() for container in containers)

    @cached_property
    def lost_sandboxes(self) -> int:
        """How many leaked sandboxes have a result of ADD, and were set up before the runtime's start."""
        started, cached = self.runtime_started, self.assessment.index.cached_networks
        leaks = (leak for leak in self.assessment.leaked if leak.container_id in cached)
        return len({leak.container_id for leak in leaks if started is not None and leak.mtime < started})


def likely_cause(leak: Reservation, evidence: LeakEvidence) -> Origin:
    cause, at = _by_records(leak, evidence)
    if owned_at := evidence.assessment.last_owned.get(leak):
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
    started = evidence.runtime_started
    if evidence.retries_teardowns:
        return _restart(leak, processes.kubelet, started)
    # Without checkpoints, the runtime alone knows what is left to tear down: a kubelet that restarts forgets nothing.
    if not isinstance(evidence.assessment.snapshot.cni_results, Known):
        return _restart(leak, None, started)
    networks = evidence.assessment.index.cached_networks.get(leak.container_id, ())
    if leak.network in networks:
        return _torn_down_badly(leak, evidence, started)
    if networks:
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
    if leak.network in evidence.current_networks:
        return LeakCause.SETUP_FAILED, leak.mtime
    return _restart(leak, None, started)


def _torn_down_badly(leak: Reservation, evidence: LeakEvidence, started: datetime | None) -> CauseAndTime:
    """There is the result of ADD: no DEL of this network was completed, or it would have released the address."""
    if started is None or len(runtimes.asked(evidence.assessment.snapshot)) != 1:  # not all records are its own
        return LeakCause.TEARDOWN_SKIPPED, leak.mtime
    survived = started <= leak.mtime or evidence.has_older_record
    replaced = leak.ifname in PRIMARY and evidence.has_replaced(leak.network)
    if replaced and survived:
        return LeakCause.NETWORK_RENAMED, leak.mtime
    if not replaced and not survived and evidence.lost_sandboxes >= _FEWEST_LOST:
        return LeakCause.RUNTIME_STATE_LOST, started
    return LeakCause.TEARDOWN_SKIPPED, leak.mtime
