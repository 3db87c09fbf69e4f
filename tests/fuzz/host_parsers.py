"""The parsers of files of the node."""

import base64
import json
import os
import re
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from agent.model.runtime import RuntimeNetwork
from agent.model.snapshot import Reservation
from agent.sources.host import kubelet_runtime, routes
from agent.sources.host.addresses import read_addresses
from agent.sources.host.checkpoints import CheckpointDirectories
from agent.sources.host.cni_cache import CniResults, belongs, parse_result
from agent.sources.host.cni_config import with_subnet
from agent.sources.host.device_plugins import parse_checkpoint
from agent.sources.host.mount_table import read_namespaces
from agent.sources.host.mounts import read_mounts
from agent.sources.host.processes import ProcessTable
from agent.sources.host.reservations import read_reservations
from agent.sources.host.unix_sockets import read_sockets
from tests.builders import NOW
from tests.fakes import host, nodes
from tests.fuzz.fuzzer import Fuzzer, Parse, pure
from tests.sources.host.test_device_plugins import BY_NUMA_NODE, EMPTY, LISTED, NULL
from tests.wire import ID

NODE: Final = nodes.the_incident(NOW)
SANDBOX: Final = NODE.reserved[0]
_IP: Final = "10.244.1.7"
_RESERVATION: Final = Reservation("kubenet", SANDBOX.ip, SANDBOX.id, "eth0", 1, 70, 1)
_CONFLIST: Final = {
    "cniVersion": "0.4.0",
    "name": "kubenet",
    "plugins": [
        {
            "type": "bridge",
            "capabilities": {"portMappings": True},
            "ipam": {
                "type": "host-local",
                "dataDir": "/run/cni",
                "ranges": [[{"subnet": "10.244.1.0/24", "rangeStart": "10.244.1.9", "gateway": "10.244.1.1"}]],
            },
        },
        {"type": "portmap"},
    ],
}
_CONF: Final = {
    "cniVersion": "0.1.0",
    "name": "kubenet",
    "type": "bridge",
    "ipam": {"type": "host-local", "subnet": "10.0.0.0/24"},
}
_BARE: Final = {"cniVersion": "0.2.0", "ip4": {"ip": "10.253.6.130/25", "gateway": "10.253.6.129"}, "dns": {}}
_RESULT: Final = {
    "cniVersion": "0.4.0",
    "interfaces": [{"name": "eth0", "sandbox": "/var/run/netns/cni-1"}],
    "ips": [{"version": "4", "address": "10.244.1.7/24", "gateway": "10.244.1.1", "interface": 0}],
}


def _cached(config: bytes, result: Any = _RESULT) -> bytes:
    tree = {
        "kind": "cniCacheV1",
        "containerId": SANDBOX.id,
        "config": base64.b64encode(config).decode(),
        "ifName": "eth0",
        "networkName": "kubenet",
        "cniArgs": [["K8S_POD_NAMESPACE", "shop"], ["K8S_POD_NAME", "web-0"]],
        "capabilityArgs": {"portMappings": [{"hostPort": 80, "containerPort": 80, "protocol": "TCP"}]},
        "netns": "/var/run/netns/cni-1",
        "result": result,
    }
    return json.dumps(tree).encode()


def _trees(*trees: Any) -> tuple[bytes, ...]:
    return tuple(json.dumps(tree).encode() for tree in trees)


@contextmanager
def _reservation(directory: Path) -> Iterator[Parse]:
    (directory / "kubenet").mkdir()

    def parse(content: bytes) -> Any:
        (directory / "kubenet" / _IP).write_bytes(content)
        return read_reservations(directory, "kubenet")

    yield parse


@contextmanager
def _reservation_name(directory: Path) -> Iterator[Parse]:
    (directory / "kubenet").mkdir()

    def parse(content: bytes) -> Any:
        name = re.sub(rb"[\0/]", b"", content)[:255]
        if name in {b"", b".", b".."}:
            return None
        path = os.fsencode(directory / "kubenet") + b"/" + name
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY))
        try:
            return read_reservations(directory, "kubenet")
        finally:
            os.unlink(path)  # noqa: PTH108 (bytes)

    yield parse


def _parse_result(content: bytes) -> Any:
    assert belongs(content, _RESERVATION, "kubenet", "eth0") in {True, False}
    return parse_result(content, "kubenet", SANDBOX.id, "eth0", 5)


