"""The device resources of the node's own object, and its volumes."""

from datetime import UTC, datetime
from typing import Any

import pytest

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


@pytest.mark.parametrize("status", [None, {}])
def test_a_node_without_devices_has_none(status: Any) -> None:
    assert devices(status, status) == ()


def test_a_resource_dropped_by_the_kubelet_stays_with_zero() -> None:
    assert devices({GPU: "0"}, {GPU: "0"}) == (NodeDevices(GPU, 0, 0),)


def test_a_resource_only_in_capacity_or_allocatable_is_zero_in_the_other() -> None:
    assert devices({GPU: "4"}, {KVM: "2"}) == (NodeDevices(KVM, 0, 2), NodeDevices(GPU, 4, 0))


@pytest.mark.parametrize(
    ("conditions", "status"),
    [
        ([{"type": "Ready", "status": "True"}, {"type": "CNIAddressPressure", "status": "False"}], "False"),
        ([{"type": "Ready", "status": "True"}], ""),
        (None, ""),
    ],
)
def test_the_status_of_the_agents_condition_is_read(conditions: Any, status: str) -> None:
    assert parse_node({"metadata": {"name": "n"}, "status": {"conditions": conditions}}).address_pressure == status


@pytest.mark.parametrize(
    ("written", "count"), [("7", 7), (7, 7), ("1k", 1000), ("2M", 2_000_000), ("1Ki", 1024), ("3Gi", 3 * 1024**3)]
)
def test_a_count_is_read_in_any_server_format(written: Any, count: int) -> None:
    # KubeVirt offers 1000 of each of its devices, and the server writes that as 1k.
    assert devices({KVM: written}, {KVM: written}) == (NodeDevices(KVM, count, count),)


@pytest.mark.parametrize("invalid", ["", "-1", "1.5", "1500m", "many", "٣", "1e3", None, True, [], {}, "9" * 5000])
def test_an_invalid_count_is_skipped_and_the_others_are_read(invalid: Any) -> None:
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


@pytest.mark.parametrize("invalid", [7, [None, 7, {}, {"key": None}, {"key": []}, {"key": {}}], {"key": 1}])
def test_invalid_taints_are_skipped(invalid: Any) -> None:
    assert registered(taints=invalid).taints == ()


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


@pytest.mark.parametrize("invalid", [None, "", "true", "-1", "1.5", "٣", "9" * 12, "9" * 5000, 10**11, [], {}])
def test_an_invalid_taint_time_is_ignored(invalid: Any) -> None:
    assert registered(taints=[{"key": "ToBeDeletedByClusterAutoscaler", "value": invalid}]).taints[0].at is None


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


@pytest.mark.parametrize(
    "conditions",
    [None, [], [{"type": "Ready", "status": "False"}], [{"type": "Ready", "status": "Unknown"}], [7], "x", [{}]],
)
def test_a_node_is_ready_only_if_its_condition_is_true(conditions: Any) -> None:
    assert not with_volumes({"conditions": conditions}).ready


@pytest.mark.parametrize("annotations", [None, {}, {next(iter(CONTROLLER)): "false"}])
def test_attach_and_detach_by_the_controller_needs_the_annotation(annotations: Any) -> None:
    assert not with_volumes({}, annotations).controller_attach


def test_invalid_volumes_do_not_make_a_node_unavailable() -> None:
    assert with_volumes({"volumesAttached": [7, {}, "x"]}).volumes_attached == ()
    assert with_volumes({"volumesInUse": 7}).volumes_in_use == ()
    assert with_volumes({"volumesAttached": "x"}).volumes_attached == ()


@pytest.mark.parametrize(
    ("status", "runtime"),
    [
        ({"nodeInfo": {"containerRuntimeVersion": "docker://20.10.24"}}, "docker://20.10.24"),
        ({"nodeInfo": {"containerRuntimeVersion": ""}}, ""),
        ({"nodeInfo": None}, ""),
        (None, ""),
    ],
)
def test_a_node_has_its_container_runtime(status: Any, runtime: str) -> None:
    assert parse_node({"metadata": {"name": "n"}, "status": status}).runtime == runtime
