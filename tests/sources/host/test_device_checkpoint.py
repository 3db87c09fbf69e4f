"""The device manager's checkpoint, from files that the real kubelet's code wrote, and from other files."""

import json
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.model.devices import Allocation, Registered
from agent.sources.host.device_checkpoint import DeviceCheckpoint, parse_checkpoint
from agent.sources.source_error import SourceError

KVM, GPU = "devices.kubevirt.io/kvm", "nvidia.com/gpu"
UID = "0aa1c1f2-1111-2222-3333-444455556666"

# Written by the checkpoint package of Kubernetes 1.20.2; the last by the same, with the older form's types.
EMPTY: Final = b'{"Data":{"PodDeviceEntries":[],"RegisteredDevices":{}},"Checksum":2932075448}'
NULL: Final = b'{"Data":{"PodDeviceEntries":null,"RegisteredDevices":{"a.b/c":[]}},"Checksum":4221852588}'
BY_NUMA_NODE: Final = (
    b'{"Data":{"PodDeviceEntries":[{"PodUID":"0aa1c1f2-1111-2222-3333-444455556666","ContainerName":"compute",'
    b'"ResourceName":"devices.kubevirt.io/kvm","DeviceIDs":{"0":["kvm7","kvm12"]},"AllocResp":"GgIKAA=="},'
    b'{"PodUID":"0aa1c1f2-1111-2222-3333-444455556666","ContainerName":"compute","ResourceName":"nvidia.com/gpu",'
    b'"DeviceIDs":{"0":["GPU-a"],"1":["GPU-b"]},"AllocResp":null}],"RegisteredDevices":{"devices.kubevirt.io/kvm":[],'
    b'"nvidia.com/gpu":["GPU-a","GPU-b"]}},"Checksum":3920981445}'
)
LISTED: Final = (
    b'{"Data":{"PodDeviceEntries":[{"PodUID":"0aa1c1f2-1111-2222-3333-444455556666","ContainerName":"compute",'
    b'"ResourceName":"devices.kubevirt.io/kvm","DeviceIDs":["kvm7","kvm12"],"AllocResp":"GgIKAA=="}],'
    b'"RegisteredDevices":{"devices.kubevirt.io/kvm":[],"nvidia.com/gpu":["GPU-a","GPU-b"]}},"Checksum":1436041437}'
)

REGISTERED: Final = (Registered(KVM, ()), Registered(GPU, ("GPU-a", "GPU-b")))


def error_of(content: bytes) -> str:
    with pytest.raises(SourceError) as raised:
        parse_checkpoint(content)
    return str(raised.value)


def changed(content: bytes, **fields: Any) -> bytes:
    """Say something else in the first entry."""
    tree = json.loads(content)
    tree["Data"]["PodDeviceEntries"][0].update(fields)
    return json.dumps(tree).encode()


def test_an_empty_checkpoint() -> None:
    assert parse_checkpoint(EMPTY) == DeviceCheckpoint((), ())


def test_a_resource_without_healthy_devices() -> None:
    assert parse_checkpoint(NULL) == DeviceCheckpoint((Registered("a.b/c", ()),), ())


def test_kubelet_1_20_lists_devices_by_numa_node() -> None:
    kvm, gpu = (
        Allocation(UID, "compute", KVM, ("kvm12", "kvm7")),
        Allocation(UID, "compute", GPU, ("GPU-a", "GPU-b")),
    )
    assert parse_checkpoint(BY_NUMA_NODE) == DeviceCheckpoint(REGISTERED, (kvm, gpu))


def test_kubelet_1_19_lists_devices() -> None:
    assert parse_checkpoint(LISTED) == DeviceCheckpoint(
        REGISTERED, (Allocation(UID, "compute", KVM, ("kvm12", "kvm7")),)
    )


def test_whitespace_and_field_order_do_not_matter() -> None:
    tree = json.loads(BY_NUMA_NODE)
    tree["Data"] = dict(reversed(tree["Data"].items()))
    assert parse_checkpoint(json.dumps(tree, indent=2).encode()) == parse_checkpoint(BY_NUMA_NODE)


def test_device_order_does_not_matter() -> None:
    assert parse_checkpoint(changed(BY_NUMA_NODE, DeviceIDs={"0": ["kvm12", "kvm7"]})) == parse_checkpoint(BY_NUMA_NODE)


