"""Why a leak most likely happened, and when. Where two causes fit, it is the less specific one."""

from datetime import datetime, timedelta
from typing import Final, NamedTuple

from agent.model.assessment import LONGEST_ADD, PRIMARY, Assessment
from agent.model.finding import RESTARTS, LeakCause
from agent.model.runtime import CRI_O
from agent.model.snapshot import Known, Reservation, known_or
from agent.model.text import format_time

_DURING_ADD: Final = LONGEST_ADD + timedelta(minutes=1)
"""A runtime that starts so soon after a reservation was made died while the network plugin ran."""
_AFTER_START: Final = timedelta(minutes=15)
"""What a start makes the kubelet or the runtime forget has leaked by then, with some to spare."""
_MIN_LOST: Final = 2
"""Sandboxes: a single one may have been removed by hand."""

_CAUSES: Final = {
    LeakCause.KUBELET_RESTART: "likely cause: kubelet restart at {time} or earlier",
    LeakCause.RUNTIME_RESTART: "likely cause: restart of {runtime} at {time} or earlier",
    LeakCause.RUNTIME_STATE_LOST: (
        "likely cause: {runtime} started at {time} without a record of earlier sandboxes"
    ),
    LeakCause.NODE_REBOOT: "likely cause: node reboot at {time} or earlier",
    LeakCause.NETWORK_RENAMED: (
        "likely cause: the CNI configuration was replaced by that of another network while the pod "
        "ran; reserved at {time}"
    ),
    LeakCause.TEARDOWN_SKIPPED: (
        "likely cause: sandbox removed without a completed CNI DEL; reserved at {time}"
    ),
    LeakCause.SETUP_FAILED: (
        "likely cause: its CNI ADD was not completed, or DEL failed; reserved at {time}"
    ),
    LeakCause.EMPTY_FILE: (
        "likely cause: a crash at {time}, or somebody keeps it free: released only with --ip"
    ),
    LeakCause.UNKNOWN: "cause unknown; reserved at {time}",
}


class Cause(NamedTuple):
    kind: LeakCause
    at: datetime
    """The last start that can have been it; if it is no start, when the address was reserved."""

    def describe(self, runtime: str, remark: str = "") -> str:
        return _CAUSES[self.kind].format(time=f"{format_time(self.at)}{remark}", runtime=runtime)


class Evidence(NamedTuple):
    """What all leaks of a snapshot share."""

    runtime_started: datetime | None
    current_networks: set[str]
    """The networks from which running sandboxes have their address."""
    has_older_record: bool
    """The runtime has a container from before its start."""
    lost_sandboxes: int
    """Leaked sandboxes with a result of ADD that are older than the runtime's start."""


def gather_evidence(assessment: Assessment) -> Evidence:
    index = assessment.index
    processes = known_or(assessment.snapshot.processes, None)
    started = processes.start_of(assessment.runtime.name) if processes else None
    older: set[str] = set()
    lost: set[str] = set()
    if started is not None:
        older = {
            container.id
            for container in index.containers.values()
            if container.created < started.timestamp()
        }
        lost = {
            leak.container_id
            for leak in assessment.leaked
            if leak.container_id in index.cached_networks and leak.mtime < started
        }
    current: set[str] = set()
    for container_id in index.running_sandboxes:
        results = index.results.get(container_id, ())
        current |= {result.network for result in results if result.ifname in PRIMARY}
    return Evidence(started, current, bool(older), len(lost))


def likely_cause(leak: Reservation, assessment: Assessment, evidence: Evidence) -> Cause:
    cause = _cause_by_records(leak, assessment, evidence)
    owned_at = assessment.memory.get(leak).owned_at
    if owned_at and cause.at != leak.mtime and cause.at < owned_at - _AFTER_START:
        return Cause(LeakCause.UNKNOWN, leak.mtime)  # that start is too early to be the cause
    return cause


def began_at(leak: Reservation, cause: Cause, assessment: Assessment) -> datetime | None:
    """Return when the leak began at the earliest; None: it may have begun before any record."""
    if owned_at := assessment.memory.get(leak).owned_at:
        return max(cause.at, owned_at)
    # Only the last start is known; an earlier one may be the cause.
    dated = cause.kind not in RESTARTS or cause.at - leak.mtime <= _DURING_ADD
    return cause.at if dated else None


def _cause_by_records(leak: Reservation, assessment: Assessment, evidence: Evidence) -> Cause:
    processes = known_or(assessment.snapshot.processes, None)
    if not leak.container_id:
        return Cause(LeakCause.EMPTY_FILE, leak.mtime)
    if processes is None:
        return Cause(LeakCause.UNKNOWN, leak.mtime)
    if processes.booted > leak.mtime:
        return Cause(LeakCause.NODE_REBOOT, processes.booted)
    if assessment.runtime.keeps_checkpoints:
        return _restart(leak, processes.kubelet, evidence.runtime_started)
    # Without checkpoints, the runtime alone knows what is left to tear down: a kubelet that
    # restarts forgets nothing.
    networks = assessment.index.cached_networks.get(leak.container_id, ())
    cache_read = isinstance(assessment.snapshot.cni_results, Known)
    if not cache_read or (networks and leak.network not in networks):
        return _restart(leak, None, evidence.runtime_started)
    if networks:
        return _cause_with_result(leak, assessment, evidence)
    return _cause_without_result(leak, assessment, evidence)


def _restart(leak: Reservation, kubelet: datetime | None, runtime: datetime | None) -> Cause:
    # The kubelet first: when only the runtime restarts, the kubelet keeps its checkpoints and
    # retries the teardown.
    if kubelet is not None and kubelet > leak.mtime:
        return Cause(LeakCause.KUBELET_RESTART, kubelet)
    if runtime is not None and runtime > leak.mtime:
        return Cause(LeakCause.RUNTIME_RESTART, runtime)
    return Cause(LeakCause.UNKNOWN, leak.mtime)


def _cause_without_result(leak: Reservation, assessment: Assessment, evidence: Evidence) -> Cause:
    """Libcni writes a result after ADD, and removes it after DEL or when the runtime gives up."""
    started = evidence.runtime_started
    if assessment.runtime.name == CRI_O and assessment.memory.get(leak).owned_at is None:
        # CRI-O drops the result when it gives up a DEL, however late: no start shows anything.
        started = None
    if started is not None and timedelta(0) < started - leak.mtime <= _DURING_ADD:
        return Cause(LeakCause.RUNTIME_RESTART, started)
    # A cache without a single result of this network is not that of the runtime.
    if leak.network in evidence.current_networks:
        return Cause(LeakCause.SETUP_FAILED, leak.mtime)
    return _restart(leak, None, started)


def _cause_with_result(leak: Reservation, assessment: Assessment, evidence: Evidence) -> Cause:
    """No DEL of this network was completed, or it would have released the address."""
    started = evidence.runtime_started
    if started is None or len(assessment.runtime.asked) != 1:  # not all records are its own
        return Cause(LeakCause.TEARDOWN_SKIPPED, leak.mtime)
    survived = started <= leak.mtime or evidence.has_older_record
    current = evidence.current_networks
    replaced = leak.ifname in PRIMARY and bool(current) and leak.network not in current
    if replaced and survived:
        return Cause(LeakCause.NETWORK_RENAMED, leak.mtime)
    if not replaced and not survived and evidence.lost_sandboxes >= _MIN_LOST:
        return Cause(LeakCause.RUNTIME_STATE_LOST, started)
    return Cause(LeakCause.TEARDOWN_SKIPPED, leak.mtime)
