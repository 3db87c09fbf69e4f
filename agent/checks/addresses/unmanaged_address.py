"""A process or network namespace still uses an address whose container the runtime does not know.

A docker upgrade that moves the data directory, or a runtime that failed to load a container, leaves
processes that nothing manages. A runtime whose data was deleted leaves mounted network namespaces:
no process is in them, but the kernel still answers for the address. In the runtime's list alone,
such addresses look leaked.

Means: no container has the reservation's ID, and a process has the address configured, or the
network namespace that libcni's cache names for the sandbox is still mounted. Or a process of no
container, a minute old or more, has an address of a network's range that no file reserves, and the
kubelet and the runtime have run for five minutes: the next pod can get the same address. Severity
info: as many containers of other networks have reserved the same address as namespaces have it, so
that the reservation is most likely leaked.
"""

from collections.abc import Iterator
from datetime import timedelta
from typing import Final

from agent.checks.addresses.teardown_due import running_for
from agent.checks.detector import Advice, Noun, Step
from agent.model.assessment import Assessment, ClassifiedReservation, State, or_none
from agent.model.finding import Finding, Severity
from agent.model.index import SnapshotIndex
from agent.model.ranges import covers
from agent.model.snapshot import (
    INIT,
    Known,
    NotRequested,
    Unavailable,
    known_or,
    require_available,
)

NAME = "unmanaged_address"
SEVERITIES: Final = (Severity.INFO, Severity.WARNING)
NOUN: Final = Noun(
    "address used by a process that the runtime does not know",
    "addresses used by processes that the runtime does not know",
)
_RESERVED: Final = "reserved"
_UNRESERVED: Final = "unreserved"
_SETTLED: Final = timedelta(minutes=5)
"""A runtime that dies or starts may have lost a container for a moment."""
ADVICE: Final = Advice(
    steps=(
        Step("Do not release the address now, or the next pod shares it.", kind=_RESERVED),
        Step(
            "If no file reserves the address, the next pod can get it: cordon the node until the "
            "process has ended.",
            kind=_UNRESERVED,
        ),
        Step(
            "Look at the process on the node, and end it only if you know that another pod does "
            "its work."
        ),
        Step(
            "Delete a network namespace that has no process: `ip netns delete NAME`, or `umount "
            "PATH` and `rm PATH`."
        ),
        Step("Then the address can be released.", kind=_RESERVED),
        Step("Severity info: nothing, the process is a healthy pod's.", only_for=Severity.INFO),
    ),
    runbook="AddressesInUse.md#nodeleakunmanagedaddress",
)


def find(assessment: Assessment) -> Iterator[Finding]:
    snapshot = assessment.snapshot
    assessment.require_reservations()
    snapshot.containers.known()
    if isinstance(snapshot.addresses, NotRequested):
        return  # the containers are not known, or an old recording did not need them
    snapshot.addresses.known()

    for classified in assessment.reservations:
        if classified.state is State.UNMANAGED:
            yield from _unmanaged(classified, assessment.index)
    if not assessment.runtime.names:
        require_available(snapshot.runtimes)  # which one has to have run for some time?

    is_settled = isinstance(snapshot.processes, Known) and running_for(assessment) >= _SETTLED
    if is_settled and not isinstance(snapshot.pods, Unavailable):
        yield from _unreserved(assessment)

    # After the findings. Without the processes it is unknown for how long the runtime has run,
    # without the pods whose an address is, and without the checkpoints which containers are gone
    # for good.
    if assessment.runtime.keeps_checkpoints:
        snapshot.checkpoints.known()
    if assessment.index.has_unowned:
        snapshot.cni_results.known()
    require_available(snapshot.mounted_namespaces, snapshot.processes, snapshot.pods)


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
        kinds=(_RESERVED,),
    )


def _unreserved(assessment: Assessment) -> Iterator[Finding]:
    """Yield each address of a range that a process of no container has, and that is not reserved.

    A pod that has it according to the API server is `unreserved_pod_ip`. Raises InsufficientData,
    after the findings, if the range of a network is not known because a source is unavailable.
    """
    reserved = {entry.name for entry in assessment.reservations}
    is_unexplained = False
    for address in known_or(assessment.snapshot.addresses, ()):
        if address.pid == INIT or address.contained or address.passing:
            continue
        if address.ip in reserved or address.ip in assessment.index.claims:
            continue
        is_unexplained = True
        for network in _networks_of(address.ip, assessment):
            yield Finding(
                NAME,
                f"{network}/{address.ip}",
                f"process {address.pid} ({address.command}) uses {address.ip}, which is not "
                f"reserved in {network}: the next pod can get the same address",
                network=network,
                identity=(address.pid,),
                kinds=(_UNRESERVED,),
            )

    stores = assessment.snapshot.reservations
    has_all = all(or_none(assessment.ranges, store.network) is not None for store in stores)
    if is_unexplained and not has_all:
        require_available(assessment.snapshot.cni_results, assessment.snapshot.node)


def _networks_of(ip: str, assessment: Assessment) -> Iterator[str]:
    """Yield the networks that can give out an address, as far as their range is known."""
    for store in assessment.snapshot.reservations:
        ranges = or_none(assessment.ranges, store.network)
        if not isinstance(store.reading, Known) or not ranges or not covers(ranges, ip):
            continue
        if ip not in {str(one.gateway) for one_set in ranges for one in one_set}:
            yield store.network
