"""Pods wait because host-local has no free address, and no network that nodeleak checks explains it.

Means: a pod of this node waits, and its last Event, not older than six minutes, says `no IP addresses available in
range set`; but of the networks that were checked, none has this range, or the network that has it has free addresses.
nodeleak looks at the wrong directory, or not at all of them.
Do: do not trust an OK about addresses here. Compare the range in the message with the CNI configuration of the node
(/etc/cni/net.d, or the runtime's own directory), and with the networks and directories of `nodeleak scan`. If its
network is there and not in use, such as a network of Multus, set --network=auto,NAME; if it has another directory, set
--cni-networks-dir to the `dataDir` in use.
"""

from collections.abc import Iterator
from datetime import timedelta
from typing import Final

from agent.model.assessment import Assessment, or_none
from agent.model.finding import Finding, Severity
from agent.model.ranges import covers
from agent.model.snapshot import NotRequested, SandboxFailure, Snapshot, known_or, require_available

NAME = "unexplained_exhaustion"
SEVERITIES: Final = (Severity.WARNING,)

_LATEST: Final = timedelta(minutes=6)
"""The kubelet retries in seconds, but sends an Event of one object only every five minutes after the first 25."""


def find(assessment: Assessment) -> Iterator[Finding]:
    snapshot = assessment.snapshot
    require_available(snapshot.sandbox_failures)
    waiting = {failure.exhausted: failure for failure in _recent(snapshot) if failure.exhausted}
    left = (
        {network: or_none(assessment.free, network) for network in _used(snapshot)}
        if waiting
        else {}
    )
    for ranges, failure in waiting.items():
        network = next((network for network in left if _matches(assessment, network, ranges)), "")
        if (free := left.get(network)) != 0:
            contradicted = f"but {network} has {free} free addresses"
            if free is None:
                contradicted = (
                    "and no network that was checked has this range: its network was not read"
                )
            message = f"pod {failure.pod} waits: no IP addresses available in range set {ranges}, {contradicted}"
            yield Finding(NAME, ranges, message, Severity.WARNING, network, failure.pod)


def _used(snapshot: Snapshot) -> list[str]:
    return [
        store.network
        for store in snapshot.reservations
        if not isinstance(store.reading, NotRequested)
    ]


def _recent(snapshot: Snapshot) -> Iterator[SandboxFailure]:
    """Yield what waiting pods say, in reverse: the first of those that say the same stays in a mapping."""
    for failure in reversed(known_or(snapshot.sandbox_failures, ())):
        if failure.at is not None and snapshot.api_time - failure.at <= _LATEST:
            yield failure


def _matches(assessment: Assessment, network: str, ranges: str) -> bool:
    try:
        return covers(or_none(assessment.ranges, network) or (), ranges.partition("-")[0])
    except ValueError:
        return False
