"""A running pod has an address that is not reserved for anybody: the next pod may be given the same one.

It happens when files are deleted by hand or by a clean-up script, or the directory is lost (a tmpfs, a reinstall)
while containers live on. host-local looks at its files only, so its next ADD can hand the address out again.

Means: the pod's address lies in the network's range and no reservation file has its name.
Do: delete the pod, so that its controller makes a new one with a reservation of its own. Stop whatever deletes files
in host-local's directory.
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
            message=f"pod {pod.name} runs with {ip}, which is not reserved: the next pod may be given it too",
            network=network,
            pod=pod.name,
            identity=(pod.uid,),
        )
