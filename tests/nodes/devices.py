"""Nodes with device plugins: the races as seen on a real kubelet 1.20, and the words of kubelets that we cannot run.

The pods are read from raw objects, as the API server sends them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from agent.checks.devices.history import derive
from agent.model.devices import Allocation, DevicePlugins, DeviceTransition, PluginSocket, Registered
from agent.model.snapshot import Node, NodeDevices, Pod, Snapshot
from agent.sources.kube.pods import parse_pod
from tests.builders import node

KVM: Final = "devices.lab/kvm"
BOUND: Final = datetime(2026, 3, 26, 1, 25, 46, 424000, UTC)
"""When the kubelet bound its socket; the plugin was started 9.5 s later."""
SOCKET: Final = datetime(2026, 3, 26, 1, 25, 55, 948000, UTC)
WRITTEN: Final = datetime(2026, 3, 26, 1, 25, 55, 960000, UTC)
IN_BETWEEN: Final = "2026-03-26T01:25:47Z"

TOO_FEW: Final = f"requested number of devices unavailable for {KVM}. Requested: 1, Available: 0"
DIAL: Final = (
    'rpc error: code = Unavailable desc = connection error: desc = "transport: Error while dialing: dial unix '
    '/var/lib/kubelet/device-plugins/lab-kvm.sock: connect: connection refused"'
)
FORMS: Final = {
    "v1-17-update": ("Pod Update plugin resources failed due to {}, which is unexpected.", TOO_FEW),
    "v1-18-unregistered": (
        "Pod Allocate failed due to {}, which is unexpected",
        f"can't allocate unregistered device {KVM}",
    ),
    "v1-20-too-few": ("Pod Allocate failed due to {}, which is unexpected", TOO_FEW),
    "v1-24-endpoint": ("Pod Allocate failed due to {}, which is unexpected", f"unknown Device Plugin {KVM}"),
    "v1-25-no-healthy": (
        "Pod Allocate failed due to {}, which is unexpected",
        f"no healthy devices present; cannot allocate unhealthy devices {KVM}",
    ),
    "v1-27-no-healthy": (
        "Pod was rejected: Allocate failed due to {}, which is unexpected",
        f"no healthy devices present; cannot allocate unhealthy devices {KVM}",
    ),
    "v1-29-previously": (
        "Pod was rejected: Allocate failed due to {}, which is unexpected",
        f"previously allocated devices are no longer healthy; cannot allocate unhealthy devices {KVM}",
    ),
    "v1-31-dial": (
        "Pod was rejected: Allocate failed due to {}, which is unexpected",
        DIAL,
    ),
    "v1-33-endpoint": (
        "Pod was rejected: Allocate failed due to {}, which is unexpected",
        f"endpoint not found in cache for a registered resource: {KVM}",
    ),
    "v1-36-unregistered": (
        "Pod was rejected: Allocate failed due to {}, which is unexpected",
        f"cannot allocate unregistered device {KVM}",
    ),
}
OUT_OF: Final = f"Node didn't have enough resource: {KVM}, requested: 1, used: 0, capacity: 0"


def refused(
    name: str,
    message: str,
    at: str = IN_BETWEEN,
    *,
    reason: str = "UnexpectedAdmissionError",
    controller: tuple[str, str] | None = None,
    init: bool = False,
    **metadata: Any,
) -> Pod:
    """A pod as the API server sends it after the kubelet has rejected it."""
    asks = [{"name": "vm", "resources": {"limits": {KVM: "1"}}}]
    owners = [{"kind": controller[0], "name": controller[1], "controller": True}] if controller else []
    return parse_pod({
        "metadata": {
            "namespace": "shop",
            "name": name,
            "uid": f"uid-of-{name}",
            "creationTimestamp": "2026-03-26T01:25:40Z",
            "ownerReferences": owners,
            **metadata,
        },
        "spec": {"nodeName": "worker-1", "containers": asks, **({"initContainers": asks} if init else {})},
        "status": {"phase": "Failed", "reason": reason, "message": message, "startTime": at},
    })  # fmt: skip


def written_by_kubelet(at: str) -> Mapping[str, Any]:
    """Set when the kubelet last wrote the status, by the API server's clock."""
    return {"managedFields": [{"manager": "kubelet", "operation": "Update", "subresource": "status", "time": at}]}


