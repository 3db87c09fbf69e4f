"""libcni's cache: both formats, both directories, ranges in every format, and every kind of damage."""

import base64
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.model.ranges import usable
from agent.model.snapshot import CniResult, Reservation
from agent.sources.host.cni_cache import CniResults, belongs, names_of, parse_result
from agent.sources.source_error import SourceError
from tests.wire import ID, as_nobody

RESULT_02 = {"cniVersion": "0.2.0", "ip4": {"ip": "10.244.1.7/24", "gateway": "10.244.1.1"}, "dns": {}}
RESULT_04 = {
    "cniVersion": "0.4.0",
    "interfaces": [{"name": "cbr0"}, {"name": "eth0", "sandbox": "/proc/7/ns/net"}],
    "ips": [
        {"version": "4", "interface": 1, "address": "10.244.1.7/24", "gateway": "10.244.1.1"},
        {"version": "6", "interface": 1, "address": "fd00:10::7/64"},
    ],
}
ARGUMENTS = [
    ["IgnoreUnknown", "1"],
    ["K8S_POD_NAMESPACE", "shop"],
    ["K8S_POD_NAME", "web-0"],
    ["K8S_POD_INFRA_CONTAINER_ID", ID],
]


def cached(ipam: object, *, network: str = "kubenet", config: object = None, **more: object) -> bytes:
    """Write what libcni >= 0.8 writes."""
    plain = {"cniVersion": "0.4.0", "name": network, "type": "bridge", "ipam": ipam}
    return json.dumps(
        {
            "kind": "cniCacheV1",
            "containerId": ID,
            "config": base64.b64encode(json.dumps(config or plain).encode()).decode(),
            "ifName": "eth0",
            "networkName": network,
            "cniArgs": ARGUMENTS,
            "result": RESULT_04,
            **more,
        }
    ).encode()


def parsed(content: bytes) -> CniResult:
    result = parse_result(content, "kubenet", ID, "eth0", 5)
    assert result is not None
    return result


def ranges(content: bytes) -> list[list[str]]:
    return [[str(one) for one in several] for several in parsed(content).ranges]


SUBNET = {"subnet": "10.244.1.0/24"}


def test_a_result_of_libcni_0_8_has_the_pod_ranges_and_path() -> None:
    result = parsed(cached({"type": "host-local", "dataDir": "/run/ips", **SUBNET}))
    assert (result.pod, result.data_dir, result.ifname, result.mtime_ns) == ("shop/web-0", "/run/ips", "eth0", 5)
    assert usable(result.ranges) == 253


POD = {"name": "eth0", "sandbox": "/var/run/netns/cni-1"}


@pytest.mark.parametrize(
    ("content", "namespace"),
    [
        (cached(SUBNET), ""),
        (cached(SUBNET, result={"interfaces": [{"name": "cni0"}, POD]}), "/var/run/netns/cni-1"),
        (json.dumps({"cniVersion": "0.4.0", "interfaces": [{"name": "cni0"}, POD]}).encode(), "/var/run/netns/cni-1"),
        (cached(SUBNET, result=RESULT_02, netns="/run/netns/cni-2"), "/run/netns/cni-2"),
        (cached(SUBNET, result=RESULT_02, netns="/proc/7/ns/net"), ""),
        (cached(SUBNET, result={"interfaces": [POD]}, netns="/run/netns/cni-2"), "/var/run/netns/cni-1"),
        (cached(SUBNET, result={"interfaces": [{"sandbox": 7}, "eth0"]}), ""),
        (cached(SUBNET, result={"interfaces": [{"sandbox": "VirtualBox"}]}, netns=["/run"]), ""),
        (cached(SUBNET, result={"interfaces": 7}), ""),
        (cached(SUBNET, result=None), ""),
    ],
)
def test_the_namespace_of_the_sandbox_is_read_where_it_was_mounted(content: bytes, namespace: str) -> None:
    assert parsed(content).namespace == namespace


