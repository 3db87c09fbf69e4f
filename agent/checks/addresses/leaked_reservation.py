"""An address is reserved for a container that no longer exists, and nothing will ever release it.

host-local keeps one file for each address. The kubelet removes it when it tears the sandbox down.
If the runtime has lost the sandbox and the kubelet has dropped its checkpoint (for example because
it restarted before it knew its pod CIDR), nobody removes it. After enough leaks, pods hang with `no
IP addresses available in range set`.

Means: the file outlived its container: no container, no checkpoint, no process, no mounted network
namespace that libcni's cache names, and no live pod has the address.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from typing import Final, TypeAlias

from agent.checks.addresses import host_ports
from agent.checks.addresses.host_ports import Ports
from agent.checks.detector import Noun, Remedy, Step
from agent.model.assessment import LONGEST_ADD, PRIMARY, Assessment, ClassifiedReservation
from agent.model.clocks import FILE_AHEAD
from agent.model.finding import RESTARTS, Finding, Key, LeakCause, Severity, TrackedFinding
from agent.model.ranges import numbered, runs
from agent.model.runtime import CRI_O
from agent.model.snapshot import (
    InsufficientData,
    Known,
    NotRequested,
    Reservation,
    known_or,
    require_available,
)
from agent.model.text import LONGEST_LIST, count_of, format_time, join_names

NAME = "leaked_reservation"
SEVERITIES: Final = (Severity.WARNING,)
NOUN: Final = Noun("leaked pod address", "leaked pod addresses")
REMEDY: Final = Remedy(
    steps=(
        Step(
            "Release the address with `nodeleak clean`; afterwards find out what restarted or "
            "removed containers at the time shown, or addresses will leak again."
        ),
        Step(
            "CRI-O since 1.32 releases a leak that has a result in libcni's cache when it starts: "
            "there, restarting it is a remedy too."
        ),
        Step("Neither removes its own rules for host ports (KUBE-HP-*)."),
        Step(
            "Never delete reservation files by hand: comparing `docker ps` with a directory "
            "listing takes addresses that are in use."
        ),
    ),
    runbook="LeakedAddresses.md#nodeleakleakedaddresses",
)

MAX_LISTED: Final = 512
"""Leaks of a node with a finding each; the others share one for each network and cause."""
_DURING_ADD: Final = LONGEST_ADD + timedelta(minutes=1)
"""A runtime that starts so soon after a reservation was made died while the network plugin ran."""
_AFTER_START: Final = timedelta(minutes=15)
"""What a start makes the kubelet or the runtime forget has leaked by then, with some to spare."""
_MIN_LOST: Final = 2
"""Sandboxes: a single one may have been removed by hand."""

CauseAndTime: TypeAlias = tuple[LeakCause, datetime]
"""The likely cause, and the last start that can have been it.

