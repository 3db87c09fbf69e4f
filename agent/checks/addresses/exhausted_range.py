"""A network has fewer free addresses than the node may still be given pods, or none at all.

The scheduler counts pods, not addresses: it sends a node as many pods as the kubelet says it takes. Pods beyond the
last address stay in `ContainerCreating` with `no IP addresses available in range set`.

Means: free addresses are fewer than `allocatable.pods` less the pods that are here, or there is no free address.
Do: if leaked reservations take the room, release them. If none are leaked, the range is too small for the node's
`--max-pods`: lower that, or give the node a larger pod CIDR.
"""

from collections.abc import Iterator
from typing import Final

from agent.model.assessment import Assessment, State
from agent.model.finding import Finding, Severity
from agent.model.ranges import free, serves, usable
from agent.model.snapshot import InsufficientData, NotRequested

NAME = "exhausted_range"
SEVERITIES: Final = (Severity.WARNING, Severity.CRITICAL)


def find(assessment: Assessment) -> Iterator[Finding]:
    gap: InsufficientData | None = None
    for store in assessment.snapshot.reservations:
        try:
            yield from _in_network(assessment, store.network)
        except InsufficientData as blind:
            gap = blind
    # Said after what was seen: a network that cannot be judged does not hide that another one is full.
    if gap is not None:
        raise gap


def _in_network(assessment: Assessment, network: str) -> Iterator[Finding]:
    classified_reservations, ranges = assessment.of(network), assessment.ranges(network)
    left = free(ranges, [classified.name for classified in classified_reservations if classified.blocks])
    room = None if left == 0 else _room_for_pods(assessment, network)
    if left and (room is None or left >= room):
        return
    leaked = sum(classified.state is State.LEAKED for classified in classified_reservations)
    unknown = sum(classified.state is State.UNKNOWN for classified in classified_reservations)
    size = usable(ranges)
    shortage = "no free address is left" if left == 0 else f"{left} free addresses are left for {room} more pods"
    doubt = f", {unknown} unknown" if unknown else ""
    yield Finding(
        detector=NAME,
        subject=network,
        message=f"{network}: {shortage}; of {size} addresses {size - left} are taken, {leaked} of them leaked{doubt}",
        severity=Severity.WARNING if left else Severity.CRITICAL,
        network=network,
    )


def _room_for_pods(assessment: Assessment, network: str) -> int | None:
    """Return how many more pods the node may be given on this network; None where pods are not counted on it."""
    snapshot = assessment.snapshot
    if isinstance(snapshot.node, NotRequested) or isinstance(snapshot.pods, NotRequested):
        return None
    node = snapshot.node.known()
    # Only the network that gives this node's pods their addresses fills up as pods come; a second network need not.
    if node is None or not any(serves(assessment.ranges(network), cidr) for cidr in node.pod_cidrs):
        return None
    if node.max_pods is None:
        raise InsufficientData("node: it does not say how many pods it takes")
    return max(0, node.max_pods - sum(pod.live for pod in snapshot.pods.known()))
