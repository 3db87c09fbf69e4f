"""A running pod uses an address that is not reserved: host-local can give the same address to the next pod.

This happens when someone, or a cleanup script, deletes files in host-local's directory, or when the directory is lost
(a tmpfs, a reinstallation) while containers keep running. host-local looks only at its files.

Means: the pod's address lies in the network's range, and there is no reservation file for it.
Do: cordon the node first; then delete the pod, so that its controller creates a new one with a reservation (but if
`nodeleak journal` lists its release, see the runbook NodeleakUnreservedAddress); stop what deletes the
files; uncordon when `nodeleak scan` shows neither this finding nor shared_ip.
"""

from collections.abc import Container, Iterable, Iterator
from typing import Final

from agent.model.assessment import Assessment, ClassifiedReservation
from agent.model.finding import Finding, Severity
from agent.model.ranges import covers
from agent.model.snapshot import known_or

NAME = "unreserved_pod_ip"
SEVERITIES: Final = (Severity.CRITICAL,)


def find(assessment: Assessment) -> Iterator[Finding]:
    networks = assessment.networks
    entries = [assessment.of(network) for network in networks]
    elsewhere = _reserved_elsewhere(assessment)
    pods = assessment.networked_pods
    reserved = _reserved({ip for _, ip in pods}, entries)

    for pod, ip in pods:
        if pod.deleting or ip in reserved or pod.name in elsewhere:
            continue
        network = next((network for network in networks if covers(assessment.ranges(network), ip)), None)
        if network is None:
            continue
        yield Finding(
            detector=NAME,
            severity=Severity.CRITICAL,
            subject=f"{network}/{ip} of pod {pod.name}",
            message=f"pod {pod.name} uses {ip}, which is not reserved: the next pod can get the same address",
            network=network,
            pod=pod.name,
            identity=(pod.uid,),
        )


def _reserved(used: Container[str], entries: Iterable[Iterable[ClassifiedReservation]]) -> frozenset[str]:
    """Return those of the addresses that are reserved: far fewer than reservations, on a node with many leaks."""
    return frozenset(one.name for network in entries for one in network if one.blocks and one.name in used)


def _reserved_elsewhere(assessment: Assessment) -> frozenset[str]:
    """Return the pods that have their address from a network that is not checked, according to libcni's cache."""
    snapshot = assessment.snapshot
    pods = {one.id: one.pod for one in known_or(snapshot.containers, ()) if one.sandbox and one.running}
    results = [one for one in known_or(snapshot.cni_results, ()) if one.container_id in pods and one.ifname == "eth0"]
    checked = {pods[one.container_id] for one in results if one.network in assessment.networks}
    return frozenset(pods[one.container_id] for one in results) - checked