PORTMAP = {"type": "portmap", "capabilities": {"portMappings": True}}
MAPPED = {"capabilityArgs": {"portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "TCP"}]}}


@pytest.mark.parametrize(
    ("plugin", "more", "expected"),
    [
        (PORTMAP, MAPPED, ["8080/tcp"]),
        (PORTMAP, {"capabilityArgs": {"portMappings": [{"hostPort": 53, "protocol": "udp"}]}}, ["53/udp"]),
        (PORTMAP, {"capabilityArgs": {"portMappings": [{"hostPort": 0}]}}, []),
        (PORTMAP, {"capabilityArgs": {"portMappings": [{"hostPort": 8080}]}}, ["8080/tcp"]),
        (PORTMAP, {"capabilityArgs": {"portMappings": [{"hostPort": "8080"}, {"hostPort": True}, {}]}}, []),
        (PORTMAP, {"capabilityArgs": {"portMappings": 7}}, []),
        (PORTMAP, {"capabilityArgs": [7]}, []),
        (PORTMAP, {}, []),
        ({"type": "portmap"}, MAPPED, []),
        ({"type": "portmap", "capabilities": ["portMappings"]}, MAPPED, []),
        ({"type": "portmap", "capabilities": None}, MAPPED, []),
    ],
    ids=[
        "one", "udp", "no host port", "without a protocol", "no ports", "no list", "no object", "none",
        "no capability", "a list of capabilities", "no capabilities",
    ],
)  # fmt: skip
def test_forwarded_host_ports_are_those_that_a_plugin_gets(plugin: object, more: Any, expected: list[str]) -> None:
    config = {"name": "kubenet", "plugins": [{"type": "bridge", "ipam": SUBNET}, plugin]}
    assert list(map(str, parsed(cached(None, config=config, **more)).port_mappings)) == expected


@pytest.mark.parametrize("ipam", [{"subnet": "usePodCidr"}, {"ranges": [[{"subnet": "usePodCidr"}]]}])
def test_calicos_configuration_has_the_pod_cidr_in_place_of_a_range(ipam: dict[str, Any]) -> None:
    assert parsed(cached(ipam)).uses_pod_cidr
    assert not parsed(cached(SUBNET)).uses_pod_cidr


def test_a_result_of_libcni_0_7_has_ranges_and_no_pod() -> None:
    result = parsed(json.dumps(RESULT_02).encode())
    assert (result.pod, result.data_dir) == ("", "")
    assert ranges(json.dumps(RESULT_02).encode()) == [["10.244.1.1-10.244.1.254"]]


@pytest.mark.parametrize(
    ("ipam", "expected"),
    [
        (SUBNET, [["10.244.1.1-10.244.1.254"]]),
        ({"ranges": [[SUBNET]]}, [["10.244.1.1-10.244.1.254"]]),
        ({"ranges": [[SUBNET, {"subnet": "10.9.0.0/28"}]]}, [["10.244.1.1-10.244.1.254", "10.9.0.1-10.9.0.14"]]),
        (
            {"ranges": [[SUBNET], [{"subnet": "fd00::/120"}]]},
            [["10.244.1.1-10.244.1.254"], ["fd00::1-fd00::ff"]],
        ),
        ({**SUBNET, "ranges": [[{"subnet": "fd00::/120"}]]}, [["10.244.1.1-10.244.1.254"], ["fd00::1-fd00::ff"]]),
        ({**SUBNET, "rangeStart": "10.244.1.10", "rangeEnd": "10.244.1.20"}, [["10.244.1.10-10.244.1.20"]]),
        ({**SUBNET, "rangeStart": "10.244.1.10"}, [["10.244.1.10-10.244.1.254"]]),
        ({**SUBNET, "rangeEnd": "10.244.1.20"}, [["10.244.1.1-10.244.1.20"]]),
        ({"subnet": "10.244.1.77/24"}, [["10.244.1.1-10.244.1.254"]]),
    ],
    ids=[
        "kubenet's", "a set", "two ranges of one set", "dual stack", "old and new", "first and last", "first", "last",
        "an address with its mask",
    ],
)  # fmt: skip
def test_ranges_are_read_in_every_format(ipam: object, expected: list[list[str]]) -> None:
    assert ranges(cached(ipam)) == expected


@pytest.mark.parametrize(
    ("more", "count"),
    [
        ({}, 253),
        ({"gateway": "10.244.1.254"}, 253),
        ({"gateway": "10.9.9.9"}, 254),
        ({"rangeStart": "10.244.1.2"}, 253),
    ],
)
def test_the_gateway_is_not_allocated(more: dict[str, str], count: int) -> None:
    assert usable(parsed(cached({**SUBNET, **more})).ranges) == count


def test_the_plugin_with_ipam_is_found_in_a_list() -> None:
    listed = {"name": "kubenet", "plugins": [{"type": "bandwidth"}, {"type": "bridge", "ipam": SUBNET}]}
    assert ranges(cached(None, config=listed)) == [["10.244.1.1-10.244.1.254"]]
    assert parsed(cached(None, config=listed)).plugin == "bridge"


@pytest.mark.parametrize(
    "ipam",
    [
        {}, None, {"type": "dhcp"}, {"ranges": [[{"subnet": "nonsense"}]]}, {"ranges": 7},
        {**SUBNET, "rangeStart": "10.244.1.20", "rangeEnd": "10.244.1.10"}, {**SUBNET, "rangeStart": "fd00::9"},
        {**SUBNET, "rangeEnd": "10.250.0.1"}, {"subnet": "10.244.1.0/31"},
    ],
)  # fmt: skip
def test_without_ranges_the_addresses_of_the_result_are_used(ipam: object) -> None:
    expected = [["10.244.1.1-10.244.1.254"], ["fd00:10::1-fd00:10::ffff:ffff:ffff:ffff"]]
    assert ranges(cached(ipam)) == expected


@pytest.mark.parametrize(
    "more",
    [
        {"cniArgs": None}, {"cniArgs": []}, {"cniArgs": "K8S_POD_NAME=web"}, {"cniArgs": [["K8S_POD_NAME", "web"]]},
        {"cniArgs": [["a", "b", "c"]]}, {"cniArgs": 7},
    ],
)  # fmt: skip
def test_without_arguments_there_is_no_pod_name(more: dict[str, Any]) -> None:
    assert parsed(cached(SUBNET, **more)).pod == ""


@pytest.mark.parametrize("config", [None, "", "%%%", "eyJ", 7, [], base64.b64encode(b"[]").decode(), "ünicode"])
def test_a_damaged_configuration_loses_only_the_ranges(config: object) -> None:
    tree = {**json.loads(cached(SUBNET)), "config": config, "result": None}
    assert (parsed(json.dumps(tree).encode()).ranges, parsed(json.dumps(tree).encode()).pod) == ((), "shop/web-0")


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b"7", b"\xff", cached(SUBNET)[:-9], b"[" * 99999])
def test_other_files_are_no_cached_result(content: bytes) -> None:
    assert parse_result(content, "kubenet", ID, "eth0", 5) is None


