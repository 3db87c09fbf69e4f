"""An address is reserved for a container that no longer exists, and nothing on the node will ever release it.

host-local keeps one file for each address. The kubelet removes it when it tears the sandbox down. If the runtime has
lost the sandbox and the kubelet has dropped its checkpoint (for example because it restarted before it knew its pod
CIDR), nobody removes it. After enough leaks, pods hang with `no IP addresses available in range set`.

Means: the file outlived its container: no container, no checkpoint, no process, no mounted network namespace that
libcni's cache names, and no live pod has the address.
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

MAX_LISTED: Final = (
    512  # leaks of a node with a finding each; the others have one for each network and cause
)

CauseAndTime: TypeAlias = tuple[LeakCause, datetime]
"""The likely cause, and the last start that can have been it; without a start, when the address was reserved."""


_DURING_ADD: Final = LONGEST_ADD + timedelta(minutes=1)
"""A runtime that starts so soon after a reservation was made died while it waited for the network plugin."""
_AFTER_START: Final = timedelta(minutes=15)
"""What a start makes the kubelet or the runtime forget has leaked by then, with some minutes to spare."""
_FEWEST_LOST: Final = 2  # a single sandbox may have been removed by hand


@dataclass(frozen=True)
class LeakEvidence:
    """What the causes of all leaks of a snapshot are told from. Where two are possible, it is the less specific one."""

    assessment: Assessment

    @cached_property
    def runtime(self) -> str:
        return self.assessment.runtime.name

    @cached_property
    def runtime_started(self) -> datetime | None:
        processes = known_or(self.assessment.snapshot.processes, None)
        return processes.start_of(self.runtime) if processes else None

    @cached_property
    def current_networks(self) -> frozenset[str]:
        """The networks from which running sandboxes have their address."""
        index = self.assessment.index
        running = (
            result
            for container_id in index.running_sandboxes
            for result in index.results.get(container_id, ())
        )
        return frozenset(result.network for result in running if result.ifname in PRIMARY)

    def has_replaced(self, network: str) -> bool:
        """Return whether running sandboxes have their address from other networks only."""
        return bool(self.current_networks) and network not in self.current_networks

    @cached_property
    def has_older_record(self) -> bool:
        """Whether the runtime has a container from before its start."""
        started, containers = self.runtime_started, self.assessment.index.containers.values()
        return started is not None and any(
            container.created < started.timestamp() for container in containers
        )

    @cached_property
    def lost_sandboxes(self) -> int:
        """How many leaked sandboxes have a result of ADD, and were set up before the runtime's start."""
        started, cached = self.runtime_started, self.assessment.index.cached_networks
        leaks = (leak for leak in self.assessment.leaked if leak.container_id in cached)
        return len(
            {leak.container_id for leak in leaks if started is not None and leak.mtime < started}
        )


def likely_cause(
    leak: Reservation, evidence: LeakEvidence
) -> tuple[LeakCause, datetime, datetime | None]:
    """Return the cause with its time, and when the leak began at the earliest; None: it had begun by then."""
    cause, at = _by_records(leak, evidence)
    if owned_at := evidence.assessment.memory.of(leak).owned_at:
        if at != leak.mtime and at < owned_at - _AFTER_START:
            cause, at = (
                LeakCause.UNKNOWN,
                leak.mtime,
            )  # what that start made somebody forget had leaked before
        return cause, at, max(at, owned_at)
    # The process may have started before as well, and nobody has seen the sandbox in between.
    dated = cause not in RESTARTS or at - leak.mtime <= _DURING_ADD
    return cause, at, at if dated else None


def _by_records(leak: Reservation, evidence: LeakEvidence) -> CauseAndTime:
    started, snapshot = evidence.runtime_started, evidence.assessment.snapshot
    processes = known_or(snapshot.processes, None)
    if not leak.container_id:
        return LeakCause.EMPTY_FILE, leak.mtime
    if processes is None:
        return LeakCause.UNKNOWN, leak.mtime
    if processes.booted > leak.mtime:
        return LeakCause.NODE_REBOOT, processes.booted
    if evidence.assessment.runtime.keeps_checkpoints:
        return _restart(leak, processes.kubelet, started)
    # Without checkpoints, the runtime alone knows what is left to tear down: a kubelet that restarts forgets nothing.
    networks = evidence.assessment.index.cached_networks.get(leak.container_id, ())
    if not isinstance(snapshot.cni_results, Known) or (networks and leak.network not in networks):
        return _restart(leak, None, started)
    return (_torn_down_badly if networks else _set_up_badly)(leak, evidence, started)


