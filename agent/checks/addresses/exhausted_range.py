"""A network has no free address, or fewer than the number of pods that the node may still get.

The scheduler counts pods and not addresses: it sends the node as many pods as the kubelet accepts. Pods beyond the
last address stay in `ContainerCreating` with `no IP addresses available in range set`.

Means: no address is free, or fewer than `allocatable.pods` minus the pods on the node.
Do: release leaked reservations, if there are any. If none are leaked, the range is too small for the kubelet's
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
    for network in assessment.networks:
        try:
            yield from _in_network(assessment, network)
        except InsufficientData as blind:
            gap = blind
    # After the findings: a network that cannot be assessed must not hide that another one is full.
    if gap is not None:
        raise gap


def _in_network(assessment: Assessment, network: str) -> Iterator[Finding]:
    entries, ranges = assessment.of(network), assessment.ranges(network)
    left = free(ranges, [classified.name for classified in entries if classified.blocks])
    room = None if left == 0 else _room_for_pods(assessment, network)
    if left and (room is None or left >= room):
        return
    leaked = sum(classified.state is State.LEAKED for classified in entries)
    unknown = sum(classified.state is State.UNKNOWN for classified in entries)
    size = usable(ranges)
    shortage = "no free addresses" if left == 0 else f"{left} free addresses for {room} more pods"
    not_known = f", {unknown} unknown" if unknown else ""
    yield Finding(
        detector=NAME,
        subject=network,
        message=f"{network}: {shortage}; {size - left} of {size} addresses are reserved ({leaked} leaked{not_known})",
        severity=Severity.WARNING if left else Severity.CRITICAL,
        network=network,
    )


def _room_for_pods(assessment: Assessment, network: str) -> int | None:
    """Return how many more pods the node may get on this network; None where its pods do not use it."""
    snapshot = assessment.snapshot
    if isinstance(snapshot.node, NotRequested) or isinstance(snapshot.pods, NotRequested):
        return None
    node = snapshot.node.known()
    # Only the network that gives this node's pods their addresses fills up with pods; a secondary network need not.
    if node is None or not any(serves(assessment.ranges(network), cidr) for cidr in node.pod_cidrs):
        return None
    if node.max_pods is None:
        raise InsufficientData("node: it has no allocatable.pods")
    return max(0, node.max_pods - sum(pod.live for pod in snapshot.pods.known()))
