"""A node whose kubelet does not run."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

from agent.model.finding import Severity
from agent.model.snapshot import Pod, Snapshot
from tests import builders as b
from tests.builders import NOW, WORKER, node, pod, processes, waiting_pod

DETECTOR = "stopped_kubelet"
MINUTE = timedelta(minutes=1)
DOWN = replace(WORKER, ready=False, not_ready="Kubelet stopped posting node status.")


def overdue(name: str, ago: timedelta, **changes: Any) -> Pod:
    return replace(pod(name, "10.244.1.9", deleting=True), deletion=NOW - ago, **changes)


def stopped(*pods: Pod, **changes: Any) -> Snapshot:
    usual: dict[str, Any] = {"processes": [processes(kubelet=None)], "node": [DOWN]}
    return node(*pods, **usual | changes)


def test_pods_that_wait_or_should_be_gone_are_told_that_no_kubelet_runs() -> None:
    both = stopped(waiting_pod("shop/new", ago=MINUTE), overdue("shop/old", MINUTE))
    finding = b.the_finding(DETECTOR, both)
    assert finding.severity is Severity.WARNING
    assert finding.message == (
        "no kubelet runs on this node: 1 pod waits (shop/new), and 1 pod should have been gone "
        "(shop/old); its Node is not Ready: Kubelet stopped posting node status."
    )
    only_old = b.the_finding(DETECTOR, stopped(overdue("shop/old", 5 * MINUTE)))
    assert "node: 1 pod should have been gone (shop/old)" in only_old.message


def test_a_kubelet_of_another_name_is_not_called_stopped() -> None:
    """The kubelet of MicroShift and others is in a process of theirs: the Node is Ready."""
    for known in ([WORKER], [None]):
        finding = b.the_finding(DETECTOR, stopped(waiting_pod("shop/new"), node=known))
        assert finding.severity is Severity.INFO
        assert finding.message.startswith(
            "no process of this node is a kubelet that nodeleak knows"
        )


def test_nothing_is_said_where_the_kubelet_runs_or_no_pod_needs_it() -> None:
    waits = waiting_pod("shop/new")
    for why, snapshot in {
        "it has just started": stopped(waits, processes=[processes(kubelet=timedelta(seconds=1))]),
        "no pod needs it": stopped(),
        "the pod is new": stopped(waiting_pod("shop/new", ago=timedelta(seconds=59))),
        "its grace period is long": stopped(overdue("shop/old", -60 * MINUTE)),
        "a finalizer keeps it": stopped(overdue("shop/old", 60 * MINUTE, finalizers=("x/y",))),
        "a mirror pod": stopped(overdue("shop/old", 60 * MINUTE, static=True)),
        "without the API server": b.without_api(stopped()),
    }.items():
        assert b.findings_of(DETECTOR, snapshot) == [], why
    assert b.gap_of(DETECTOR, b.without(stopped(waits), "pods")).startswith("pods")
    assert b.gap_of(DETECTOR, b.without(stopped(waits), "processes")).startswith("processes")
    assert b.findings_of(DETECTOR, b.without(node(), "pods")) == []