def lab(
    *pods: Pod,
    devices: Sequence[str] = ("d0", "d1", "d2"),
    bound: datetime = BOUND,
    socket: datetime | None = SOCKET,
    written: datetime = WRITTEN,
    allocations: Sequence[Allocation] = (),
    capacity: int = 3,
    at: datetime = WRITTEN + timedelta(minutes=2),
    uptime: timedelta = timedelta(days=30),
) -> Snapshot:
    """The test node, two minutes after its plugin registered."""
    plugins = DevicePlugins(
        kubelet_socket=bound,
        sockets=() if socket is None else (PluginSocket("lab-kvm.sock", socket, connected=True),),
        checkpoint_written=written,
        registered=(Registered(KVM, tuple(devices)),),
        allocations=tuple(allocations),
    )
    worker = Node("worker-1", ("10.244.1.0/24",), 110, (NodeDevices(KVM, capacity, capacity),))
    return replace(node(*pods, node=[worker], device_plugins=plugins), taken_at=at, uptime=uptime)


def kubelet_restart() -> Snapshot:
    """One pod bound while the kubelet was down, and one that had run: both rejected."""
    message = f"Pod Allocate failed due to {TOO_FEW}, which is unexpected"
    return lab(refused("bound-meanwhile", message), refused("had-run", message, controller=("ReplicaSet", "vm-5d8f")))


def node_reboot() -> Snapshot:
    """The node booted a minute before its kubelet was up."""
    seen = lab(refused("vm", f"Pod Allocate failed due to {TOO_FEW}, which is unexpected"))
    return replace(seen, uptime=seen.taken_at - BOUND + timedelta(minutes=1))


def words_of_all_versions() -> Snapshot:
    """The message of each kubelet version in the same race."""
    pods = [refused(name, frame.format(cause)) for name, (frame, cause) in FORMS.items()]
    pods.append(refused("v1-20-out-of", f"Pod {OUT_OF}", reason=f"OutOf{KVM}"))
    pods.append(refused("v1-30-out-of", f"Pod was rejected: {OUT_OF}", reason=f"OutOf{KVM}"))
    return lab(*pods)


def no_device_trouble() -> Snapshot:
    """Pods that failed for other reasons than a missing device."""
    other = {
        "cpus": (
            "UnexpectedAdmissionError",
            "Pod Allocate failed due to not enough cpus available, which is unexpected",
        ),
        "evicted": ("Evicted", "The node was low on resource: memory."),
        "affinity": ("NodeAffinity", "Pod Predicate NodeAffinity failed"),
        "out-of-cpu": ("OutOfcpu", "Pod Node didn't have enough resource: cpu, requested: 1, used: 4, capacity: 4"),
        "shutdown": ("NodeShutdown", "Pod was rejected as the node is shutting down."),
    }
    return lab(*(refused(name, message, reason=reason) for name, (reason, message) in other.items()))


def init_container() -> Snapshot:
    """A newer kubelet checks the init container of a running pod again, and a completed pod of a Job too."""
    frame, cause = FORMS["v1-29-previously"]
    api = written_by_kubelet("2026-03-26T01:25:49Z")
    pods = (
        refused("vm", frame.format(cause), init=True, **api),
        refused("once", frame.format(cause), controller=("Job", "once"), **api),
    )
    kept = tuple(Allocation(pod.uid, "vm", KVM, (f"d{number}",)) for number, pod in enumerate(pods))
    return lab(*pods, allocations=kept)


def all_given_out() -> Snapshot:
    """The plugin was registered, and its devices were allocated to other pods."""
    users = [f"uid-of-user-{n}" for n in range(3)]
    late = refused("vm", f"Pod Allocate failed due to {TOO_FEW}, which is unexpected", "2026-03-26T01:26:40Z")
    return lab(late, allocations=[Allocation(uid, "vm", KVM, (f"d{n}",)) for n, uid in enumerate(users)])


def plugin_missing() -> Snapshot:
    """The plugin was not restarted: the kubelet dropped the resource and keeps rejecting pods."""
    frame, cause = FORMS["v1-18-unregistered"]
    seen = lab(
        refused("vm", frame.format(cause)),
        socket=None,
        capacity=0,
        written=BOUND + timedelta(minutes=5, seconds=3),
        at=BOUND + timedelta(minutes=8),
    )
    devices = seen.device_plugins.known()
    return node_with(seen, replace(devices, registered=()))


def node_with(seen: Snapshot, devices: DevicePlugins) -> Snapshot:
    return replace(seen, device_plugins=node(device_plugins=devices).device_plugins)


def silently_started() -> Snapshot:
    """Without its checkpoint the kubelet did not know the resource, and started the pod without a device."""
    running = parse_pod({
        "metadata": {"namespace": "shop", "name": "vm", "uid": "uid-of-vm"},
        "spec": {"nodeName": "worker-1", "containers": [{"name": "vm", "resources": {"limits": {KVM: "1"}}}]},
        "status": {
            "phase": "Running",
            "containerStatuses": [{"name": "vm", "state": {"running": {"startedAt": "2026-03-26T01:25:50Z"}}}],
        },
    })  # fmt: skip
    return lab(running)


