"""Extended resources that DRA serves: no device plugin is missing for them."""

from dataclasses import replace
from typing import Any

from agent.model.devices import TransitionKind
from agent.model.snapshot import Known, NodeDevices, Pod, Snapshot
from tests import builders as b
from tests.builders import WORKER, findings_of, pod, transition
from tests.checks.reported import resources_of, seconds, with_plugins

GPU = "nvidia.com/gpu"
DETECTORS = ("late_device_plugin", "started_without_device", "device_conflict")
UNINSTALLED = (
    transition(TransitionKind.KUBELET_STARTED, ago=seconds(9000)),
    transition(TransitionKind.REGISTERED, GPU, ago=seconds(8990)),
    transition(TransitionKind.LOST, GPU, ago=seconds(4000)),
    transition(TransitionKind.DROPPED, GPU, ago=seconds(3700)),
)


def asking(name: str, **changes: Any) -> Pod:
    """A pod that requests a GPU and has run for half an hour."""
    return replace(pod(name), wants=(GPU,), started=b.NOW - seconds(1800), **changes)


MAPPED = asking("ml/run-0", dra_resources=(GPU,), has_resource_claims=True)
CLAIMING = asking("ml/run-1", has_resource_claims=True)


def snapshot_of(
    *records: Any, allocatable: int | None = 0, kubelet: float = 9000, written: float = 3700
) -> Snapshot:
    """A node from which the device plugin of a GPU was removed an hour ago."""
    devices = () if allocatable is None else (NodeDevices(GPU, allocatable, allocatable),)
    worker = replace(WORKER, devices=devices)
    return with_plugins(*records, kubelet=kubelet, written=written, node=[worker])


def found(snapshot: Snapshot) -> list[str]:
    return [finding.detector for name in DETECTORS for finding in findings_of(name, snapshot)]


def test_no_plugin_is_missing_where_dra_serves_the_pods() -> None:
    restarted = transition(TransitionKind.KUBELET_STARTED, ago=seconds(2000))
    over = replace(MAPPED, phase="Succeeded")
    for why, snapshot in {
        "the agent saw the plugin go": snapshot_of(*UNINSTALLED, MAPPED),
        "the node never had a plugin": snapshot_of(MAPPED, allocatable=None),
        "the kubelet restarted since": snapshot_of(*UNINSTALLED, restarted, MAPPED, kubelet=2000),
        "the agent is new": snapshot_of(MAPPED),
        "the server shows no mapping": snapshot_of(*UNINSTALLED, CLAIMING),
        "and another plugin's device was given away just now": snapshot_of(
            *UNINSTALLED, CLAIMING, written=10
        ),
        "the pod has ended": snapshot_of(*UNINSTALLED, over),
        "one was rejected before": snapshot_of(MAPPED, b.refused_pod("ml/old", GPU)),
    }.items():
        assert (found(snapshot), resources_of(snapshot)) == ([], {}), why


def test_no_plugin_is_missing_between_two_pods_of_a_driver() -> None:
    def with_driver(*records: Any, driver: str) -> Snapshot:
        snapshot = snapshot_of(*UNINSTALLED, *records)
        plugins = snapshot.device_plugins.known()
        return replace(snapshot, device_plugins=Known(replace(plugins, drivers=(driver,))))

    waiting = replace(pod("ml/plain", phase="Pending"), wants=(GPU,))
    for driver, records, expected in (
        ("gpu.nvidia.com", (), []),
        ("gpu.nvidia.com-0a1b", (), []),
        ("gpu.nvidia.com", (waiting,), ["late_device_plugin"]),
        ("compute-domain.nvidia.com", (), ["late_device_plugin"]),
    ):
        assert found(with_driver(*records, driver=driver)) == expected, driver
    # Whether a pod requests it without a claim is unknown without the pods.
    unread = b.without(with_driver(waiting, driver="gpu.nvidia.com"), "pods")
    late, gap = b.findings_and_gap("late_device_plugin", unread)
    assert (late, gap.why.partition(":")[0]) == ([], "pods")


def test_a_pod_with_claims_proves_no_fault_while_the_node_is_unavailable() -> None:
    """The capacity of the Node shows that DRA serves it."""
    there = (b.plugin_socket("nvidia-gpu.sock"), b.registered(GPU, "g0"))
    early = replace(CLAIMING, started=b.NOW - seconds(90_000))
    restarted = transition(TransitionKind.KUBELET_STARTED, ago=seconds(2000))
    for snapshot, detector in (
        (snapshot_of(*UNINSTALLED, CLAIMING), "late_device_plugin"),
        (snapshot_of(*UNINSTALLED, restarted, CLAIMING, kubelet=2000), "started_without_device"),
        (snapshot_of(*there, early, written=7190), "device_conflict"),
    ):
        not_ready = replace(snapshot, node=Known(replace(b.the_node(snapshot), ready=False)))
        assert found(snapshot) == found(not_ready) == []
        findings, gap = b.findings_and_gap(detector, b.without(snapshot, "node"))
        assert (findings, gap.why.partition(":")[0]) == ([], "node")


def test_a_plugin_is_missing_for_pods_that_dra_does_not_serve() -> None:
    waiting = replace(pod("ml/plain", phase="Pending"), wants=(GPU,))
    for why, snapshot in {
        "another pod needs it": snapshot_of(*UNINSTALLED, MAPPED, waiting),
        "its claim is for something else": snapshot_of(
            *UNINSTALLED, CLAIMING, b.allocation("ml/run-1", GPU, "g0")
        ),
        "nothing has a claim": snapshot_of(*UNINSTALLED, asking("ml/run-2")),
    }.items():
        assert "late_device_plugin" in found(snapshot), why
    # Whether DRA serves it is unknown without the pods.
    unknown = b.without(snapshot_of(*UNINSTALLED), "pods")
    late, gap = b.findings_and_gap("late_device_plugin", unknown)
    assert (late, gap.why.partition(":")[0]) == ([], "pods")


def test_a_plugin_beside_dra_is_watched() -> None:
    there = (b.plugin_socket("nvidia-gpu.sock"), b.registered(GPU, "g0"))
    snapshot = snapshot_of(*there, MAPPED, allocatable=1, written=7190)
    assert resources_of(snapshot)[GPU]["registered"] is True