def test_a_file_whose_content_names_another_sandbox_is_ignored() -> None:
    assert parse_result(cached(SUBNET), "kubenet", "f" * 64, "eth0", 5) is None
    assert parse_result(cached(SUBNET, network="cbr0"), "kubenet", ID, "eth0", 5) is None


fields = st.sampled_from(
    ["kind", "networkName", "containerId", "config", "cniArgs", "result", "ips", "ip4", "ip", "address", "gateway",
     "ifName", "interfaces"]
)  # fmt: skip
leaves = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(["cniCacheV1", "kubenet", ID, "::/0"])
)
trees = st.recursive(leaves, lambda one: st.lists(one, max_size=3) | st.dictionaries(fields, one, max_size=6))


@given(tree=trees)
def test_parsing_any_json_never_raises(tree: object) -> None:
    result = parse_result(json.dumps(tree).encode(), "kubenet", ID, "eth0", 5)
    assert result is None or result.container_id == ID


addresses = st.sampled_from(["10.0.0.0/24", "10.0.0.9", "fd00::/64", "fd00::9", "10.0.0.0/31", "", "x"])
ipams = st.fixed_dictionaries(
    {"subnet": addresses},
    optional={"rangeStart": addresses | leaves, "rangeEnd": addresses, "gateway": addresses, "ranges": leaves | trees},
)


@given(ipam=ipams)
def test_parsing_any_configuration_never_raises_and_ranges_are_ordered(ipam: object) -> None:
    for several in parsed(cached(ipam, result=None)).ranges:
        for one in several:
            assert one.first.version == one.last.version
            assert int(one.first) <= int(one.last)
            assert one.usable >= 0


@given(content=st.binary(max_size=300))
def test_parsing_any_bytes_never_raises(content: bytes) -> None:
    assert parse_result(content, "kubenet", ID, "eth0", 5) is None or content


def name(network: str = "kubenet", container_id: str = ID, ifname: str = "eth0") -> str:
    return f"{network}-{container_id}-{ifname}"


