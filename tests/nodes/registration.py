"""Nodes with registration problems, parsed from raw objects as the API server sends them."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from agent.model.registration import Autoscaler, Expected, LastSeen, Registration
from agent.model.snapshot import Node, Pod, Snapshot, Unavailable
from agent.sources import crosscheck
from agent.sources.host.registration import RegistrationTracker
from agent.sources.kube.autoscaler import status
from agent.sources.kube.node import parse_node
from agent.sources.kube.pods import parse_pod
from tests.builders import NOW, node, reservation

INSTANCE: Final = "aws:///eu-central-1a/i-0a1b2c3d4e5f60718"
UID: Final = "6a1f7c1e-0d54-4e0e-9a6e-6d2f6a7b8c9d"
STATUS: Final = """\
autoscalerStatus: Running
clusterWide:
  health:
    nodeCounts:
      longUnregistered: 0
      registered:
        total: 4
      unregistered: 1
    status: Healthy
time: 2026-03-26 19:59:50.354884346 +0000 UTC
"""


def worker(registered: str, *taints: Mapping[str, Any], **spec: Any) -> Node:
    metadata = {"name": "worker-1", "uid": UID, "creationTimestamp": registered}
    tainted = {"taints": [*taints]} if taints else {}
    return parse_node(
        {
            "metadata": metadata,
            "spec": {"podCIDR": "10.244.1.0/24", **spec, **tainted},
            "status": {"allocatable": {"pods": "110"}},
        }
    )


def node_object_deleted() -> Snapshot:
    """`kubectl delete node` a minute ago; an earlier leak is not reported while the pods are being deleted."""
    return node(
        reservation("10.244.1.9"),
        node=[],
        pods=Unavailable(
            "pods", "the Node worker-1 was deleted together with its pods, so the list of pods is not reliable"
        ),
        registration=Registration(
            last=LastSeen("worker-1", UID, INSTANCE, NOW - timedelta(minutes=1)), kubelet_name="worker-1", listed_pods=3
        ),
        autoscaler=status(STATUS),
    )


def wrong_node_name() -> Snapshot:
    """The agent has another node name than its kubelet."""
    return node(
        node=[],
        pods=Unavailable("pods", "the API server has no Node named worker-1: check --node"),
        registration=Registration(kubelet_name="ip-10-0-1-7"),
    )


def cloud_lost_sight() -> Snapshot:
    """The cloud-controller-manager is down: a new node waits for its provider ID; the status cannot be read."""
    waiting = {"key": "node.cloudprovider.kubernetes.io/uninitialized", "value": "true", "effect": "NoSchedule"}
    return replace(
        node(
            node=[worker("2026-03-26T19:55:30Z", waiting)],
            registration=Registration(kubelet_name="worker-1", cloud_provider="external"),
            autoscaler=Autoscaler(why="no permission to get configmap kube-system/cluster-autoscaler-status"),
        ),
        api_skew=timedelta(seconds=-1),
    )


def without_provider_id() -> Snapshot:
    """A kubelet without --provider-id in a group of nodes that have provider IDs."""
    return node(
        node=[worker("2026-03-26T19:48:00Z")],
        registration=Registration(kubelet_name="worker-1"),
        autoscaler=replace(status(STATUS), others=3, others_with_id=3),
    )


def bare_metal() -> Snapshot:
    """No node of the cluster has or needs a provider ID."""
    return node(
        node=[worker("2026-03-01T08:00:00Z")],
        registration=Registration(kubelet_name="worker-1"),
        autoscaler=Autoscaler(others=49),
    )


def scaled_down() -> Snapshot:
    """The autoscaler removes the node as intended; its disk belonged to another instance before."""
    taken = {"key": "ToBeDeletedByClusterAutoscaler", "value": "1774555140", "effect": "NoSchedule"}
    return node(
        node=[worker("2026-03-26T19:20:00Z", taken, providerID=INSTANCE)],
        registration=Registration(
            last=LastSeen(
                "worker-1", UID, INSTANCE, NOW, "aws:///eu-central-1a/i-0ffffffffffffffff", NOW - timedelta(minutes=39)
            )
        ),
    )


def seen_by_tracker(*nodes: Node | None, pods: Iterable[Mapping[str, Any]]) -> tuple[Snapshot, ...]:
    """Snapshots 15 s apart, with what the agent remembers of the Node from one to the next."""
    with TemporaryDirectory() as empty:
        state = Path(empty)
        tracker = RegistrationTracker("worker-1", Expected.AUTO, state, lambda *_: {}, state)
        return tuple(
            _seen(tracker, one, [parse_pod(pod) for pod in pods], 15 * (place + 1 - len(nodes)))
            for place, one in enumerate(nodes)
        )


def _seen(tracker: RegistrationTracker, one: Node | None, pods: Iterable[Pod], seconds: int) -> Snapshot:
    snapshot = node(pods=pods, node=[] if one is None else [one], later=timedelta(seconds=seconds))
    registration = tracker.read(snapshot.node, snapshot.pods, snapshot.taken_at)
    return crosscheck.all_sources(replace(snapshot, registration=registration))


def workload(name: str, controller: str = "", **metadata: Any) -> Mapping[str, Any]:
    kind, _, owner = controller.partition("/")
    owners = [{"kind": kind, "name": owner, "controller": True}] if controller else []
    return {
        "metadata": {"namespace": "shop", "name": name, "uid": f"uid of shop/{name}", "ownerReferences": owners}
        | metadata,
        "spec": {"nodeName": "worker-1"},
        "status": {"phase": "Running"},
    }


STATIC: Final = {"annotations": {"kubernetes.io/config.mirror": "c0ffee", "kubernetes.io/config.hash": "c0ffee"}}
WORKLOAD: Final = workload("web", "StatefulSet/web"), workload("db")
LEFT_BY_DRAIN: Final = workload("web", "DaemonSet/web"), workload("db", "Node/worker-1", **STATIC)
"""The pods that `kubectl drain --ignore-daemonsets` leaves."""


def removed_in_scale_down() -> tuple[Snapshot, ...]:
    """The autoscaler tainted, cordoned and emptied the node; its Node object goes before the machine does."""
    taken = {"key": "ToBeDeletedByClusterAutoscaler", "value": "1774555140", "effect": "NoSchedule"}
    leaving = worker("2026-03-26T08:00:00Z", taken, providerID=INSTANCE, unschedulable=True)
    return seen_by_tracker(worker("2026-03-26T08:00:00Z", providerID=INSTANCE), leaving, None, pods=WORKLOAD)


def drained_and_deleted() -> tuple[Snapshot, ...]:
    """`kubectl drain` and `kubectl delete node`, to take the machine out of the cluster."""
    before = worker("2026-03-01T08:00:00Z", providerID=INSTANCE)
    drained = worker("2026-03-01T08:00:00Z", providerID=INSTANCE, unschedulable=True)
    return seen_by_tracker(before, drained, None, pods=LEFT_BY_DRAIN)


def cordoned_and_deleted() -> tuple[Snapshot, ...]:
    """Cordoned for a repair; then something deleted the Node object while its pods still ran."""
    cordoned = worker("2026-03-01T08:00:00Z", providerID=INSTANCE, unschedulable=True)
    return seen_by_tracker(cordoned, None, pods=WORKLOAD)


def long_without_provider_id() -> Snapshot:
    """A machine of another kind than the other nodes: nothing has deleted it in 20 days."""
    return node(
        node=[worker("2026-03-06T20:00:00Z")],
        registration=Registration(kubelet_name="worker-1"),
        autoscaler=Autoscaler(
            others=3, others_with_id=3, why="there is no configmap kube-system/cluster-autoscaler-status"
        ),
    )


NODES: Final[Mapping[str, Callable[[], Snapshot | tuple[Snapshot, ...]]]] = {
    "registration-cordoned-and-deleted": cordoned_and_deleted,
    "registration-deleted": node_object_deleted,
    "registration-wrong-name": wrong_node_name,
    "registration-uninitialized": cloud_lost_sight,
    "registration-without-id": without_provider_id,
    "registration-bare-metal": bare_metal,
    "registration-drained-and-deleted": drained_and_deleted,
    "registration-long-without-id": long_without_provider_id,
    "registration-removed-in-scale-down": removed_in_scale_down,
    "registration-scaled-down": scaled_down,
}
