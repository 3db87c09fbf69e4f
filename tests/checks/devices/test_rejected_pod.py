"""Pods that the kubelet rejected for a device, and that remain."""

from collections.abc import Sequence
from dataclasses import replace

from agent.model.finding import Finding
from agent.model.rejections import PodOutcome, RejectionCause
from agent.model.snapshot import NotRequested, Pod, Snapshot
from tests.builders import (
    KVM,
    NOW,
    device_plugins,
    findings_and_gap,
    findings_of,
    gap_of,
    node,
    plugin_socket,
    refused_pod,
    registered,
    unavailable,
)
from tests.checks.reported import seconds

DETECTOR = "rejected_pod"


def snapshot_of(*pods: Pod, came: bool = True) -> Snapshot:
    """The kubelet started 40 s ago, and the resource was registered 10 s later, or not yet."""
    plugins = (
        device_plugins(
            plugin_socket(ago=seconds(30.5)),
            registered(KVM, "d0"),
            kubelet_socket=seconds(40),
            checkpoint_written=seconds(30),
        )
        if came
        else device_plugins(registered(KVM, "d0"), kubelet_socket=seconds(40))
    )
    return node(*pods, device_plugins=plugins)


def vm(name: str = "shop/vm", ago: float = 35, controller: str = "ReplicaSet/vm") -> Pod:
    return refused_pod(name, ago=seconds(ago), controller=controller)


def many_pods(several: int, apart: float = 0, controller: str = "ReplicaSet/vm") -> list[Pod]:
    return [vm(f"shop/vm-{n}", 35 - n * apart, controller) for n in range(several)]


def only(findings: Sequence[Finding]) -> Finding:
    (finding,) = findings
    return finding


def test_a_rejected_pod_is_reported_with_its_resource_both_times_and_advice() -> None:
    finding = only(findings_of(DETECTOR, snapshot_of(vm(controller=""))))
    assert (finding.pod, finding.resource, finding.cause, finding.pod_outcome) == (
        "shop/vm",
        KVM,
        RejectionCause.KUBELET_RESTART,
        PodOutcome.STUCK,
    )
    assert finding.since == NOW - seconds(35)
    assert finding.message == (
        f"pod shop/vm was rejected for {KVM}: the kubelet started at 2026-03-26 19:59:20Z "
        f"and {KVM} was registered 10.0 s later; the pod was rejected before that, at 2026-03-26 19:59:25Z; "
        "it has no controller, so it stays Failed: delete it (its devices are healthy again); "
        "never use --force, which can leak the address of a pod that had run"
    )


def test_a_pod_is_the_same_finding_when_more_details_become_known() -> None:
    before, after = snapshot_of(vm(), came=False), snapshot_of(vm())
    first, second = only(findings_of(DETECTOR, before)), only(findings_of(DETECTOR, after))
    assert first.key == second.key == (DETECTOR, "pod shop/vm", "uid of shop/vm")
    again = replace(after, uptime=before.uptime + seconds(15), taken_at=before.taken_at + seconds(15))
    assert "was registered 10.0 s later" in only(findings_of(DETECTOR, before, again)).message
    # Two pods with one name are two findings.
    pods = (replace(vm(), uid="one"), replace(vm(), uid="two"))
    assert len({finding.key for finding in findings_of(DETECTOR, snapshot_of(*pods))}) == 2
    assert {only(findings_of(DETECTOR, snapshot_of(*many_pods(n)))).key for n in (5, 6, 1181)} == {
        (DETECTOR, "pods of ReplicaSet/vm in shop")
    }


def test_five_pods_of_one_controller_in_ten_minutes_are_one_finding() -> None:
    group = only(findings_of(DETECTOR, snapshot_of(*many_pods(5, apart=1))))
    assert group.subject == "pods of ReplicaSet/vm in shop"
    assert group.message.startswith(f"5 pods of ReplicaSet/vm in shop were rejected for {KVM} (shop/vm-0, shop/vm-1,")
    assert " and 2 more)" in group.message
    in_that_second = RejectionCause.UNVERIFIED
    assert [rejected.cause for rejected in group.rejected_pods] == [
        *[RejectionCause.KUBELET_RESTART] * 4,
        in_that_second,
    ]
    assert group.pods == tuple(f"shop/vm-{n}" for n in range(5))
    assert (group.cause, group.pod_outcome, group.since) == (
        RejectionCause.KUBELET_RESTART,
        PodOutcome.REPLACED_BY_CONTROLLER,
        NOW - seconds(35),
    )


def test_few_pods_of_different_controllers_or_over_a_longer_time_are_not_grouped() -> None:
    for pods, findings in (
        (many_pods(4), 4),
        ([*many_pods(4), vm("shop/other", controller="ReplicaSet/other")], 5),
        ([*many_pods(4), vm("bank/vm")], 5),
        (many_pods(5, controller=""), 5),
        (many_pods(5, apart=-150), 1),
        (many_pods(5, apart=-151), 5),
    ):
        assert len(findings_of(DETECTOR, snapshot_of(*pods))) == findings
    older = findings_of(DETECTOR, snapshot_of(*many_pods(5), vm("shop/older", ago=9000)))
    assert sorted(finding.subject for finding in older) == ["pod shop/older", "pods of ReplicaSet/vm in shop"]


def test_without_device_plugins_rejected_pods_are_reported_without_a_cause() -> None:
    for reading in (unavailable("device_plugins"), NotRequested("device_plugins", "none")):
        findings, gap = findings_and_gap(DETECTOR, replace(snapshot_of(vm()), device_plugins=reading))
        assert only(findings).cause is RejectionCause.UNVERIFIED
        assert gap.chosen is isinstance(reading, NotRequested)
    assert gap_of(DETECTOR, node(pods=unavailable("pods"))).startswith("pods")