@contextmanager
def _cni_file(directory: Path) -> Iterator[Parse]:
    def parse(content: bytes) -> Any:
        (directory / f"kubenet-{SANDBOX.id}-eth0").write_bytes(content)
        results = CniResults([directory])
        found = results.read()
        assert len(found) + len(results.damaged) <= 1
        return found

    yield parse


@contextmanager
def _checkpoint(directory: Path) -> Iterator[Parse]:
    def parse(content: bytes) -> Any:
        (directory / ID).write_bytes(content)
        return CheckpointDirectories([directory]).read((), NOW.timestamp())

    yield parse


def _of_proc(file: str, read: Callable[[Path], Any]) -> Callable[[Path], Any]:
    """Return the opening of a reader of `/proc`, one file of which has the content."""

    @contextmanager
    def opened(directory: Path) -> Iterator[Parse]:
        proc = host.build(directory, nodes.healthy(NOW, 2, "10.0.0.0/29")).proc
        path = next(iter(sorted(proc.glob(file))), proc / file)
        path.parent.mkdir(parents=True, exist_ok=True)

        def parse(content: bytes) -> Any:
            path.write_bytes(content.replace(b"@KUBELET@", bytes(directory / "kubelet")))
            return read(proc)

        yield parse

    return opened


def _processes(proc: Path) -> Any:
    table = ProcessTable(proc)
    found = table.read()
    assert isinstance(table.kubelet_flags("cloud-provider", "hostname-override"), dict)
    return found


def _mounts(proc: Path) -> Any:
    kubelet = proc.parent / "kubelet"
    (kubelet / "plugins").mkdir(parents=True, exist_ok=True)
    assert all(isinstance(one, str) for one in read_namespaces(proc))
    return read_mounts(proc, kubelet)


@contextmanager
def _volume(directory: Path) -> Iterator[Parse]:
    kubelet = directory / "kubelet"
    (kubelet / "plugins").mkdir(parents=True)
    (directory / "proc/1").mkdir(parents=True)
    volume = kubelet / "pods/u-1/volumes/kubernetes.io~csi/pvc-1"
    volume.mkdir(parents=True)
    (directory / "proc/1/mountinfo").write_text(f"36 35 98:0 / {volume}/mount rw - ext4 /dev/sdb rw\n")

    def parse(content: bytes) -> Any:
        (volume / "vol_data.json").write_bytes(content)
        return read_mounts(directory / "proc", kubelet)

    yield parse


@contextmanager
def _kubelet_config(directory: Path) -> Iterator[Parse]:
    def parse(content: bytes) -> Any:
        (directory / "config.yaml").write_bytes(content)
        found = kubelet_runtime.named_runtime(["kubelet", "--config=/config.yaml"], directory)
        assert found.isprintable()
        return found

    yield parse


@contextmanager
def _flannel(directory: Path) -> Iterator[Parse]:
    (directory / "flannel").mkdir()

    def parse(content: bytes) -> Any:
        (directory / "flannel/subnet.env").write_bytes(content)
        (found,) = with_subnet([RuntimeNetwork("cbr0", ("flannel",))], directory)
        return found.ranges

    yield parse


def _sockets(proc: Path) -> Any:
    paths = [b"/var/lib/kubelet/device-plugins/kubelet.sock", b"/run/containerd/containerd.sock"]
    found = read_sockets(proc, paths)
    assert found.listening | found.connected <= set(paths)


def _netlink() -> Sequence[bytes]:
    """Return the kernel's own answer for the loopback, and an error."""
    recorded: list[bytes] = []
    parse = routes._parse  # noqa: SLF001 (no other function has the kernel's bytes)

    def record(answer: bytes) -> Any:
        recorded.append(answer)
        return parse(answer)

    routes._parse = record  # noqa: SLF001
    try:
        routes.find_route("127.0.0.1")
    finally:
        routes._parse = parse  # noqa: SLF001
    return (*recorded, b"\x24\0\0\0\2\0\0\0\1\0\0\0\0\0\0\0\x9b\xff\xff\xff" + bytes(16))


def _route(content: bytes) -> Any:
    return routes._parse(content)  # noqa: SLF001


