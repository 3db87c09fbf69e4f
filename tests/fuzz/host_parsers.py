"""The parsers of files of the node."""

import base64
import os
import re
import struct
from collections.abc import Callable, Iterator
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
from tests.fuzz.fuzzer import Fuzzer, Opening, Parse, pure
from tests.wire import ID

_SANDBOX: Final = nodes.the_incident(NOW).reserved[0]
_RESERVATION: Final = Reservation("kubenet", _SANDBOX.ip, _SANDBOX.id, "eth0", 1, 70, 1)


def _written(path: str, read: Callable[[Path], Any]) -> Opening:
    """Return the opening of a reader of a directory, in which one file has the content."""

    @contextmanager
    def opened(directory: Path) -> Iterator[Parse]:
        (directory / path).parent.mkdir(parents=True, exist_ok=True)

        def parse(content: bytes) -> Any:
            (directory / path).write_bytes(content)
            return read(directory)

        yield parse

    return opened


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


def _cni_result(content: bytes) -> Any:
    assert belongs(content, _RESERVATION, "kubenet", "eth0") in {True, False}
    return parse_result(content, "kubenet", _SANDBOX.id, "eth0", 5)


def _cni_config(content: bytes) -> Any:
    config = base64.b64encode(content).decode()
    cached = f'{{"kind":"cniCacheV1","containerId":"{_SANDBOX.id}","config":"{config}","ifName":"eth0",'
    return _cni_result(f'{cached}"networkName":"kubenet","result":{{"cniVersion":"0.4.0","ips":[]}}}}'.encode())


def _cni_file(directory: Path) -> Any:
    results = CniResults([directory])
    found = results.read()
    assert len(found) + len(results.damaged) <= 1
    return found


def _of_proc(file: str, read: Callable[[Path], Any]) -> Opening:
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
    assert all(isinstance(path, str) for path in read_namespaces(proc, ()))
    return read_mounts(proc, kubelet)


_VOLUME: Final = "kubelet/pods/u-1/volumes/kubernetes.io~csi/pvc-1"


def _volume(directory: Path) -> Any:
    for path in ("kubelet/plugins", "proc/1"):
        (directory / path).mkdir(parents=True, exist_ok=True)
    mounted = f"36 35 98:0 / {directory / _VOLUME}/mount rw - ext4 /dev/sdb rw\n"
    (directory / "proc/1/mountinfo").write_text(mounted)
    return read_mounts(directory / "proc", directory / "kubelet")


def _kubelet_config(directory: Path) -> Any:
    found = kubelet_runtime.named_runtime(["kubelet", "--config=/config.yaml"], directory)
    assert found.isprintable()
    return found


def _flannel(directory: Path) -> Any:
    (found,) = with_subnet([RuntimeNetwork("cbr0", ("flannel",))], directory)
    return found.ranges


def _sockets(proc: Path) -> Any:
    paths = [b"/var/lib/kubelet/device-plugins/kubelet.sock", b"/run/containerd/containerd.sock"]
    found = read_sockets(proc, paths)
    assert found.listening | found.connected <= set(paths)


def _route(content: bytes) -> Any:
    return routes._parse(content)  # noqa: SLF001 (no other function has the kernel's bytes)


FUZZERS: Final = (
    Fuzzer(
        "reservation", _written("kubenet/10.244.1.7", lambda path: read_reservations(path, "kubenet")), as_json=False
    ),
    Fuzzer("reservation-name", _reservation_name, as_json=False),
    Fuzzer("cni-result", pure(_cni_result)),
    Fuzzer("cni-file", _written(f"kubenet-{_SANDBOX.id}-eth0", _cni_file)),
    Fuzzer("cni-config", pure(_cni_config)),
    Fuzzer("kubelet-checkpoint", _written(ID, lambda path: CheckpointDirectories([path]).read((), NOW.timestamp()))),
    Fuzzer("device-checkpoint", pure(parse_checkpoint)),
    Fuzzer("proc-fib_trie", _of_proc("net-1/fib_trie", read_addresses), as_json=False),
    Fuzzer("proc-if_inet6", _of_proc("net-1/if_inet6", read_addresses), as_json=False),
    Fuzzer("proc-mountinfo", _of_proc("1/mountinfo", _mounts), as_json=False),
    Fuzzer("proc-net-unix", _of_proc("1/net/unix", _sockets), as_json=False),
    Fuzzer("proc-stat", _of_proc("stat", _processes), as_json=False),
    Fuzzer("proc-boot-id", _of_proc("sys/kernel/random/boot_id", _processes), as_json=False),
    Fuzzer("process-stat", _of_proc("340113/stat", _processes), as_json=False),
    Fuzzer("process-status", _of_proc("340113/status", _processes), as_json=False),
    Fuzzer("process-cmdline", _of_proc("340113/cmdline", _processes), as_json=False),
    Fuzzer("kubelet-config", _written("config.yaml", _kubelet_config), as_json=False),
    Fuzzer("flannel", _written("flannel/subnet.env", _flannel), as_json=False),
    Fuzzer("volume", _written(f"{_VOLUME}/vol_data.json", _volume)),
    Fuzzer("netlink", pure(_route), (OSError, struct.error), as_json=False),
)
