"""The sources of a node, one file or answer of which has any content. They are wired as for a command."""

import base64
import json
import os
import re
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from threading import Event
from types import MappingProxyType
from typing import Any, Final
from urllib.parse import urlsplit

from agent.app.api_server import watched
from agent.app.sources import for_command
from agent.config import load
from agent.model.documents import Recording, dumps, loads
from agent.model.snapshot import Known, NotRequested, Unavailable
from agent.sources.source import Sources, WithFields
from tests.builders import (
    CLOUD_DISK,
    DISK,
    NOW,
    dark_node,
    node,
    node_using,
    registration,
    waiting_pod,
)
from tests.fakes import cri, host, nodes
from tests.fakes.grpc_server import Call, FakeGrpcServer
from tests.fuzz.fuzzer import SAMPLES, Fuzzer, Opening, Parse
from tests.sources.reading import named
from tests.wire import CHUNKED, ID, LAST_CHUNK, FakeServer, Request, chunk, http, kubeconfig
from tests.wired import of_config

_DOCKERS: Final = replace(nodes.healthy(NOW, 2, "10.0.0.0/29"), ownerless=1)
_CONTAINERDS: Final = replace(_DOCKERS, runtime="containerd://1.7.24")
_SANDBOX: Final = nodes.the_incident(NOW).reserved[0].id
_VOLUME: Final = "kubelet/pods/u-1/volumes/kubernetes.io~csi/pvc-1"
_SNAPSHOT: Final = node(
    waiting_pod(), node=[node_using(DISK, CLOUD_DISK, provider_id="")], registration=registration()
)
"""What was read before: there is a reason to read every source."""


class _Node:
    """A node in a directory."""

    def __init__(self, root: Path, fake: nodes.FakeNode = _DOCKERS) -> None:
        self.root, self.host = root, host.build(root, fake)
        for directory in ("device-plugins", "kubelet/plugins"):
            (root / directory).mkdir(parents=True)
        for name in ("kubelet.sock", "gpu.sock"):
            with socket.socket(socket.AF_UNIX) as bound:
                bound.bind(f"{root}/device-plugins/{name}")
        self.options = {
            "api": "off",
            "checkpoint_dir": f"{self.host.checkpoints}",
            "cni_cache_dir": f"{self.host.cache}",
            "cni_config_dir": f"{self.host.net_d}",
            "cni_networks_dir": f"{self.host.networks}",
            "device_plugins_dir": f"{root}/device-plugins",
            "docker_host": f"unix://{self.host.docker_socket}" if fake.uses_docker else "",
            "docker_timeout": "5s",
            "kubelet_dir": f"{root}/kubelet",
            "proc": f"{self.host.proc}",
            "run_dir": f"{root}/run",
            "state_dir": f"{self.host.state}",
        }

    def read(self, *names: str) -> None:
        """Read these sources anew; raises SourceError. What they return can be recorded, and is read again."""
        _read(for_command(load("scan", self.options, {})).snapshot, *names)


def _read(sources: Sources, *names: str) -> None:
    found: dict[str, Any] = {}
    fields: dict[str, Any] = {}
    for name in names:
        value = named(sources, name).read(replace(_SNAPSHOT, **found))
        if isinstance(value, WithFields):
            fields |= value.fields
            value = value.value
        is_reading = name == "reservations" or isinstance(value, (Known, Unavailable, NotRequested))
        found[name] = value if is_reading else Known(value)
    recorded = replace(dark_node(), **found, **fields)
    recording = Recording(timedelta(0), timedelta(0), (recorded,))
    assert loads(dumps(recording)) == recording


def _file(
    name: str,
    path: str,
    *sources: str,
    as_json: bool = True,
    others: Mapping[str, str] = MappingProxyType({}),
    written: Callable[[bytes, Path], bytes] = lambda content, _: content,
) -> Fuzzer:
    """Return the fuzzer of a file. `others`: files that its reader needs. `written`: what it has for a content."""

    @contextmanager
    def opened(directory: Path) -> Iterator[Parse]:
        read_node = _Node(directory)
        for file, text in {**others, path: ""}.items():
            (directory / file).parent.mkdir(parents=True, exist_ok=True)
            (directory / file).write_text(text.replace("@ROOT@", str(directory)))

        def parse(content: bytes) -> None:
            (directory / path).write_bytes(written(content, directory))
            read_node.read(*sources)

        yield parse

    return Fuzzer(name, opened, as_json=as_json)


