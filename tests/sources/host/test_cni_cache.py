"""libcni's cache: both formats, both directories, ranges in every format, and every kind of damage."""

import base64
import json
import os
from pathlib import Path

import pytest

from agent.model.snapshot import CniResult
from agent.sources.source_error import SourceError
from tests.sources.reading import fields_of, value_of
from tests.wire import ID, as_nobody
from tests.wired import read, why_unavailable, wired

RESULT_02 = {
    "cniVersion": "0.2.0",
    "ip4": {"ip": "10.244.1.7/24", "gateway": "10.244.1.1"},
    "dns": {},
}
RESULT_04 = {
    "cniVersion": "0.4.0",
    "interfaces": [{"name": "cbr0"}, {"name": "eth0", "sandbox": "/proc/7/ns/net"}],
    "ips": [
        {"version": "4", "interface": 1, "address": "10.244.1.7/24", "gateway": "10.244.1.1"},
        {"version": "6", "interface": 1, "address": "fd00:10::7/64"},
    ],
}
ARGUMENTS = [["IgnoreUnknown", "1"], ["K8S_POD_NAMESPACE", "shop"], ["K8S_POD_NAME", "web-0"]]


def cached(
    ipam: object, *, network: str = "kubenet", config: object = None, **more: object
) -> bytes:
    """Write what libcni >= 0.8 writes."""
    plain = {"cniVersion": "0.4.0", "name": network, "type": "bridge", "ipam": ipam}
    tree = {
        "kind": "cniCacheV1",
        "containerId": ID,
        "config": base64.b64encode(json.dumps(config or plain).encode()).decode(),
        "ifName": "eth0",
        "networkName": network,
        "cniArgs": ARGUMENTS,
        "result": RESULT_04,
    }
    return json.dumps(tree | more).encode()


SUBNET = {"subnet": "10.244.1.0/24"}
POD = {"name": "eth0", "sandbox": "/var/run/netns/cni-1"}
PORTMAP = {"type": "portmap", "capabilities": {"portMappings": True}}
NO_CAPABILITIES = {"type": "bridge", "capabilities": None}


def file_of(network: str = "kubenet", container_id: str = ID, ifname: str = "eth0") -> str:
    return f"{network}-{container_id}-{ifname}"