def test_both_directories_are_read_for_every_network_but_the_loopback(tmp_path: Path) -> None:
    old, new = tmp_path / "results", tmp_path / "cache"
    old.mkdir()
    new.mkdir()
    (old / name(container_id="a" * 64)).write_text(json.dumps(RESULT_02))
    (new / name()).write_bytes(cached(SUBNET))
    (new / name("cni-loopback", ifname="lo")).write_bytes(cached(SUBNET, network="cni-loopback"))
    (new / name("other", "b" * 64)).write_bytes(cached(SUBNET, network="other", containerId="b" * 64))
    (new / "cni-loopback").write_text("{}")
    assert {one.container_id for one in CniResults([old, new]).read()} == {"a" * 64, "b" * 64, ID}


@pytest.mark.parametrize("key", ["delegates", "clusterNetwork"])
def test_a_plugin_that_calls_other_networks_says_nothing_of_the_address(key: str) -> None:
    config = {"name": "multus-cni-network", "plugins": [{"type": "multus", key: [{"type": "bridge"}]}]}
    content = cached(None, network="multus-cni-network", config=config)
    assert parse_result(content, "multus-cni-network", ID, "eth0", 5) is None


def test_a_network_name_may_contain_dashes(tmp_path: Path) -> None:
    (tmp_path / name("k8s-pod-network", ifname="eth0")).write_bytes(cached(SUBNET, network="k8s-pod-network"))
    (result,) = CniResults([tmp_path]).read()
    assert result.network == "k8s-pod-network"


def test_without_any_directory_the_cache_is_unavailable(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=f"none of these exists: {tmp_path}/a, {tmp_path}/b"):
        CniResults([tmp_path / "a", tmp_path / "b"]).read()


def test_an_unreadable_directory_is_unavailable(open_dir: Path) -> None:
    closed = open_dir / "results"
    closed.mkdir(0o000)
    with as_nobody(), pytest.raises(SourceError, match=f"cannot read {closed}: permission denied"):
        CniResults([open_dir, closed]).read()


def test_an_unreadable_file_may_name_a_mounted_namespace(open_dir: Path) -> None:
    path, cache = open_dir / name(), CniResults([open_dir])
    path.write_bytes(cached(SUBNET))
    path.chmod(0o000)
    with as_nobody(), pytest.raises(SourceError, match=f"cannot read {open_dir}: permission denied"):
        cache.read()
    path.chmod(0o644)
    with as_nobody():
        assert len(cache.read()) == 1


