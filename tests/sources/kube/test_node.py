"""The device resources of the node's own object, and its volumes."""

from datetime import UTC, datetime
from typing import Any

from agent.model.registration import Taint
from agent.model.snapshot import Node, NodeDevices
from agent.sources.kube.node import parse_node

KVM, GPU = "devices.kubevirt.io/kvm", "nvidia.com/gpu"


def devices(capacity: Any, allocatable: Any) -> tuple[NodeDevices, ...]:
    return parse_node({"metadata": {"name": "n"}, "status": {"capacity": capacity, "allocatable": allocatable}}).devices


def test_a_node_has_its_device_capacity_and_allocatable() -> None:
    plain = {"cpu": "8", "memory": "16Gi", "pods": "110", "hugepages-2Mi": "0", "ephemeral-storage": "9Gi"}
    assert devices({**plain, GPU: "4", KVM: "1k"}, {**plain, GPU: "3", KVM: "0"}) == (
        NodeDevices(KVM, 1000, 0),
        NodeDevices(GPU, 4, 3),
    )


def test_a_resource_stays_with_zero_where_only_one_side_has_it_or_the_kubelet_dropped_it() -> None:
    assert devices(None, None) == devices({}, {}) == ()
    assert devices({GPU: "0"}, {GPU: "0"}) == (NodeDevices(GPU, 0, 0),)
    assert devices({GPU: "4"}, {KVM: "2"}) == (NodeDevices(KVM, 0, 2), NodeDevices(GPU, 4, 0))


def test_the_status_of_the_agents_condition_is_read() -> None:
    ready = {"type": "Ready", "status": "True"}
    for conditions, status in (
        ([ready, {"type": "CNIAddressPressure", "status": "False"}], "False"), ([ready], ""), (None, ""),
    ):  # fmt: skip
        assert parse_node({"metadata": {"name": "n"}, "status": {"conditions": conditions}}).address_pressure == status


def test_a_count_is_read_in_any_server_format_and_an_invalid_one_skipped() -> None:
    # KubeVirt offers 1000 of each of its devices, and the server writes that as 1k.
    for written, count in (("7", 7), (7, 7), ("1k", 1000), ("2M", 2_000_000), ("1Ki", 1024), ("3Gi", 3 * 1024**3)):
        assert devices({KVM: written}, {KVM: written}) == (NodeDevices(KVM, count, count),)
    invalid: Any
    for invalid in ("", "-1", "1.5", "1500m", "many", "\u0663", "1e3", None, True, [], {}, "9" * 5000):
        assert devices({KVM: invalid, GPU: "1"}, {KVM: "1", GPU: "1"}) == (NodeDevices(GPU, 1, 1),)


# Registration

AT = datetime(2026, 3, 26, 20, 1, tzinfo=UTC)


def registered(**spec: Any) -> Node:
    metadata = {"name": "n", "uid": "u-1", "creationTimestamp": "2026-03-26T20:01:00Z"}
    return parse_node({"metadata": metadata, "spec": spec})


def test_a_node_has_its_provider_id_and_creation_time() -> None:
    one = registered(providerID="aws:///eu-central-1a/i-0")
    assert (one.uid, one.created, one.provider_id, one.taints) == ("u-1", AT, "aws:///eu-central-1a/i-0", ())


def test_a_cordoned_node_is_unschedulable() -> None:
    assert [registered(**spec).unschedulable for spec in ({"unschedulable": True}, {"unschedulable": False}, {})] == [
        True,
        False,
        False,
    ]


def test_a_node_without_them_has_none() -> None:
    one = parse_node({"metadata": {"name": "n"}, "spec": None})
    assert (one.uid, one.created, one.provider_id, one.taints) == ("", None, "", ())


def test_invalid_taints_and_times_are_skipped() -> None:
    taints: Any
    at: Any
    for taints in (7, [None, 7, {}, {"key": None}, {"key": []}, {"key": {}}], {"key": 1}):
        assert registered(taints=taints).taints == ()
    for at in (None, "", "true", "-1", "1.5", "\u0663", "9" * 12, "9" * 5000, 10**11, [], {}):
        assert registered(taints=[{"key": "ToBeDeletedByClusterAutoscaler", "value": at}]).taints[0].at is None


