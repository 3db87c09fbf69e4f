"""libcni's cache: both formats, both directories, ranges in every format, and every kind of damage."""

import base64
import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.model.index import of_nobody
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
    assert isinstance(result, CniResult)
    return result


def ranges(content: bytes) -> list[list[str]]:
    return [[str(one) for one in several] for several in parsed(content).ranges]


SUBNET = {"subnet": "10.244.1.0/24"}


def test_a_result_of_libcni_0_8_has_the_pod_ranges_and_path() -> None:
    result = parsed(cached({"type": "host-local", "dataDir": "/run/ips", **SUBNET}))
    assert (result.pod, result.data_dir, result.ifname, result.mtime_ns) == ("shop/web-0", "/run/ips", "eth0", 5)
    assert usable(result.ranges) == 253


POD = {"name": "eth0", "sandbox": "/var/run/netns/cni-1"}


def test_the_namespace_of_the_sandbox_is_read_where_it_was_mounted() -> None:
    for content, namespace in (
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
    ):
        assert parsed(content).namespace == namespace, content


PORTMAP = {"type": "portmap", "capabilities": {"portMappings": True}}


def test_forwarded_host_ports_are_those_that_a_plugin_gets() -> None:
    for plugin, ports, expected in (
        (PORTMAP, [{"hostPort": 8080, "containerPort": 80, "protocol": "TCP"}], ["8080/tcp"]),
        (PORTMAP, [{"hostPort": 53, "protocol": "udp"}], ["53/udp"]),
        (PORTMAP, [{"hostPort": 8080}], ["8080/tcp"]),
        (PORTMAP, [{"hostPort": 0}], []),
        (PORTMAP, [{"hostPort": "8080"}, {"hostPort": True}, {}], []),
        (PORTMAP, 7, []),
        ({"type": "portmap"}, [{"hostPort": 8080}], []),
        ({"type": "portmap", "capabilities": ["portMappings"]}, [{"hostPort": 8080}], []),
        ({"type": "portmap", "capabilities": None}, [{"hostPort": 8080}], []),
    ):
        config = {"name": "kubenet", "plugins": [{"type": "bridge", "ipam": SUBNET}, plugin]}
        content = cached(None, config=config, capabilityArgs={"portMappings": ports})
        assert list(map(str, parsed(content).port_mappings)) == expected, ports


def test_calicos_configuration_has_the_pod_cidr_in_place_of_a_range() -> None:
    for ipam in ({"subnet": "usePodCidr"}, {"ranges": [[{"subnet": "usePodCidr"}]]}):
        assert parsed(cached(ipam)).uses_pod_cidr
    assert not parsed(cached(SUBNET)).uses_pod_cidr


def test_a_result_of_libcni_0_7_has_ranges_and_no_pod() -> None:
    result = parsed(json.dumps(RESULT_02).encode())
    assert (result.pod, result.data_dir) == (None, "")
    assert ranges(json.dumps(RESULT_02).encode()) == [["10.244.1.1-10.244.1.254"]]


def test_ranges_are_read_in_every_format() -> None:
    for ipam, expected in (
        (SUBNET, [["10.244.1.1-10.244.1.254"]]),
        ({"ranges": [[SUBNET]]}, [["10.244.1.1-10.244.1.254"]]),
        ({"ranges": [[SUBNET, {"subnet": "10.9.0.0/28"}]]}, [["10.244.1.1-10.244.1.254", "10.9.0.1-10.9.0.14"]]),
        ({"ranges": [[SUBNET], [{"subnet": "fd00::/120"}]]}, [["10.244.1.1-10.244.1.254"], ["fd00::1-fd00::ff"]]),
        ({**SUBNET, "ranges": [[{"subnet": "fd00::/120"}]]}, [["10.244.1.1-10.244.1.254"], ["fd00::1-fd00::ff"]]),
        ({**SUBNET, "rangeStart": "10.244.1.10", "rangeEnd": "10.244.1.20"}, [["10.244.1.10-10.244.1.20"]]),
        ({**SUBNET, "rangeStart": "10.244.1.10"}, [["10.244.1.10-10.244.1.254"]]),
        ({**SUBNET, "rangeEnd": "10.244.1.20"}, [["10.244.1.1-10.244.1.20"]]),
        ({"subnet": "10.244.1.77/24"}, [["10.244.1.1-10.244.1.254"]]),
    ):
        assert ranges(cached(ipam)) == expected, ipam


def test_the_gateway_is_not_allocated() -> None:
    for gateway, count in (("", 253), ("10.244.1.254", 253), ("10.9.9.9", 254)):
        assert usable(parsed(cached({**SUBNET, "gateway": gateway})).ranges) == count


def test_the_plugin_with_ipam_is_found_in_a_list() -> None:
    listed = {"name": "kubenet", "plugins": [{"type": "bandwidth"}, {"type": "bridge", "ipam": SUBNET}]}
    assert ranges(cached(None, config=listed)) == [["10.244.1.1-10.244.1.254"]]
    assert parsed(cached(None, config=listed)).plugin == "bridge"


