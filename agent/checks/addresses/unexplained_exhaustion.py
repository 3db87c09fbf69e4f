"""Pods wait because host-local has no free address, and no network that nodeleak judges is full.

Means: a pod of this node waits, and its last Event, not older than six minutes, says `no IP addresses available in
range set`; but every judged network has free addresses. nodeleak looks at the wrong directory, or not at all of them.
Do: do not trust an OK about addresses here. Compare the range in the message with the CNI configuration of the node
(/etc/cni/net.d, or the runtime's own directory), and with the networks and directories of `nodeleak scan`; then set
--cni-networks-dir to the `dataDir` in use.
"""

from collections.abc import Iterator
from datetime import timedelta
from typing import Final

from agent.model.assessment import Assessment
from agent.model.finding import Finding, Severity
from agent.model.ranges import covers, free
from agent.model.sandbox_failures import SandboxFailure
from agent.model.snapshot import InsufficientData, Unavailable, known_or

NAME = "unexplained_exhaustion"
SEVERITIES: Final = (Severity.WARNING,)

_LATEST: Final = timedelta(minutes=6)
"""The kubelet retries in seconds, but sends an Event of one object only every five minutes after the first 25."""


def find(assessment: Assessment) -> Iterator[Finding]:
    snapshot = assessment.snapshot
    if isinstance(snapshot.sandbox_failures, Unavailable):
        snapshot.sandbox_failures.known()
    now = snapshot.taken_at + (snapshot.api_skew or timedelta(0))
    waiting: dict[str, list[SandboxFailure]] = {}
    for failure in known_or(snapshot.sandbox_failures, ()):
        if failure.exhausted and failure.at is not None and now - failure.at <= _LATEST:
            waiting.setdefault(failure.exhausted, []).append(failure)
    left = {network: _free(assessment, network) for network in assessment.networks} if waiting else {}
    if 0 in left.values():
        return
    for ranges, failures in waiting.items():
        judged = [network for network in left if _matches(assessment, network, ranges)]
        contradicted = (
            f"but {judged[0]} has {left[judged[0]]} free addresses"
            if judged and left[judged[0]] is not None
            else "and no network that was judged has this range: its network was not read"
        )
        message = f"pod {failures[0].pod} waits: no IP addresses available in range set {ranges}, {contradicted}"
        yield Finding(NAME, ranges, message, Severity.WARNING, judged[0] if judged else "", failures[0].pod)


def _free(assessment: Assessment, network: str) -> int | None:
    try:
        ranges = assessment.ranges(network)
        return free(ranges, (entry.name for entry in assessment.of(network) if entry.blocks))
    except InsufficientData:
        return None


def _matches(assessment: Assessment, network: str, ranges: str) -> bool:
    try:
        return covers(assessment.ranges(network), ranges.partition("-")[0])
    except (InsufficientData, ValueError):
        return False
