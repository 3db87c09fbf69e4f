"""Pods wait because host-local has no free address, and no network that nodeleak checks explains it.

Means: a pod of this node waits, and its last Event, not older than six minutes, says `no IP addresses available in
range set`; but of the networks that were checked, none has this range, or the network that has it has free addresses.
nodeleak looks at the wrong directory, or not at all of them.
"""

from collections.abc import Iterator
from typing import Final

from agent.checks.detector import Noun, Remedy, Step
from agent.checks.waiting_pods import is_about, recent_exhaustion
from agent.model.assessment import Assessment, or_none
from agent.model.finding import Finding, Severity
from agent.model.snapshot import NotRequested, SandboxFailure, Snapshot, require_available

NAME = "unexplained_exhaustion"
SEVERITIES: Final = (Severity.WARNING,)
NOUN: Final = Noun(
    "range that pods find exhausted and that was not judged so",
    "ranges that pods find exhausted and that were not judged so",
)
REMEDY: Final = Remedy(
    steps=(
        Step("Do not trust an OK about addresses here."),
        Step(
            "Compare the range in the message with the CNI configuration of the node "
            "(/etc/cni/net.d, or the runtime's own directory), and with the networks and "
            "directories of:",
            commands=("nodeleak scan",),
        ),
        Step(
            "If its network is there and not in use, such as a network of Multus, set "
            "--network=auto,NAME; if it has another directory, set --cni-networks-dir to the "
            "`dataDir` in use."
        ),
    ),
    runbook="Networks.md#nodeleakunexplainedexhaustion",
)


def find(assessment: Assessment) -> Iterator[Finding]:
    snapshot = assessment.snapshot
    require_available(snapshot.sandbox_failures)
    # Of those that say the same, the first stays in the mapping.
    waiting = {failure.exhausted: failure for failure in recent_exhaustion(snapshot)}
    left = (
        {network: or_none(assessment.free, network) for network in _used(snapshot)}
        if waiting
        else {}
    )
    for ranges, failure in waiting.items():
        network = next((name for name in left if _has_range(assessment, name, failure)), "")
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


def _has_range(assessment: Assessment, network: str, failure: SandboxFailure) -> bool:
    return is_about(failure, or_none(assessment.ranges, network) or ())
