"""Two networks that pods of this node use can give out the same addresses.

host-local looks only at the files of one network. If the CNI configuration is replaced by another
with the same range, the new network knows nothing of the addresses of the pods that run. The same
happens if another network (Multus) has a range of the node's own, if another IPAM such as Calico's
has a pool over the range, or if podman or nerdctl has a network with the range of the pods.

Means: both networks are in use, and their ranges overlap, or a running container has an address of
the one in the range of the other. Or a file of the CNI configuration that is not the pods' has a
range over theirs, and its network has a directory of host-local. Severity info: at least one
network is not the `eth0` of any pod, or has no directory, so that nobody has used it.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from itertools import combinations
from typing import Final, NamedTuple

from agent.checks.detector import Advice, Noun, Step
from agent.checks.host_local_ranges import written_ranges
from agent.model.assessment import PRIMARY, Assessment, State, or_none
from agent.model.finding import Finding, Severity
from agent.model.ranges import RangeSets, begin_within, covers, overlap
from agent.model.runtime import RuntimeNetwork
from agent.model.snapshot import InsufficientData, Known, known_or, require_available
from agent.model.text import join_few

NAME = "overlapping_ranges"
SEVERITIES: Final = (Severity.INFO, Severity.WARNING)
NOUN: Final = Noun(
    "pair of networks with overlapping ranges", "pairs of networks with overlapping ranges"
)
ADVICE: Final = Advice(
    steps=(
        Step(
            "If one network has replaced the other, cordon the node, delete the pods that have "
            "their addresses from the earlier one, and uncordon when this finding is gone."
        ),
        Step(
            "If another program such as podman has the range, give its network another one: edit "
            "its file only."
        ),
        Step("Otherwise give each a range of its own, unless they are isolated."),
    ),
    runbook="Networks.md#nodeleakoverlappingranges",
)


def find(assessment: Assessment) -> Iterator[Finding]:
    ranges = {network: or_none(assessment.ranges, network) or () for network in assessment.networks}
    for first, second in combinations(sorted(ranges), 2):
        shared = (
            overlap(ranges[first], ranges[second])
            or _address_in_use(assessment, first, ranges[second])
            or _address_in_use(assessment, second, ranges[first])
        )
        if shared:
            yield _finding(assessment, first, second, shared)

    yield from _with_other_ipam(assessment, ranges)
    yield from _with_other_programs(assessment, ranges)

    assessment.require_reservations()  # after the findings
    snapshot = assessment.snapshot
    if len(ranges) > 1:
        require_available(snapshot.containers, snapshot.cni_results, snapshot.node)
    if _may_have_other_ipam(assessment, ranges):
        require_available(snapshot.pods, snapshot.containers, snapshot.cni_results)


def _with_other_ipam(assessment: Assessment, ranges: Mapping[str, RangeSets]) -> Iterator[Finding]:
    """Yield a finding for each network of another IPAM that gives out addresses of these ranges."""
    examples: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for pod, ip in _addresses_of_other_ipam(assessment):
        for network, own in ranges.items():
            entries = or_none(assessment.entries, network) or ()
            is_reserved = any(entry.name == ip for entry in entries)
            if covers(own, ip) and not is_reserved:
                examples[network, pod.network].append(f"{ip} of pod {pod.name}")

    for (network, other), addresses in sorted(examples.items()):
        text = (
            f"{other} gives pods addresses in the range of {network}, which its IPAM does not know "
            f"of, such as {addresses[0]}: two pods can get the same address"
        )
        primary = _is_primary(assessment, network)
        yield Finding(
            NAME,
            f"{network} and {other}",
            text + _left_pods(assessment, network),
            severity=Severity.WARNING if primary else Severity.INFO,
            network=network,
        )


class _PodOfNetwork(NamedTuple):
    name: str
    network: str  # of its `eth0`


def _addresses_of_other_ipam(assessment: Assessment) -> Iterator[tuple[_PodOfNetwork, str]]:
    """Yield the addresses of running pods whose `eth0` is of a network that is not judged."""
    try:
        pods = assessment.networked_pods
    except InsufficientData:
        return

    networks: defaultdict[str, set[str]] = defaultdict(set)
    for sandbox in assessment.index.running_sandboxes.values():
        networks[sandbox.pod] |= assessment.index.primary_networks(sandbox.id)

    for pod, ip in pods:
        others = networks[pod.name]
        if len(others) == 1 and others.isdisjoint(assessment.networks):
            yield _PodOfNetwork(pod.name, *others), ip


def _may_have_other_ipam(assessment: Assessment, ranges: Mapping[str, RangeSets]) -> bool:
    """Return whether pods may have addresses of these ranges from another IPAM."""
    pods = assessment.snapshot.pods
    if not isinstance(pods, Known):
        return not assessment.primary_sandboxes.keys() <= {*assessment.networks}

    ips = [ip for pod in pods.value if pod.networked for ip in pod.ips]
    reserved = {(entry.network, entry.name) for entry in assessment.reservations}
    return any(
        (network, ip) not in reserved and (not own or covers(own, ip))
        for network, own in ranges.items()
        for ip in ips
    )


def _left_pods(assessment: Assessment, network: str) -> str:
    """Name the pods that still have addresses of a network that is configured no more."""
    configured = assessment.snapshot.network_names
    if not configured or network in configured:
        return ""

    entries = or_none(assessment.entries, network) or ()
    names = [entry.pod for entry in entries if entry.state is State.IN_USE and entry.pod]
    left = f"; {network} is no longer in the CNI configuration"
    if not names:
        return left
    have = "has" if len(names) == 1 else "have"
    return f"{left}, and {join_few(names)} still {have} addresses from it"


def _with_other_programs(
    assessment: Assessment, ranges: Mapping[str, RangeSets]
) -> Iterator[Finding]:
    """Yield a finding for each network of another file that has addresses of these ranges."""
    files = known_or(assessment.snapshot.cni_files, None)
    if files is None:
        return

    judged = {*ranges, *assessment.snapshot.network_names}
    for file in files.files:
        for other in file.networks:
            if other.ipam != "host-local" or other.name in judged:
                continue
            for network, own in ranges.items():
                shared = overlap(own, written_ranges(other))
                severity = _severity_of_file(assessment, other, network)
                if shared and severity:
                    both = f"{network} and {other.name}"
                    message = (
                        f"{both} (see {files.directory}/{file.name}) can both give out {shared}, "
                        f"and pods do not use {other.name}: it is another program's, or of another "
                        "setup"
                    )
                    yield Finding(NAME, both, message, severity=severity, network=network)


def _severity_of_file(
    assessment: Assessment, other: RuntimeNetwork, network: str
) -> Severity | None:
    """Return how much an overlap with a network that is not the pods' matters; None: not at all.

    A file of the cluster's CNI that waits for its turn has the node's pod CIDR, and no directory.
    """
    for store in assessment.snapshot.reservations:
        if store.network == other.name and not store.absent:
            in_doubt = store.left_over is None and _is_primary(assessment, network)
            return Severity.WARNING if in_doubt else Severity.INFO

    node = known_or(assessment.snapshot.node, None)
    if node is None or not node.pod_cidrs:
        return Severity.INFO
    pod_ranges = or_none(lambda: assessment.pod_ranges) or ()
    return None if begin_within(written_ranges(other), pod_ranges) else Severity.INFO


def _finding(assessment: Assessment, first: str, second: str, shared: str) -> Finding:
    """Return the finding about two networks of pods. `shared`: an address of both."""
    configured = assessment.snapshot.network_names
    earlier = [name for name in (first, second) if configured and name not in configured]
    primary = all(_is_primary(assessment, name) for name in (first, second))
    message = f"{first} and {second} can both give out {shared}: two pods can get the same address"
    if primary and len(earlier) == 1:
        message += (
            f"; {earlier[0]} is no longer in the CNI configuration, and pods still have addresses "
            "from it"
        )

    return Finding(
        NAME,
        f"{first} and {second}",
        message,
        severity=Severity.WARNING if primary else Severity.INFO,
        network=first,
    )


def _address_in_use(assessment: Assessment, network: str, ranges: RangeSets) -> str | None:
    """Return an address of a running container that lies in the ranges of another network."""
    for entry in or_none(assessment.entries, network) or ():
        if entry.state is State.IN_USE and covers(ranges, entry.name):
            return entry.name
    return None


def _is_primary(assessment: Assessment, network: str) -> bool:
    """Whether its addresses are those of an `eth0`, as far as any are known."""
    entries = or_none(assessment.entries, network)
    return not entries or any(entry.ifname in PRIMARY for entry in entries)