If the cause is no start, the time is when the address was reserved.
"""

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


def find(assessment: Assessment) -> Iterator[Finding]:
    if assessment.leaked:
        evidence = _Evidence(assessment)
        ports = host_ports.forwarded(assessment, assessment.leaked)
        for leak, entry in assessment.leaked.items():
            yield _finding(leak, entry, evidence, ports[leak] or ())
    _check_sources(assessment)


def key(reservation: Reservation) -> Key:
    """Return the key of its finding."""
    return NAME, str(reservation.key), *_identity(reservation)


def _identity(reservation: Reservation) -> tuple[str | int, ...]:
    """Return what another file of the same address does not have."""
    return reservation.container_id, reservation.inode, reservation.size, reservation.mtime_ns


def _finding(
    leak: Reservation, entry: ClassifiedReservation, evidence: "_Evidence", ports: Ports
) -> Finding:
    cause, at = _likely_cause(leak, evidence)
    reason = _describe(cause, format_time(at), evidence.assessment.runtime.name)
    rules = host_ports.describe(", ".join(f"{port} to {leak.ip}" for port in ports))
    owner = "no container (the file is empty)"
    if leak.container_id:
        owner = f"container {entry.container}, which no longer exists"
    return Finding(
        NAME,
        str(leak.key),
        f"{leak.ip} is reserved for {owner}; {reason}{rules}",
        network=leak.network,
        pod=entry.pod,
        cause=cause,
        since=_began(leak, cause, at, evidence),
        cause_at=at,
        identity=_identity(leak),
        group=_group(leak.network, cause, at),
        port_mappings=ports,
    )


def _check_sources(assessment: Assessment) -> None:
    """Raise InsufficientData if an unavailable source may hide a leak."""
    snapshot = assessment.snapshot
    index = assessment.index
    assessment.require_reservations()
    snapshot.containers.known()
    for reservation in index.reservations:
        newer = reservation.mtime > snapshot.taken_at + FILE_AHEAD  # so its age says nothing
        if newer and reservation.container_id not in index.containers:
            raise InsufficientData(
                f"reservations: file {reservation.key} is newer than the node's clock, which was "
                "set"
            )
    require_available(
        snapshot.networks,
        snapshot.checkpoints,
        snapshot.addresses,
        snapshot.mounted_namespaces,
        snapshot.pods,
    )
    if not isinstance(snapshot.addresses, NotRequested):  # a reservation has no owner
        snapshot.cni_results.known()


# Several leaks in one finding, or in one line


def summarized(leaks: Sequence[TrackedFinding], runtime: str) -> Iterator[TrackedFinding]:
    """Yield the leaks that are listed, and one finding for the others of each network and cause.

    Those seen first are listed.
    """
    by_age = sorted(leaks, key=_age)
    listed = {leak.finding.key for leak in by_age[:MAX_LISTED]}
    networks = {leak.finding.network for leak in by_age[:MAX_LISTED]}
    yield from (leak for leak in leaks if leak.finding.key in listed)
    unlisted: defaultdict[tuple[str, LeakCause], list[TrackedFinding]] = defaultdict(list)
    for leak in by_age[MAX_LISTED:]:
        unlisted[leak.finding.network, LeakCause(str(leak.finding.cause))].append(leak)
    for (network, cause), group in unlisted.items():
        noun = "more address" if network in networks else "address"
        findings = [leak.finding for leak in group]
        finding = _summary(findings, cause, count_of(len(group), noun, f"{noun}es"), runtime)
        yield TrackedFinding(finding, min(leak.first_seen for leak in group), confirmed=True)


def _age(leak: TrackedFinding) -> tuple[object, ...]:
    network, _, ip = leak.finding.subject.rpartition("/")
    return leak.first_seen, numbered(ip), network


def _summary(leaks: Sequence[Finding], cause: LeakCause, count: str, runtime: str) -> Finding:
    network = leaks[0].network
    at = min(leak.cause_at for leak in leaks if leak.cause_at)
    began = [leak.since for leak in leaks if leak.since]
    reason = _describe(cause, f"{format_time(at)} (the oldest)", runtime)
    return Finding(
        NAME,
        network,
        f"{count} in {network} leaked, {reason}: `nodeleak scan --output=wide` lists them",
        network=network,
        cause=cause,
        since=min(began) if len(began) == len(leaks) else None,
        cause_at=at,
        identity=(cause.value,),
        group=_group(network, cause, at),
        count=len(leaks),
    )


def _group(network: str, cause: LeakCause, at: datetime) -> tuple[object, ...]:
    # A restart has one time; without one, each leak has the time of its file.
    return network, cause, at if cause in RESTARTS else None


def describe_group(findings: Sequence[Finding], assessment: Assessment) -> str:
    """Describe several leaks of one network and cause."""
    network = findings[0].network
    times = sorted({finding.cause_at for finding in findings if finding.cause_at})
    time = format_time(times[0]) + (" (the oldest)" if len(times) > 1 else "")
    cause = LeakCause(str(findings[0].cause))
    reason = _describe(cause, time, assessment.runtime.name)

    # A finding for the leaks beyond those that are listed has the network as its subject.
    listed = [finding for finding in findings if finding.subject != network]
    ips = [finding.subject.rpartition("/")[2] for finding in listed]
    count = sum(finding.count for finding in findings)
    addresses = ""
    if ips:
        consecutive = runs(ips)
        shown = consecutive if len(consecutive) <= LONGEST_LIST else ips
        addresses = f": {join_names(shown, count - len(ips))}"
    ports = []
    for ip, finding in zip(ips, listed, strict=True):
        ports += [f"{port} to {ip}" for port in finding.port_mappings]
    rules = host_ports.describe(join_names(ports))
    leaked = f"{count_of(count, 'address', 'addresses')} in {network} leaked"
    return f"{leaked}, {reason}{addresses}{rules}"


def _describe(cause: LeakCause, time: str, runtime: str) -> str:
    return _CAUSES[cause].format(time=time, runtime=runtime)


# The likely cause. Where two are possible, it is the less specific one.


@dataclass(frozen=True)
class _Evidence:
    """What all leaks of a snapshot share. Lookups are computed on first use and cached."""

    assessment: Assessment

    @cached_property
    def runtime_started(self) -> datetime | None:
        processes = known_or(self.assessment.snapshot.processes, None)
        return processes.start_of(self.assessment.runtime.name) if processes else None

    @cached_property
    def current_networks(self) -> frozenset[str]:
        """The networks from which running sandboxes have their address."""
        index = self.assessment.index
        return frozenset(
            result.network
            for container_id in index.running_sandboxes
            for result in index.results.get(container_id, ())
            if result.ifname in PRIMARY
        )

    @cached_property
    def has_older_record(self) -> bool:
        """Whether the runtime has a container from before its start."""
        started = self.runtime_started
        containers = self.assessment.index.containers.values()
        return started is not None and any(
            container.created < started.timestamp() for container in containers
        )

    @cached_property
    def lost_sandboxes(self) -> int:
        """How many leaked sandboxes with a result of ADD are older than the runtime's start."""
        started = self.runtime_started
        cached = self.assessment.index.cached_networks
        return len(
            {
                leak.container_id
                for leak in self.assessment.leaked
                if started is not None and leak.container_id in cached and leak.mtime < started
            }
        )