def test_an_entry_that_is_no_file_is_skipped_and_not_followed(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text(json.dumps(RESULT_02))
    (tmp_path / name(container_id="a" * 64)).symlink_to(secret)
    os.mkfifo(tmp_path / name(container_id="b" * 64))
    (tmp_path / name(container_id="c" * 64)).mkdir()
    assert CniResults([tmp_path]).read() == ()


def test_a_file_is_parsed_once_until_it_changes(tmp_path: Path) -> None:
    path, cache = tmp_path / name(), CniResults([tmp_path])
    path.write_bytes(cached(SUBNET))
    first = cache.read()
    assert cache.read()[0] is first[0]
    path.write_bytes(cached({"subnet": "10.250.0.0/16"}))
    (changed,) = cache.read()
    assert str(changed.ranges[0][0]) == "10.250.0.1-10.250.255.254"
    path.unlink()
    assert cache.read() == ()


def test_files_without_a_result_are_told_apart_from_missing_ones(tmp_path: Path) -> None:
    (tmp_path / name(container_id="a" * 64)).write_bytes(b"")
    (tmp_path / name(container_id="b" * 64)).write_bytes(cached(SUBNET)[:50])
    (tmp_path / name(container_id="c" * 64)).write_bytes(cached(SUBNET))
    (tmp_path / name("cni-loopback", ifname="lo")).write_bytes(b"")
    cache = CniResults([tmp_path])
    assert cache.read() == ()
    assert {one.file: one.damage.value for one in cache.damaged} == {
        name(container_id="a" * 64): "it is empty",
        name(container_id="b" * 64): "its JSON is malformed",
    }


def test_a_reading_that_fails_keeps_no_damage_of_the_one_before(tmp_path: Path) -> None:
    directory = tmp_path / "results"
    directory.mkdir()
    (directory / name()).write_bytes(b"")
    cache = CniResults([directory])
    assert cache.read() == ()
    before = cache.damaged
    (directory / name()).unlink()
    directory.rmdir()
    with pytest.raises(SourceError):
        cache.read()
    assert (len(before), len(cache.damaged)) == (1, 0)


def test_a_partly_written_file_is_read_when_complete(tmp_path: Path) -> None:
    path, cache = tmp_path / name(), CniResults([tmp_path])
    path.write_bytes(cached(SUBNET)[:50])
    assert cache.read() == ()
    path.write_bytes(cached(SUBNET))
    assert len(cache.read()) == 1


IPV6_ONLY = {"cniVersion": "0.2.0", "ip6": {"ip": "fd00:10::7/64"}}
LOOPBACK = {"cniVersion": "0.4.0", "ips": [{"version": "4", "address": "127.0.0.1/8"}, {"address": "::1/128"}]}


def promised(ip: str = "10.244.1.7", network: str = "kubenet", ifname: str = "eth0") -> Reservation:
    return Reservation(network, ip, ID, ifname, 1, 70, 0)


@pytest.mark.parametrize(
    ("reservation", "names"),
    [
        (promised(), [("kubenet", "eth0"), ("kubenet-loopback", "lo")]),
        (promised(ifname=""), [("kubenet", "eth0"), ("kubenet-loopback", "lo")]),
        (promised(network="cbr0"), [("cbr0", "eth0"), ("cni-loopback", "lo")]),
        (promised(network="net-1", ifname="net1"), [("net-1", "net1"), ("cni-loopback", "lo")]),
    ],
)
def test_a_sandbox_has_results_of_its_interface_and_loopback(
    reservation: Reservation, names: list[tuple[str, str]]
) -> None:
    assert names_of(reservation) == tuple((f"{network}-{ID}-{ifname}", network, ifname) for network, ifname in names)


@pytest.mark.parametrize(
    ("content", "ip", "network", "ifname"),
    [
        (cached({}), "10.244.1.7", "kubenet", "eth0"),
        (cached({}, ifName="lo", network="kubenet-loopback"), "10.244.1.7", "kubenet-loopback", "lo"),
        (json.dumps(RESULT_02).encode(), "10.244.1.7", "kubenet", "eth0"),
        (json.dumps(RESULT_04).encode(), "10.244.1.7", "kubenet", "eth0"),
        (json.dumps(RESULT_04).encode(), "fd00:10::7", "kubenet", "eth0"),
        (json.dumps(IPV6_ONLY).encode(), "fd00:10::7", "kubenet", "eth0"),
        (json.dumps(LOOPBACK).encode(), "10.244.1.7", "kubenet-loopback", "lo"),
    ],
)
def test_a_result_belongs_to_the_sandbox_in_its_content(content: bytes, ip: str, network: str, ifname: str) -> None:
    assert belongs(content, promised(ip), network, ifname)


@pytest.mark.parametrize(
    ("content", "ip", "network", "ifname"),
    [
        (cached({}, containerId="f" * 64), "10.244.1.7", "kubenet", "eth0"),
        (cached({}, containerId=ID[:12]), "10.244.1.7", "kubenet", "eth0"),
        (cached({}, network="net1"), "10.244.1.7", "kubenet", "eth0"),
        (cached({}, ifName="eth1"), "10.244.1.7", "kubenet", "eth0"),
        (cached({}), "10.244.1.7", "kubenet-loopback", "lo"),
        (json.dumps(RESULT_02).encode(), "10.244.1.70", "kubenet", "eth0"),
        (json.dumps(RESULT_02).encode(), "10.244.1.7", "kubenet-loopback", "lo"),
        (json.dumps(LOOPBACK).encode(), "10.244.1.7", "kubenet", "eth0"),
        # A bare result without an address says nothing of whose it is.
        (b'{"cniVersion": "0.2.0"}', "10.244.1.7", "kubenet-loopback", "lo"),
        (b'{"ips": null}', "10.244.1.7", "kubenet", "eth0"),
        (b'{"ips": [{}]}', "10.244.1.7", "kubenet", "eth0"),
        (b'{"ips": [{"address": "10.244.1.7/24"}, {"address": "10.244.1.300/24"}]}', "10.244.1.7", "kubenet", "eth0"),
        (b'{"ip4": "10.244.1.7/24"}', "10.244.1.7", "kubenet", "eth0"),
        (b"", "10.244.1.7", "kubenet", "eth0"),
        (b"\xff", "10.244.1.7", "kubenet", "eth0"),
        (b"[" * 100_000, "10.244.1.7", "kubenet", "eth0"),
        (b"[]", "10.244.1.7", "kubenet", "eth0"),
        (b"7", "10.244.1.7", "kubenet", "eth0"),
    ],
)
def test_a_result_naming_another_or_no_sandbox_is_ignored(content: bytes, ip: str, network: str, ifname: str) -> None:
    assert not belongs(content, promised(ip), network, ifname)
