"""How much of a network looks leaked, and whether the API server confirms that. Pure.

Where most of a range looks leaked, the list of containers may lack what runs. The kubelet reports
the address of each pod that runs to the API server: if the list has the sandboxes of all of them,
it lacks nothing that anybody knows of.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Final

from agent.model.assessment import Assessment, ClassifiedReservation, State, or_none
from agent.model.ranges import usable
from agent.model.snapshot import Known, NotRequested, Pod, Snapshot

MIN_SUSPECTS: Final = 8
"""With fewer suspected sandboxes the share is not checked: half of a small range leaks quickly."""
MANY_SUSPECTS: Final = 32
NEARLY_ALL: Final = 0.9
"""Of the reservations. With so many suspects, and only the runtime to go by, the share is one of
reservations."""
MIN_WITNESSES: Final = 4
"""Running pods of the network. A list that has all of these does not lack the others by chance."""


def share(assessment: Assessment, network: str) -> float:
    """Return how much of a network looks leaked, from 0 to 1. Few leaks are none."""
    entries = assessment.entries(network)
    leaked = _sandboxes(entries, {State.LEAKED, State.CANDIDATE})
    if leaked < MIN_SUSPECTS:
        return 0.0

    reserved = _sandboxes(entries, set(State) - {State.UNRECOGNIZED})
    only_runtime = isinstance(assessment.snapshot.pods, NotRequested)
    if only_runtime and leaked >= MANY_SUSPECTS and leaked >= reserved * NEARLY_ALL:
        # The range may be far larger than what was ever allocated from it.
        return leaked / reserved

    ranges = or_none(assessment.ranges, network)
    size = len(entries) if ranges is None else usable(ranges)
    return min(1.0, leaked / max(1, size))


def _sandboxes(entries: Iterable[ClassifiedReservation], states: Collection[State]) -> int:
    """Count the sandboxes with a reservation in one of these states; an empty file is one."""
    return len({entry.container_id or entry.name for entry in entries if entry.state in states})


def doubt(assessment: Assessment, network: str) -> str | None:
    """Return why the API server does not confirm the list of containers; None: it does.

    It does if the list has a running sandbox of every pod that has an address here, and at least
    `MIN_WITNESSES` of these sandboxes have a reservation in the network: otherwise its IDs may be
    those of another runtime. Pods are compared by UID, and by the sandbox that their address is
    reserved for, so another sandbox proves nothing.
    """
    snapshot = assessment.snapshot
    if isinstance(snapshot.pods, NotRequested):
        return f"the API server is not asked ({snapshot.pods.why})"
    if not isinstance(snapshot.pods, Known) or not isinstance(snapshot.containers, Known):
        return "the pods or the containers of this node are unavailable"

    sandboxes = _running_sandboxes(snapshot)
    if missing := unlisted(snapshot.pods.value, sandboxes, _owners(assessment)):
        others = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        name = assessment.runtime.name
        return f"{name} lists no running sandbox with the address of pod {missing[0]}{others}"

    witnesses = witnesses_of(assessment, network, sandboxes)
    if witnesses >= MIN_WITNESSES:
        return None

    count = "1 running pod" if witnesses == 1 else f"{witnesses or 'no'} running pods"
    confirm = "confirms" if witnesses == 1 else "confirm"
    only = "only " if witnesses else ""
    return f"{only}{count} in this network {confirm} the list ({MIN_WITNESSES} are needed)"


def witnesses_of(
    assessment: Assessment, network: str, sandboxes: Mapping[str, Collection[str]]
) -> int:
    """Count the running pods with a reservation in the network. `sandboxes`: those of each pod."""
    reserved = {entry.container_id for entry in assessment.entries(network)}
    return sum(
        not reserved.isdisjoint(sandboxes.get(pod.uid, ()))
        for pod in assessment.snapshot.pods.known()
        if pod.has_sandbox and not pod.host_network
    )


def unlisted(
    pods: Iterable[Pod],
    sandboxes: Mapping[str, Collection[str]],
    owners: Mapping[str, Collection[str]],
) -> list[str]:
    """Return the pods with an address of their own and without a running sandbox that has it.

    By name. `owners`: the sandboxes that an address is reserved for. Where two networks have one
    range, that of the pod is one of them.
    """
    missing: list[str] = []
    for pod in pods:
        own = sandboxes.get(pod.uid, ())
        # An address without a reservation may be that of any of its sandboxes.
        elsewhere = any(ip in owners and set(owners[ip]).isdisjoint(own) for ip in pod.ips)
        if pod.networked and pod.ips and (not own or elsewhere):
            missing.append(pod.name)
    return sorted(missing)


def _owners(assessment: Assessment) -> dict[str, set[str]]:
    """Return the sandboxes that each address is reserved for. An empty file names none."""
    owners: dict[str, set[str]] = {}
    for reservation in assessment.classified:
        if reservation.container_id:
            owners.setdefault(reservation.ip, set()).add(reservation.container_id)
    return owners


def _running_sandboxes(snapshot: Snapshot) -> dict[str, set[str]]:
    """Return the IDs of the running sandboxes of each pod, by its UID."""
    sandboxes: dict[str, set[str]] = {}
    for container in snapshot.containers.known():
        if container.sandbox and container.running and container.pod_uid:
            sandboxes.setdefault(container.pod_uid, set()).add(container.id)
    return sandboxes
