"""Two networks that pods of this node use can give out the same addresses.

host-local looks only at the files of one network. If the CNI configuration is replaced by another
with the same range, the new network knows nothing of the addresses of the pods that run. The same
happens if a further network (Multus) has a range of the node's own.

Means: both networks are in use, and their ranges overlap, or a running container has an address of
the one in the range of the other. Severity info: at least one network is no pod's `eth0`.
"""

from collections.abc import Iterator
from itertools import combinations
from typing import Final

from agent.checks.detector import Advice, Noun, Step
from agent.model.assessment import PRIMARY, Assessment, State, or_none
from agent.model.finding import Finding, Severity
from agent.model.ranges import RangeSets, covers, overlap
from agent.model.snapshot import known_or, require_available

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
    assessment.require_reservations()  # after the findings
    if len(ranges) > 1:
        snapshot = assessment.snapshot
        require_available(snapshot.containers, snapshot.cni_results, snapshot.node)


def _finding(assessment: Assessment, first: str, second: str, shared: str) -> Finding:
    configured = {network.name for network in known_or(assessment.snapshot.networks, ())}
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
    entries = or_none(assessment.entries, network)
    return not entries or any(entry.ifname in PRIMARY for entry in entries)
