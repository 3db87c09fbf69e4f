"""An address is reserved for a container that no longer exists, and nothing on the node will ever release it.

host-local keeps one file for each address. The kubelet removes it when it tears the sandbox down. If the runtime has
lost the sandbox and the kubelet has dropped its checkpoint (for example because it restarted before it knew its pod
CIDR), nobody removes it. After enough leaks, pods hang with `no IP addresses available in range set`.

Means: the file outlived its container: no container, no checkpoint, no process, no mounted network namespace that
libcni's cache names, and no live pod has the address.
Do: release the address with `nodeleak clean`; afterwards find out what restarted or removed containers at the time
shown, or addresses will leak again. CRI-O since 1.32 releases a leak that has a result in libcni's cache when it
starts: there, restarting it is a remedy too. Neither removes its own rules for host ports (KUBE-HP-*). Never delete
reservation files by hand: comparing `docker ps` with a directory listing takes addresses that are in use.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Final

from agent.checks.addresses import host_ports
from agent.checks.addresses.classify import CLOCK_SLACK
from agent.checks.addresses.leak_cause import LeakEvidence, likely_cause
from agent.model.assessment import Assessment, ClassifiedReservation
from agent.model.finding import Finding, Key, LeakCause, Severity, TrackedFinding
from agent.model.ranges import numbered
from agent.model.snapshot import InsufficientData, NotRequested, PortMapping, Reservation, known_or, require_available
from agent.model.text import count_of, format_time

NAME = "leaked_reservation"
SEVERITIES: Final = (Severity.WARNING,)

MAX_LISTED: Final = 512
"""Leaks of a node with a finding each; those beyond are counted, in a finding for each network and cause."""


def find(assessment: Assessment) -> Iterator[Finding]:
    leaked = assessment.leaked
    if leaked:
        evidence, ports = LeakEvidence(assessment), host_ports.forwarded(assessment, leaked)
        for reservation, classified in leaked.items():
            yield _finding(reservation, classified, evidence, ports[reservation] or ())
    _check_sources(assessment)


def _finding(
    reservation: Reservation, classified: ClassifiedReservation, evidence: LeakEvidence, ports: tuple[PortMapping, ...]
) -> Finding:
    cause, at, since = likely_cause(reservation, evidence)
    because = describe_cause(cause, format_time(at), evidence.runtime)
    rules = host_ports.describe(", ".join(f"{port} to {reservation.ip}" for port in ports))
    return Finding(
        detector=NAME,
        subject=str(reservation.key),
        message=f"{reservation.ip} is reserved for {_owner(classified)}; {because}{rules}",
        network=reservation.network,
        pod=classified.pod,
        cause=cause,
        cause_at=at,
        since=since,
        port_mappings=ports,
        identity=_identity(reservation),
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
    _check_clock(assessment)
    require_available(
        snapshot.networks, snapshot.checkpoints, snapshot.addresses, snapshot.mounted_namespaces, snapshot.pods
    )
    if not isinstance(snapshot.addresses, NotRequested):  # a reservation has no owner
        snapshot.cni_results.known()


def _check_clock(assessment: Assessment) -> None:
    """Raise InsufficientData if a reservation without a container is newer than the clock: its age says nothing."""
    newest = assessment.snapshot.taken_at + CLOCK_SLACK
    for store in assessment.snapshot.reservations:
        for reservation in known_or(store.reading, ()):
            if reservation.mtime > newest and reservation.container_id not in assessment.index.containers:
                raise InsufficientData(
                    f"reservations: file {reservation.key} is newer than the node's clock, which was set"
                )


def summarized(leaks: Sequence[TrackedFinding], runtime: str) -> Iterator[TrackedFinding]:
    """Yield the leaks that are listed, and a finding for the others of each network and cause.

    Those that were seen first are listed, so that none makes room for another before it is released.
    """
    by_age = sorted(leaks, key=_age)
    listed, more = by_age[:MAX_LISTED], by_age[MAX_LISTED:]
    keys = {leak.finding.key for leak in listed}
    yield from (leak for leak in leaks if leak.finding.key in keys)
    unlisted: defaultdict[tuple[str, LeakCause], list[TrackedFinding]] = defaultdict(list)
    for leak in more:
        unlisted[leak.finding.network, LeakCause(str(leak.finding.cause))].append(leak)
    networks = {leak.finding.network for leak in listed}
    for (network, cause), group in unlisted.items():
        yield _summary(group, cause, "more " if network in networks else "", runtime)


def _age(leak: TrackedFinding) -> tuple[object, ...]:
    network, _, ip = leak.finding.subject.rpartition("/")
    return leak.first_seen, numbered(ip), network


def _summary(leaks: Sequence[TrackedFinding], cause: LeakCause, more: str, runtime: str) -> TrackedFinding:
    network = leaks[0].finding.network
    at = min(leak.finding.cause_at for leak in leaks if leak.finding.cause_at)
    since = [leak.finding.since for leak in leaks if leak.finding.since]
    because = describe_cause(cause, f"{format_time(at)} (the oldest)", runtime)
    finding = Finding(
        detector=NAME,
        subject=network,
        message=f"{count_of(len(leaks), f'{more}address', f'{more}addresses')} in {network} leaked, "
        f"{because}: `nodeleak scan --output=wide` lists them",
        network=network,
        cause=cause,
        cause_at=at,
        since=min(since) if len(since) == len(leaks) else None,
        identity=(cause.value,),
        count=len(leaks),
    )
    return TrackedFinding(finding, min(leak.first_seen for leak in leaks), confirmed=True)


def _owner(classified: ClassifiedReservation) -> str:
    if not classified.container_id:
        return "no container (the file is empty)"
    pod = f" of pod {classified.pod}" if classified.pod else ""
    return f"container {classified.container_id[:12]}{pod}, which no longer exists"


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
