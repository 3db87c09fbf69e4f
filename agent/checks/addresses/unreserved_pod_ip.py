"""A running pod uses an address that is not reserved: host-local can give the same address to the next pod.

This happens when someone, or a cleanup script, deletes files in host-local's directory, or when the directory is lost
(a tmpfs, a reinstallation) while containers keep running. host-local looks only at its files.

Means: the pod's address lies in the network's range, and there is no reservation file for it.
Do: delete the pod, so that its controller creates a new one with a reservation. Stop whatever deletes files in
host-local's directory.
"""

from collections.abc import Iterator
from typing import Final

from agent.model.assessment import Assessment
from agent.model.finding import Finding, Severity
from agent.model.ranges import covers

NAME = "unreserved_pod_ip"
SEVERITIES: Final = (Severity.CRITICAL,)


def find(assessment: Assessment) -> Iterator[Finding]:
    networks = [store.network for store in assessment.snapshot.reservations]
    reserved = {classified.name for network in networks for classified in assessment.of(network) if classified.blocks}
    ranges = {network: assessment.ranges(network) for network in networks}

    for pod, ip in assessment.networked_pods():
        network = next((network for network in networks if covers(ranges[network], ip)), None)
        if pod.deleting or ip in reserved or network is None:
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
