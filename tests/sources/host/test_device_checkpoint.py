"""The device manager's checkpoint, from files that the real kubelet's code wrote, and from what is no checkpoint."""

import json
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.model.devices import Allocation, Registered
from agent.sources.error import SourceError
from agent.sources.host.device_checkpoint import DeviceCheckpoint, fnv1a, parse

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


def why(content: bytes) -> str:
    with pytest.raises(SourceError) as raised:
        parse(content)
    return str(raised.value)


def changed(content: bytes, **fields: Any) -> bytes:
    """Say something else in the first entry."""
    tree = json.loads(content)
    tree["Data"]["PodDeviceEntries"][0].update(fields)
    return json.dumps(tree).encode()


def sealed(content: bytes) -> bytes:
    """Give it the checksum that it should have, from the reason that it is refused for."""
    said = why(content).split("its content has ")[1].split(":")[0]
    tree = json.loads(content)
    tree["Checksum"] = int(said.split(" or ")[-1])
    return json.dumps(tree).encode()


def test_without_plugins_nothing_is_known() -> None:
    assert parse(EMPTY) == DeviceCheckpoint((), ())


def test_a_resource_without_devices_is_known_and_not_registered_again() -> None:
    assert parse(NULL) == DeviceCheckpoint((Registered("a.b/c", ()),), ())


def test_since_1_20_devices_are_listed_by_numa_node() -> None:
    kvm, gpu = (
        Allocation(UID, "compute", KVM, ("kvm12", "kvm7")),
        Allocation(UID, "compute", GPU, ("GPU-a", "GPU-b")),
    )
    assert parse(BY_NUMA_NODE) == DeviceCheckpoint(REGISTERED, (kvm, gpu))


def test_up_to_1_19_devices_are_listed() -> None:
    assert parse(LISTED) == DeviceCheckpoint(REGISTERED, (Allocation(UID, "compute", KVM, ("kvm12", "kvm7")),))


def test_spaces_and_the_order_of_fields_are_nothing() -> None:
    tree = json.loads(BY_NUMA_NODE)
    tree["Data"] = dict(reversed(tree["Data"].items()))
    assert parse(json.dumps(tree, indent=2).encode()) == parse(BY_NUMA_NODE)


def test_the_order_of_devices_is_nothing_to_the_reading_and_something_to_the_checksum() -> None:
    turned = changed(BY_NUMA_NODE, DeviceIDs={"0": ["kvm12", "kvm7"]})
    assert "its checksum is 3920981445" in why(turned)
    assert parse(sealed(turned)) == parse(BY_NUMA_NODE)


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
def test_what_go_may_write_is_read(fields: dict[str, Any], devices: tuple[str, ...]) -> None:
    assert parse(sealed(changed(BY_NUMA_NODE, **fields))).allocations[0].devices == devices


@pytest.mark.parametrize(
    ("devices", "words"),
    [
        ({"10": ["c"], "2": [], "-1": None}, "(checkpoint.DevicesPerNUMA)map[-1:<nil> 2:[] 10:[c]]"),
        ({}, "(checkpoint.DevicesPerNUMA)map[]"),
        (["b", "a"], "([]string)[b a]"),
        (None, "([]string)<nil>"),
        (None, "(checkpoint.DevicesPerNUMA)<nil>"),
    ],
)
def test_the_checksum_is_of_gos_own_words(devices: Any, words: str) -> None:
    said = (
        "(checkpoint.checkpointData){PodDeviceEntries:([]checkpoint.PodDevicesEntry)[{PodUID:(string)u "
        f"ContainerName:(string)c ResourceName:(string)a.b/c DeviceIDs:{words} AllocResp:([]uint8)[0 255]}}] "
        "RegisteredDevices:(map[string][]string)map[B/b:<nil> a/a:[y x]]}"
    )
    entry = {"PodUID": "u", "ContainerName": "c", "ResourceName": "a.b/c", "DeviceIDs": devices, "AllocResp": "AP8="}
    data = {"PodDeviceEntries": [entry], "RegisteredDevices": {"a/a": ["y", "x"], "B/b": None}}
    found = parse(json.dumps({"Data": data, "Checksum": fnv1a(said.encode())}).encode())
    assert found.registered == (Registered("B/b", ()), Registered("a/a", ("x", "y")))
    assert len(found.allocations) == 1