def _likely_cause(leak: Reservation, evidence: _Evidence) -> CauseAndTime:
    cause, at = _cause_by_records(leak, evidence)
    owned_at = evidence.assessment.memory.get(leak).owned_at
    if owned_at and at != leak.mtime and at < owned_at - _AFTER_START:
        # That start is too early to be the cause.
        return LeakCause.UNKNOWN, leak.mtime
    return cause, at


def _began(
    leak: Reservation, cause: LeakCause, at: datetime, evidence: _Evidence
) -> datetime | None:
    """Return when the leak began at the earliest; None: it may have begun before any record."""
    if owned_at := evidence.assessment.memory.get(leak).owned_at:
        return max(at, owned_at)
    # Only the last start is known; an earlier one may be the cause.
    dated = cause not in RESTARTS or at - leak.mtime <= _DURING_ADD
    return at if dated else None


def _cause_by_records(leak: Reservation, evidence: _Evidence) -> CauseAndTime:
    assessment = evidence.assessment
    processes = known_or(assessment.snapshot.processes, None)
    if not leak.container_id:
        return LeakCause.EMPTY_FILE, leak.mtime
    if processes is None:
        return LeakCause.UNKNOWN, leak.mtime
    if processes.booted > leak.mtime:
        return LeakCause.NODE_REBOOT, processes.booted
    if assessment.runtime.keeps_checkpoints:
        return _restart(leak, processes.kubelet, evidence.runtime_started)
    # Without checkpoints, the runtime alone knows what is left to tear down: a kubelet that
    # restarts forgets nothing.
    networks = assessment.index.cached_networks.get(leak.container_id, ())
    cache_read = isinstance(assessment.snapshot.cni_results, Known)
    if not cache_read or (networks and leak.network not in networks):
        return _restart(leak, None, evidence.runtime_started)
    if networks:
        return _cause_with_result(leak, evidence)
    return _cause_without_result(leak, evidence)


def _restart(leak: Reservation, kubelet: datetime | None, runtime: datetime | None) -> CauseAndTime:
    # The kubelet first: when only the runtime restarts, the kubelet keeps its checkpoints and
    # retries the teardown.
    if kubelet is not None and kubelet > leak.mtime:
        return LeakCause.KUBELET_RESTART, kubelet
    if runtime is not None and runtime > leak.mtime:
        return LeakCause.RUNTIME_RESTART, runtime
    return LeakCause.UNKNOWN, leak.mtime


def _cause_without_result(leak: Reservation, evidence: _Evidence) -> CauseAndTime:
    """Libcni writes a result after ADD, and removes it after DEL or when the runtime gives up."""
    started = evidence.runtime_started
    owned_before = evidence.assessment.memory.get(leak).owned_at is not None
    if evidence.assessment.runtime.name == CRI_O and not owned_before:
        # CRI-O drops the result when it gives up a DEL, however late: no start shows anything.
        started = None
    if started is not None and timedelta(0) < started - leak.mtime <= _DURING_ADD:
        return LeakCause.RUNTIME_RESTART, started
    # A cache without a single result of this network is not that of the runtime.
    if leak.network in evidence.current_networks:
        return LeakCause.SETUP_FAILED, leak.mtime
    return _restart(leak, None, started)


def _cause_with_result(leak: Reservation, evidence: _Evidence) -> CauseAndTime:
    """No DEL of this network was completed, or it would have released the address."""
    started = evidence.runtime_started
    skipped = LeakCause.TEARDOWN_SKIPPED, leak.mtime
    if started is None or len(evidence.assessment.runtime.asked) != 1:  # not all are its records
        return skipped
    survived = started <= leak.mtime or evidence.has_older_record
    current = evidence.current_networks
    replaced = leak.ifname in PRIMARY and bool(current) and leak.network not in current
    if replaced and survived:
        return LeakCause.NETWORK_RENAMED, leak.mtime
    if not replaced and not survived and evidence.lost_sandboxes >= _MIN_LOST:
        return LeakCause.RUNTIME_STATE_LOST, started
    return skipped
