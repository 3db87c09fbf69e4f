"""Two running pods have the same address, and each gets some of the other's traffic.

This happens when the reservation of a running pod was deleted: host-local gave the address out a
second time.

Means: the API server shows the address for both pods, and both sandboxes are running on this node.
A pod whose containers have ended, and wait for no restart, does not count: CRI-O frees its address
first.
"""

from collections import defaultdict
from collections.abc import Iterator
from typing import Final

from agent.checks.detector import Advice, Noun, Step
from agent.model.assessment import Assessment
from agent.model.finding import Finding, Severity
from agent.model.snapshot import Pod

NAME = "shared_ip"
SEVERITIES: Final = (Severity.CRITICAL,)
NOUN: Final = Noun("pod address in use by two pods", "pod addresses in use by two pods each")
ADVICE: Final = Advice(
    steps=(
        Step("Cordon the node first."),
        Step(
            "Then delete all pods that share the address, so that their controllers create new "
            "ones, and treat unreserved_pod_ip, whose addresses are shared next."
        ),
        Step("Uncordon when `nodeleak scan` shows neither finding."),
    ),
    runbook="AddressesInUse.md#nodeleaksharedaddress",
)


def find(assessment: Assessment) -> Iterator[Finding]:
    holders: defaultdict[str, list[Pod]] = defaultdict(list)
    for pod, ip in assessment.networked_pods:
        holders[ip].append(pod)
    for ip, pods in sorted(holders.items()):
        if len(pods) > 1:
            names = " and ".join(sorted(pod.name for pod in pods))
            yield Finding(
                NAME,
                f"{ip} of {names}",
                f"{len(pods)} running pods have the address {ip}: {names}",
                severity=Severity.CRITICAL,
                identity=tuple(sorted(pod.uid for pod in pods)),
            )
