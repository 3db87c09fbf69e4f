"""A network has no free address, or fewer than the number of pods that the node may still get.

The scheduler counts pods and not addresses: it sends the node as many pods as the kubelet accepts.
Pods beyond the last address stay in `ContainerCreating` with `no IP addresses available in range
set`.

Means: no address is free, or fewer than `allocatable.pods` minus the pods on the node, and the node
is not cordoned.
Severity info: no address is free, but no more pods can be assigned, no pod waits, and no address
may be leaked. Or no pod waits for a secondary network, such as one of Multus, and no address of it
may be leaked: other pods do not need it. (If the pods are unknown, this is a warning.) Or the whole
range is smaller than the number of pods that the node accepts: the warning then begins when less
than 10%, or fewer than 3, of its addresses are free.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

from agent.checks.detector import Advice, Noun, Step
from agent.checks.waiting_pods import are_exhausted, recent_exhaustion, waiting_pods
from agent.model.assessment import PRIMARY, Assessment, State, or_none
from agent.model.finding import Finding, Severity
from agent.model.ranges import begin_within, usable
from agent.model.snapshot import (
    InsufficientData,
    Known,
    NotRequested,
    Pod,
    Unavailable,
    known_or,
    require_available,
)

NAME = "exhausted_range"
SEVERITIES: Final = (Severity.INFO, Severity.WARNING, Severity.CRITICAL)
NOUN: Final = Noun("range with too few free addresses", "ranges with too few free addresses")
ADVICE: Final = Advice(
    steps=(
        Step(
            "Release what is leaked. A dry run prints the command for this node:",
            commands=("nodeleak clean",),
        ),
        Step(
            "If nothing can be released at once, keep new pods away:",
            commands=("kubectl cordon NODE",),
        ),
        Step("Where nothing is leaked, the states of the reservations show what fills the range."),
        Step(
            "Where pods fill it, lower the kubelet's `--max-pods`, or give the node a larger pod "
            "CIDR."
        ),
    ),
    runbook="Ranges.md#nodeleakrangetoosmall",
)


def find(assessment: Assessment) -> Iterator[Finding]:
    gap: InsufficientData | None = None
    for network in assessment.networks:
        try:
            if finding := _in_network(assessment, network):
                yield finding
        except InsufficientData as missing:
            gap = missing

    # After the findings: a network that cannot be assessed must not hide that another one is full.
    if gap is not None:
        raise gap
    require_available(assessment.snapshot.networks)


def low_watermark(size: int) -> float:
    """Return the number of free addresses below which to warn about a range of this size.

    The alert NodeleakRangeNearlyExhausted has the limit of large ranges.
    """
    return max(3, size / 10)


def _in_network(assessment: Assessment, network: str) -> Finding | None:
    """Return what is wrong with the range of a network; raises InsufficientData."""
    if not assessment.entries(network) and not _may_have_range(assessment, network):
        return None  # whatever the range is, all of it is free

    size = usable(assessment.ranges(network))
    free = assessment.free(network)
    unknown = assessment.taken(network, State.UNKNOWN)
    without_container = f"{assessment.taken(network, State.LEAKED)} leaked"
    if unknown:
        without_container += f", {unknown} unknown"
    reserved = f"{size - free} of {size} addresses are reserved ({without_container})"
    if not free:
        return _full(assessment, network, reserved)

    demand = _demand(assessment, network)
    if demand is None:
        return None

    is_small = size < demand.max_pods
    limit = min(demand.more, low_watermark(size)) if is_small else demand.more

    if free < limit:
        message = f"{free} free addresses for {demand.more} more pods; {reserved}"
        return _finding(network, message, Severity.WARNING)
    if is_small:
        message = (
            f"{size} addresses for up to {demand.max_pods} pods: the range is smaller than "
            "--max-pods"
        )
        return _finding(network, message, Severity.INFO, "size")
    return None


def _finding(network: str, message: str, severity: Severity, *identity: str) -> Finding:
    return Finding(
        NAME,
        network,
        f"{network}: {message}",
        severity=severity,
        network=network,
        identity=identity,
    )


def _may_have_range(assessment: Assessment, network: str) -> bool:
    """Return whether there is a range. An unavailable source may hide one that is too small."""
    snapshot = assessment.snapshot
    if isinstance(snapshot.node, Unavailable) or isinstance(snapshot.cni_results, Unavailable):
        return True
    return or_none(assessment.ranges, network) is not None


def _full(assessment: Assessment, network: str, reserved: str) -> Finding:
    """Return an info if no pod can need an address, and none of them may be leaked."""
    critical = _finding(network, f"no free addresses; {reserved}", Severity.CRITICAL)
    doubtful = (State.LEAKED, State.UNKNOWN, State.CANDIDATE)
    if any(assessment.taken(network, state) for state in doubtful):
        return critical

    ranges = assessment.ranges(network)
    if any(are_exhausted(ranges, failure) for failure in recent_exhaustion(assessment.snapshot)):
        return critical
    if is_secondary(assessment, network):
        return _full_secondary(assessment, network, reserved) or critical

    demand = or_none(_demand, assessment, network)
    if demand is None or demand.more or any(_pods_without_sandbox(assessment)):
        return critical
    message = f"full, and no more pods can be assigned; {reserved}"
    return _finding(network, message, Severity.INFO, "full")


def _full_secondary(assessment: Assessment, network: str, reserved: str) -> Finding | None:
    """Return the finding for a full network that not every pod needs; None: a pod waits for it.

    Which pods ask for it is in no source here. If the pods are unavailable, it is unknown whether
    one waits: a warning.
    """
    snapshot = assessment.snapshot
    if not isinstance(snapshot.pods, Known):
        message = f"no free addresses, and it is unknown whether a pod waits; {reserved}"
        return _finding(network, message, Severity.WARNING)
    if waiting_pods(snapshot) or any(pod.ips for pod in _pods_without_sandbox(assessment)):
        return None
    message = f"full, and no pod waits for an address; {reserved}"
    return _finding(network, message, Severity.INFO, "full")


def is_secondary(assessment: Assessment, network: str) -> bool:
    """Return whether it is certain that a pod may do without an address of this network.

    The runtime attaches every pod to its own networks. Others, such as those of Multus, give an
    `eth0` if they stand in for one of these, and otherwise a secondary interface.
    """
    snapshot = assessment.snapshot
    if not isinstance(snapshot.networks, Known) or network in snapshot.network_names:
        return False
    interfaces = {entry.ifname for entry in assessment.entries(network) if entry.container_id}
    return bool(interfaces) and interfaces.isdisjoint(PRIMARY)


def _pods_without_sandbox(assessment: Assessment) -> Iterator[Pod]:
    """Yield the pods that need a sandbox, if only for a moment; raises InsufficientData."""
    running = {sandbox.pod for sandbox in assessment.index.running_sandboxes.values()}
    for pod in assessment.snapshot.pods.known():
        if pod.networked and not pod.deleting and (not pod.ips or pod.name not in running):
            yield pod


class _Demand(NamedTuple):
    """Pods on the pod network."""

    more: int
    """How many more may be assigned to the node."""
    max_pods: int
    """How many it may have."""


def _demand(assessment: Assessment, network: str) -> _Demand | None:
    """Return how many pods may need an address; None: pods do not use it, or that is unknown.

    Only the network that gives this node's pods their addresses fills up with pods; a secondary
    network need not. Raises InsufficientData.
    """
    snapshot = assessment.snapshot
    if isinstance(snapshot.node, NotRequested) or isinstance(snapshot.pods, NotRequested):
        return None
    node = snapshot.node.known()
    if node is None or not _serves_pods(assessment, network):
        return None
    if node.max_pods is None:
        raise InsufficientData("node: it has no allocatable.pods")

    pods = [pod for pod in snapshot.pods.known() if pod.live]
    on_host = sum(pod.host_network for pod in pods)
    more = 0 if node.unschedulable else max(0, node.max_pods - len(pods))
    return _Demand(more, node.max_pods - on_host)


def _serves_pods(assessment: Assessment, network: str) -> bool:
    """Return whether it is the node's own, or configured and in use; raises InsufficientData."""
    snapshot = assessment.snapshot
    node = known_or(snapshot.node, None)
    has_cidrs = node is not None and bool(node.pod_cidrs)
    if has_cidrs and begin_within(assessment.ranges(network), assessment.pod_ranges):
        return True

    holders = {entry.container_id for entry in assessment.entries(network)}
    if network not in snapshot.network_names or not holders:
        return False

    snapshot.containers.known()
    return not holders.isdisjoint(assessment.index.running_sandboxes)
