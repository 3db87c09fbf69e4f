"""A process or a network namespace still uses an address, and the container runtime does not know its container.

A docker upgrade that moves the data directory, or a runtime that failed to load a container, leaves processes that
nothing manages. A runtime whose data was deleted leaves mounted network namespaces: no process is in them, but the
kernel still answers for the address. In the runtime's list alone, such addresses look leaked.

Means: no container has the reservation's ID, and a process has the address configured, or the network namespace that
libcni's cache names for the sandbox is still mounted. Severity info: as many containers of other networks have reserved
the same address as namespaces have it, so that the reservation is most likely leaked.
"""

from collections.abc import Iterator
from typing import Final

from agent.checks.detector import Noun, Remedy, Step
from agent.model.assessment import Assessment, ClassifiedReservation, State
from agent.model.finding import Finding, Severity
from agent.model.index import SnapshotIndex
from agent.model.snapshot import NotRequested, require_available

NAME = "unmanaged_address"
SEVERITIES: Final = (Severity.INFO, Severity.WARNING)
NOUN: Final = Noun(
    "address used by a process that the runtime does not know",
    "addresses used by processes that the runtime does not know",
)
REMEDY: Final = Remedy(
    steps=(
        Step("Do not release the address now, or the next pod shares it."),
        Step(
            "Look at the process on the node, and end it only if you know that another pod does "
            "its work."
        ),
        Step(
            "Delete a network namespace that has no process: `ip netns delete NAME`, or `umount "
            "PATH` and `rm PATH`."
        ),
        Step("Then the address can be released."),
        Step("Severity info: nothing, the process is a healthy pod's.", only_for=Severity.INFO),
    ),
    runbook="AddressesInUse.md#nodeleakunmanagedaddress",
)


def find(assessment: Assessment) -> Iterator[Finding]:
    snapshot = assessment.snapshot
    assessment.require_reservations()
    snapshot.containers.known()
    if isinstance(snapshot.addresses, NotRequested):
        return  # every reservation has an owner
    snapshot.addresses.known()
    for classified in assessment.reservations:
        if classified.state is State.UNMANAGED:
            yield from _unmanaged(classified, assessment.index)
    # After the findings: without the checkpoints it is not known which containers are gone for good.
    if assessment.runtime.keeps_checkpoints:
        snapshot.checkpoints.known()
    snapshot.cni_results.known()
    require_available(snapshot.mounted_namespaces)


def _unmanaged(classified: ClassifiedReservation, index: SnapshotIndex) -> Iterator[Finding]:
    ip, holders = classified.name, index.holders.get(classified.name, [])
    owned = (
        f"{' and '.join(index.owners.get(ip, []))} reserves it for a container that the runtime has"
    )
    path = index.mounted_namespaces.get(classified.container_id)
    container = "no container"
    if classified.container_id:
        container = f"container {classified.container}, which the runtime does not know"
    severity = Severity.WARNING
    if holders and not index.accounts_for(ip):
        using = f"{' and '.join(holders)} {'uses' if len(holders) == 1 else 'use'}"
        message = f"{using} {ip}, which is reserved for {container}" + (
            f"; {owned}" if ip in index.owners else ""
        )
    elif path:
        message = f"network namespace {path} (without a process) uses {ip}, which is reserved for {container}"
    elif holders:
        severity = Severity.INFO
        message = f"{ip} is reserved for {container}; it is not released while {holders[0]} has it: {owned}"
    else:
        return
    subject, identity = f"{classified.network}/{ip}", (classified.container_id,)
    yield Finding(
        NAME, subject, message, severity, classified.network, classified.pod, identity=identity
    )
