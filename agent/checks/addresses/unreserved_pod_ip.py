"""A running pod uses an address that is not reserved: host-local can give it to the next pod.

This happens when someone, or a cleanup script, deletes files in host-local's directory, or when the
directory is lost (a tmpfs, a reinstallation) while containers keep running. host-local looks only
at its files. It also happens when the CNI configuration is replaced by that of another network with
the same range.

Means: the pod's address lies in the range of a network, and there is no reservation file for it in
that network. Without the pods of the API server: a sandbox runs, libcni's cache has its result of a
network, and no file has its ID. A pod whose containers have ended, and wait for no restart, does
not count: CRI-O frees its address first.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from agent.checks.detector import Advice, Noun, Step
from agent.model.assessment import LONGEST_ADD, PRIMARY, Assessment
from agent.model.finding import Finding, Severity
from agent.model.ranges import covers
from agent.model.snapshot import Container, InsufficientData, Known, require_available

NAME = "unreserved_pod_ip"
SEVERITIES: Final = (Severity.CRITICAL,)
NOUN: Final = Noun("pod uses an address that is not reserved", "pods use unreserved addresses")
ADVICE: Final = Advice(
    steps=(
        Step("Cordon the node first."),
        Step(
            "Then delete the pod, so that its controller creates a new pod with a reservation (but "
            "if `nodeleak journal` lists its release, see the runbook NodeleakUnreservedAddress)."
        ),
        Step("Stop what deletes the files."),
        Step("Uncordon when `nodeleak scan` shows neither this finding nor shared_ip."),
    ),
    runbook="AddressesInUse.md#nodeleakunreservedaddress",
)
_EFFECT: Final = "the next pod can get the same address"


def find(assessment: Assessment) -> Iterator[Finding]:
    snapshot = assessment.snapshot
    if not isinstance(snapshot.pods, Known):
        yield from _without_pods(assessment)

    networks = assessment.networks
    pods = assessment.networked_pods
    reserved = {
        network: {entry.name for entry in assessment.entries(network) if entry.blocks}
        for network in networks
    }
    elsewhere = _pods_of_other_networks(assessment)

    for pod, ip in pods:
        if pod.deleting or pod.name in elsewhere:
            continue
        holders = [network for network in networks if ip in reserved[network]]
        network = _network_that_can_give_out(ip, holders, assessment)
        if network is None:
            continue
        # Without libcni's cache, the pod may have the address of a network that is not checked.
        require_available(snapshot.cni_results)
        where = f"reserved only in {holders[0]}, not in {network}" if holders else "not reserved"
        yield Finding(
            NAME,
            f"{network}/{ip} of pod {pod.name}",
            f"pod {pod.name} uses {ip}, which is {where}: {_EFFECT}",
            severity=Severity.CRITICAL,
            network=network,
            pod=pod.name,
            identity=(pod.uid,),
        )

    if len(networks) > 1:
        require_available(snapshot.networks)  # which of them gives out addresses now?


def _without_pods(assessment: Assessment) -> Iterator[Finding]:
    """Yield each running sandbox whose result of ADD is in libcni's cache, without a reservation.

    If its containers have ended, CRI-O may be tearing it down, or the kubelet waits before it
    starts them again: then nothing is certain.
    """
    ended = assessment.index.ended
    running_first = sorted(
        _unreserved(assessment), key=lambda pair: ended.get(pair[0].pod_uid, False)
    )
    for container, network in running_first:
        sandbox = f"sandbox {container.id[:12]}"
        if ended.get(container.pod_uid):
            raise InsufficientData(
                f"{sandbox} of pod {container.pod} has no reservation, and may be torn down at "
                "this moment"
            )
        yield Finding(
            NAME,
            f"{network} of {sandbox}",
            f"pod {container.pod} runs with an address of {network} according to libcni's cache, "
            f"and {network} has no reservation of its {sandbox}: {_EFFECT}",
            severity=Severity.CRITICAL,
            network=network,
            pod=container.pod,
            identity=(container.id,),
        )


def _unreserved(assessment: Assessment) -> Iterator[tuple[Container, str]]:
    """Yield these sandboxes, each with its network.

    Their ADD was completed long before the reservations were read. The first DEL that works removes
    both result and reservation.
    """
    snapshot = assessment.snapshot
    index = assessment.index
    snapshot.containers.known()
    snapshot.cni_results.known()

    reserved = {
        entry.container_id
        for network in assessment.networks
        for entry in assessment.entries(network)
        if entry.ifname in PRIMARY
    }

    created_before = snapshot.taken_at.timestamp() - LONGEST_ADD.total_seconds()
    for sandbox in index.running_sandboxes.values():
        if sandbox.id in reserved or sandbox.created > created_before:
            continue
        networks = index.primary_networks(sandbox.id)
        if networks and networks.issubset(assessment.networks):
            yield sandbox, min(networks)


def _network_that_can_give_out(
    ip: str, holders: Sequence[str], assessment: Assessment
) -> str | None:
    """Return the network that can give out an address again. `holders`: those that reserve it."""
    configured = assessment.snapshot.network_names
    if not set(holders).isdisjoint(configured):
        return None
    for network in assessment.networks:
        allocates = network in configured or not holders
        if allocates and covers(assessment.ranges(network), ip):
            return network
    return None


def _pods_of_other_networks(assessment: Assessment) -> set[str]:
    """Return the pods with an address of a network that is not checked, by libcni's cache."""
    checked: set[str] = set()
    unchecked: set[str] = set()
    for sandbox in assessment.index.running_sandboxes.values():
        for network in assessment.index.primary_networks(sandbox.id):
            (checked if network in assessment.networks else unchecked).add(sandbox.pod)
    return unchecked - checked