def _restart(leak: Reservation, kubelet: datetime | None, runtime: datetime | None) -> CauseAndTime:
    # The kubelet first: when only the runtime restarts, the kubelet keeps its checkpoints and retries the teardown.
    if kubelet is not None and kubelet > leak.mtime:
        return LeakCause.KUBELET_RESTART, kubelet
    if runtime is not None and runtime > leak.mtime:
        return LeakCause.RUNTIME_RESTART, runtime
    return LeakCause.UNKNOWN, leak.mtime


def _set_up_badly(
    leak: Reservation, evidence: LeakEvidence, started: datetime | None
) -> CauseAndTime:
    """There is no result: libcni writes it after ADD, and removes it after DEL or when the runtime gives up."""
    # CRI-O drops the result when it gives up a DEL, however late: without an owner before, no start shows anything.
    if evidence.runtime == CRI_O and evidence.assessment.memory.of(leak).owned_at is None:
        started = None
    if started is not None and timedelta(0) < started - leak.mtime <= _DURING_ADD:
        return LeakCause.RUNTIME_RESTART, started
    # A cache without a single result of this network is not that of the runtime.
    if leak.network in evidence.current_networks:
        return LeakCause.SETUP_FAILED, leak.mtime
    return _restart(leak, None, started)


def _torn_down_badly(
    leak: Reservation, evidence: LeakEvidence, started: datetime | None
) -> CauseAndTime:
    """There is the result of ADD: no DEL of this network was completed, or it would have released the address."""
    if (
        started is None or len(evidence.assessment.runtime.asked) != 1
    ):  # not all records are its own
        return LeakCause.TEARDOWN_SKIPPED, leak.mtime
    survived = started <= leak.mtime or evidence.has_older_record
    replaced = leak.ifname in PRIMARY and evidence.has_replaced(leak.network)
    if replaced and survived:
        return LeakCause.NETWORK_RENAMED, leak.mtime
    if not replaced and not survived and evidence.lost_sandboxes >= _FEWEST_LOST:
        return LeakCause.RUNTIME_STATE_LOST, started
    return LeakCause.TEARDOWN_SKIPPED, leak.mtime


def find(assessment: Assessment) -> Iterator[Finding]:
    leaked = assessment.leaked
    if leaked:
        evidence, ports = LeakEvidence(assessment), host_ports.forwarded(assessment, leaked)
        for leak, classified in leaked.items():
            yield _finding(leak, classified, evidence, ports[leak] or ())
    _check_sources(assessment)


def _finding(
    leak: Reservation, classified: ClassifiedReservation, evidence: LeakEvidence, ports: Ports
) -> Finding:
    cause, at, since = likely_cause(leak, evidence)
    because = describe_cause(cause, format_time(at), evidence.runtime)
    rules = host_ports.describe(", ".join(f"{port} to {leak.ip}" for port in ports))
    owner = f"container {classified.container}, which no longer exists"
    if not leak.container_id:
        owner = "no container (the file is empty)"
    message = f"{leak.ip} is reserved for {owner}; {because}{rules}"
    subject, network, pod, identity = str(leak.key), leak.network, classified.pod, _identity(leak)
    severity = Severity.WARNING
    return Finding(
        NAME,
        subject,
        message,
        severity,
        network,
        pod,
        cause,
        since,
        at,
        identity,
        group=_group(network, cause, at),
        port_mappings=ports,
    )


def key(reservation: Reservation) -> Key:
    """Return the key of its finding."""
    return NAME, str(reservation.key), *_identity(reservation)


def _identity(reservation: Reservation) -> tuple[str | int, ...]:
    """Return what another file of the same address does not have."""
    return reservation.container_id, reservation.inode, reservation.size, reservation.mtime_ns


