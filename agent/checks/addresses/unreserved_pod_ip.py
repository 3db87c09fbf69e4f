"""A running pod uses an address that is not reserved: host-local can give the same address to the next pod.

This happens when someone, or a cleanup script, deletes files in host-local's directory, or when the directory is lost
(a tmpfs, a reinstallation) while containers keep running. host-local looks only at its files.
It also happens when the CNI configuration is replaced by that of another network with the same range.

Means: the pod's address lies in the range of a network, and there is no reservation file for it in that network.
Do: cordon the node first; then delete the pod, so that its controller creates a new one with a reservation (but if
`nodeleak journal` lists its release, see the runbook NodeleakUnreservedAddress); stop what deletes the
files; uncordon when `nodeleak scan` shows neither this finding nor shared_ip.
"""

from collections.abc import Collection, Iterable, Iterator
from typing import Final

from agent.model.assessment import Assessment, ClassifiedReservation
from agent.model.finding import Finding, Severity
from agent.model.ranges import covers
from agent.model.snapshot import Pod, Unavailable, known_or

NAME = "unreserved_pod_ip"
SEVERITIES: Final = (Severity.CRITICAL,)


def find(assessment: Assessment) -> Iterator[Finding]:
    networks = assessment.networks
    entries = {network: assessment.of(network) for network in networks}
    elsewhere = _reserved_elsewhere(assessment)
    pods = assessment.networked_pods
    reserved = {network: _reserved(pods, entries[network]) for network in networks}
    configured = _configured(assessment)

    for pod, ip in pods:
        if pod.deleting or pod.name in elsewhere:
            continue
        holders = [network for network in networks if ip in reserved[network]]
        if configured.intersection(holders):
            continue
        # A reservation counts in the networks that give out addresses now.
        network = _allocating(assessment, configured if holders else networks, ip)
        if network is None:
            continue
        where = f"reserved only in {holders[0]}, not in {network}" if holders else "not reserved"
        yield Finding(
            detector=NAME,
            severity=Severity.CRITICAL,
            subject=f"{network}/{ip} of pod {pod.name}",
            message=f"pod {pod.name} uses {ip}, which is {where}: the next pod can get the same address",
            network=network,
            pod=pod.name,
            identity=(pod.uid,),
        )
    _check_configuration(assessment)


def _check_configuration(assessment: Assessment) -> None:
    """Raise InsufficientData if it is unknown which of several networks gives out addresses now."""
    if len(assessment.networks) > 1 and isinstance(assessment.snapshot.networks, Unavailable):
        assessment.snapshot.networks.known()


def _configured(assessment: Assessment) -> frozenset[str]:
    return frozenset(network.name for network in known_or(assessment.snapshot.networks, ()))


def _allocating(assessment: Assessment, networks: Collection[str], ip: str) -> str | None:
    """Return the first of the networks that can give out an address."""
    asked = (network for network in assessment.networks if network in networks)
    return next((network for network in asked if covers(assessment.ranges(network), ip)), None)


def _reserved(pods: Iterable[tuple[Pod, str]], entries: Iterable[ClassifiedReservation]) -> frozenset[str]:
    """Return those of the pods' addresses that are reserved: far fewer than reservations, on a node with many leaks."""
    used = {ip for _, ip in pods}
    return frozenset(one.name for one in entries if one.blocks and one.name in used)


def _reserved_elsewhere(assessment: Assessment) -> frozenset[str]:
    """Return the pods that have their address from a network that is not checked, according to libcni's cache."""
    snapshot = assessment.snapshot
    pods = {one.id: one.pod for one in known_or(snapshot.containers, ()) if one.sandbox and one.running}
    results = [one for one in known_or(snapshot.cni_results, ()) if one.container_id in pods and one.ifname == "eth0"]
    checked = {pods[one.container_id] for one in results if one.network in assessment.networks}
    return frozenset(pods[one.container_id] for one in results) - checked
