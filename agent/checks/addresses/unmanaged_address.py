"""A process or a network namespace still uses an address, and the container runtime does not know its container.

A docker upgrade that moves the data directory, or a runtime that failed to load a container, leaves processes that
nothing manages. A runtime whose data was deleted leaves mounted network namespaces: no process is in them, but the
kernel still answers for the address. In the runtime's list alone, such addresses look leaked.

Means: no container has the reservation's ID, and a process has the address configured, or the network namespace that
libcni's cache names for the sandbox is still mounted. A process is not reported if another network reserves its address
for a container that the runtime has.
Do: look at the process on the node, and end it if it is a leftover and another pod does its work. Delete a namespace
that has no process: `ip netns delete NAME`, or `umount PATH` and `rm PATH`. Do not release the address before, or the
next pod shares it.
"""

from collections.abc import Iterator
from typing import Final

from agent.checks import runtime as runtimes
from agent.model.assessment import Assessment, State
from agent.model.finding import Finding, Severity
from agent.model.snapshot import NotRequested

NAME = "unmanaged_address"
SEVERITIES: Final = (Severity.WARNING,)


def find(assessment: Assessment) -> Iterator[Finding]:
    snapshot, index = assessment.snapshot, assessment.index
    for network in assessment.networks:
        assessment.of(network)
    snapshot.containers.known()
    if isinstance(snapshot.addresses, NotRequested):
        return  # every reservation has an owner
    snapshot.addresses.known()
    for classified in assessment.reservations:
        if classified.state is not State.UNMANAGED:
            continue
        if classified.name in index.processes and classified.name not in index.reserved_by:
            holder = index.processes[classified.name]
        elif path := index.mounted_namespaces.get(classified.container_id):
            holder = f"network namespace {path} (without a process)"
        else:
            continue
        pod = f" of pod {classified.pod}" if classified.pod else ""
        known = ", which the runtime does not know"
        owner = f"container {classified.container_id[:12]}{pod}{known}" if classified.container_id else "no container"
        yield Finding(
            detector=NAME,
            subject=f"{classified.network}/{classified.name}",
            message=f"{holder} uses {classified.name}, which is reserved for {owner}",
            network=classified.network,
            pod=classified.pod,
            identity=(classified.container_id,),
        )
    # After the findings: without the checkpoints it is not known which containers are gone for good.
    if runtimes.keeps_checkpoints(snapshot):
        snapshot.checkpoints.known()
    snapshot.cni_results.known()
    if not isinstance(snapshot.mounted_namespaces, NotRequested):
        snapshot.mounted_namespaces.known()
