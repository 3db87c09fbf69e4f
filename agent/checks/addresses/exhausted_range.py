"""A network has no free address, or fewer than the number of pods that the node may still get.

The scheduler counts pods and not addresses: it sends the node as many pods as the kubelet accepts. Pods beyond the
last address stay in `ContainerCreating` with `no IP addresses available in range set`.

Means: no address is free, or fewer than `allocatable.pods` minus the pods on the node, and the node is not cordoned.
Severity info: no address is free, but no more pods can be assigned, no pod waits, and no address
may be leaked. Or no pod waits for a secondary network, such as one of Multus, and no address of it
may be leaked: other pods do not need it. (If the pods are unknown, this is a warning.) Or the whole
range is smaller than the number of pods that the node accepts: the warning then begins when less
than 10%, or fewer than 3, of its addresses are free.
"""

from collections.abc import Iterator
from typing import Final

from agent.checks.detector import Noun, Remedy, Step
from agent.checks.waiting_pods import is_about, recent_exhaustion, waiting_pods
from agent.model.assessment import PRIMARY, Assessment, State, or_none
from agent.model.finding import Finding, Severity
from agent.model.ranges import serves, usable
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
REMEDY: Final = Remedy(
    steps=(
        Step("While no address is free, keep new pods away:", commands=("kubectl cordon NODE",)),
        Step("Release what is leaked:", commands=("nodeleak clean",)),
        Step("Where nothing is leaked, the states of the reservations show what fills the range."),
        Step(
            "Where pods fill it, lower the kubelet's `--max-pods`, or give the node a larger pod CIDR."
        ),
    ),
    runbook="Ranges.md#nodeleakrangetoosmall",
)


def find(assessment: Assessment) -> Iterator[Finding]:
    gap: InsufficientData | None = None
    for network in assessment.networks:
        try:
            yield from _in_network(assessment, network)
        except InsufficientData as missing:
            gap = missing
    # After the findings: a network that cannot be assessed must not hide that another network is full.
    if gap is not None:
        raise gap
    require_available(assessment.snapshot.networks)


def few(size: int) -> float:
    """Return below how many free addresses it is urgent. NodeleakRangeNearlyExhausted has the limit of large ranges."""
    return max(3, size / 10)


def _in_network(assessment: Assessment, network: str) -> Iterator[Finding]:
    entries = assessment.of(network)
    if not entries and not _may_have_range(assessment, network):
        return  # whatever the range is, all of it is free
    size, left = usable(assessment.ranges(network)), assessment.free(network)
    leaked, unknown = (assessment.taken(network, state) for state in (State.LEAKED, State.UNKNOWN))
    without_container = f"{leaked} leaked" + (f", {unknown} unknown" if unknown else "")
    reserved = f"{size - left} of {size} addresses are reserved ({without_container})"
    if not left:
        yield _full(assessment, network, reserved)
    elif demand := _demand(assessment, network):
        more, limit = demand
        if left < min(more, few(size) if size < limit else more):
            message = f"{network}: {left} free addresses for {more} more pods; {reserved}"
            yield Finding(NAME, network, message, Severity.WARNING, network)
        elif size < limit:
            message = f"{network}: {size} addresses for up to {limit} pods: the range is smaller than --max-pods"
            yield Finding(NAME, network, message, Severity.INFO, network, identity=("size",))


def _may_have_range(assessment: Assessment, network: str) -> bool:
    """Return whether there is a range. A source that is unavailable may hide a range that is too small."""
    unavailable = Unavailable in {
        type(assessment.snapshot.node),
        type(assessment.snapshot.cni_results),
    }
    return unavailable or or_none(assessment.ranges, network) is not None


