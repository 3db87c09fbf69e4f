"""An address is reserved for a container that no longer exists, and nothing will ever release it.

host-local keeps one file for each address. The kubelet removes it when it tears the sandbox down.
If the runtime has lost the sandbox and the kubelet has dropped its checkpoint (for example because
it restarted before it knew its pod CIDR), nobody removes it. After enough leaks, pods hang with `no
IP addresses available in range set`.

Means: the file outlived its container: no container, no checkpoint, no process, no mounted network
namespace that libcni's cache names, and no live pod has the address.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from agent.checks.addresses import host_ports
from agent.checks.addresses.leak_cause import (
    Cause,
    began_at,
    gather_evidence,
    likely_cause,
)
from agent.checks.detector import Advice, Noun, Step
from agent.checks.readings.attribution import is_of_podman_or_pod
from agent.model.assessment import Assessment, State
from agent.model.clocks import FILE_AHEAD
from agent.model.finding import (
    Finding,
    LeakCause,
    Severity,
    TrackedFinding,
)
from agent.model.ranges import numbered, runs
from agent.model.snapshot import (
    InsufficientData,
    ReservationKey,
    require_available,
)
from agent.model.text import FEW, LONGEST_LIST, count_of, join_names

NAME = "leaked_reservation"
SEVERITIES: Final = (Severity.WARNING,)
NOUN: Final = Noun("leaked pod address", "leaked pod addresses")
ADVICE: Final = Advice(
    steps=(
        Step(
            "Release the address with the command that `nodeleak scan` prints for this node, or "
            "`nodeleak clean`; afterwards find out what restarted or removed containers at the "
            "time shown (`nodeleak timeline`, the logs of the kubelet and the runtime), or "
            "addresses will leak again."
        ),
        Step(
            "CRI-O since 1.32 releases a leak that has a result in libcni's cache when it starts: "
            "there, restarting it is a remedy too."
        ),
        Step("Neither a release nor CRI-O removes its rules for host ports (KUBE-HP-*)."),
        Step(
            "Never delete reservation files by hand: comparing `docker ps` with a directory "
            "listing takes addresses that are in use."
        ),
    ),
    runbook="LeakedAddresses.md#nodeleakleakedaddresses",
)

MAX_LISTED: Final = 512
"""Leaks of a node with a finding each; the others share one for each network and cause."""


def find(assessment: Assessment) -> Iterator[Finding]:
    if assessment.leaked:
        evidence = gather_evidence(assessment)
        ports = host_ports.forwarded(assessment, assessment.leaked)
        for leak, entry in assessment.leaked.items():
            forwarded = ports[leak] or ()
            rules = host_ports.describe(", ".join(f"{port} to {leak.ip}" for port in forwarded))
            owner = "no container (the file is empty)"
            if leak.container_id:
                owner = f"container {entry.container}, which no longer exists"

            cause = likely_cause(leak, assessment, evidence)
            reason = cause.describe(leak.network, assessment)
            remaining = cause.describe_remaining(leak.network, assessment)

            yield Finding(
                NAME,
                str(leak.key),
                f"{leak.ip} is reserved for {owner}; {reason}{rules}{remaining}",
                network=leak.network,
                pod=entry.pod,
                cause=cause.kind,
                since=began_at(leak, cause, assessment),
                cause_at=cause.at,
                identity=(leak.container_id, leak.inode, leak.size, leak.mtime_ns),
                group=(leak.network, cause.kind, evidence.generation(cause)),
                port_mappings=forwarded,
            )
    _check_sources(assessment)


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
                "set: check it with `timedatectl`"
            )

    undecided = [
        entry
        for reservation, entry in assessment.classified.items()
        if entry.state is State.UNKNOWN and is_of_podman_or_pod(reservation, index)
    ]
    if undecided:
        addresses = count_of(len(undecided), "address", "addresses")
        raise InsufficientData(f"reservations: {addresses} {undecided[0].why}")

    require_available(
        snapshot.networks,
        snapshot.runtimes,
        snapshot.checkpoints,
        snapshot.addresses,
        snapshot.mounted_namespaces,
        snapshot.pods,
    )
    if index.has_unowned:
        snapshot.cni_results.known()


def known_causes(leaks: Iterable[TrackedFinding]) -> dict[ReservationKey, LeakCause]:
    """Return the causes that are known. `leaks`: findings of this detector."""
    causes: dict[ReservationKey, LeakCause] = {}
    for leak in leaks:
        network, _, ip = leak.finding.subject.rpartition("/")
        cause = LeakCause(str(leak.finding.cause))
        if cause is not LeakCause.UNKNOWN:
            causes[ReservationKey(network, ip)] = cause
    return causes


# Several leaks in one finding, or in one line


def summarized(leaks: Sequence[TrackedFinding], assessment: Assessment) -> list[TrackedFinding]:
    """Return the leaks that are listed, and one finding for the others of each network and cause.

    Those seen first are listed.
    """
    by_age = sorted(leaks, key=_age)
    listed = {leak.finding.key for leak in by_age[:MAX_LISTED]}
    networks = {leak.finding.network for leak in by_age[:MAX_LISTED]}
    findings = [leak for leak in leaks if leak.finding.key in listed]

    unlisted: defaultdict[tuple[str, LeakCause], list[TrackedFinding]] = defaultdict(list)
    for leak in by_age[MAX_LISTED:]:
        unlisted[leak.finding.network, LeakCause(str(leak.finding.cause))].append(leak)

    for (network, cause), group in unlisted.items():
        noun = "more address" if network in networks else "address"
        count = count_of(len(group), noun, f"{noun}es")
        finding = _summary([leak.finding for leak in group], cause, count, assessment)
        first_seen = min(leak.first_seen for leak in group)
        findings.append(TrackedFinding(finding, first_seen, confirmed=True))
    return findings


def _age(leak: TrackedFinding) -> tuple[object, ...]:
    """Sort key: those first that were seen first, then by address."""
    network, _, ip = leak.finding.subject.rpartition("/")
    return leak.first_seen, numbered(ip), network


def _summary(
    leaks: Sequence[Finding], kind: LeakCause, count: str, assessment: Assessment
) -> Finding:
    """Return one finding for leaks of one network and cause. `count`: how many, in words."""
    network = leaks[0].network
    cause = Cause(kind, min(leak.cause_at for leak in leaks if leak.cause_at))
    began = [leak.since for leak in leaks if leak.since]
    reason = cause.describe(network, assessment, " (the oldest)")
    return Finding(
        NAME,
        network,
        f"{count} in {network} leaked, {reason}: `nodeleak scan --output=wide` lists them",
        network=network,
        cause=kind,
        since=min(began) if len(began) == len(leaks) else None,
        cause_at=cause.at,
        identity=(kind.value,),
        group=leaks[0].group,
        count=len(leaks),
    )


def _listed(findings: Sequence[Finding], ips: Sequence[str], unlisted: int) -> str:
    """Write few addresses with their pods, and many as runs of consecutive ones."""
    pods = {finding.subject.rpartition("/")[2]: finding.pod for finding in findings}
    if len(ips) <= FEW and not unlisted and any(pods.values()):
        return ", ".join(f"{ip} ({pods[ip] or 'pod unknown'})" for ip in ips)
    consecutive = runs(ips)
    return join_names(consecutive if len(consecutive) <= LONGEST_LIST else ips, unlisted)


def describe_group(findings: Sequence[Finding], assessment: Assessment) -> str:
    """Describe several leaks of one network and cause."""
    network = findings[0].network
    times = {finding.cause_at for finding in findings if finding.cause_at}
    cause = Cause(LeakCause(str(findings[0].cause)), min(times))
    remark = " (the oldest)" if len(times) > 1 else ""
    reason = cause.describe(network, assessment, remark)

    ips: list[str] = []
    ports: list[str] = []
    for finding in findings:
        # A finding for the leaks beyond those that are listed has the network as its subject.
        if finding.subject != network:
            ip = finding.subject.rpartition("/")[2]
            ips.append(ip)
            ports += [f"{port} to {ip}" for port in finding.port_mappings]
    count = sum(finding.count for finding in findings)
    addresses = f": {_listed(findings, ips, count - len(ips))}" if ips else ""
    leaked = f"{count_of(count, 'address', 'addresses')} in {network} leaked"
    rules = host_ports.describe(join_names(ports))
    remaining = cause.describe_remaining(network, assessment)
    return f"{leaked}{addresses}; {reason}{rules}{remaining}"