_STAT: Final = f"340113 (kubelet) S {' '.join(['0'] * 18)} 4000 {' '.join(['0'] * 30)}\n".encode()
_FIB_TRIE: Final = Path("/proc/self/net/fib_trie").read_bytes()
_IF_INET6: Final = (
    b"fd000000000000000000000000000009 02 40 00 80     eth0\n00000000000000000000000000000001 01 80 10 80       lo\n"
)
_MOUNTINFO: Final = (
    b"36 35 98:0 /mnt1 /mnt\\0402 rw,noatime master:1 - ext3 /dev/root rw,errors=continue\n"
    b"412 35 0:4 net:[4026532281] /run/netns/cni-1 rw shared:9 - nsfs nsfs rw\n"
    b"500 35 8:1 / @KUBELET@/plugins/kubernetes.io/aws-ebs/mounts/aws/zone-a/vol-8 rw - ext4 /dev/sdc rw\n"
    b"501 35 8:1 / @KUBELET@/pods/u-1/volumes/kubernetes.io~csi/pvc-1/mount rw - ext4 /dev/sdc rw\n"
)
_UNIX: Final = (
    b"Num       RefCount Protocol Flags    Type St Inode Path\n"
    b"ffff8f: 00000002 00000000 00010000 0001 01 21000 /var/lib/kubelet/device-plugins/kubelet.sock\n"
    b"ffff90: 00000003 00000000 00000000 0001 03 21001 ///run/containerd/containerd.sock\n"
)
_YAML: Final = (
    b"apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"
    b"containerRuntimeEndpoint: unix:///run/containerd/containerd.sock\n"
)

FUZZERS: Final = (
    Fuzzer("reservation", (f"{ID}\r\neth0".encode(), ID.encode(), b""), _reservation, as_json=False),
    Fuzzer(
        "reservation-name",
        (b"10.244.1.7", b"fd00::9", b"::ffff:10.0.0.9", b"last_reserved_ip.0", b"lock"),
        _reservation_name,
        as_json=False,
    ),
    Fuzzer("cni-result", (_cached(json.dumps(_CONFLIST).encode()), *_trees(_BARE, _RESULT)), pure(_parse_result)),
    Fuzzer("cni-file", (_cached(json.dumps(_CONF).encode(), _BARE), *_trees(_BARE, _RESULT)), _cni_file),
    Fuzzer("cni-config", _trees(_CONFLIST, _CONF), pure(lambda content: _parse_result(_cached(content)))),
    Fuzzer(
        "kubelet-checkpoint",
        _trees({"version": "v1", "name": "web-0", "namespace": "shop", "data": {"host_network": True}, "checksum": 1}),
        _checkpoint,
    ),
    Fuzzer("device-checkpoint", (BY_NUMA_NODE, EMPTY, LISTED, NULL), pure(parse_checkpoint)),
    Fuzzer("proc-fib_trie", (_FIB_TRIE,), _of_proc("net-1/fib_trie", read_addresses), as_json=False),
    Fuzzer("proc-if_inet6", (_IF_INET6,), _of_proc("net-1/if_inet6", read_addresses), as_json=False),
    Fuzzer("proc-mountinfo", (_MOUNTINFO,), _of_proc("1/mountinfo", _mounts), as_json=False),
    Fuzzer("proc-net-unix", (_UNIX,), _of_proc("1/net/unix", _sockets), as_json=False),
    Fuzzer(
        "proc-stat", (b"cpu  1 0 1 1 0\nbtime 1774526400\nprocesses 1\n",), _of_proc("stat", _processes), as_json=False
    ),
    Fuzzer(
        "proc-boot-id",
        (b"3f0a9c52-7c1e-4d5a-9f2b-0040040040ac\n",),
        _of_proc("sys/kernel/random/boot_id", _processes),
        as_json=False,
    ),
    Fuzzer("process-stat", (_STAT,), _of_proc("340113/stat", _processes), as_json=False),
    Fuzzer("process-status", (b"Name:\tkubelet\nNSpid:\t7\n",), _of_proc("340113/status", _processes), as_json=False),
    Fuzzer(
        "process-cmdline",
        (b"/usr/bin/kubelet\0--container-runtime=docker\0--config\0/etc/kubelet.yaml\0",),
        _of_proc("340113/cmdline", _processes),
        as_json=False,
    ),
    Fuzzer(
        "kubelet-config",
        (_YAML, b'{"containerRuntimeEndpoint": "unix:///run/crio/crio.sock"}'),
        _kubelet_config,
        as_json=False,
    ),
    Fuzzer(
        "flannel",
        (b"FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.1.1/24\nFLANNEL_MTU=1450\n",),
        _flannel,
        as_json=False,
    ),
    Fuzzer(
        "volume", _trees({"driverName": "disk.example.com", "volumeHandle": "vol-7", "specVolID": "pvc-1"}), _volume
    ),
    Fuzzer("netlink", _netlink(), pure(_route), (OSError, struct.error), as_json=False),
)