def storm() -> Snapshot:
    """The scheduler sees devices until the next status of the node, and a ReplicaSet tries again at once."""
    frame, cause = FORMS["v1-20-too-few"]
    pods = [refused(f"vm-{n}", frame.format(cause), controller=("ReplicaSet", "vm-5d8f")) for n in range(12)]
    return lab(*pods, refused("alone", frame.format(cause), controller=("ReplicaSet", "other-7c9b")))


def deleted_and_stuck() -> Snapshot:
    """The rejected pods were deleted, and two are stuck."""
    frame, cause = FORMS["v1-27-no-healthy"]
    long_ago = "2026-03-26T01:26:20Z"
    return lab(
        refused("kubelet", frame.format(cause), deletionTimestamp=long_ago),
        refused(
            "held", frame.format(cause), deletionTimestamp=long_ago, finalizers=["batch.kubernetes.io/job-tracking"]
        ),
        refused("just-going", frame.format(cause), deletionTimestamp="2026-03-26T01:27:55Z"),
    )


GPU, SHARED = "nvidia.com/gpu", "nvidia.com/gpu.shared"


def gpu_node(minutes: float, healthy: Mapping[str, Sequence[str]], socket: str, *pods: Pod) -> Snapshot:
    """A node so many minutes after NVIDIA's plugin was started with time slicing. `healthy`: as in the checkpoint."""
    restart, after = WRITTEN + timedelta(hours=1), timedelta(minutes=minutes)
    bound = restart if minutes >= 0 else WRITTEN
    plugins = DevicePlugins(
        kubelet_socket=BOUND,
        sockets=(PluginSocket(socket, bound, connected=True),),
        # The kubelet writes it when the plugin registers, and when it drops the old resource.
        checkpoint_written=bound + timedelta(minutes=5 if minutes > 5 else 0, milliseconds=12),
        registered=tuple(Registered(name, tuple(ids)) for name, ids in healthy.items()),
        allocations=(),
    )
    status = tuple(NodeDevices(name, len(healthy.get(name, ())), len(healthy.get(name, ()))) for name in (GPU, SHARED))
    worker = Node("worker-1", ("10.244.1.0/24",), 110, status, provider_id="aws:///zone-a/i-0a1b")
    return replace(
        node(*pods, node=[worker], device_plugins=plugins),
        taken_at=restart + after,
        uptime=timedelta(days=30) + after,
    )


def time_slicing(*pods: Pod) -> tuple[Snapshot, ...]:
    """Snapshots of a node on which the plugin's resource is renamed, with the history from one to the next."""
    slices = [f"gpu-a::{number}" for number in range(4)]
    seen: list[Snapshot] = []
    history: tuple[DeviceTransition, ...] = ()
    for snapshot in (
        gpu_node(-10, {GPU: ["gpu-a"]}, "nvidia-gpu.sock", *pods),
        gpu_node(0.1, {GPU: [], SHARED: slices}, "nvidia-gpu.shared.sock", *pods),
        gpu_node(3, {GPU: [], SHARED: slices}, "nvidia-gpu.shared.sock", *pods),
        gpu_node(6, {SHARED: slices}, "nvidia-gpu.shared.sock", *pods),
        gpu_node(60, {SHARED: slices}, "nvidia-gpu.shared.sock", *pods),
    ):
        with_past = replace(snapshot.device_plugins.known(), history=history)
        seen.append(node_with(snapshot, with_past))
        history = derive(seen[-1])
    return tuple(seen)


def resource_renamed() -> tuple[Snapshot, ...]:
    """Time slicing was enabled, and the plugin offers its devices under another name."""
    return time_slicing()


def renamed_but_requested() -> tuple[Snapshot, ...]:
    """The same, but a pod still requests the old name."""
    running = parse_pod({
        "metadata": {"namespace": "shop", "name": "train", "uid": "uid-of-train"},
        "spec": {"nodeName": "worker-1", "containers": [{"name": "main", "resources": {"limits": {GPU: "1"}}}]},
        "status": {"phase": "Pending"},
    })  # fmt: skip
    return time_slicing(running)


NODES: Final[Mapping[str, Callable[[], Snapshot | tuple[Snapshot, ...]]]] = {
    "devices-kubelet-restart": kubelet_restart,
    "devices-node-reboot": node_reboot,
    "devices-words-of-all-versions": words_of_all_versions,
    "devices-no-trouble": no_device_trouble,
    "devices-init-container": init_container,
    "devices-all-given-out": all_given_out,
    "devices-plugin-missing": plugin_missing,
    "devices-renamed": resource_renamed,
    "devices-renamed-but-requested": renamed_but_requested,
    "devices-silently-started": silently_started,
    "devices-storm": storm,
    "devices-deleted-and-stuck": deleted_and_stuck,
}
