"""A node with a device plugin, and pods that its kubelet rejected: raw objects, as the API server sends them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Final

from agent.model.devices import Allocation, DevicePlugins, PluginSocket, Registered
from agent.model.snapshot import Node, NodeDevices, Pod, Snapshot
from agent.sources.kube.pods import parse_pod
from tests.builders import node

KVM: Final = "devices.lab/kvm"
TOO_FEW: Final = f"requested number of devices unavailable for {KVM}. Requested: 1, Available: 0"


def refused(name: str, message: str, at: str, **metadata: Any) -> Pod:
    """A pod as the API server sends it after the kubelet has rejected it."""
    named = {
        "namespace": "shop",
        "name": name,
        "uid": f"uid-of-{name}",
        "creationTimestamp": "2026-03-26T01:25:40Z",
    }
    container = {"name": "vm", "resources": {"limits": {KVM: "1"}}}
    return parse_pod({
        "metadata": named | metadata,
        "spec": {"nodeName": "worker-1", "containers": [container]},
        "status": {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": message, "startTime": at},
    })  # fmt: skip


def written_by_kubelet(at: str) -> Mapping[str, Any]:
    """Set when the kubelet last wrote the status, by the API server's clock."""
    return {"managedFields": [{"manager": "kubelet", "operation": "Update", "subresource": "status", "time": at}]}


def lab(
    *pods: Pod, bound: datetime, socket: datetime, written: datetime, allocations: Sequence[Allocation], at: datetime
) -> Snapshot:
    """`bound`: when the kubelet bound its socket."""
    plugins = DevicePlugins(
        kubelet_socket=bound,
        sockets=(PluginSocket("lab-kvm.sock", socket, connected=True),),
        checkpoint_written=written,
        registered=(Registered(KVM, ("d0", "d1", "d2")),),
        allocations=tuple(allocations),
    )
    worker = Node("worker-1", ("10.244.1.0/24",), 110, (NodeDevices(KVM, 3, 3),))
    return replace(node(*pods, node=[worker], device_plugins=plugins), taken_at=at, uptime=timedelta(days=30))
