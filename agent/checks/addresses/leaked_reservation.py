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

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from heapq import nsmallest
from typing import Final

from agent.checks import runtime as runtimes
from agent.checks.addresses.classify import CLOCK_SLACK, made_at
from agent.checks.addresses.leak_cause import LeakEvidence, first_observation
from agent.model.assessment import Assessment, ClassifiedReservation, State
from agent.model.finding import Finding, LeakCause, Severity, TrackedFinding
from agent.model.leak import Leak, Leaks
from agent.model.port_mapping import PortMapping
from agent.model.ranges import numbered
from agent.model.runtime import CRI_O
from agent.model.snapshot import InsufficientData, NotRequested, Reservation, Snapshot, Unavailable, known_or
from agent.model.text import count_of, format_time

NAME = "leaked_reservation"
SEVERITIES: Final = (Severity.WARNING,)


MOST_LISTED: Final = 512
"""Leaks of a node with a finding each; those beyond are counted in one finding for each network and cause."""
_NAMED: Final = 3
"""Ports in one sentence about several."""


def find(assessment: Assessment) -> Iterator[Finding]:
    for tracked in find_tracked(assessment):
        yield tracked.finding
    check_sources(assessment.snapshot)


def find_tracked(assessment: Assessment) -> Iterator[TrackedFinding]:
    """Yield the findings with their history: leaks are confirmed already."""
    leaks = assessment.leaks or _first_observed(assessment)
    if not leaks:
        return
    listed = dict(_listed(leaks))
    ports = host_ports(assessment.snapshot, listed)
    for classified in assessment.reservations:
        if classified.state is State.LEAKED and isinstance(one := classified.entry, Reservation) and one in listed:
            finding = _finding(classified, one, listed[one], ports[one] or ())
            yield TrackedFinding(finding, listed[one].first_seen, confirmed=True)
    yield from _others(leaks, listed)


def check_sources(snapshot: Snapshot) -> None:
    """Raise InsufficientData where an unavailable source may hide a leak."""
    assessment = Assessment(snapshot, ())
    for network in assessment.networks:
        assessment.of(network)
    _check_clock(snapshot, {one.id for one in snapshot.containers.known()})
    _check_evidence(snapshot)


def _first_observed(assessment: Assessment) -> Leaks:
    """Return the leaks of a snapshot as if it were the first."""
    leaked = [
        one.entry for one in assessment.reservations if one.state is State.LEAKED and isinstance(one.entry, Reservation)
    ]
    if not leaked:
        return {}
    evidence = LeakEvidence.of(assessment.snapshot, leaked)
    return {one: first_observation(one, evidence, assessment.snapshot) for one in leaked}


def _listed(leaks: Leaks) -> Iterator[tuple[Reservation, Leak]]:
    """Yield the leaks with a finding of their own: of many, those that were seen first.

    So none that is listed makes room for another before it is released. Networks have no share each, because it would
    become smaller with the next network.
    """
    yield from leaks.items() if len(leaks) <= MOST_LISTED else nsmallest(MOST_LISTED, leaks.items(), key=_by_age)


def _by_age(listed: tuple[Reservation, Leak]) -> tuple[timedelta, tuple[int, int], str]:
    reservation, leak = listed
    return leak.first_uptime, numbered(reservation.ip), reservation.network


def _finding(
    classified: ClassifiedReservation, reservation: Reservation, leak: Leak, ports: tuple[PortMapping, ...]
) -> Finding:
    since = leak.since or made_at(reservation)
    because = describe_cause(leak.cause, format_time(since), leak.runtime)
    rules = describe_ports(", ".join(f"{port} to {reservation.ip}" for port in ports))
    return Finding(
        detector=NAME,
        subject=str(reservation.key),
        message=f"{reservation.ip} is reserved for {_owner(classified)}; {because}{rules}",
        network=reservation.network,
        pod=classified.pod,
        cause=leak.cause,
        since=since,
        port_mappings=ports,
        identity=(reservation.container_id, reservation.inode, reservation.size, reservation.mtime_ns),
    )