def _as_config(content: bytes, _: Path) -> bytes:
    """The content is the configuration in a result of libcni's."""
    cached = {
        "kind": "cniCacheV1",
        "containerId": _SANDBOX,
        "ifName": "eth0",
        "networkName": "kubenet",
    }
    result = {"cniVersion": "0.4.0", "ips": []}
    return json.dumps(
        cached | {"config": base64.b64encode(content).decode(), "result": result}
    ).encode()


@contextmanager
def _reservation_name(directory: Path) -> Iterator[Parse]:
    named = _Node(directory)

    def parse(content: bytes) -> None:
        name = re.sub(rb"[\0/]", b"", content)[:255]
        if name in {b"", b".", b".."} or os.path.exists(  # noqa: PTH110
            path := bytes(named.host.store) + b"/" + name
        ):
            return
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY))
        try:
            named.read("reservations")
        finally:
            os.unlink(path)  # noqa: PTH108 (bytes)

    yield parse


_CACHED: Final = f"var/lib/cni/cache/results/kubenet-{_SANDBOX}-eth0"
_CMDLINE: Final = "proc/340113/cmdline"
_WITH_CNI: Final = {
    _CMDLINE: "/usr/bin/kubelet\0--container-runtime=docker\0--network-plugin=cni\0"
}
_FLANNEL: Final = '{"cniVersion": "1.0.0", "name": "cbr0", "plugins": [{"type": "flannel"}]}'
_FILES: Final = (
    _file("reservation", "var/lib/cni/networks/kubenet/10.244.1.7", "reservations", as_json=False),
    Fuzzer("reservation-name", _reservation_name, as_json=False),
    _file("cni-result", _CACHED, "cni_results"),
    _file("cni-config", _CACHED, "cni_results", written=_as_config),
    _file(
        "cni-conflist",
        "etc/cni/net.d/10-cbr0.conflist",
        "networks",
        "cni_files",
        "reservations",
        others=_WITH_CNI,
    ),
    _file("kubelet-checkpoint", f"var/lib/dockershim/sandbox/{ID}", "checkpoints"),
    _file("device-checkpoint", "device-plugins/kubelet_internal_checkpoint", "device_plugins"),
    _file("proc-fib_trie", "proc/net-1/fib_trie", "addresses", as_json=False),
    _file("proc-if_inet6", "proc/net-1/if_inet6", "addresses", as_json=False),
    _file(
        *("proc-mountinfo", "proc/1/mountinfo", "mounts", "mounted_namespaces"),
        as_json=False,
        written=lambda content, root: content.replace(b"@KUBELET@", bytes(root / "kubelet")),
    ),
    _file("proc-net-unix", "proc/1/net/unix", "device_plugins", as_json=False),
    _file("proc-stat", "proc/stat", "processes", as_json=False),
    _file("proc-boot-id", "proc/sys/kernel/random/boot_id", "processes", as_json=False),
    _file("process-stat", "proc/340113/stat", "processes", as_json=False),
    _file("process-status", "proc/340113/status", "processes", as_json=False),
    _file("process-cmdline", _CMDLINE, "processes", "registration", "networks", as_json=False),
    _file(
        *("kubelet-config", "proc/340113/root/config.yaml", "networks"),
        as_json=False,
        others={_CMDLINE: "/usr/bin/kubelet\0--config=/config.yaml\0"},
    ),
    _file(
        *("flannel", "run/flannel/subnet.env", "networks", "cni_files"),
        as_json=False,
        others={**_WITH_CNI, "etc/cni/net.d/10-cbr0.conflist": _FLANNEL},
    ),
    _file(
        *("volume", f"{_VOLUME}/vol_data.json", "mounts"),
        others={"proc/1/mountinfo": f"36 35 98:0 / @ROOT@/{_VOLUME}/mount rw - ext4 /dev/sdb rw\n"},
    ),
)


