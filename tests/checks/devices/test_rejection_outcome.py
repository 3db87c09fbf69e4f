"""What becomes of rejected pods: leftovers, a race that goes on, and a storm; and what to do about each."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from agent.model.devices import DeviceTransition, TransitionKind
from agent.model.finding import Finding, Severity
from agent.model.rejections import PodOutcome, RejectionCause, RejectionKind
from agent.model.snapshot import Known, Pod, PortMapping, Snapshot
from agent.sources.kube.pods import parse_pod
from tests import builders as b
from tests.builders import KVM, KVM_SOCKET, NOW, node, pod, refused_pod, registered, transition
from tests.checks.reported import seconds, with_plugins

DETECTOR = "rejected_pod"
only = partial(b.the_finding, DETECTOR)
REPLACED, AGAIN = PodOutcome.REPLACED_BY_CONTROLLER, PodOutcome.REJECTED_AGAIN
PLUGIN_ERROR, CPU = RejectionKind.OTHER, RejectionKind.NOT_FOR_A_DEVICE

LATE: Sequence[DeviceTransition] = (
    transition(TransitionKind.KUBELET_STARTED, ago=seconds(1000)),
    transition(TransitionKind.SOCKET_APPEARED, socket=KVM_SOCKET, ago=seconds(890.5)),
    transition(TransitionKind.REGISTERED, KVM, ago=seconds(890)),
)
"""The plugin registered 110 s after the kubelet had started."""


def snapshot_of(*pods: Pod, **others: Any) -> Snapshot:
    there = (*LATE, b.plugin_socket(ago=seconds(890.5)), registered(KVM, "d0", "d1"))
    return with_plugins(*pods, *there, kubelet=1000, written=890, **others)


def storm(
    several: int,
    *,
    first: float,
    apart: float = 1,
    controller: str = "ReplicaSet/web-6d5f",
    refused: RejectionKind = PLUGIN_ERROR,
) -> list[Pod]:
    """Pods of one controller; the first was rejected so many seconds ago."""
    pods = [
        refused_pod(
            f"shop/web-{n}",
            ago=seconds(first - n * apart),
            controller=controller,
            refused=refused,
        )
        for n in range(several)
    ]
    return [rejected(pod, reason="UnexpectedAdmissionError") for pod in pods]


def rejected(pod: Pod, **changes: Any) -> Pod:
    assert pod.rejection is not None
    return replace(pod, rejection=replace(pod.rejection, **changes))


def running(name: str, ago: float, controller: str = "ReplicaSet/web-6d5f") -> Pod:
    started = replace(pod(name), started=NOW - seconds(ago), controller=controller)
    return replace(started, created=NOW - seconds(ago))


def node_of(snapshot: Snapshot, **changes: Any) -> Snapshot:
    return replace(snapshot, node=Known(replace(b.the_node(snapshot), **changes)))


def commands(finding: Finding) -> list[str]:
    return [step.command for step in finding.steps if step.command]


def words(finding: Finding) -> str:
    return " ".join(step.text for step in finding.steps)


def test_a_storm_that_goes_on_says_first_how_to_keep_pods_away() -> None:
    found = only(snapshot_of(*storm(180, first=340)))
    assert (found.severity, found.pod_outcome) == (Severity.CRITICAL, AGAIN)
    assert "it may go on: 180 within 2m59s, the last pod was rejected 2m41s ago" in found.message
    assert found.headline.startswith("180 pods of ReplicaSet/web-6d5f in shop were rejected")
    assert any("shop/web-14 and 165 more" in line for line in found.details)
    cordon, *_, delete, uncordon = commands(found)
    assert (cordon, uncordon) == ("kubectl cordon worker-1", "kubectl uncordon worker-1")
    assert "at your convenience" not in words(found)
    # It selects the pods of this storm: other failed pods of the namespace stay.
    assert '$3 == "web-6d5f" && ($2 == "UnexpectedAdmissionError")' in delete
    assert "spec.nodeName=worker-1,status.phase=Failed" in delete
    # A storm of pods that nothing replaces goes on as well.
    other = only(snapshot_of(*storm(20, first=340, apart=8, controller="Workflow/x")))
    assert (other.severity, other.pod_outcome) == (Severity.CRITICAL, PodOutcome.STUCK)
    assert commands(other)[0] == "kubectl cordon worker-1"
    assert "it may go on" in other.message
    # Beside leftovers of another controller, what goes on comes first.
    left = [
        replace(pod, name=f"shop/api-{n}", uid=f"uid of api-{n}", controller="ReplicaSet/api")
        for n, pod in enumerate(storm(9, first=4000))
    ]
    first, second = b.findings_of(DETECTOR, snapshot_of(*left, *storm(180, first=340)))
    assert (first.pod_outcome, second.pod_outcome) == (AGAIN, REPLACED)


def test_a_node_that_is_cordoned_is_not_cordoned_again_and_a_daemon_set_ignores_that() -> None:
    cordoned = node_of(snapshot_of(*storm(180, first=340)), unschedulable=True)
    assert "kubectl cordon worker-1" not in commands(only(cordoned))
    daemon_set = storm(6, first=340, apart=50, controller="DaemonSet/logs")
    taint, *_, undo = commands(only(snapshot_of(*daemon_set)))
    assert taint == "kubectl taint node worker-1 device=missing:NoSchedule"
    assert undo == f"{taint}-"


def test_a_finished_race_is_leftovers_and_a_new_storm_is_only_a_warning() -> None:
    race = storm(9, first=990, apart=10, refused=RejectionKind.NO_HEALTHY)
    over = only(snapshot_of(*race))
    assert over.cause is RejectionCause.KUBELET_RESTART
    assert (over.severity, over.pod_outcome) == (Severity.INFO, REPLACED)
    assert f"it is over: {KVM} is registered now" in over.message
    (delete,) = commands(over)
    names = " ".join(f"web-{n}" for n in range(9))
    assert delete == f"kubectl delete pod -n shop {names}"

    verdicts = (
        # A later pod of it runs, for long enough to know that no other was rejected.
        ((*storm(9, first=90), running("shop/web-x", ago=50)), Severity.INFO, REPLACED),
        ((*storm(9, first=67), running("shop/web-x", ago=50)), Severity.WARNING, AGAIN),
        ((*storm(9, first=90), running("shop/web-x", ago=95)), Severity.WARNING, AGAIN),
        ((*storm(9, first=90), running("bank/web-x", ago=50)), Severity.WARNING, AGAIN),
        # Nothing was rejected for ten minutes, whatever the cause.
        (storm(9, first=609), Severity.INFO, REPLACED),
        (storm(9, first=608), Severity.WARNING, AGAIN),
        (storm(9, first=640, controller="Job/once"), Severity.WARNING, AGAIN),
        (storm(9, first=680, controller="Job/once"), Severity.INFO, REPLACED),
        # It has only begun.
        (storm(9, first=10), Severity.WARNING, AGAIN),
        (storm(9, first=130, apart=15), Severity.CRITICAL, AGAIN),
    )
    for number, (pods, severity, outcome) in enumerate(verdicts):
        found = only(snapshot_of(*pods))
        assert (found.severity, found.pod_outcome) == (severity, outcome), number


def test_a_burst_is_no_storm_once_it_has_paused_for_longer_than_back_offs_take() -> None:
    for pods, is_storm in (
        (storm(9, first=67, refused=CPU), True),
        (storm(9, first=70, refused=CPU), False),
        (storm(9, first=230, apart=10, refused=CPU), True),
        (storm(9, first=250, apart=10, refused=CPU), False),
        (storm(9, first=250, apart=10), True),  # a plugin that fails goes on failing
        (storm(9, first=250, apart=10, refused=RejectionKind.PLUGIN_GONE), False),
    ):
        found = only(snapshot_of(*pods))
        assert found.severity is Severity.WARNING
        assert found.pod_outcome is AGAIN
        assert ("kubectl cordon worker-1" in commands(found)) is is_storm
        assert found.headline.endswith("it may go on") is is_storm


def test_few_pods_are_no_storm_and_pods_of_several_controllers_are_one() -> None:
    few = b.findings_of(DETECTOR, snapshot_of(*storm(4, first=10)))
    assert {found.severity for found in few} == {Severity.WARNING}
    assert not [command for found in few for command in commands(found) if "cordon" in command]
    each = [
        replace(pod, controller=f"EphemeralRunner/{number}")
        for number, pod in enumerate(storm(6, first=90))
    ]
    for found in b.findings_of(DETECTOR, snapshot_of(*each)):
        assert commands(found)[0] == "kubectl cordon worker-1"


def test_pods_that_differ_have_each_their_own_command_and_odd_names_have_none() -> None:
    many = [replace(pod, name=f"bank/a-{n}") for n, pod in enumerate(storm(12, first=200))]
    # Where nothing selects them safely, they are named; if they are too many, they are not.
    for several, command in ((41, None), (11, "kubectl delete pod -n shop web-0 web-1")):
        odd = [replace(pod, controller='ReplicaSet/a" "b') for pod in storm(several, first=200)]
        last = only(snapshot_of(*odd)).steps[-2].command
        assert (last[: len(command)] if last and command else last) == command
    assert "-n bank" in commands(only(snapshot_of(*many)))[-2]
    alone = replace(refused_pod("shop/vm", ago=seconds(100)), name="shop/a b")
    assert commands(only(snapshot_of(alone)))[-1] == "kubectl delete pod -n shop 'a b'"


def test_a_bare_pod_is_saved_before_it_is_deleted() -> None:
    found = only(snapshot_of(refused_pod("shop/vm", ago=seconds(995))))
    assert commands(found) == [
        "kubectl get pod -n shop vm -o yaml > vm.yaml",
        "kubectl delete pod -n shop vm",
    ]
    assert "never with --force" in words(found)
    assert f"{KVM} is healthy again" in words(found)
    by_dra = replace(refused_pod("shop/vm", ago=seconds(995)), dra_resources=(KVM,))
    told = words(only(snapshot_of(by_dra)))
    assert f"Once the kubelet knows that DRA serves {KVM}, delete it" in told, "no plugin matters"


def test_a_static_pod_is_never_deleted() -> None:
    mirror = replace(refused_pod("kube-system/store-worker-1", ago=seconds(995)), static=True)
    booted = replace(snapshot_of(mirror), uptime=seconds(1030))
    found = only(booted)
    assert (found.cause, found.pod_outcome) == (RejectionCause.NODE_REBOOT, PodOutcome.STUCK)
    assert "move its manifest" in words(found)
    assert "restart the kubelet" in words(found)
    assert commands(found) == []
    for version, directory in (
        ("v1.33.2", "/etc/kubernetes/manifests"),
        ("v1.33.2+rke2r1", "/var/lib/rancher/rke2/agent/pod-manifests"),
    ):
        assert f"mostly {directory})" in words(only(node_of(booted, kubelet=version)))
    assert "evictable" not in found.kinds, "no drain evicts it"
    assert "evictable" in only(replace(snapshot_of(a_replaced_pod()), uptime=seconds(1030))).kinds


def a_replaced_pod() -> Pod:
    return refused_pod("shop/vm", ago=seconds(995), controller="ReplicaSet/vm")


def test_only_some_kubelets_need_a_restart_to_complete_a_deletion() -> None:
    deleted = replace(a_replaced_pod(), deleting=True, deletion=NOW - seconds(300))
    for version, restart, looked_up in (
        ("v1.27.0", True, False),
        ("v1.27.3+k3s1", True, False),
        ("v1.27.4", False, False),
        ("v1.26.15", False, False),
        ("v1.33.2", False, False),
        ("", True, True),
    ):
        found = only(node_of(snapshot_of(deleted), kubelet=version))
        assert found.pod_outcome is PodOutcome.TERMINATING_STUCK
        assert ("only when they restart" in words(found)) is restart, version
        assert any("get node" in command for command in commands(found)) is looked_up, version
        has_volumes = any("/var/lib/kubelet/pods/" in command for command in commands(found))
        assert has_volumes is (not restart or looked_up), version
    held = replace(deleted, finalizers=("batch.kubernetes.io/job-tracking",))
    (step,) = only(snapshot_of(held)).steps
    assert "batch.kubernetes.io/job-tracking" in step.text


def test_a_later_kubelet_is_advised_only_where_it_would_have_helped() -> None:
    refused = rejected(a_replaced_pod(), refused=RejectionKind.NO_HEALTHY)
    for version, kinds in (("v1.26.8", ("at_restart",)), ("v1.33.2", ()), ("", ())):
        assert only(node_of(snapshot_of(refused), kubelet=version)).kinds == kinds


def failed(name: str, reason: str, message: str, *, second: int, gpus: int = 0) -> Pod:
    """A pod as the API server has it, that failed so many seconds before the snapshot."""
    at = (NOW - seconds(second)).strftime("%Y-%m-%dT%H:%M:%SZ")
    limits = {"nvidia.com/gpu": str(gpus)} if gpus else {}
    return parse_pod({
        "metadata": {"namespace": "ci", "name": name, "uid": f"uid of {name}"},
        "spec": {"containers": [{"name": "main", "resources": {"limits": limits}}]},
        "status": {"phase": "Failed", "reason": reason, "message": message, "startTime": at},
    })  # fmt: skip


def test_other_rejections_are_told_in_the_words_of_the_kubelet() -> None:
    topology = "Pod was rejected: Resources cannot be allocated with Topology locality"
    gpu = "nvidia.com/gpu"
    pods = [
        failed(f"wf-{n}", "TopologyAffinityError", topology, second=90 - n, gpus=4)
        for n in range(4)
    ]
    records = (registered(gpu, *(f"GPU-{n}" for n in range(8))), b.plugin_socket(ago=seconds(990)))
    snapshot = with_plugins(*pods, *records, kubelet=1000, written=900)
    found, *others = b.findings_of(DETECTOR, snapshot)
    assert len(others) == 3
    assert found.cause is RejectionCause.NOT_FOR_A_DEVICE
    assert f"the kubelet says TopologyAffinityError: {topology}" in found.message
    assert f"8 of 8 devices of {gpu} are free now" in found.message
    assert "for a device" not in found.message
    assert "nodeleak explain topology" in commands(found)
    assert "NUMA" in words(found)

    enough = "Pod Node didn't have enough resource"
    preemption = (
        "Pod was rejected: Unexpected error while attempting to recover from admission failure: "
        "preemption: error finding a set of pods to preempt: no set of running pods found to "
        "reclaim resources: [(res: {}, q: 1), ]"
    )
    for reason, message, resource in (
        ("OutOfcpu", f"{enough}: cpu, requested: 2000, used: 3000, capacity: 4000", ""),
        ("OutOfpods", f"{enough}: pods, requested: 1, used: 110, capacity: 110", ""),
        ("NodeAffinity", "Pod Predicate NodeAffinity failed", ""),
        ("AppArmor", "Pod Cannot enforce AppArmor", ""),
        ("UnexpectedAdmissionError", preemption.format("memory"), ""),
        ("UnexpectedAdmissionError", preemption.format(gpu), gpu),
    ):
        told = only(node(failed("one", reason, message, second=60)))
        assert message in told.message
        assert told.resource == resource
        assert (told.cause is RejectionCause.NOT_FOR_A_DEVICE) is (not resource)
        assert told.severity is Severity.WARNING


def test_what_the_kubelet_ends_as_intended_is_healthy() -> None:
    for reason, message in (
        ("Evicted", "The node was low on resource: memory."),
        ("NodeShutdown", "Pod was rejected as the node is shutting down."),
        ("Terminated", "Pod was terminated in response to imminent node shutdown."),
        ("Preempting", "Preempted in order to admit critical pod"),
        ("", ""),
        ("DeadlineExceeded", "Pod was active on the node longer than the specified deadline"),
    ):
        ended = failed("one", reason, message, second=60)
        assert not b.findings_of(DETECTOR, node(ended))


def test_a_stateful_set_replaces_a_rejected_pod_by_one_of_its_name() -> None:
    first, second = (
        replace(pod, name="shop/db-0", uid=f"uid {n}", controller="StatefulSet/db")
        for n, pod in enumerate(storm(2, first=20, apart=10))
    )
    keys = {only(snapshot_of(pod)).key for pod in (first, second)}
    assert keys == {(DETECTOR, "pod shop/db-0")}, "it is confirmed though the pod is another"


def test_a_storm_of_pods_that_every_node_refuses_is_stopped_at_its_controller() -> None:
    too_large = (
        "Pod was rejected: Allocate failed due to rpc error: code = Unknown desc = request for "
        f"'{KVM}: 2' too large: maximum request size for shared resources is 1, which is unexpected"
    )
    sysctl = 'Pod was rejected: forbidden sysctl: "net.core.somaxconn" not allowlisted'
    for refused, reason, message in (
        (RejectionKind.REQUEST_REFUSED, "UnexpectedAdmissionError", too_large),
        (CPU, "SysctlForbidden", sysctl),
    ):
        pods = [
            rejected(pod, reason=reason, message=message, available=None)
            for pod in storm(180, first=200, refused=refused)
        ]
        found = only(snapshot_of(*pods))
        assert (found.severity, found.pod_outcome) == (Severity.CRITICAL, AGAIN)
        assert commands(found)[0] == "kubectl describe replicaset -n shop web-6d5f"
        assert "cordon" not in " ".join(commands(found))
        assert "Once the device plugin is repaired" not in words(found)
    # One of them that the node's own state explains makes it a matter of this node as well.
    mixed = only(snapshot_of(*pods[:90], *storm(90, first=110, refused=CPU)))
    assert "kubectl cordon worker-1" in commands(mixed)
    # Of what is counted, another node may have enough.
    too_few = [
        rejected(pod, reason="SMTAlignmentError", message="too few cores", available=1)
        for pod in storm(180, first=200, refused=CPU)
    ]
    assert commands(only(snapshot_of(*too_few)))[0] == "kubectl cordon worker-1"


def test_commands_of_the_catalog_name_the_node() -> None:
    labels = rejected(
        refused_pod("shop/a", refused=CPU),
        reason="NodeAffinity",
        message="Predicate NodeAffinity failed",
    )
    assert "kubectl get node worker-1 --show-labels" in words(only(snapshot_of(labels)))


def test_the_pods_that_have_a_host_port_are_named() -> None:
    port, other = PortMapping(80, "tcp"), PortMapping(443, "tcp")
    refused = rejected(
        replace(refused_pod("web/lb", refused=CPU), host_ports=(port, other)),
        reason="NodePorts",
        message="Pod was rejected: Predicate NodePorts failed",
    )
    holder = replace(pod("kube-system/old"), host_ports=(other, port))
    beside = replace(pod("web/b"), host_ports=(PortMapping(80, "udp"),))
    over = replace(pod("web/c", phase="Succeeded"), host_ports=(port,))
    found = only(snapshot_of(refused, holder, beside, over))
    assert "live pods with the same host port: kube-system/old (443/tcp, 80/tcp);" in found.message
    assert "host port:" not in only(snapshot_of(refused, beside, over)).message


def test_a_race_is_not_over_while_the_kubelet_starts_over_and_over() -> None:
    def looping(*starts: float, resource: str = KVM) -> Finding:
        history = [
            change
            for ago in starts
            for change in (
                transition(TransitionKind.KUBELET_STARTED, ago=seconds(ago)),
                transition(TransitionKind.SOCKET_APPEARED, socket=KVM_SOCKET, ago=seconds(ago - 8)),
                transition(TransitionKind.REGISTERED, resource, ago=seconds(ago - 7.5)),
            )
        ]
        last = starts[-1]
        there = (b.plugin_socket(ago=seconds(last - 8)), registered(KVM, "d0", "d1"))
        pods = [
            refused_pod(
                f"shop/web-{ago}-{n}",
                ago=seconds(ago - 2),
                controller="ReplicaSet/web",
                refused=RejectionKind.NO_HEALTHY,
            )
            for ago in starts
            for n in range(3)
        ]
        return only(with_plugins(*pods, *history, *there, kubelet=last, written=last - 7))

    loop = looping(250, 190, 130, 70)
    assert (loop.cause, loop.severity) == (RejectionCause.KUBELET_RESTART, Severity.CRITICAL)
    assert loop.pod_outcome is AGAIN
    assert "the kubelet has started 4 times within 10 minutes" in loop.message
    assert "is healthy again" not in words(loop)
    for few in ((190, 130), (2000, 1400, 800), (800, 700, 190, 130)):
        over = looping(*few)
        assert "times within 10 minutes" not in over.message
        assert over.pod_outcome is REPLACED


def test_a_plugin_that_restarts_over_and_over_is_looked_at() -> None:
    gone = only(snapshot_of(*storm(9, first=340, apart=40, refused=RejectionKind.PLUGIN_GONE)))
    assert (gone.cause, gone.pod_outcome) == (RejectionCause.PLUGIN_RESTART, AGAIN)
    assert "kubectl get pods -A -o wide --field-selector=spec.nodeName=worker-1" in commands(gone)
    assert "whether a second plugin offers the same resource" in words(gone)
    # What is over needs no cause, and what the plugin says has a step of its own.
    over = only(snapshot_of(*storm(9, first=700, apart=1, refused=RejectionKind.PLUGIN_GONE)))
    assert "second plugin" not in words(over)
    said = only(snapshot_of(*storm(9, first=340, apart=40, refused=RejectionKind.PLUGIN_CRASHED)))
    assert "second plugin" not in words(said)
