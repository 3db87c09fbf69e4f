"""A process or network namespace still uses an address whose container the runtime does not know.

A docker upgrade that moves the data directory, or a runtime that failed to load a container, leaves
processes that nothing manages. A runtime whose data was deleted leaves mounted network namespaces:
no process is in them, but the kernel still answers for the address. In the runtime's list alone,
such addresses look leaked.

Means: no container has the reservation's ID, and a process has the address configured, or the
network namespace that libcni's cache names for the sandbox is still mounted. Severity info: as many
containers of other networks have reserved the same address as namespaces have it, so that the
reservation is most likely leaked.
"""

from collections.abc import Iterator
from typing import Final

from agent.checks.detector import Advice, Noun, Step
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
ADVICE: Final = Advice(
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
    # After the findings: without the checkpoints it is unknown which containers are gone for good.
    if assessment.runtime.keeps_checkpoints:
        snapshot.checkpoints.known()
    snapshot.cni_results.known()
    require_available(snapshot.mounted_namespaces)


def _unmanaged(entry: ClassifiedReservation, index: SnapshotIndex) -> Iterator[Finding]:
    ip = entry.name
    holders = index.holders.get(ip, [])
    owned = (
        f"{' and '.join(index.owners.get(ip, []))} reserves it for a container that the runtime has"
    )
    container = "no container"
    if entry.container_id:
        container = f"container {entry.container}, which the runtime does not know"
    severity = Severity.WARNING
    if holders and not index.explaining_networks(ip):
        uses = "uses" if len(holders) == 1 else "use"
        message = f"{' and '.join(holders)} {uses} {ip}, which is reserved for {container}"
        if ip in index.owners:
            message += f"; {owned}"
    elif path := index.mounted_namespaces.get(entry.container_id):
        message = (
            f"network namespace {path} (without a process) uses {ip}, which is reserved for "
            f"{container}"
        )
    elif holders:
        severity = Severity.INFO
        message = (
            f"{ip} is reserved for {container}; it is not released while {holders[0]} has it: "
            f"{owned}"
        )
    else:
        return
    yield Finding(
        NAME,
        f"{entry.network}/{ip}",
        message,
        severity=severity,
        network=entry.network,
        pod=entry.pod,
        identity=(entry.container_id,),
    )