def _docker(fuzzed: str, answer: Callable[[bytes], bytes] = http) -> Opening:
    """Return the opening of a docker whose answer to a path has the content. `answer`: makes the response of it."""

    @contextmanager
    def opened(directory: Path) -> Iterator[Parse]:
        read_node, content = _Node(directory), directory / "content"

        def answers(request: Request) -> Iterable[bytes]:
            if request.path.endswith(fuzzed):
                return [answer(content.read_bytes())]
            return [http('{"ApiVersion": "1.40"}' if request.path.endswith("/version") else "[]")]

        with FakeServer(answers, at=read_node.host.docker_socket):
            yield _parse(content, lambda: read_node.read("containers"))

    return opened


def _containerd(method: str, answer: Callable[[Call, bytes], None] = Call.answer) -> Opening:
    """Return the opening of a containerd whose answer to a method has the content."""

    @contextmanager
    def opened(directory: Path) -> Iterator[Parse]:
        read_node, content = _Node(directory, _CONTAINERDS), directory / "content"
        runtime = cri.of_node(_CONTAINERDS, {"cniconfig": cri.cniconfig({"type": "bridge"})})
        runtime.instead = {method: lambda call: answer(call, content.read_bytes())}

        def read() -> None:
            server.calls.clear()
            read_node.read("networks", "runtime_status", "cni_files")
            read_node.read("networks", "reservations", "containers", "runtimes")
            recheck = of_config(load("clean", read_node.options, {})).recheck
            assert recheck.has_container(ID) in {True, False}

        with FakeGrpcServer(read_node.host.containerd_socket, runtime.answer) as server:
            yield _parse(content, read)

    return opened


def _with_networks(call: Call, content: bytes) -> None:
    call.answer(
        cri.PROTO["Status"](
            info={"cniconfig": content.decode(errors="replace")}
        ).SerializeToString()
    )


def _with_plugin(call: Call, content: bytes) -> None:
    plugin = {"Source": content.decode(errors="replace")}
    _with_networks(
        call,
        json.dumps({"Networks": [{"Config": {"Name": "kubenet", "Plugins": [plugin]}}]}).encode(),
    )


def _in_any_frame(call: Call, content: bytes) -> None:
    """Answer the first call of a connection."""
    if call.stream == 1:
        call.raw(content)
        call.hang_up()
    else:
        call.answer((SAMPLES / "cri-version/0").read_bytes())


_RUNTIMES: Final = (
    Fuzzer("docker-list", _docker("/containers/json"), in_thread=True),
    Fuzzer("docker-version", _docker("/version"), in_thread=True),
    Fuzzer("docker-wire", _docker("/containers/json", bytes), as_json=False),
    Fuzzer("grpc", _containerd("Version", _in_any_frame), as_json=False),
    Fuzzer("cri-version", _containerd("Version"), as_json=False),
    Fuzzer("cri-sandboxes", _containerd("ListPodSandbox"), as_json=False),
    Fuzzer("cri-containers", _containerd("ListContainers"), as_json=False),
    Fuzzer("cri-status", _containerd("PodSandboxStatus"), as_json=False),
    Fuzzer("cri-runtime-status", _containerd("Status"), as_json=False),
    Fuzzer("cri-networks", _containerd("Status", _with_networks), in_thread=True),
    Fuzzer("cri-plugin", _containerd("Status", _with_plugin), in_thread=True),
    Fuzzer(
        "containerd-records",
        _containerd("/containerd.services.containers.v1.Containers/List"),
        as_json=False,
    ),
    Fuzzer(
        "containerd-sandboxes",
        _containerd("/containerd.services.sandbox.v1.Store/List"),
        as_json=False,
    ),
    Fuzzer(
        "containerd-namespaces",
        _containerd("/containerd.services.namespaces.v1.Namespaces/List"),
        as_json=False,
    ),
)


_NODES: Final = (
    '{"items":[{"metadata":{"name":"worker-2"},"spec":{"providerID":"fake:///worker-2"}}]}'
)
_NOTHING: Final = '{"metadata":{"resourceVersion":"5"},"items":[]}'
_Content = Callable[[], bytes]
_Response = Callable[[Request, _Content], bytes]