def _others(leaks: Leaks, listed: Collection[Reservation]) -> Iterator[TrackedFinding]:
    """Yield one finding for the leaks of a network beyond the listed ones, for each cause and its time."""
    counts: Counter[tuple[str, LeakCause, datetime | None, str]] = Counter()
    oldest: dict[tuple[str, LeakCause, datetime | None, str], tuple[datetime, datetime]] = {}
    for one, leak in leaks.items():
        if one not in listed:
            kind = one.network, leak.cause, leak.since, leak.runtime
            counts[kind] += 1
            since = leak.since or made_at(one)
            earlier = oldest.get(kind, (since, leak.first_seen))
            oldest[kind] = min(since, earlier[0]), min(leak.first_seen, earlier[1])
    networks = {one.network for one in listed}
    for (network, cause, began, runtime), count in counts.items():
        more = "more " if network in networks else ""
        since, first_seen = oldest[network, cause, began, runtime]
        time = format_time(since) + ("" if began else " (the oldest)")
        finding = Finding(
            detector=NAME,
            subject=network,
            message=f"{count_of(count, f'{more}address', f'{more}addresses')} in {network} leaked, "
            f"{describe_cause(cause, time, runtime)}: `nodeleak scan --output=wide` lists them",
            network=network,
            cause=cause,
            since=since,
            identity=(cause.value, began.isoformat() if began else "", runtime),
            count=count,
        )
        yield TrackedFinding(finding, first_seen, confirmed=True)


def _check_clock(snapshot: Snapshot, listed: Collection[str]) -> None:
    """Raise InsufficientData if a reservation without a container is newer than the clock: its age says nothing."""
    newest = (snapshot.taken_at + CLOCK_SLACK).timestamp() * 1e9
    for store in snapshot.reservations:
        for one in known_or(store.reading, ()):
            if one.mtime_ns > newest and one.container_id not in listed:
                raise InsufficientData(f"reservations: file {one.key} is newer than the node's clock, which was set")


def _check_evidence(snapshot: Snapshot) -> None:
    """Raise InsufficientData where an unavailable source may hide a leak."""
    for reading in (
        snapshot.networks,
        snapshot.checkpoints,
        snapshot.addresses,
        snapshot.mounted_namespaces,
        snapshot.pods,
    ):
        if isinstance(reading, Unavailable):
            reading.known()
    if not isinstance(snapshot.addresses, NotRequested):  # a reservation has no owner
        snapshot.cni_results.known()


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
    LeakCause.EMPTY_FILE: "likely cause: a crash or power cut at {since}",
    LeakCause.UNKNOWN: "cause unknown; reserved at {since}",
}


def describe_cause(cause: LeakCause, since: str, runtime: str) -> str:
    return _CAUSES[cause].format(since=since, runtime=runtime)


def describe_ports(forwarded: str) -> str:
    """Say what a release does not remove. `forwarded`: the ports of the node, and where they lead; may be empty."""
    return f"; iptables or nftables rules may still forward host port {forwarded}" if forwarded else ""


def describe_rules(ports: Mapping[str, Sequence[PortMapping] | None]) -> str:
    """Say which rules a release leaves, and what shows them. `ports`: of each address; None: not known."""
    ip = next(iter(ports)) if len(ports) == 1 else "ADDRESS"
    iptables = "ip6tables" if ":" in ip else "iptables"
    show = f"`{iptables}-save -t nat | grep -wF {ip}` or `nft list ruleset | grep -wF {ip}` on the node shows them"
    forwarded = [f"{port} to {ip}" for ip, known in ports.items() for port in known or ()]
    if not forwarded:
        return f"rules that forward host ports to {count_of(len(ports), 'address', 'addresses')} are not known: {show}"
    more = f" and {len(forwarded) - _NAMED} more" if len(forwarded) > _NAMED else ""
    return f"{describe_ports(', '.join(forwarded[:_NAMED]) + more).removeprefix('; ')}: {show}"


def host_ports(
    snapshot: Snapshot, leaked: Collection[Reservation]
) -> dict[Reservation, tuple[PortMapping, ...] | None]:
    """Return the ports of the node that may still be forwarded to each address; None: not known.

    A reboot removes the rules. CRI-O and kubenet make their own; kubenet, and libcni before 0.8, name no pod.
    """
    ids, forwards_itself = {one.container_id for one in leaked}, CRI_O in runtimes.names(snapshot)
    told: dict[tuple[str, str], tuple[PortMapping, ...]] = {}
    for one in known_or(snapshot.cni_results, ()):
        if one.container_id in ids and (one.port_mappings or (one.pod and not forwards_itself)):
            sandbox = one.container_id, one.network
            told[sandbox] = tuple(dict.fromkeys((*told.get(sandbox, ()), *one.port_mappings)))
    processes = known_or(snapshot.processes, None)
    return {
        one: () if processes and processes.booted > made_at(one) else told.get((one.container_id, one.network))
        for one in leaked
    }
