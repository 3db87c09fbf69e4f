"""No kubelet runs on this node, so no pod gets an address, and none gives one back.

Only the kubelet has sandboxes made and torn down. While it is stopped, new pods wait, and pods that
were deleted go on and keep their addresses.

Means: the process table of the node has a container runtime and no kubelet, k3s, RKE2 or MicroK8s,
while pods have waited, or should have been gone, for a minute. Severity info: the Node is Ready, or
its state is not known, so that an unknown program may be the kubelet.
"""

from collections.abc import Iterator
from typing import Final

from agent.checks.detector import Advice, Noun, Step
from agent.checks.waiting_pods import overdue_pods, unstarted_pods
from agent.model.assessment import Assessment
from agent.model.finding import Finding, Severity
from agent.model.snapshot import Snapshot, known_or, require_available
from agent.model.text import count_of, join_few

NAME = "stopped_kubelet"
SEVERITIES: Final = (Severity.INFO, Severity.WARNING)
NOUN: Final = Noun(
    "node without a kubelet",
    "nodes without a kubelet",
    headline="no kubelet runs on this node",
)
ADVICE: Final = Advice(
    steps=(
        Step(
            "See on the node why the kubelet does not run, and start it. Its unit is `k3s` or "
            "`k3s-agent` with k3s, `rke2-server` or `rke2-agent` with RKE2, and "
            "`snap.microk8s.daemon-kubelite` with MicroK8s:",
            commands=("systemctl status kubelet", "journalctl -u kubelet -n 50"),
        ),
        Step("Scan again five minutes after it has started."),
    ),
    runbook="StuckTeardown.md#nodeleakstoppedkubelet",
)


def find(assessment: Assessment) -> Iterator[Finding]:
    snapshot = assessment.snapshot
    if snapshot.processes.known().kubelet is not None:
        return
    require_available(snapshot.pods)
    waiting = [wait.pod.name for wait in unstarted_pods(snapshot)]
    ending = sorted(_overdue_pods(snapshot))
    if not waiting and not ending:
        return

    node = known_or(snapshot.node, None)
    is_down = node is not None and not node.ready
    problem = "no kubelet runs on this node"
    if not is_down:
        problem = "no process of this node is a kubelet that nodeleak knows"

    pods = []
    if waiting:
        pods.append(f"{count_of(len(waiting), 'pod waits', 'pods wait')} ({join_few(waiting)})")
    if ending:
        count = count_of(len(ending), "pod")
        pods.append(f"{count} should have been gone ({join_few(ending)})")

    why = f"; its Node is not Ready: {node.not_ready}" if node and node.not_ready else ""
    yield Finding(
        NAME,
        "kubelet",
        f"{problem}: {', and '.join(pods)}{why}",
        severity=Severity.WARNING if is_down else Severity.INFO,
    )


def _overdue_pods(snapshot: Snapshot) -> Iterator[str]:
    """Yield the pods that should have been gone for a minute or more, and wait for no finalizer."""
    for pod in overdue_pods(snapshot):
        if not pod.static and not pod.finalizers:
            yield pod.name
