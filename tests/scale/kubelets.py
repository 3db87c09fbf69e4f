"""Many clients like a kubelet's: `python -m tests.scale.kubelets PORT CERTIFICATE SPREAD NODE...`

Like a kubelet 1.20: one connection (HTTP/2, protobuf) with a list and a watch of its pods, its Node, all Services,
CSIDrivers and RuntimeClasses, and each Secret and ConfigMap that its pods use; every 10 s it renews its Lease and reads
its Node from the cache. Watches are started again after 5 to 10 minutes. It prints a line once all watches are open.
"""

import asyncio
import json
import random
import ssl
import sys
from collections.abc import Iterator
from typing import Final
from urllib.parse import quote

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived, Event, ResponseReceived, StreamEnded, StreamReset

from tests.scale.control_plane import token_of
from tests.scale.objects import watched_objects

_HEARTBEAT: Final = 10.0
WATCH_SECONDS: Final = (300.0, 600.0)
_PROTOBUF: Final = "application/vnd.kubernetes.protobuf"
_LEASES: Final = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/"


class Call:
    """One request. The body of a watch is only looked through for the last version."""

    def __init__(self, *, watch: bool) -> None:
        self.watch, self.status, self.body = watch, 0, bytearray()
        self.version = ""
        self.opened, self.ended = asyncio.Event(), asyncio.Event()

    def receive(self, data: bytes) -> None:
        self.body += data
        while self.watch and len(self.body) >= 4 and len(self.body) >= 4 + (size := int.from_bytes(self.body[:4])):
            self.version = version_of_event(bytes(self.body[4 : 4 + size])) or self.version
            del self.body[: 4 + size]


