"""Why a leak most likely happened, and when. Where two causes fit, it is the less specific one."""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from agent.model.assessment import LONGEST_ADD, PRIMARY, Assessment
from agent.model.finding import RESTARTS, LeakCause
from agent.model.runtime import CRI_O
from agent.model.snapshot import Known, Reservation, known_or
from agent.model.text import format_time, join_few

_DURING_ADD: Final = LONGEST_ADD + timedelta(minutes=1)
"""A runtime that starts so soon after a reservation was made died while the network plugin ran."""
_AFTER_START: Final = timedelta(minutes=15)
"""What a start makes the kubelet or the runtime forget has leaked by then, with some to spare."""
_GENERATION: Final = timedelta(hours=1)
"""Sandboxes that were lost together have their successors within this time of each other."""
_MAX_GENERATIONS: Final = 8
_MIN_LOST: Final = 2
"""Sandboxes: a single one may have been removed by hand."""

_CAUSES: Final = {
    LeakCause.KUBELET_RESTART: "likely cause: a kubelet restart (the last one: {time})",
    LeakCause.RUNTIME_RESTART: "likely cause: a restart of {runtime} (the last one: {time})",
    LeakCause.RUNTIME_STATE_LOST: (
        "likely cause: {runtime} started at {time} without a record of earlier sandboxes"
    ),
    LeakCause.NODE_REBOOT: "likely cause: a reboot of the node (the last one: {time})",
    LeakCause.SANDBOX_REPLACED: (
        "likely cause: the sandbox was lost before a newer one of its pod was created at {time}"
    ),
    LeakCause.NETWORK_RENAMED: (
        "likely cause: the CNI configuration was replaced by that of another network while the pod "
        "ran; reserved at {time}"
    ),
    LeakCause.TEARDOWN_SKIPPED: (
        "likely cause: the sandbox was removed without a completed CNI DEL{calls}{fails}; "
        "reserved at {time}"
    ),
    LeakCause.SETUP_FAILED: (
        "likely cause: its CNI ADD was not completed, or DEL failed{fails}; reserved at {time}"
    ),
    LeakCause.EMPTY_FILE: (
        "likely cause: a crash at {time}, or somebody keeps it free: released only with --ip"
    ),
    LeakCause.UNKNOWN: "cause unknown; reserved at {time}",
}


class Cause(NamedTuple):
    kind: LeakCause
    at: datetime
    """The last start that can have been it, or the pod's next sandbox; else the reservation."""

    def describe(self, network: str, assessment: Assessment, remark: str = "") -> str:
        """Return the cause in words. `remark`: said after its time."""
        types = ", ".join(assessment.plugins.get(network, ()))
        return _CAUSES[self.kind].format(
            time=f"{format_time(self.at)}{remark}",
            runtime=assessment.runtime.name,
            calls=f" (which calls {types})" if types else "",
            fails=_failing_plugin(network, assessment),
        )

    def describe_remaining(self, network: str, assessment: Assessment) -> str:
        """Name the running pods that still have an address of a network that was replaced."""
        sandboxes = assessment.primary_sandboxes.get(network, ())
        pods = sorted({sandbox.pod for sandbox in sandboxes if sandbox.pod})
        if self.kind is not LeakCause.NETWORK_RENAMED or not pods:
            return ""

        names = join_few(pods)
        return f"; delete the pods that still have an address of {network}, too: {names}"


def _failing_plugin(network: str, assessment: Assessment) -> str:
    """Return which plugin fails in DEL according to an Event; empty: none says so."""
    types = assessment.plugins.get(network, ())
    for failure in known_or(assessment.snapshot.sandbox_failures, ()):
        is_of_network = failure.network == network
        if not failure.network:
            is_of_network = failure.plugin in types

        if failure.operation == "delete" and is_of_network:
            return f"; plugin {failure.plugin} fails in it: {failure.message}"
    return ""


class Evidence(NamedTuple):
    """What all leaks of a snapshot share."""

    runtime_started: datetime | None
    has_older_record: bool
    """The runtime has a container from before its start."""
    lost_sandboxes: int
    """Leaked sandboxes with a result of ADD that the runtime's start may have lost."""
    newer: Mapping[Reservation, datetime]
    """When the pod of a leak got its next sandbox, if the node still has that reservation."""
    generations: Sequence[datetime]
    """When pods began to get these next sandboxes: those of one generation come together."""

    def generation(self, cause: Cause) -> object:
        """Return what leaks of one network and kind have in common that were lost together."""
        if cause.kind in RESTARTS:
            return cause.at
        # Sandboxes that are lost one by one are no generations.
        if cause.kind is LeakCause.SANDBOX_REPLACED and len(self.generations) <= _MAX_GENERATIONS:
            return bisect_right(self.generations, cause.at)
        return None


