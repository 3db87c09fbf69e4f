"""An address is reserved for a container that no longer exists, and nothing on the node will ever release it.

host-local keeps one file for each address. The kubelet removes it when it tears the sandbox down. If the runtime has
lost the sandbox and the kubelet has dropped its checkpoint (for example because it restarted before it knew its pod
CIDR), nobody removes it. After enough leaks, pods hang with `no IP addresses available in range set`.

Means: the file outlived its container: no container, no checkpoint, no process, no mounted network namespace that
libcni's cache names, and no live pod has the address.
Do: release the address with `nodeleak clean`; afterwards find out what restarted or removed containers at the time
shown, or addresses will leak again. Never delete reservation files by hand: comparing `docker ps` with a directory
listing takes addresses that are in use.
"""

from collections.abc import Iterator
from typing import Final

from agent.checks.addresses.classify import made_at
from agent.checks.addresses.leak_cause import LeakEvidence, likely_cause
from agent.model.assessment import Assessment, ClassifiedReservation, State
from agent.model.finding import Finding, LeakCause, Severity
from agent.model.port_mapping import PortMapping
from agent.model.snapshot import NotRequested, Reservation, Snapshot, Unavailable, known_or
from agent.model.text import format_time

NAME = "leaked_reservation"
SEVERITIES: Final = (Severity.WARNING,)


def find(assessment: Assessment) -> Iterator[Finding]:
    snapshot = assessment.snapshot
    evidence = LeakEvidence.of(assessment)

    for classified in assessment.reservations:
        if classified.state is not State.LEAKED or not isinstance(classified.entry, Reservation):
            continue
        reservation = classified.entry
        cause, since = likely_cause(reservation, evidence)
        because = describe_cause(cause, format_time(since), evidence.runtime)
        ports = _port_mappings(reservation, snapshot)
        rules = describe_ports(", ".join(f"{port} to {reservation.ip}" for port in ports))
        yield Finding(
            detector=NAME,
            subject=str(reservation.key),
            message=f"{reservation.ip} is reserved for {_owner(classified)}; {because}{rules}",
            network=reservation.network,
            pod=classified.pod,
            cause=cause,
            since=since,
            port_mappings=ports,
            identity=(reservation.container_id, reservation.inode, reservation.size, reservation.mtime_ns),
        )
    # After the findings: where one of these is unavailable, there may be more leaks.
    for network in assessment.networks:
        assessment.of(network)
    snapshot.containers.known()
    _check_evidence(snapshot)


def _check_evidence(snapshot: Snapshot) -> None:
    """Raise InsufficientData where an unavailable source may hide a leak."""
    for reading in (snapshot.checkpoints, snapshot.addresses, snapshot.mounted_namespaces, snapshot.pods):
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
    LeakCause.KUBELET_RESTART: "likely cause: kubelet restart at {since}",
    LeakCause.RUNTIME_RESTART: "likely cause: restart of {runtime} at {since}",
    LeakCause.RUNTIME_STATE_LOST: "likely cause: {runtime} started at {since} without a record of earlier sandboxes",
    LeakCause.NODE_REBOOT: "likely cause: node reboot at {since}",
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


def _port_mappings(reservation: Reservation, snapshot: Snapshot) -> tuple[PortMapping, ...]:
    """Return the ports of the node that are still forwarded to a leaked address. A reboot removes the rules."""
    processes = known_or(snapshot.processes, None)
    if processes is None or processes.booted > made_at(reservation):
        return ()
    sandbox = (reservation.container_id, reservation.network)
    results = (one for one in known_or(snapshot.cni_results, ()) if (one.container_id, one.network) == sandbox)
    return tuple(dict.fromkeys(port for one in results for port in one.port_mappings))