def test_without_ranges_the_addresses_of_the_result_are_used() -> None:
    for ipam in (
        {}, None, {"type": "dhcp"}, {"ranges": [[{"subnet": "nonsense"}]]}, {"ranges": 7},
        {**SUBNET, "rangeStart": "10.244.1.20", "rangeEnd": "10.244.1.10"}, {**SUBNET, "rangeStart": "fd00::9"},
        {**SUBNET, "rangeEnd": "10.250.0.1"}, {"subnet": "10.244.1.0/31"},
    ):  # fmt: skip
        expected = [["10.244.1.1-10.244.1.254"], ["fd00:10::1-fd00:10::ffff:ffff:ffff:ffff"]]
        assert ranges(cached(ipam)) == expected, ipam


def test_damaged_arguments_lose_only_the_pod_and_a_damaged_configuration_only_the_ranges() -> None:
    for arguments in (None, [], "K8S_POD_NAME=web", [["K8S_POD_NAME", "web"]], [["a", "b", "c"]], 7):
        assert parsed(cached(SUBNET, cniArgs=arguments)).pod == ""
    configs: tuple[object, ...] = (None, "", "%%%", "eyJ", 7, [], base64.b64encode(b"[]").decode(), "ünicode")
    for config in configs:
        tree = {**json.loads(cached(SUBNET)), "config": config, "result": None}
        result = parsed(json.dumps(tree).encode())
        assert (result.ranges, result.pod) == ((), "shop/web-0"), config


def test_other_files_are_no_result_of_the_sandbox() -> None:
    for content in (
        b"", b"{", b"[]", b"null", b"7", b"\xff", cached(SUBNET)[:-9], b"[" * 99999,
        cached(SUBNET, containerId="f" * 64), cached(SUBNET, network="cbr0"),
    ):  # fmt: skip
        assert not isinstance(parse_result(content, "kubenet", ID, "eth0", 5), CniResult)


leaves = st.none() | st.booleans() | st.integers() | st.sampled_from(["::/0", "10.0.0.9", "fd00::9", "", "x"])
subnets = st.sampled_from(["10.0.0.0/24", "fd00::/64", "10.0.0.0/31"])
ipams = st.fixed_dictionaries(
    {"subnet": subnets | leaves},
    optional={"rangeStart": leaves, "rangeEnd": leaves, "gateway": leaves, "ranges": leaves | st.lists(leaves)},
)


@given(ipam=ipams)
def test_any_configuration_is_parsed_and_its_ranges_are_ordered(ipam: object) -> None:
    for ranges in parsed(cached(ipam, result=None)).ranges:
        for one in ranges:
            assert one.first.version == one.last.version
            assert int(one.first) <= int(one.last)
            assert one.usable >= 0


def name(network: str = "kubenet", container_id: str = ID, ifname: str = "eth0") -> str:
    return f"{network}-{container_id}-{ifname}"


def test_both_directories_are_read_for_every_network_but_the_loopback(tmp_path: Path) -> None:
    old, new = tmp_path / "results", tmp_path / "cache"
    old.mkdir()
    new.mkdir()
    (old / name(container_id="a" * 64)).write_text(json.dumps(RESULT_02))
    (new / name()).write_bytes(cached(SUBNET))
    (new / name("cni-loopback", ifname="lo")).write_bytes(cached(SUBNET, network="cni-loopback"))
    (new / name("k8s-pod-network", "b" * 64)).write_bytes(
        cached(SUBNET, network="k8s-pod-network", containerId="b" * 64)
    )
    (new / "cni-loopback").write_text("{}")
    found = {(result.network, result.container_id) for result in CniResults([old, new]).read()}
    assert found == {("kubenet", "a" * 64), ("kubenet", ID), ("k8s-pod-network", "b" * 64)}


def test_a_plugin_that_calls_other_networks_says_nothing_of_the_address() -> None:
    for key in ("delegates", "clusterNetwork"):
        config = {"name": "kubenet", "plugins": [{"type": "multus", key: [{"type": "bridge"}]}]}
        assert parse_result(cached(None, config=config), "kubenet", ID, "eth0", 5) is None


def test_a_directory_that_cannot_be_read_is_unavailable_and_one_may_be_missing(open_dir: Path) -> None:
    why = f"none of these exists: {open_dir}/a, {open_dir}/b"
    with pytest.raises(SourceError, match=why):
        CniResults([open_dir / "a", open_dir / "b"]).read()
    assert CniResults([open_dir / "a", open_dir]).read() == ()
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