def gather_evidence(assessment: Assessment) -> Evidence:
    index = assessment.index
    processes = known_or(assessment.snapshot.processes, None)
    started = processes.start_of(assessment.runtime.name) if processes else None
    newer = _newer_sandboxes(assessment)
    has_older = False
    lost: set[str] = set()
    if started is not None:
        has_older = any(
            container.created < started.timestamp() for container in index.containers.values()
        )
        lost = {
            leak.container_id
            for leak in assessment.leaked
            if leak.container_id in index.cached_networks
            and leak.mtime < started <= newer.get(leak, started)
        }
    return Evidence(
        runtime_started=started,
        has_older_record=has_older,
        lost_sandboxes=len(lost),
        newer=newer,
        generations=_generations(newer.values()),
    )


def _newer_sandboxes(assessment: Assessment) -> dict[Reservation, datetime]:
    """Return when the pod of each leak got its next sandbox."""
    of_pod: defaultdict[tuple[str, str, str], list[Reservation]] = defaultdict(list)
    for reservation, entry in assessment.classified.items():
        if entry.pod:
            of_pod[reservation.network, reservation.ifname, entry.pod].append(reservation)

    newer: dict[Reservation, datetime] = {}
    for reservations in of_pod.values():
        sandbox_id = ""
        created: datetime | None = None
        next_created: datetime | None = None
        for reservation in sorted(reservations, key=lambda one: one.mtime_ns, reverse=True):
            # A sandbox has an address of each family.
            if reservation.container_id != sandbox_id:
                sandbox_id = reservation.container_id
                next_created = created
            created = reservation.mtime
            if next_created is not None and reservation in assessment.leaked:
                newer[reservation] = next_created
    return newer


def _generations(times: Iterable[datetime]) -> list[datetime]:
    """Return the first of each series of times without a gap of more than `_GENERATION`."""
    starts: list[datetime] = []
    before: datetime | None = None
    for at in sorted(set(times)):
        if before is None or at - before > _GENERATION:
            starts.append(at)
        before = at
    return starts


def likely_cause(leak: Reservation, assessment: Assessment, evidence: Evidence) -> Cause:
    """Return what the records show, unless its time contradicts what snapshots saw."""
    cause = _cause_by_records(leak, assessment, evidence)
    newer = evidence.newer.get(leak)
    if cause.kind in RESTARTS and newer is not None and newer < cause.at:
        return Cause(LeakCause.SANDBOX_REPLACED, newer)  # that start was too late

    owned_at = assessment.memory.get(leak).owned_at
    if owned_at and cause.at != leak.mtime and cause.at < owned_at - _AFTER_START:
        return Cause(LeakCause.UNKNOWN, leak.mtime)  # that start is too early to be the cause
    return cause


def began_at(leak: Reservation, cause: Cause, assessment: Assessment) -> datetime | None:
    """Return when the leak began at the earliest; None: it may have begun before any record."""
    if owned_at := assessment.memory.get(leak).owned_at:
        return max(cause.at, owned_at)

    # Only the last start is known; an earlier one may be the cause.
    is_latest = cause.kind in RESTARTS or cause.kind is LeakCause.SANDBOX_REPLACED
    dated = not is_latest or cause.at - leak.mtime <= _DURING_ADD
    return cause.at if dated else None


def _cause_by_records(leak: Reservation, assessment: Assessment, evidence: Evidence) -> Cause:
    """Return what the records of the node show. Of restarts, they have only the last one."""
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
    """Return the restart since the file was made; unknown: there was none."""
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
    if leak.network in assessment.primary_sandboxes:
        return Cause(LeakCause.SETUP_FAILED, leak.mtime)
    return _restart(leak, None, started)


def _cause_with_result(leak: Reservation, assessment: Assessment, evidence: Evidence) -> Cause:
    """No DEL of this network was completed, or it would have released the address."""
    started = evidence.runtime_started
    if started is None or len(assessment.runtime.asked) != 1:  # not all records are its own
        return Cause(LeakCause.TEARDOWN_SKIPPED, leak.mtime)

    survived = started <= leak.mtime or evidence.has_older_record
    replaced = leak.ifname in PRIMARY and _is_replaced(leak.network, assessment)
    if replaced and survived:
        return Cause(LeakCause.NETWORK_RENAMED, leak.mtime)
    if not replaced and not survived and evidence.lost_sandboxes >= _MIN_LOST:
        return Cause(LeakCause.RUNTIME_STATE_LOST, started)
    return Cause(LeakCause.TEARDOWN_SKIPPED, leak.mtime)


def _is_replaced(network: str, assessment: Assessment) -> bool:
    """Return whether pods got another network in its place.

    Running pods have their addresses from others only; or those that still have one from it are all
    older, and the configuration no longer names it.
    """
    remaining: list[int] = []
    others: list[int] = []
    for name, sandboxes in assessment.primary_sandboxes.items():
        created = remaining if name == network else others
        created += [sandbox.created for sandbox in sandboxes]

    if not others or not remaining:
        return bool(others)

    configured = assessment.snapshot.network_names
    return bool(configured) and network not in configured and max(remaining) < min(others)