def _full(assessment: Assessment, network: str, reserved: str) -> Finding:
    """Return an info where no pod can need an address, and none of them may be leaked."""
    critical = Finding(
        NAME, network, f"{network}: no free addresses; {reserved}", Severity.CRITICAL, network
    )
    if _may_leak(assessment, network) or _is_missed(assessment, network):
        return critical
    if is_secondary(assessment, network):
        return _full_secondary(assessment, network, reserved) or critical
    demand = or_none(lambda network: _demand(assessment, network), network)
    if demand is None or demand[0] or any(_pods_without_sandbox(assessment)):
        return critical
    message = f"{network}: full, and no more pods can be assigned; {reserved}"
    return Finding(NAME, network, message, Severity.INFO, network, identity=("full",))


def _full_secondary(assessment: Assessment, network: str, reserved: str) -> Finding | None:
    """Return the finding for a full network that not every pod needs; None: a pod waits for it.

    Which pods ask for it is in no source here. If the pods are unavailable, it is unknown whether
    one waits: a warning.
    """
    snapshot = assessment.snapshot
    if not isinstance(snapshot.pods, Known):
        message = f"{network}: no free addresses, and it is unknown whether a pod waits; {reserved}"
        return Finding(NAME, network, message, Severity.WARNING, network)
    if waiting_pods(snapshot) or any(pod.ips for pod in _pods_without_sandbox(assessment)):
        return None
    message = f"{network}: full, and no pod waits for an address; {reserved}"
    return Finding(NAME, network, message, Severity.INFO, network, identity=("full",))


def _may_leak(assessment: Assessment, network: str) -> bool:
    doubtful = (State.LEAKED, State.UNKNOWN, State.CANDIDATE)
    return any(assessment.taken(network, state) for state in doubtful)


def _is_missed(assessment: Assessment, network: str) -> bool:
    """Return whether an Event says that a pod got no address from this range."""
    ranges = assessment.ranges(network)
    return any(is_about(failure, ranges) for failure in recent_exhaustion(assessment.snapshot))


def is_secondary(assessment: Assessment, network: str) -> bool:
    """Return whether it is certain that a pod may do without an address of this network.

    The runtime attaches every pod to its own networks. Others, such as those of Multus, give an
    `eth0` if they stand in for one of these, and otherwise a further interface.
    """
    networks = assessment.snapshot.networks
    if not isinstance(networks, Known) or network in {known.name for known in networks.value}:
        return False
    interfaces = {entry.ifname for entry in assessment.of(network) if entry.container_id}
    return bool(interfaces) and interfaces.isdisjoint(PRIMARY)


def _pods_without_sandbox(assessment: Assessment) -> Iterator[Pod]:
    """Yield the pods that need a sandbox, if only for a moment; raises InsufficientData."""
    running = frozenset(assessment.index.running_sandboxes.values())
    for pod in assessment.snapshot.pods.known():
        if pod.networked and not pod.deleting and (not pod.ips or pod.name not in running):
            yield pod


def _demand(assessment: Assessment, network: str) -> tuple[int, int] | None:
    """Return how many more pods with an address may be assigned to the node, and how many it may have.

    None: its pods do not use this network, or that is not known. Only the network that gives this node's pods their
    addresses fills up with pods; a secondary network need not.
    """
    snapshot = assessment.snapshot
    if NotRequested in {type(snapshot.node), type(snapshot.pods)}:
        return None
    node = snapshot.node.known()
    if node is None or not _serves_pods(assessment, network):
        return None
    if node.max_pods is None:
        raise InsufficientData("node: it has no allocatable.pods")
    pods = [pod for pod in snapshot.pods.known() if pod.live]
    more = 0 if node.unschedulable else max(0, node.max_pods - len(pods))
    return more, node.max_pods - sum(pod.host_network for pod in pods)


def _serves_pods(assessment: Assessment, network: str) -> bool:
    attached = {configured.name for configured in known_or(assessment.snapshot.networks, ())}
    running, node = assessment.index.running_sandboxes, known_or(assessment.snapshot.node, None)
    if network in attached and any(
        entry.container_id in running for entry in assessment.of(network)
    ):
        return True
    return bool(node and node.pod_cidrs) and serves(
        assessment.ranges(network), assessment.pod_ranges
    )