def test_only_taints_about_registration_are_stored() -> None:
    parsed = registered(
        taints=[
            {"key": "dedicated", "value": "team-a", "effect": "NoSchedule"},
            {"key": "ToBeDeletedByClusterAutoscaler", "value": "1774555260", "effect": "NoSchedule"},
            {"key": "DeletionCandidateOfClusterAutoscaler", "value": "1774555260", "effect": "PreferNoSchedule"},
            {"key": "node.cloudprovider.kubernetes.io/uninitialized", "value": "true", "effect": "NoSchedule"},
        ]
    )
    assert parsed.taints == (
        Taint("ToBeDeletedByClusterAutoscaler", AT),
        Taint("DeletionCandidateOfClusterAutoscaler", AT),
        Taint("node.cloudprovider.kubernetes.io/uninitialized"),
    )


def test_an_unprintable_provider_id_is_escaped() -> None:
    assert registered(providerID="a\x1b[2J").provider_id == "a\\x1b[2J"


# Volumes

CONTROLLER = {"volumes.kubernetes.io/controller-managed-attach-detach": "true"}


def with_volumes(status: Any, annotations: Any = None) -> Node:
    return parse_node({"metadata": {"name": "n", "annotations": annotations}, "status": status})


def test_a_node_has_its_volumes_in_use_and_attached() -> None:
    parsed = with_volumes(
        {
            "conditions": [{"type": "Ready", "status": "True"}],
            "volumesInUse": ["kubernetes.io/csi/d^b", "kubernetes.io/csi/d^a"],
            "volumesAttached": [{"name": "kubernetes.io/csi/d^a", "devicePath": "/dev/xvdba"}],
        },
        CONTROLLER,
    )
    assert parsed.volumes_in_use == ("kubernetes.io/csi/d^a", "kubernetes.io/csi/d^b")
    assert parsed.volumes_attached == ("kubernetes.io/csi/d^a",)
    assert (parsed.ready, parsed.controller_attach) == (True, True)


def test_a_node_is_ready_only_if_its_condition_is_true_and_needs_the_annotation() -> None:
    conditions: Any
    unready = [{"type": "Ready", "status": "False"}], [{"type": "Ready", "status": "Unknown"}]
    for conditions in (None, [], *unready, [7], "x", [{}]):
        assert not with_volumes({"conditions": conditions}).ready
    for annotations in (None, {}, {next(iter(CONTROLLER)): "false"}):
        assert not with_volumes({}, annotations).controller_attach


def test_invalid_volumes_do_not_make_a_node_unavailable() -> None:
    assert with_volumes({"volumesAttached": [7, {}, "x"]}).volumes_attached == ()
    assert with_volumes({"volumesInUse": 7}).volumes_in_use == ()
    assert with_volumes({"volumesAttached": "x"}).volumes_attached == ()


def test_nodes_of_every_version_are_parsed() -> None:
    for item, cidrs, pods, runtime in (
        ({}, (), None, ""),
        ({"spec": {"podCIDR": "10.0.0.0/24"}}, ("10.0.0.0/24",), None, ""),  # before 1.16
        ({"status": {"allocatable": {"pods": 30}, "nodeInfo": None}}, (), 30, ""),
        ({"status": {"allocatable": {"pods": "1k"}, "nodeInfo": {"containerRuntimeVersion": ""}}}, (), None, ""),
        ({"spec": None, "status": None}, (), None, ""),
        ({"status": {"nodeInfo": {"containerRuntimeVersion": "docker://20.10.24"}}}, (), None, "docker://20.10.24"),
    ):
        parsed = parse_node({"metadata": {"name": "n"}, **item})
        assert (parsed.pod_cidrs, parsed.max_pods, parsed.runtime) == (cidrs, pods, runtime)