@pytest.mark.parametrize(
    ("fields", "devices"),
    [
        ({"DeviceIDs": {"-1": ["kvm7"]}}, ("kvm7",)),
        ({"DeviceIDs": {"10": ["c"], "2": ["b"], "-1": ["a"]}}, ("a", "b", "c")),
        ({"DeviceIDs": {"0": None}}, ()),
        ({"DeviceIDs": {}}, ()),
        ({"DeviceIDs": None}, ()),
        ({"AllocResp": ""}, ("kvm12", "kvm7")),
    ],
    ids=["no topology", "several NUMA nodes", "null devices", "no NUMA node", "null", "an empty answer"],
)
def test_every_format_that_go_may_write(fields: dict[str, Any], devices: tuple[str, ...]) -> None:
    assert parse_checkpoint(changed(BY_NUMA_NODE, **fields)).allocations[0].devices == devices


# Unavailable data is never treated as empty


@pytest.mark.parametrize("content", [b"", b"{", BY_NUMA_NODE[:-1], BY_NUMA_NODE[:100], b"\xff\xfe", b"[" * 9000])
def test_a_truncated_checkpoint_is_unavailable(content: bytes) -> None:
    assert error_of(content) == f"kubelet_internal_checkpoint: not JSON ({len(content)} bytes)"


@pytest.mark.parametrize(
    "content",
    [
        b"null",
        b"[]",
        b"7",
        b'"text"',
        b"{}",
        b'{"Data":{}}',
        b'{"Data":{"PodDeviceEntries":[]},"Checksum":1}',
        b'{"Data":{"RegisteredDevices":{}},"Checksum":1}',
        b'{"Data":null,"Checksum":1}',
        b'{"Data":{"PodDeviceEntries":7,"RegisteredDevices":{}},"Checksum":1}',
        b'{"Data":{"PodDeviceEntries":[7],"RegisteredDevices":{}},"Checksum":1}',
        b'{"Data":{"PodDeviceEntries":[],"RegisteredDevices":[]},"Checksum":1}',
        b'{"Data":{"PodDeviceEntries":[],"RegisteredDevices":{"a/b":"x"}},"Checksum":1}',
        b'{"Data":{"PodDeviceEntries":[],"RegisteredDevices":{"a/b":[7]}},"Checksum":1}',
        changed(BY_NUMA_NODE, PodUID=7),
        changed(BY_NUMA_NODE, DeviceIDs="kvm7"),
        changed(BY_NUMA_NODE, DeviceIDs={"zero": []}),
        changed(BY_NUMA_NODE, ResourceName=None),
    ],
)
def test_an_unknown_format_is_unavailable(content: bytes) -> None:
    assert error_of(content).startswith("kubelet_internal_checkpoint: unknown format (")


def test_unprintable_names_are_escaped() -> None:
    invalid = changed(BY_NUMA_NODE, ContainerName="a\x1b[2J", DeviceIDs={"0": ["\ud800"]})
    (entry, _) = parse_checkpoint(invalid).allocations
    assert (entry.container, entry.devices) == ("a\\x1b[2J", ("\\ud800",))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
ENTRIES = st.fixed_dictionaries(
    {}, optional={"PodUID": JSON, "ContainerName": JSON, "ResourceName": JSON, "DeviceIDs": JSON, "AllocResp": JSON}
)
TREES = st.fixed_dictionaries(
    {
        "Data": st.fixed_dictionaries(
            {}, optional={"PodDeviceEntries": JSON | st.lists(ENTRIES, max_size=2), "RegisteredDevices": JSON}
        ),
        "Checksum": JSON,
    }
)


@given(
    st.binary(max_size=60) | JSON.map(lambda tree: json.dumps(tree).encode()) | TREES.map(json.dumps).map(str.encode)
)
def test_any_bytes_are_a_checkpoint_or_an_error(content: bytes) -> None:
    try:
        found: DeviceCheckpoint | str = parse_checkpoint(content)
    except SourceError as error:
        found = str(error)
    if isinstance(found, str):
        assert found.startswith("kubelet_internal_checkpoint: ")
        assert found.isprintable()
