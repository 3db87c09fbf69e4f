"""What is read of the Node object."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from agent.model.registration import Taint
from agent.model.snapshot import NodeDevices

KVM, GPU = "devices.kubevirt.io/kvm", "nvidia.com/gpu"
AT = datetime(2026, 3, 26, 20, 1, tzinfo=UTC)
Nodes = Callable[..., Any]


def check(nodes: Nodes, field: str, cases: list[tuple[Any, Any]]) -> None:
    """Check one field of Nodes, each given with what is expected."""
    for item, expected in cases:
        assert getattr(nodes(item), field) == expected, item


def test_a_node_has_its_device_capacity_and_allocatable(nodes: Nodes) -> None:
    plain = {"cpu": "8", "memory": "16Gi", "pods": "110", "hugepages-2Mi": "0", "ephemeral-storage": "9Gi"}
    odd: tuple[Any, ...] = (
        "", "-1", "1.5", "1500m", "many", "\u0663", "1e3", None, True, [], {}, "9" * 5000,
    )  # fmt: skip
    cases: list[tuple[Any, Any, tuple[NodeDevices, ...]]] = [
        (
            {**plain, GPU: "4", KVM: "1k"},
            {**plain, GPU: "3", KVM: "0"},
            (NodeDevices(KVM, 1000, 0), NodeDevices(GPU, 4, 3)),
        ),
        (None, None, ()),
        ({GPU: "0"}, {GPU: "0"}, (NodeDevices(GPU, 0, 0),)),
        ({GPU: "4"}, {KVM: "2"}, (NodeDevices(KVM, 0, 2), NodeDevices(GPU, 4, 0))),
        # KubeVirt offers 1000 of each of its devices, and the server writes that as 1k.
        *(
            ({KVM: written}, {KVM: written}, (NodeDevices(KVM, count, count),))
            for written, count in (("7", 7), (7, 7), ("2M", 2_000_000), ("1Ki", 1024), ("3Gi", 3 * 1024**3))
        ),
        *(({KVM: invalid, GPU: "1"}, {KVM: "1", GPU: "1"}, (NodeDevices(GPU, 1, 1),)) for invalid in odd),
    ]
    check(nodes, "devices", [
        ({"status": {"capacity": capacity, "allocatable": allocatable}}, devices)
        for capacity, allocatable, devices in cases
    ])  # fmt: skip


def test_the_registration_of_a_node_is_read_with_only_the_taints_about_it(nodes: Nodes) -> None:
    created = {"creationTimestamp": "2026-03-26T20:01:00Z"}
    node = nodes({"metadata": created, "spec": {"providerID": "aws:///eu-central-1a/i-0"}})
    assert (node.uid, node.created, node.provider_id, node.taints) == ("u-0", AT, "aws:///eu-central-1a/i-0", ())
    none = nodes({"spec": None})
    assert (none.created, none.provider_id, none.taints) == (None, "", ())
    check(nodes, "provider_id", [({"spec": {"providerID": "a\x1b[2J"}}, "a\\x1b[2J")])
    check(nodes, "unschedulable", [
        ({"spec": spec}, expected)
        for spec, expected in (({"unschedulable": True}, True), ({"unschedulable": False}, False), ({}, False))
    ])  # fmt: skip
    given: list[dict[str, Any]] = [
        {"key": "dedicated", "value": "team-a", "effect": "NoSchedule"},
        {"key": "ToBeDeletedByClusterAutoscaler", "value": "1774555260", "effect": "NoSchedule"},
        {"key": "DeletionCandidateOfClusterAutoscaler", "value": "1774555260", "effect": "PreferNoSchedule"},
        {"key": "node.cloudprovider.kubernetes.io/uninitialized", "value": "true", "effect": "NoSchedule"},
    ]
    kept = (
        Taint("ToBeDeletedByClusterAutoscaler", AT),
        Taint("DeletionCandidateOfClusterAutoscaler", AT),
        Taint("node.cloudprovider.kubernetes.io/uninitialized"),
    )
    odd: tuple[Any, ...] = (7, [None, 7, {}, {"key": None}, {"key": []}, {"key": {}}], {"key": 1})
    times: tuple[Any, ...] = (None, "", "true", "-1", "1.5", "\u0663", "9" * 12, "9" * 5000, 10**11, [], {})
    check(nodes, "taints", [
        ({"spec": {"taints": given}}, kept),
        *(({"spec": {"taints": taints}}, ()) for taints in odd),
        *(({"spec": {"taints": [given[1] | {"value": time}]}}, (Taint(given[1]["key"]),)) for time in times),
    ])  # fmt: skip


# Volumes


def test_a_node_has_its_volumes_in_use_and_attached(nodes: Nodes) -> None:
    attached = [{"name": "kubernetes.io/csi/d^a", "devicePath": "/dev/xvdba"}]
    in_use = ["kubernetes.io/csi/d^b", "kubernetes.io/csi/d^a"]
    odd: tuple[Any, ...] = (7, "x", [7, {}, "x"])
    check(nodes, "volumes_in_use", [
        ({"status": {"volumesInUse": in_use}}, ("kubernetes.io/csi/d^a", "kubernetes.io/csi/d^b")),
        ({"status": {"volumesInUse": 7}}, ()),
    ])  # fmt: skip
    check(nodes, "volumes_attached", [
        ({"status": {"volumesAttached": attached}}, ("kubernetes.io/csi/d^a",)),
        *(({"status": {"volumesAttached": volumes}}, ()) for volumes in odd),
    ])  # fmt: skip


def test_conditions_are_read_and_who_attaches_volumes(nodes: Nodes) -> None:
    no: tuple[Any, ...] = (
        None, [], [{"type": "Ready", "status": "False"}], [{"type": "Ready", "status": "Unknown"}], [7], "x", [{}],
    )  # fmt: skip
    check(nodes, "ready", [
        ({"status": {"conditions": [{"type": "Ready", "status": "True"}]}}, True),
        *(({"status": {"conditions": conditions}}, False) for conditions in no),
    ])  # fmt: skip
    both = [{"type": "Ready", "status": "True"}, {"type": "CNIAddressPressure", "status": "False"}]
    check(nodes, "address_pressure", [
        ({"status": {"conditions": conditions}}, status)
        for conditions, status in ((both, "False"), (both[:1], ""), (None, ""))
    ])  # fmt: skip
    annotation = "volumes.kubernetes.io/controller-managed-attach-detach"
    check(nodes, "controller_attach", [
        ({"metadata": {"annotations": annotations}}, expected)
        for annotations, expected in (({annotation: "true"}, True), ({annotation: "false"}, False), ({}, False))
    ])  # fmt: skip


def test_nodes_of_every_version_are_parsed(nodes: Nodes) -> None:
    for item, cidrs, limit, runtime in (
        ({}, (), None, ""),
        ({"spec": {"podCIDR": "10.0.0.0/24"}}, ("10.0.0.0/24",), None, ""),  # before 1.16
        ({"spec": {"podCIDR": "10.0.0.0/24", "podCIDRs": ["10.0.0.0/24", "fd00::/64"]}},
         ("10.0.0.0/24", "fd00::/64"), None, ""),
        ({"status": {"allocatable": {"pods": 30}, "nodeInfo": None}}, (), 30, ""),
        ({"status": {"allocatable": {"pods": "1k"}, "nodeInfo": {"containerRuntimeVersion": ""}}}, (), None, ""),
        ({"spec": None, "status": None}, (), None, ""),
        ({"status": {"nodeInfo": {"containerRuntimeVersion": "docker://20.10.24"}}}, (), None, "docker://20.10.24"),
    ):  # fmt: skip
        node = nodes(item)
        assert (node.pod_cidrs, node.max_pods, node.runtime) == (cidrs, limit, runtime)
