"""A running pod uses an address that is not reserved: host-local can give the same address to the next pod.

This happens when someone, or a cleanup script, deletes files in host-local's directory, or when the directory is lost
(a tmpfs, a reinstallation) while containers keep running. host-local looks only at its files.
It also happens when the CNI configuration is replaced by that of another network with the same range.

Means: the pod's address lies in the range of a network, and there is no reservation file for it in that network.
Without the pods of the API server: a sandbox runs, libcni's cache has its result of a network, and no file has its ID.
A pod whose containers have ended, and wait for no restart, does not count: CRI-O frees its address first.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from agent.checks.detector import Noun, Remedy, Step
from agent.model.assessment import LONGEST_ADD, PRIMARY, Assessment
from agent.model.finding import Finding, Severity
from agent.model.index import SnapshotIndex
from agent.model.ranges import covers
from agent.model.snapshot import Container, InsufficientData, Known, known_or, require_available

NAME = "unreserved_pod_ip"
SEVERITIES: Final = (Severity.CRITICAL,)
NOUN: Final = Noun("pod uses an address that is not reserved", "pods use unreserved addresses")
REMEDY: Final = Remedy(
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
    if not isinstance(assessment.snapshot.pods, Known):
        yield from _by_result(assessment)
    networks, pods = assessment.networks, assessment.networked_pods
    reserved, elsewhere = _reserved(assessment), _reserved_elsewhere(assessment)
    for pod, ip in pods:
        if pod.deleting or pod.name in elsewhere:
            continue
        holders = [network for network in networks if ip in reserved[network]]
        if network := _allocating(assessment, ip, holders):
            where = (
                f"reserved only in {holders[0]}, not in {network}" if holders else "not reserved"
            )
            message = f"pod {pod.name} uses {ip}, which is {where}: {_EFFECT}"
            subject = f"{network}/{ip} of pod {pod.name}"
            yield Finding(
                NAME, subject, message, Severity.CRITICAL, network, pod.name, identity=(pod.uid,)
            )
    if len(networks) > 1:
        require_available(assessment.snapshot.networks)  # which of them gives out addresses now?


def _by_result(assessment: Assessment) -> Iterator[Finding]:
    """Yield each running sandbox whose result of ADD is in libcni's cache, and that has no reservation.

    If its containers have ended, CRI-O may be tearing it down, or the kubelet waits before it starts them again.
    """
    ended = assessment.index.ended
    for container, network in sorted(
        _unreserved(assessment), key=lambda found: ended.get(found[0].pod_uid, False)
    ):
        sandbox, pod = f"sandbox {container.id[:12]}", container.pod
        if ended.get(container.pod_uid):
            raise InsufficientData(
                f"{sandbox} of pod {pod} has no reservation, and may be torn down at this moment"
            )
        known = f"pod {pod} runs with an address of {network} according to libcni's cache"
        message = f"{known}, and {network} has no reservation of its {sandbox}: {_EFFECT}"
        subject, identity = f"{network} of {sandbox}", (container.id,)
        yield Finding(NAME, subject, message, Severity.CRITICAL, network, pod, identity=identity)


def _unreserved(assessment: Assessment) -> Iterator[tuple[Container, str]]:
    """Yield these sandboxes, each with its network.

    Its ADD was completed long before the reservations were read. The first DEL that works removes both.
    """
    snapshot, index = assessment.snapshot, assessment.index
    snapshot.containers.known()
    snapshot.cni_results.known()
    entries = (entry for network in assessment.networks for entry in assessment.of(network))
    reserved = {entry.container_id for entry in entries if entry.ifname in PRIMARY}
    made_before = snapshot.taken_at.timestamp() - LONGEST_ADD.total_seconds()
    for container_id in index.running_sandboxes:
        networks, container = _primary_networks(index, container_id), index.containers[container_id]
        if container_id in reserved or container.created > made_before:
            continue
        if set() < networks <= {*assessment.networks}:
            yield container, min(networks)


def _primary_networks(index: SnapshotIndex, container_id: str) -> set[str]:
    """Return the networks that a sandbox has its pod's address from, according to libcni's cache."""
    return {
        result.network for result in index.results.get(container_id, ()) if result.ifname == "eth0"
    }


def _reserved(assessment: Assessment) -> dict[str, set[str]]:
    networks = assessment.networks
    return {
        network: {entry.name for entry in assessment.of(network) if entry.blocks}
        for network in networks
    }


def _allocating(assessment: Assessment, ip: str, holders: Sequence[str]) -> str:
    """Return the network that can give out an address again; empty: a network that gives out addresses reserves it."""
    configured = {network.name for network in known_or(assessment.snapshot.networks, ())}
    if configured.intersection(holders):
        return ""
    allocating = (
        network for network in assessment.networks if network in configured or not holders
    )
    return next((network for network in allocating if covers(assessment.ranges(network), ip)), "")


def _reserved_elsewhere(assessment: Assessment) -> set[str]:
    """Return the pods that have their address from a network that is not checked, according to libcni's cache."""
    running, index = assessment.index.running_sandboxes, assessment.index
    primary = [
        (pod, network)
        for sandbox, pod in running.items()
        for network in _primary_networks(index, sandbox)
    ]
    return {pod for pod, _ in primary} - {
        pod for pod, network in primary if network in assessment.networks
    }