def test_the_namespace_of_a_pod_with_the_longest_annotations_is_not_of_nobody(tmp_path: Path) -> None:
    """CRI-O hands all of them to the plugins, and Go escapes each `<` to six bytes."""
    args = {"cni": {"io.kubernetes.cri-o.Annotations": ""}}
    empty = cached(SUBNET, result={"interfaces": [POD]}, cniArgs=ARGUMENTS, capabilityArgs=args)
    annotations = "\\u003c" * ((1_361_000 - len(empty)) // 6)
    (tmp_path / name()).write_bytes(empty.replace(b'Annotations": "', b'Annotations": "' + annotations.encode()))
    assert 1_360_990 < (tmp_path / name()).stat().st_size <= 1_361_000
    cache = CniResults([tmp_path])
    assert of_nobody(cache.read(), ["/run/netns/cni-1"], docker_runs=False) == ""
    assert cache.damaged == ()


def test_files_without_a_result_are_told_apart_from_missing_ones(tmp_path: Path) -> None:
    (tmp_path / name(container_id="a" * 64)).write_bytes(b"")
    (tmp_path / name(container_id="b" * 64)).write_bytes(cached(SUBNET)[:50])
    (tmp_path / name(container_id="c" * 64)).write_bytes(cached(SUBNET))
    (tmp_path / name(container_id="d" * 64)).write_bytes(b" " * ((4 << 20) + 1))
    (tmp_path / name("cni-loopback", ifname="lo")).write_bytes(b"")
    (tmp_path / name()).write_bytes(cached(SUBNET))
    cache = CniResults([tmp_path])
    for _ in range(2):
        assert [result.container_id for result in cache.read()] == [ID], "a damaged file costs that result"
        assert {result.file: result.damage.value for result in cache.damaged} == {
            name(container_id="a" * 64): "it is empty",
            name(container_id="b" * 64): "its JSON is malformed",
            name(container_id="d" * 64): "it is too large",
        }
    (tmp_path / name(container_id="b" * 64)).write_bytes(cached(SUBNET, containerId="b" * 64))
    assert len(cache.read()) == 2, "it was being written"


def test_a_reading_that_fails_keeps_no_damage_of_the_one_before(tmp_path: Path) -> None:
    directory = tmp_path / "results"
    directory.mkdir()
    (directory / name()).touch()
    cache = CniResults([directory])
    cache.read()
    before = cache.damaged
    (directory / name()).unlink()
    directory.rmdir()
    with pytest.raises(SourceError):
        cache.read()
    assert (len(before), len(cache.damaged)) == (1, 0)


IPV6_ONLY = {"cniVersion": "0.2.0", "ip6": {"ip": "fd00:10::7/64"}}
LOOPBACK = {"cniVersion": "0.4.0", "ips": [{"version": "4", "address": "127.0.0.1/8"}, {"address": "::1/128"}]}


def promised(ip: str = "10.244.1.7", network: str = "kubenet", ifname: str = "eth0") -> Reservation:
    return Reservation(network, ip, ID, ifname, 1, 70, 0)


def test_a_sandbox_has_results_of_its_interface_and_loopback() -> None:
    for reservation, names in (
        (promised(), [("kubenet", "eth0"), ("kubenet-loopback", "lo")]),
        (promised(ifname=""), [("kubenet", "eth0"), ("kubenet-loopback", "lo")]),
        (promised(network="cbr0"), [("cbr0", "eth0"), ("cni-loopback", "lo")]),
        (promised(network="net-1", ifname="net1"), [("net-1", "net1"), ("cni-loopback", "lo")]),
    ):
        expected = tuple((f"{network}-{ID}-{ifname}", network, ifname) for network, ifname in names)
        assert names_of(reservation) == expected


def test_a_result_belongs_to_the_sandbox_in_its_content() -> None:
    for content, ip, network, ifname in (
        (cached({}), "10.244.1.7", "kubenet", "eth0"),
        (cached({}, ifName="lo", network="kubenet-loopback"), "10.244.1.7", "kubenet-loopback", "lo"),
        (json.dumps(RESULT_02).encode(), "10.244.1.7", "kubenet", "eth0"),
        (json.dumps(RESULT_04).encode(), "10.244.1.7", "kubenet", "eth0"),
        (json.dumps(RESULT_04).encode(), "fd00:10::7", "kubenet", "eth0"),
        (json.dumps(IPV6_ONLY).encode(), "fd00:10::7", "kubenet", "eth0"),
        (json.dumps(LOOPBACK).encode(), "10.244.1.7", "kubenet-loopback", "lo"),
    ):
        assert belongs(content, promised(ip), network, ifname), content


def test_a_result_naming_another_or_no_sandbox_is_not_removed_with_it() -> None:
    for content, ip, network, ifname in (
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
    ):
        assert not belongs(content, promised(ip), network, ifname), content
    for content in (
        b'{"ips": null}', b'{"ips": [{}]}', b'{"ip4": "10.244.1.7/24"}', b"", b"\xff", b"[" * 100_000, b"[]", b"7",
        b'{"ips": [{"address": "10.244.1.7/24"}, {"address": "10.244.1.300/24"}]}',
    ):  # fmt: skip
        assert not belongs(content, promised(), "kubenet", "eth0"), content