def _api(answer: _Response, *sources: str) -> Opening:
    """Return the opening of an API server. `answer`: the response to a request, with the content if that is for it."""

    @contextmanager
    def opened(directory: Path) -> Iterator[Parse]:
        read_node = _Node(directory)
        with _api_server(read_node, answer) as content:
            yield _parse(content, lambda: read_node.read(*sources))

    return opened


def _watch(source: str, answer: _Response) -> Opening:
    """Return the opening of a daemon's watch. `answer`: to the watch."""

    @contextmanager
    def opened(directory: Path) -> Iterator[Parse]:
        read_node, stop = _Node(directory), Event()

        def answers(request: Request, content: _Content) -> bytes:
            if not request.watches:
                return http(_NOTHING)
            stop.set()
            return answer(request, content)

        def read() -> None:
            sources, reflectors = watched(load("run", read_node.options, {}))
            stop.clear()
            next(reflector for reflector in reflectors if reflector.source == source).run(stop)
            _read(sources.snapshot, source, "watches")

        with _api_server(read_node, answers) as content:
            yield _parse(content, read)

    return opened


@contextmanager
def _api_server(of: _Node, answer: _Response) -> Iterator[Path]:
    content = of.root / "content"
    with FakeServer(lambda request: [answer(request, content.read_bytes)]) as server:
        path = kubeconfig(of.root / "kubeconfig", server.url)
        of.options |= {
            "api": "on",
            "brake": "kube-system/nodeleak-brake",
            "node": "worker-1",
            "kubeconfig": f"{path}",
        }
        yield content


def _at(path: str) -> _Response:
    """Return what answers with the content on a path. Elsewhere there is nothing, except a Node in a cloud."""

    def answer(request: Request, content: _Content) -> bytes:
        if request.path.endswith(path):
            return http(content())
        return http(_NODES if request.path == "/api/v1/nodes" else _NOTHING)

    return answer


def _as_object(request: Request, content: _Content) -> bytes:
    """The content has the objects by their paths."""
    try:
        return http(json.dumps(json.loads(content())[urlsplit(request.target).path]))
    except (ValueError, LookupError, TypeError, RecursionError):
        return http(content())


def _as_status(request: Request, content: _Content) -> bytes:
    return _at("-status")(
        request, lambda: json.dumps({"data": {"status": str(content(), errors="replace")}}).encode()
    )


def _as_date(_: Request, content: _Content) -> bytes:
    return http(_NOTHING).replace(
        b"\r\n", b"\r\nDate: " + re.sub(rb"[\r\n]", b"", content()) + b"\r\n", 1
    )


def _as_event(_: Request, content: _Content) -> bytes:
    return CHUNKED + chunk(content() + b"\n") + LAST_CHUNK


_API: Final = (
    Fuzzer("pod-list", _api(_at("/pods"), "pods")),
    Fuzzer("node-list", _api(_at("/nodes"), "node")),
    Fuzzer("pod-event", _watch("pods", _as_event)),
    Fuzzer("node-event", _watch("node", _as_event)),
    Fuzzer("brake-list", _api(_at("/configmaps"), "brake")),
    Fuzzer("sandbox-events", _api(_at("/events"), "sandbox_failures")),
    Fuzzer("volumes", _api(_as_object, "attachments")),
    Fuzzer("autoscaler", _api(_at("/nodes"), "autoscaler")),
    Fuzzer("autoscaler-configmap", _api(_at("-status"), "autoscaler")),
    Fuzzer("autoscaler-status", _api(_as_status, "autoscaler"), as_json=False),
    Fuzzer("server-version", _api(_at("/version"), "pods")),
    Fuzzer("server-date", _api(_as_date, "pods"), as_json=False),
    Fuzzer("api-answer", _api(lambda _, content: content(), "pods"), as_json=False),
    Fuzzer("api-watch", _watch("pods", lambda _, content: content()), as_json=False),
)


def _parse(content: Path, read: Callable[[], None]) -> Parse:
    def parse(given: bytes) -> None:
        content.write_bytes(given)
        read()

    return parse


FUZZERS: Final = (*_FILES, *_RUNTIMES, *_API)
