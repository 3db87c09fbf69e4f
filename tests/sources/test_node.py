"""The device resources of the node's own object."""

from typing import Any

import pytest

from agent.model.snapshot import NodeDevices
from agent.sources.node import parse

KVM, GPU = "devices.kubevirt.io/kvm", "nvidia.com/gpu"


def devices(capacity: Any, allocatable: Any) -> tuple[NodeDevices, ...]:
    return parse({"metadata": {"name": "n"}, "status": {"capacity": capacity, "allocatable": allocatable}}).devices


def test_a_node_tells_how_many_devices_it_has_and_offers() -> None:
    plain = {"cpu": "8", "memory": "16Gi", "pods": "110", "hugepages-2Mi": "0", "ephemeral-storage": "9Gi"}
    assert devices({**plain, GPU: "4", KVM: "1k"}, {**plain, GPU: "3", KVM: "0"}) == (
        NodeDevices(KVM, 1000, 0),
        NodeDevices(GPU, 4, 3),
    )


@pytest.mark.parametrize("status", [None, {}])
def test_a_node_without_devices_has_none(status: Any) -> None:
    assert devices(status, status) == ()


def test_a_resource_that_the_kubelet_dropped_stays_with_none() -> None:
    assert devices({GPU: "0"}, {GPU: "0"}) == (NodeDevices(GPU, 0, 0),)


def test_a_resource_in_one_of_the_two_is_none_in_the_other() -> None:
    assert devices({GPU: "4"}, {KVM: "2"}) == (NodeDevices(KVM, 0, 2), NodeDevices(GPU, 4, 0))


@pytest.mark.parametrize(
    ("written", "count"), [("7", 7), (7, 7), ("1k", 1000), ("2M", 2_000_000), ("1Ki", 1024), ("3Gi", 3 * 1024**3)]
)
def test_a_count_is_read_as_the_server_writes_it(written: Any, count: int) -> None:
    # KubeVirt offers 1000 of each of its devices, and the server writes that as 1k.
    assert devices({KVM: written}, {KVM: written}) == (NodeDevices(KVM, count, count),)


@pytest.mark.parametrize("odd", ["", "-1", "1.5", "1500m", "many", "٣", "1e3", None, True, [], {}, "9" * 5000])
def test_an_odd_count_is_passed_over_and_the_others_are_told(odd: Any) -> None:
    assert devices({KVM: odd, GPU: "1"}, {KVM: "1", GPU: "1"}) == (NodeDevices(GPU, 1, 1),)


@pytest.mark.parametrize(
    ("status", "runtime"),
    [
        ({"nodeInfo": {"containerRuntimeVersion": "docker://20.10.24"}}, "docker://20.10.24"),
        ({"nodeInfo": {"containerRuntimeVersion": ""}}, ""),
        ({"nodeInfo": None}, ""),
        (None, ""),
    ],
)
def test_a_node_tells_which_runtime_its_kubelet_has(status: Any, runtime: str) -> None:
    assert parse({"metadata": {"name": "n"}, "status": status}).runtime == runtime