@pytest.mark.parametrize(
    ("content", "hashed"), [(b"", 0x811C9DC5), (b"a", 0xE40C292C), (b"foobar", 0xBF9CF968)]
)  # the test vectors of FNV's authors
def test_the_hash_is_fnv_1a(content: bytes, hashed: int) -> None:
    assert fnv1a(content) == hashed


# Unread is never empty


@pytest.mark.parametrize("content", [b"", b"{", BY_NUMA_NODE[:-1], BY_NUMA_NODE[:100], b"\xff\xfe", b"[" * 9000])
def test_unread_is_not_empty_half_a_checkpoint_gives_no_word(content: bytes) -> None:
    assert why(content) == f"kubelet_internal_checkpoint: it is not JSON ({len(content)} bytes): half written?"


@pytest.mark.parametrize(
    "content",
    [
        b"null",
        b"[]",
        b"7",
        b'"text"',
        b"{}",
        b'{"Data":{}}',
        b'{"Data":null,"Checksum":1}',
        b'{"Data":{"PodDeviceEntries":7,"RegisteredDevices":{}},"Checksum":1}',
        b'{"Data":{"PodDeviceEntries":[7],"RegisteredDevices":{}},"Checksum":1}',
        b'{"Data":{"PodDeviceEntries":[],"RegisteredDevices":[]},"Checksum":1}',
        b'{"Data":{"PodDeviceEntries":[],"RegisteredDevices":{"a/b":"x"}},"Checksum":1}',
        b'{"Data":{"PodDeviceEntries":[],"RegisteredDevices":{"a/b":[7]}},"Checksum":1}',
        changed(BY_NUMA_NODE, PodUID=7),
        changed(BY_NUMA_NODE, DeviceIDs="kvm7"),
        changed(BY_NUMA_NODE, DeviceIDs={"zero": []}),
        changed(BY_NUMA_NODE, AllocResp="not base64!"),
        changed(BY_NUMA_NODE, AllocResp=7),
    ],
)
def test_unread_is_not_empty_another_form_gives_no_word(content: bytes) -> None:
    assert why(content).startswith("kubelet_internal_checkpoint: it is of a form that is not known (")


def test_unread_is_not_empty_entries_of_both_forms_give_no_word() -> None:
    assert why(changed(BY_NUMA_NODE, DeviceIDs=["kvm7"])) == (
        "kubelet_internal_checkpoint: its entries are of both forms"
    )  # fmt: skip


@pytest.mark.parametrize("content", [EMPTY, NULL, BY_NUMA_NODE, LISTED])
def test_unread_is_not_empty_another_checksum_gives_no_word(content: bytes) -> None:
    tree = json.loads(content)
    right = tree["Checksum"]
    wrongs: tuple[Any, ...] = (right - 1, 0, None, "text", [], True, str(right))
    for wrong in wrongs:
        tree["Checksum"] = wrong
        said = why(json.dumps(tree).encode())
        assert f"its checksum is {wrong}, and its content has {right}" in said


@pytest.mark.parametrize(
    "fields",
    [
        {"PodUID": "another"},
        {"ContainerName": "another"},
        {"ResourceName": "another.io/x"},
        {"DeviceIDs": {"0": ["kvm7"]}},
        {"DeviceIDs": {"1": ["kvm7", "kvm12"]}},
        {"AllocResp": None},
        {"AllocResp": "GgIKAQ=="},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_a_checkpoint_that_was_changed_by_hand_gives_no_word(fields: dict[str, Any]) -> None:
    assert "it was changed, or is of a kubelet that is not known" in why(changed(BY_NUMA_NODE, **fields))


def test_names_that_cannot_be_printed_are_escaped() -> None:
    odd = sealed(changed(BY_NUMA_NODE, ContainerName="a\x1b[2J", DeviceIDs={"0": ["\ud800"]}))
    (entry, _) = parse(odd).allocations
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
def test_whatever_the_bytes_there_is_a_checkpoint_or_a_reason(content: bytes) -> None:
    try:
        found: DeviceCheckpoint | str = parse(content)
    except SourceError as error:
        found = str(error)
    if isinstance(found, str):
        assert found.startswith("kubelet_internal_checkpoint: ")
        assert found.isprintable()
    else:
        assert json.loads(content)["Checksum"] in range(2**32)