def _check_sources(assessment: Assessment) -> None:
    """Raise InsufficientData where an unavailable source may hide a leak."""
    snapshot = assessment.snapshot
    assessment.require_reservations()
    snapshot.containers.known()
    for entry in (
        entry for store in snapshot.reservations for entry in known_or(store.reading, ())
    ):
        # Its age says nothing.
        if (
            entry.mtime > snapshot.taken_at + FILE_AHEAD
            and entry.container_id not in assessment.index.containers
        ):
            raise InsufficientData(
                f"reservations: file {entry.key} is newer than the node's clock, which was set"
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


def summarized(leaks: Sequence[TrackedFinding], runtime: str) -> Iterator[TrackedFinding]:
    """Yield the leaks that are listed, those seen first, and one finding for the others of each network and cause."""
    by_age = sorted(leaks, key=_age)
    keys = {leak.finding.key for leak in by_age[:MAX_LISTED]}
    yield from (leak for leak in leaks if leak.finding.key in keys)
    unlisted: defaultdict[tuple[str, LeakCause], list[TrackedFinding]] = defaultdict(list)
    for leak in by_age[MAX_LISTED:]:
        unlisted[leak.finding.network, LeakCause(str(leak.finding.cause))].append(leak)
    networks = {leak.finding.network for leak in by_age[:MAX_LISTED]}
    for (network, cause), group in unlisted.items():
        yield _summary(group, cause, "more " if network in networks else "", runtime)


def _age(leak: TrackedFinding) -> tuple[object, ...]:
    network, _, ip = leak.finding.subject.rpartition("/")
    return leak.first_seen, numbered(ip), network


def _summary(
    leaks: Sequence[TrackedFinding], cause: LeakCause, more: str, runtime: str
) -> TrackedFinding:
    network = leaks[0].finding.network
    at = min(leak.finding.cause_at for leak in leaks if leak.finding.cause_at)
    since = [leak.finding.since for leak in leaks if leak.finding.since]
    because = describe_cause(cause, f"{format_time(at)} (the oldest)", runtime)
    count = count_of(len(leaks), f"{more}address", f"{more}addresses")
    message = f"{count} in {network} leaked, {because}: `nodeleak scan --output=wide` lists them"
    began, identity = min(since) if len(since) == len(leaks) else None, (cause.value,)
    severity = Severity.WARNING
    finding = Finding(
        NAME,
        network,
        message,
        severity,
        network,
        "",
        cause,
        began,
        at,
        identity,
        group=_group(network, cause, at),
        count=len(leaks),
    )
    return TrackedFinding(finding, min(leak.first_seen for leak in leaks), confirmed=True)


def _group(network: str, cause: LeakCause, at: datetime) -> tuple[object, ...]:
    # A restart has one time; without one, each leak has the time of its file.
    return network, cause, at if cause in RESTARTS else None


def describe_group(findings: Sequence[Finding], assessment: Assessment) -> str:
    """Describe several leaks of one network and cause."""
    network, cause, _ = findings[0].group or ()
    times = sorted({finding.cause_at for finding in findings if finding.cause_at})
    time = format_time(times[0]) + (" (the oldest)" if len(times) > 1 else "")
    reason = describe_cause(LeakCause(str(cause)), time, assessment.runtime.name)

    # A finding for the leaks beyond those that are listed has the network as its subject.
    listed = [finding for finding in findings if finding.subject != network]
    ips = [finding.subject.rpartition("/")[2] for finding in listed]
    count = sum(finding.count for finding in findings)
    addresses = ""
    if ips:
        consecutive = runs(ips)
        shown = consecutive if len(consecutive) <= LONGEST_LIST else ips
        addresses = f": {join_names(shown, count - len(ips))}"
    ports = [
        f"{port} to {ip}"
        for ip, finding in zip(ips, listed, strict=True)
        for port in finding.port_mappings
    ]
    rules = host_ports.describe(join_names(ports))
    leaked = f"{count_of(count, 'address', 'addresses')} in {network} leaked"
    return f"{leaked}, {reason}{addresses}{rules}"


_CAUSES: Final = {
    LeakCause.KUBELET_RESTART: "likely cause: kubelet restart at {since} or earlier",
    LeakCause.RUNTIME_RESTART: "likely cause: restart of {runtime} at {since} or earlier",
    LeakCause.RUNTIME_STATE_LOST: "likely cause: {runtime} started at {since} without a record of earlier sandboxes",
    LeakCause.NODE_REBOOT: "likely cause: node reboot at {since} or earlier",
    LeakCause.NETWORK_RENAMED: "likely cause: the CNI configuration was replaced by that of another network while the "
    "pod ran; reserved at {since}",
    LeakCause.TEARDOWN_SKIPPED: "likely cause: sandbox removed without a completed CNI DEL; reserved at {since}",
    LeakCause.SETUP_FAILED: "likely cause: its CNI ADD was not completed, or DEL failed; reserved at {since}",
    LeakCause.EMPTY_FILE: "likely cause: a crash at {since}, or somebody keeps it free: released only with --ip",
    LeakCause.UNKNOWN: "cause unknown; reserved at {since}",
}


def describe_cause(cause: LeakCause, since: str, runtime: str) -> str:
    return _CAUSES[cause].format(since=since, runtime=runtime)
