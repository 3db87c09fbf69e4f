"""Pods wait because host-local has no free address, and no network that is checked explains it.

Means: a pod of this node waits, and its last Event, not older than six minutes, says `no IP
addresses available in range set`; but of the networks that were checked, none has this range, or
the network that has it has free addresses. nodeleak looks at the wrong directory, or not at all of
them.
"""

from collections.abc import Iterator
from typing import Final

from agent.checks.detector import Advice, Noun, Step
from agent.checks.waiting_pods import is_about, recent_exhaustion
from agent.model.assessment import Assessment, or_none
from agent.model.finding import Finding, Severity
from agent.model.snapshot import NotRequested, SandboxFailure, require_available

NAME = "unexplained_exhaustion"
SEVERITIES: Final = (Severity.WARNING,)
NOUN: Final = Noun(
    "range that pods find exhausted and that was not judged so",
    "ranges that pods find exhausted and that were not judged so",
)
ADVICE: Final = Advice(
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
    # Of the Events about one range set, the oldest stays.
    failures = {failure.exhausted: failure for failure in recent_exhaustion(snapshot)}
    for ranges, failure in failures.items():
        network = _network_of(failure, assessment)
        free = or_none(assessment.free, network) if network else None
        if free == 0:
            continue
        contradiction = f"but {network} has {free} free addresses"
        if free is None:
            contradiction = (
                "and no network that was checked has this range: its network was not read"
            )
        message = (
            f"pod {failure.pod} waits: no IP addresses available in range set {ranges}, "
            f"{contradiction}"
        )
        yield Finding(NAME, ranges, message, network=network or "", pod=failure.pod)


def _network_of(failure: SandboxFailure, assessment: Assessment) -> str | None:
    """Return the network that was checked and has the range of a failure."""
    for store in assessment.snapshot.reservations:
        if not isinstance(store.reading, NotRequested):
            ranges = or_none(assessment.ranges, store.network)
            if ranges and is_about(failure, ranges):
                return store.network
    return None
