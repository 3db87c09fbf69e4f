"""A process still uses an address, and the container runtime does not know its container.

A docker upgrade that moves its data directory, or a daemon that failed to load a container, leaves processes that
nobody manages. The kubelet cannot stop them, and their addresses look leaked to anyone who asks only the runtime.

Means: the address is configured in the network namespace of a process, and no container has the reservation's id.
Do: look at the process on the node, and end it if it is a leftover and another pod does its work. Do not release the
address before, or the next pod shares it.
"""

from collections.abc import Iterator
from typing import Final

from agent.model.assessment import Assessment, State
from agent.model.finding import Finding, Severity
from agent.model.snapshot import NotRequested

NAME = "unmanaged_address"
SEVERITIES: Final = (Severity.WARNING,)


def find(assessment: Assessment) -> Iterator[Finding]:
    snapshot = assessment.snapshot
    for network in assessment.networks:
        assessment.of(network)
    snapshot.containers.known()
    if isinstance(snapshot.addresses, NotRequested):
        return  # every reservation has an owner
    holders = {address.ip: address for address in snapshot.addresses.known()}

    for classified in assessment.reservations:
        holder = holders.get(classified.name)
        if classified.state is not State.UNMANAGED or holder is None:
            continue
        pod = f" of pod {classified.pod}" if classified.pod else ""
        known = ", which the runtime does not know"
        owner = f"container {classified.container_id[:12]}{pod}{known}" if classified.container_id else "no container"
        yield Finding(
            detector=NAME,
            subject=f"{classified.network}/{classified.name}",
            message=f"process {holder.pid} ({holder.command}) uses {classified.name}, which is reserved for {owner}",
            network=classified.network,
            pod=classified.pod,
            identity=(classified.container_id,),
        )
    # After the findings: without the checkpoints it is not known which containers are gone for good.
    snapshot.checkpoints.known()