class Cache:
    """A directory of the cache, and what is read of it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._sources = wired(cni_cache_dir=directory).snapshot

    def read(self) -> tuple[CniResult, ...]:
        found: tuple[CniResult, ...] = value_of(self._sources, "cni_results")
        return found

    def damage(self) -> dict[str, str]:
        """Return what is wrong with which files of the last reading."""
        return {
            result.file: result.damage.value
            for result in fields_of(self._sources, "cni_results")["damaged_results"]
        }

    def parse(self, content: bytes) -> CniResult:
        """Read a content that is a result."""
        (self.directory / file_of()).write_bytes(content)
        (result,) = read("cni_results", cni_cache_dir=self.directory)
        assert isinstance(result, CniResult)
        return result

    def ranges(self, content: bytes) -> list[list[str]]:
        return [[str(range_) for range_ in ranges] for ranges in self.parse(content).ranges]


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path)


def test_a_result_has_the_pod_ranges_path_and_namespace_and_a_bare_one_only_some(
    cache: Cache,
) -> None:
    result = cache.parse(cached({"type": "host-local", "dataDir": "/run/ips", **SUBNET}))
    assert (result.pod, result.data_dir, result.ifname, result.plugin) == (
        "shop/web-0",
        "/run/ips",
        "eth0",
        "bridge",
    )
    assert result.mtime_ns == (cache.directory / file_of()).stat().st_mtime_ns
    bare = json.dumps(RESULT_02).encode()  # libcni < 0.8
    result = cache.parse(bare)
    assert (result.pod, result.data_dir) == (None, "")
    assert cache.ranges(bare) == [["10.244.1.1-10.244.1.254"]]
    for content, namespace in (
        (cached(SUBNET), ""),
        (cached(SUBNET, result={"interfaces": [{"name": "cni0"}, POD]}), "/var/run/netns/cni-1"),
        (
            json.dumps({"cniVersion": "0.4.0", "interfaces": [{"name": "cni0"}, POD]}).encode(),
            "/var/run/netns/cni-1",
        ),
        (cached(SUBNET, result=RESULT_02, netns="/run/netns/cni-2"), "/run/netns/cni-2"),
        (cached(SUBNET, result=RESULT_02, netns="/proc/7/ns/net"), ""),
        (
            cached(SUBNET, result={"interfaces": [POD]}, netns="/run/netns/cni-2"),
            "/var/run/netns/cni-1",
        ),
        (cached(SUBNET, result={"interfaces": [{"sandbox": 7}, "eth0"]}), ""),
        (cached(SUBNET, result={"interfaces": [{"sandbox": "VirtualBox"}]}, netns=["/run"]), ""),
        (cached(SUBNET, result={"interfaces": 7}), ""),
        (cached(SUBNET, result=None), ""),
    ):
        assert cache.parse(content).namespace == namespace, content
    # CRI-O hands all annotations of a pod to the plugins, and Go escapes each `<` to six bytes.
    args = {"cni": {"io.kubernetes.cri-o.Annotations": ""}}
    empty = cached(SUBNET, result={"interfaces": [POD]}, capabilityArgs=args)
    annotations = b"\\u003c" * ((1_361_000 - len(empty)) // 6)
    content = empty.replace(b'Annotations": "', b'Annotations": "' + annotations)
    assert cache.parse(content).namespace == "/var/run/netns/cni-1", (
        "the longest annotations that there can be"
    )


def test_forwarded_host_ports_are_those_that_a_plugin_gets(cache: Cache) -> None:
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
        assert list(map(str, cache.parse(content).port_mappings)) == expected, ports

    # To Go, null is a plugin without capabilities; the others still have theirs.
    for plugins in ([NO_CAPABILITIES, PORTMAP], [PORTMAP, NO_CAPABILITIES]):
        arguments = {"portMappings": [{"hostPort": 8080}]}
        content = cached(None, config={"plugins": plugins}, capabilityArgs=arguments)
        assert list(map(str, cache.parse(content).port_mappings)) == ["8080/tcp"], plugins


def test_ranges_are_read_in_every_format_and_without_them_the_addresses_of_the_result_are_used(
    cache: Cache,
) -> None:
    for ipam, expected in (
        (SUBNET, [["10.244.1.1-10.244.1.254"]]),
        ({"ranges": [[SUBNET]]}, [["10.244.1.1-10.244.1.254"]]),
        (
            {"ranges": [[SUBNET, {"subnet": "10.9.0.0/28"}]]},
            [["10.244.1.1-10.244.1.254", "10.9.0.1-10.9.0.14"]],
        ),
        (
            {"ranges": [[SUBNET], [{"subnet": "fd00::/120"}]]},
            [["10.244.1.1-10.244.1.254"], ["fd00::1-fd00::ff"]],
        ),
        (
            {**SUBNET, "ranges": [[{"subnet": "fd00::/120"}]]},
            [["10.244.1.1-10.244.1.254"], ["fd00::1-fd00::ff"]],
        ),
        (
            {**SUBNET, "rangeStart": "10.244.1.10", "rangeEnd": "10.244.1.20"},
            [["10.244.1.10-10.244.1.20"]],
        ),
        ({**SUBNET, "rangeStart": "10.244.1.10"}, [["10.244.1.10-10.244.1.254"]]),
        ({**SUBNET, "rangeEnd": "10.244.1.20"}, [["10.244.1.1-10.244.1.20"]]),
        ({"subnet": "10.244.1.77/24"}, [["10.244.1.1-10.244.1.254"]]),
        # Go ignores the case of keys. libcni sorts them, and the last wins.
        (
            {"Ranges": [[{"SUBNET": "10.244.1.0/24", "rangestart": "10.244.1.10"}]]},
            [["10.244.1.10-10.244.1.254"]],
        ),
        (
            {**SUBNET, "rangestart": "10.244.1.9", "RangeStart": "10.244.1.3"},
            [["10.244.1.9-10.244.1.254"]],
        ),
    ):
        assert cache.ranges(cached(ipam)) == expected, ipam
    listed = {
        "name": "kubenet",
        "plugins": [{"type": "bandwidth"}, {"type": "bridge", "ipam": SUBNET}],
    }
    assert cache.ranges(cached(None, config=listed)) == [["10.244.1.1-10.244.1.254"]]
    assert cache.parse(cached(None, config=listed)).plugin == "bridge"
    for gateway, count in (("", 253), ("10.244.1.254", 253), ("10.9.9.9", 254)):
        ((range_,),) = cache.parse(cached({**SUBNET, "gateway": gateway})).ranges
        assert range_.usable == count, "the gateway is not allocated"
    for ipam in ({"subnet": "usePodCidr"}, {"ranges": [[{"subnet": "usePodCidr"}]]}):
        assert cache.parse(cached(ipam)).uses_pod_cidr, (
            "Calico's configuration has it in place of a range"
        )
    assert not cache.parse(cached(SUBNET)).uses_pod_cidr
    for without in (
        {}, None, {"type": "dhcp"}, {"ranges": [[{"subnet": "nonsense"}]]}, {"ranges": 7},
        {**SUBNET, "rangeStart": "10.244.1.20", "rangeEnd": "10.244.1.10"}, {**SUBNET, "rangeStart": "fd00::9"},
        {**SUBNET, "rangeEnd": "10.250.0.1"}, {"subnet": "10.244.1.0/31"},
    ):  # fmt: skip
        expected = [["10.244.1.1-10.244.1.254"], ["fd00:10::1-fd00:10::ffff:ffff:ffff:ffff"]]
        assert cache.ranges(cached(without)) == expected, without


def test_damage_loses_only_what_is_damaged_and_other_files_are_no_result_of_the_sandbox(
    cache: Cache,
) -> None:
    for arguments in (
        None,
        [],
        "K8S_POD_NAME=web",
        [["K8S_POD_NAME", "web"]],
        [["a", "b", "c"]],
        7,
    ):
        assert cache.parse(cached(SUBNET, cniArgs=arguments)).pod == ""
    configs: tuple[object, ...] = (
        None,
        "",
        "%%%",
        "eyJ",
        7,
        [],
        base64.b64encode(b"[]").decode(),
        "ünicode",
    )
    for config in configs:
        tree = {**json.loads(cached(SUBNET)), "config": config, "result": None}
        result = cache.parse(json.dumps(tree).encode())
        assert (result.ranges, result.pod) == ((), "shop/web-0"), config
    # A plugin that calls other networks says nothing of the address.
    for content in (
        b"[]", b"null", b"7", cached(SUBNET, containerId="f" * 64), cached(SUBNET, network="cbr0"),
        *(
            cached(None, config={"name": "kubenet", "plugins": [{"type": "multus", key: [{"type": "bridge"}]}]})
            for key in ("delegates", "clusterNetwork")
        ),
    ):  # fmt: skip
        (cache.directory / file_of()).write_bytes(content)
        assert read("cni_results", cni_cache_dir=cache.directory) == ()


def test_both_directories_are_read_for_every_network_but_the_loopback(tmp_path: Path) -> None:
    old, new = tmp_path / "results", tmp_path / "cache"
    for directory in (old, new):
        directory.mkdir()
    (old / file_of(container_id="a" * 64)).write_text(json.dumps(RESULT_02))
    (new / file_of()).write_bytes(cached(SUBNET))
    (new / file_of("cni-loopback", ifname="lo")).write_bytes(cached(SUBNET, network="cni-loopback"))
    of_another = cached(SUBNET, network="k8s-pod-network", containerId="b" * 64)
    (new / file_of("k8s-pod-network", "b" * 64)).write_bytes(of_another)
    (new / "cni-loopback").write_text("{}")
    found = {
        (result.network, result.container_id)
        for result in read("cni_results", cni_cache_dir=f"{old},{new}")
    }
    assert found == {("kubenet", "a" * 64), ("kubenet", ID), ("k8s-pod-network", "b" * 64)}


def test_networks_and_interfaces_of_any_name_are_told_apart_in_the_name_of_a_file(
    cache: Cache,
) -> None:
    other = "c" * 64
    names = [
        ("storage", ID, "net1"),
        ("storage", ID, "net-1"),
        ("storage", ID, "storage-if"),
        ("storage", ID, "-"),
        ("storage", ID, "a-fifteen-chars"),  # the longest of Linux
        ("k8s-pod-network", ID, "eth0"),
        (f"net-{other}-1", ID, "net-1"),  # a network may be named like this, no interface may
    ]
    for network, container_id, ifname in names:
        path = cache.directory / file_of(network, container_id, ifname)
        path.write_bytes(cached(SUBNET, network=network, ifName=ifname))
        (cache.directory / file_of(network, "a" * 64, ifname)).write_text(json.dumps(RESULT_02))
        (cache.directory / file_of(network, "b" * 64, ifname)).touch()
    found = {(result.network, result.container_id, result.ifname) for result in cache.read()}
    bare = {(network, "a" * 64, ifname) for network, _, ifname in names}
    assert found == {*names, *bare}
    assert {*cache.damage()} == {file_of(name, "b" * 64, ifname) for name, _, ifname in names}
    for no_result in (
        f"storage-{ID}-sixteen-characte",
        f"storage-{ID}",
        f"storage-{ID}-",
        f"-{ID}-a",
    ):
        (cache.directory / no_result).write_text(json.dumps(RESULT_02))
    assert len(cache.read()) == len(found)


def test_what_cannot_be_read_is_unavailable_and_one_directory_may_be_missing(
    open_dir: Path,
) -> None:
    """An unreadable file may name a mounted namespace."""
    why = "none of these exists: /nonexistent/a, /nonexistent/b (check --cni-cache-dir)"
    assert why_unavailable("cni_results", cni_cache_dir="/nonexistent/a,/nonexistent/b") == why
    closed, path = open_dir / "results", open_dir / file_of()
    closed.mkdir(0o000)
    path.write_bytes(cached(SUBNET))
    with as_nobody():
        assert len(read("cni_results", cni_cache_dir=f"/nonexistent/a,{open_dir}")) == 1
        why = f"cannot read {closed}: permission denied (run as root)"
        assert why_unavailable("cni_results", cni_cache_dir=f"{open_dir},{closed}") == why
    path.chmod(0o000)
    with as_nobody():
        why = f"cannot read {open_dir}: permission denied (run as root)"
        assert why_unavailable("cni_results", cni_cache_dir=open_dir) == why


def test_a_file_is_parsed_once_until_it_changes_and_one_without_a_result_told_apart(
    tmp_path: Path,
) -> None:
    cache = Cache(tmp_path / "results")
    cache.directory.mkdir()
    path = cache.directory / file_of()
    path.write_bytes(cached(SUBNET))
    first = cache.read()
    assert cache.read()[0] is first[0]
    path.write_bytes(cached({"subnet": "10.250.0.0/16", "rangeStart": "10.250.0.9"}))
    (changed,) = cache.read()
    assert str(changed.ranges[0][0]) == "10.250.0.9-10.250.255.254"
    path.unlink()
    assert cache.read() == ()
    results = {
        "a": (b"", "it is empty"),
        "b": (cached(SUBNET)[:50], "its JSON is malformed"),
        "c": (b"\xff", "its JSON is malformed"),
        "d": (b" " * ((4 << 20) + 1), "it is too large"),
        "e": (b"[" * 99999, "its JSON is malformed"),
    }
    for digit, (content, _) in results.items():
        (cache.directory / file_of(container_id=digit * 64)).write_bytes(content)
    (cache.directory / file_of("cni-loopback", ifname="lo")).touch()
    path.write_bytes(cached(SUBNET))
    (tmp_path / "secret").write_text(json.dumps(RESULT_02))
    (cache.directory / file_of(container_id="1" * 64)).symlink_to("../secret")
    os.mkfifo(cache.directory / file_of(container_id="2" * 64))
    (cache.directory / file_of(container_id="3" * 64)).mkdir()
    for _ in range(2):
        assert [result.container_id for result in cache.read()] == [ID], (
            "a damaged file costs that result"
        )
        assert cache.damage() == {
            file_of(container_id=digit * 64): why for digit, (_, why) in results.items()
        }
    (cache.directory / file_of(container_id="b" * 64)).write_bytes(
        cached(SUBNET, containerId="b" * 64)
    )
    assert len(cache.read()) == 2, "it was being written"
    cache.directory.rename(tmp_path / "other")
    cache.directory.touch()
    for read_again in (cache.read, cache.damage):  # nothing of the reading before is kept
        with pytest.raises(SourceError, match="not a directory"):
            read_again()
