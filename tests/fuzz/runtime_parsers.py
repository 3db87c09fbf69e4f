"""The parsers of what container runtimes answer."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Final

from agent.model.snapshot import Known
from agent.sources.host.cni_config import networks_of
from agent.sources.host.network_directories import read_all
from agent.sources.runtime.cri import Cri
from agent.sources.runtime.docker import Docker
from agent.sources.runtime.grpc_unary import GrpcConnection
from agent.sources.runtime.protobuf import DecodedMessage
from tests.fakes.cri import PROTO
from tests.fakes.grpc_server import Call, FakeGrpcServer
from tests.fuzz.fuzzer import Fuzzer, Parse, pure
from tests.fuzz.wire_server import Replies
from tests.sources.runtime.test_grpc_unary import METHOD, RECORDED
from tests.wire import ID, http

_LABELS: Final = {
    "io.kubernetes.pod.name": "web-0",
    "io.kubernetes.pod.namespace": "shop",
    "io.kubernetes.pod.uid": "0aa1c1f2-1111-2222-3333-444455556666",
}
_LISTED: Final = json.dumps(
    [
        {
            "Id": ID,
            "Names": ["/k8s_POD_web-0"],
            "State": "running",
            "Created": 1774526400,
            "Labels": {**_LABELS, "io.kubernetes.docker.type": "podsandbox"},
        },
        {"Id": ID[::-1], "State": "exited", "Created": 1774526401, "Labels": None},
    ]
).encode()
_VERSION: Final = json.dumps({"Version": "19.3.15", "ApiVersion": "1.40", "MinAPIVersion": "1.12"}).encode()
_SANDBOXES: Final = PROTO["Sandboxes"](
    items=[PROTO["PodSandbox"](id=ID, state=0, created_at=1774526400 * 10**9, labels=_LABELS)]
).SerializeToString()
_CONTAINERS: Final = PROTO["Containers"](
    containers=[PROTO["Container"](id=ID, sandbox=ID, state=1, created_at=1774526400 * 10**9, labels=_LABELS)]
).SerializeToString()
_RECORDS: Final = PROTO["Records"](
    containers=[
        PROTO["Record"](id=ID, labels=_LABELS, created_at=PROTO["Timestamp"](seconds=1774526400)),
        PROTO["Record"](id=ID[::-1], spec=PROTO["Any"](type_url="x", value=b"{}")),
    ]
).SerializeToString()
_RUNTIME: Final = PROTO["Version"](version="0.1.0", name="containerd", runtime="1.7.24", api="v1").SerializeToString()
_STATUS: Final = PROTO["PodSandboxStatus"](
    status=PROTO["SandboxStatus"](id=ID, state=1, created_at=1774526400 * 10**9, labels=_LABELS)
).SerializeToString()
_STORED: Final = PROTO["SandboxRecords"](
    list=[PROTO["Sandbox"](sandbox_id=ID, labels=_LABELS, created_at=PROTO["Timestamp"](seconds=1774526400))]
).SerializeToString()
_NAMED: Final = PROTO["Namespaces"](namespaces=[PROTO["Namespace"](name="moby")]).SerializeToString()
_ANSWERS: Final = {"RuntimeService/Version": _RUNTIME, "RuntimeService/PodSandboxStatus": _STATUS}
_NETWORKS: Final = json.dumps(
    {
        "Networks": [
            {"Config": {"Name": "cni-loopback", "Plugins": []}},
            {
                "Config": {
                    "Name": "kubenet",
                    "Plugins": [
                        {
                            "Source": json.dumps(
                                {
                                    "type": "bridge",
                                    "ipam": {
                                        "type": "host-local",
                                        "dataDir": "/run/cni",
                                        "ranges": [[{"subnet": "10.0.0.0/24"}]],
                                    },
                                }
                            )
                        }
                    ],
                }
            },
        ]
    }
).encode()
_SOURCE: Final = json.dumps(
    {"type": "bridge", "ipam": {"type": "host-local", "subnet": "10.0.0.0/24", "ranges": [[{"subnet": "fd00::/64"}]]}}
).encode()
_CONFIG_OF: Final = '{"Networks":[{"Config":{"Name":"kubenet","Plugins":[{"Source":%s}]}}]}'


def _message(content: bytes) -> None:
    """Read it in every way in which a message can be read."""
    one = DecodedMessage(content)
    for number in (1, 2, 3):
        for read in (one.integer, one.text, one.message, one.messages, one.text_map):
            try:
                read(number)
            except ValueError:
                continue


@contextmanager
def _grpc(directory: Path) -> Iterator[Parse]:
    path = directory / "grpc.sock"
    with Replies(path, {}, waits=False).serving() as replies:

        def parse(content: bytes) -> Any:
            replies.content = content
            with GrpcConnection(path, 5.0, time.perf_counter) as connection:
                return connection.call(METHOD)

        yield parse


def _cri(*fuzzed: str) -> Callable[[Path], AbstractContextManager[Parse]]:
    """Return the opening of a client of a containerd whose answers to these methods have the content."""

    @contextmanager
    def opened(directory: Path) -> Iterator[Parse]:
        sent = [b""]

        def answer(call: Call) -> None:
            method = call.method.rpartition(".")[2]
            call.answer(sent[0] if method in fuzzed else _ANSWERS.get(method, b""))

        path = directory / "containerd.sock"
        with FakeGrpcServer(path, answer) as server:
            cri = Cri(path, 5.0, time.perf_counter)

            def parse(content: bytes) -> Any:
                sent[0] = content
                server.calls.clear()
                found = cri.containers([ID, "f" * 64])
                assert cri.has(ID) in {True, False}
                return (found, cri.identify())

            yield parse

    return opened


@contextmanager
def _cri_networks(directory: Path) -> Iterator[Parse]:
    sent = [b""]
    path = directory / "containerd.sock"
    with FakeGrpcServer(path, lambda call: call.answer(sent[0])) as server:
        cri = Cri(path, 5.0, time.perf_counter)

        def parse(content: bytes) -> Any:
            entry = _field(1, b"cniconfig") + _field(2, content)
            sent[0] = _field(2, entry)
            server.calls.clear()
            found = tuple(network for one in cri.networks().loaded or () for network in networks_of(one, dict))
            # Their names become paths.
            read_all(["auto"], Known(found), directory, lambda path: directory / str(path).lstrip("/"))
            return found

        yield parse


@contextmanager
def _cri_plugin(directory: Path) -> Iterator[Parse]:
    with _cri_networks(directory) as parse_networks:

        def parse(content: bytes) -> Any:
            source = json.dumps(content.decode(errors="surrogateescape"))
            return parse_networks((_CONFIG_OF % source).encode())

        yield parse


def _field(number: int, content: bytes) -> bytes:
    length, encoded = len(content), bytearray([number << 3 | 2])
    while length >> 7:
        encoded.append(length & 0x7F | 0x80)
        length >>= 7
    return bytes((*encoded, length)) + content


@contextmanager
def _docker(directory: Path, fixed: dict[bytes, bytes]) -> Iterator[Parse]:
    path = directory / "docker.sock"
    with Replies(path, fixed, waits=True).serving() as replies:

        def parse(content: bytes) -> Any:
            replies.content = content
            docker = Docker(f"unix://{path}", 5.0)
            try:
                return docker.containers()
            finally:
                docker.close()

        yield parse


@contextmanager
def _docker_list(directory: Path) -> Iterator[Parse]:
    with _docker(directory, {b"/version ": http(_VERSION)}) as parse:
        yield lambda content: parse(http(content))


@contextmanager
def _docker_version(directory: Path) -> Iterator[Parse]:
    with _docker(directory, {b"/containers/json": http(_LISTED)}) as parse:
        yield lambda content: parse(http(content))


@contextmanager
def _docker_wire(directory: Path) -> Iterator[Parse]:
    with _docker(directory, {b"/version ": http(_VERSION)}) as parse:
        yield parse


_CHUNKED: Final = (
    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n[]\r\n0\r\n\r\n"
)
_MOVED: Final = b"HTTP/1.1 301 Moved\r\nLocation: /v1.40/elsewhere\r\nContent-Length: 0\r\n\r\n"

FUZZERS: Final = (
    Fuzzer("protobuf", (_SANDBOXES, _CONTAINERS, _RECORDS), pure(_message), (ValueError,), as_json=False),
    Fuzzer("grpc", (RECORDED,), _grpc, as_json=False),
    Fuzzer("cri-version", (_RUNTIME,), _cri("RuntimeService/Version"), as_json=False),
    Fuzzer("cri-sandboxes", (_SANDBOXES,), _cri("RuntimeService/ListPodSandbox"), as_json=False),
    Fuzzer("cri-containers", (_CONTAINERS,), _cri("RuntimeService/ListContainers"), as_json=False),
    Fuzzer("cri-status", (_STATUS,), _cri("RuntimeService/PodSandboxStatus"), as_json=False),
    Fuzzer("containerd-records", (_RECORDS,), _cri("Containers/List"), as_json=False),
    Fuzzer("containerd-sandboxes", (_STORED,), _cri("Store/List"), as_json=False),
    Fuzzer("containerd-namespaces", (_NAMED,), _cri("Namespaces/List"), as_json=False),
    Fuzzer("cri-networks", (_NETWORKS,), _cri_networks),
    Fuzzer("cri-plugin", (_SOURCE,), _cri_plugin),
    Fuzzer("docker-list", (_LISTED,), _docker_list),
    Fuzzer("docker-version", (_VERSION,), _docker_version),
    Fuzzer("docker-wire", (http(_LISTED), _CHUNKED, _MOVED), _docker_wire, as_json=False),
)