class Kubelet:
    def __init__(self, port: int, context: ssl.SSLContext, node: str) -> None:
        self._port, self._context, self._node = port, context, node
        self._h2 = H2Connection(H2Configuration(header_encoding="utf-8", validate_inbound_headers=False))
        self._calls: dict[int, Call] = {}
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Connect, list, and return once all watches are open; they go on."""
        self._reader, self._writer = await asyncio.open_connection(
            "127.0.0.1", self._port, ssl=self._context, server_hostname="127.0.0.1"
        )
        self._h2.initiate_connection()
        self._tasks.append(asyncio.create_task(self._read()))
        for path, selector in _watched(self._node):
            query = f"fieldSelector={quote(selector)}&" if selector else ""
            listed = await self._finished("GET", f"{path}?{query}limit=500&resourceVersion=0")
            first = await self._open(path, query, version_of_list(bytes(listed.body)), random.random())
            self._tasks.append(asyncio.create_task(self._watch(path, query, first)))
        self._tasks.append(asyncio.create_task(self._heartbeat()))

    async def _watch(self, path: str, query: str, call: Call) -> None:
        version = ""
        while True:
            await call.ended.wait()
            version = call.version or version
            call = await self._open(path, query, version, 1)

    async def _open(self, path: str, query: str, version: str, share: float) -> Call:
        # The first ends anywhere in its time, so that every minute of the measurement is like any other.
        seconds = max(1, round(random.uniform(*WATCH_SECONDS) * share))
        query = f"{query}watch=1&allowWatchBookmarks=true&timeoutSeconds={seconds}&resourceVersion={version}"
        call = self._send("GET", f"{path}?{query}", watch=True)
        call.version = version
        await call.opened.wait()
        return call

    async def _heartbeat(self) -> None:
        lease = json.loads((await self._finished("GET", _LEASES + self._node, accept="application/json")).body)
        await asyncio.sleep(random.uniform(0, _HEARTBEAT))
        while True:
            await self._finished("GET", f"/api/v1/nodes/{self._node}?resourceVersion=0")
            renewed = json.dumps(lease).encode()
            call = await self._finished("PUT", _LEASES + self._node, renewed, accept="application/json")
            lease = json.loads(call.body)
            await asyncio.sleep(_HEARTBEAT)

    async def _finished(self, method: str, path: str, body: bytes = b"", accept: str = _PROTOBUF) -> Call:
        call = self._send(method, path, body, accept)
        await call.ended.wait()
        if call.status >= 300:
            raise OSError(f"{method} {path}: {call.status} {bytes(call.body[:300])!r}")
        return call

    def _send(self, method: str, path: str, body: bytes = b"", accept: str = _PROTOBUF, *, watch: bool = False) -> Call:
        stream = self._h2.get_next_available_stream_id()
        headers = {":method": method, ":scheme": "https", ":path": path, ":authority": f"127.0.0.1:{self._port}"}
        accept = f"{accept};stream=watch" if watch else accept
        headers |= {"authorization": f"Bearer {token_of(self._node)}", "accept": accept, "user-agent": "kubelet"}
        if body:
            headers["content-type"] = "application/json"
        self._h2.send_headers(stream, list(headers.items()), end_stream=not body)
        if body:
            self._h2.send_data(stream, body, end_stream=True)
        self._calls[stream] = call = Call(watch=watch)
        self._writer.write(self._h2.data_to_send())
        return call

    async def _read(self) -> None:
        while data := await self._reader.read(65536):
            for event in self._h2.receive_data(data):
                self._handle(event)
            if answer := self._h2.data_to_send():
                self._writer.write(answer)
        raise OSError("the API server closed the connection")

    def _handle(self, event: Event) -> None:
        match event:
            case ResponseReceived():
                call = self._calls[event.stream_id]
                call.status = int(next(value for name, value in event.headers if name in {":status", b":status"}))
                call.opened.set()
            case DataReceived():
                self._calls[event.stream_id].receive(event.data)
                self._h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            case StreamEnded() | StreamReset():
                self._calls.pop(event.stream_id).ended.set()
            case _:
                pass


def _watched(node: str) -> Iterator[tuple[str, str]]:
    """Yield path and field selector of everything that a kubelet watches."""
    yield "/api/v1/pods", f"spec.nodeName={node}"
    yield "/api/v1/nodes", f"metadata.name={node}"
    yield "/api/v1/services", ""
    yield "/apis/storage.k8s.io/v1/csidrivers", ""
    yield "/apis/node.k8s.io/v1/runtimeclasses", ""
    for namespace, resource, name in watched_objects(node):
        yield f"/api/v1/namespaces/{namespace}/{resource}", f"metadata.name={name}"


def version_of_list(body: bytes) -> str:
    """Return the resourceVersion of a list in protobuf: magic, Unknown.raw (2), ListMeta (1), resourceVersion (2)."""
    return _field(_field(_field(body[4:], 2), 1), 2).decode()


def version_of_event(frame: bytes) -> str:
    """Likewise of a watch event: WatchEvent.object (2), RawExtension.raw (1), Unknown.raw (2), ObjectMeta (1), (6)."""
    unknown = _field(_field(_field(frame[4:] if frame[:4] == b"k8s\0" else frame, 2), 1), 2)
    return _field(_field(unknown, 1), 6).decode(errors="replace")


def _field(message: bytes, wanted: int) -> bytes:
    """Return the first field of that number that has a length; empty: none."""
    position = 0
    while position < len(message):
        key, position = _varint(message, position)
        length, after = _varint(message, position)
        if key & 7 != 2:
            position = after
            continue
        if key >> 3 == wanted:
            return message[after : after + length]
        position = after + length
    return b""


def _varint(message: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[position]
        value |= (byte & 127) << shift
        position, shift = position + 1, shift + 7
        if byte < 128:
            return value, position


async def run(port: int, certificate: str, spread: float, nodes: list[str]) -> None:
    context = ssl.create_default_context(cafile=certificate)
    context.set_alpn_protocols(["h2"])
    kubelets = [Kubelet(port, context, node) for node in nodes]

    async def start(kubelet: Kubelet) -> None:
        await asyncio.sleep(random.uniform(0, spread))
        await kubelet.start()

    await asyncio.gather(*map(start, kubelets))
    print("ready", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(run(int(sys.argv[1]), sys.argv[2], float(sys.argv[3]), sys.argv[4:]))
