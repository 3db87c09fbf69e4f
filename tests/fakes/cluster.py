"""A fake API server of a cluster of many nodes, for the real kubectl: discovery, lists as tables and JSON, and exec.

exec is the WebSocket protocol `v5.channel.k8s.io` (kubectl >= 1.31). `requests` counts what the server was asked.
"""

import base64
import hashlib
import json
import ssl
import struct
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import HTTPServer
from threading import Lock
from typing import Any
from urllib.parse import SplitResult, parse_qs

from tests.fakes.serving import Handler, Threads, serving

Tree = dict[str, Any]
LABELS = {"app.kubernetes.io/name": "nodeleak", "app.kubernetes.io/component": "agent"}
_MAGIC = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_STDOUT, _STDERR, _STATUS = 1, 2, 3
_BINARY, _CLOSE = 2, 8
_SMALL, _MEDIUM = 126, 65536
_LEAST = 0.2  # Seconds. kubectl 1.30 to 1.33 lose what arrives before they are ready for it.


@dataclass(frozen=True)
class Ran:
    """What a command in a pod did."""

    output: str = ""
    error: str = ""
    code: int = 0
    broken: bool = False  # Whether the connection ends before the command does


@dataclass
class FakeCluster:
    """`run`: what a command prints in the agent's pod of a node."""

    nodes: Sequence[str]
    run: Callable[[str, Sequence[str]], Ran]
    proxied: Callable[[str], Tree] = (
        lambda _: {}
    )  # What every service answers to a path and its query
    url: str = ""
    requests: "Counter[str]" = field(default_factory=Counter)
    lock: Lock = field(default_factory=Lock)

    def pod(self, node: str) -> Tree:
        created = "2026-03-26T19:00:00Z"
        names = {
            "namespace": "kube-system",
            "name": f"nodeleak-{node}",
            "labels": LABELS,
            "creationTimestamp": created,
        }
        spec = {
            "nodeName": node,
            "containers": [{"name": "nodeleak", "image": "registry.invalid/nodeleak"}],
        }
        containers = [{"name": "nodeleak", "state": {"running": {"startedAt": created}}}]
        conditions = [{"type": "Ready", "status": "True"}]
        status = {"phase": "Running", "conditions": conditions, "containerStatuses": containers}
        return {
            "kind": "Pod",
            "apiVersion": "v1",
            "metadata": names | {"labels": LABELS},
            "spec": spec,
            "status": status,
        }

    @contextmanager
    def serve(self, tls: ssl.SSLContext | None = None) -> Iterator["FakeCluster"]:
        server = _Server(self)
        if tls:
            server.socket = tls.wrap_socket(
                server.socket, server_side=True, do_handshake_on_connect=False
            )
        with serving(server):
            self.url = f"{'https' if tls else 'http'}://127.0.0.1:{server.server_address[1]}"
            yield self


class _Server(Threads, HTTPServer):
    request_queue_size = 128

    def __init__(self, cluster: FakeCluster) -> None:
        self.cluster = cluster
        super().__init__(("127.0.0.1", 0), _ClusterHandler)


class _ClusterHandler(Handler):
    server: _Server

    def answer(self, url: SplitResult) -> None:
        cluster, query = self.server.cluster, parse_qs(url.query)
        match url.path.strip("/").split("/"):
            case ["api", "v1", "namespaces", "kube-system", "pods", pod, "exec"]:
                self._count("exec pods")
                self._execute(pod.removeprefix("nodeleak-"), query["command"])
            case ["api", "v1", "namespaces", "kube-system", "pods", pod]:
                self._count("get pods")
                self.send_tree(cluster.pod(pod.removeprefix("nodeleak-")))
            case ["api", "v1", "pods"] | ["api", "v1", "namespaces", "kube-system", "pods"]:
                self._count("list pods")
                (selector,) = query.get("fieldSelector", [""])
                name = selector.removeprefix("spec.nodeName=")
                pods = [cluster.pod(node) for node in cluster.nodes if name in {"", node}]
                metadata = {"resourceVersion": "7"}
                self.send_tree(
                    {"kind": "PodList", "apiVersion": "v1", "metadata": metadata, "items": pods}
                )
            case ["api", "v1", "nodes"]:
                self._count("list nodes")
                self.send_tree(_table(cluster.nodes))
            case ["api", "v1", "nodes", node]:
                self._count("get nodes")
                self.send_tree(_table([node]))
            case ["api", "v1", "namespaces", namespace, "services", service, "proxy", *path]:
                self._count(f"proxy {namespace}/{service}")
                self.send_tree(cluster.proxied(f"/{'/'.join(path)}?{url.query}"))
            case _:
                self._count("discovery")
                known = url.path in _DISCOVERY
                self.send_tree(
                    _DISCOVERY.get(url.path, {"kind": "Status", "apiVersion": "v1", "code": 404}),
                    HTTPStatus.OK if known else HTTPStatus.NOT_FOUND,
                )

    def _count(self, what: str) -> None:
        with self.server.cluster.lock:
            self.server.cluster.requests[what] += 1

    def _execute(self, node: str, command: Sequence[str]) -> None:
        key = self.headers["Sec-WebSocket-Key"].encode() + _MAGIC.encode()
        self.send_response(HTTPStatus.SWITCHING_PROTOCOLS)
        self.send_header("Upgrade", "websocket")
        self.send_header("Connection", "Upgrade")
        self.send_header(
            "Sec-WebSocket-Accept",
            base64.b64encode(hashlib.sha1(key).digest()).decode(),  # noqa: S324
        )
        self.send_header("Sec-WebSocket-Protocol", "v5.channel.k8s.io")
        self.end_headers()
        self.wfile.flush()
        time.sleep(_LEAST)
        done = self.server.cluster.run(node, command)
        self._frame(_BINARY, bytes([_STDOUT]) + done.output.encode())
        if not done.broken:
            self._frame(_BINARY, bytes([_STDERR]) + done.error.encode())
            self._frame(_BINARY, bytes([_STATUS]) + json.dumps(_exit_status(done.code)).encode())
        self._frame(_CLOSE, struct.pack(">H", 1000))
        self.wfile.flush()
        self.rfile.read()  # until the client closes: closing with unread data would discard what it has not read
        self.close_connection = True

    def _frame(self, opcode: int, payload: bytes) -> None:
        size = len(payload)
        if size < _SMALL:
            head = struct.pack(">BB", 0x80 | opcode, size)
        elif size < _MEDIUM:
            head = struct.pack(">BBH", 0x80 | opcode, 126, size)
        else:
            head = struct.pack(">BBQ", 0x80 | opcode, 127, size)
        self.wfile.write(head + payload)


def _exit_status(code: int) -> Tree:
    if not code:
        return {"metadata": {}, "status": "Success"}
    cause = {"reason": "ExitCode", "message": str(code)}
    why = {
        "message": f"command terminated with non-zero exit code: {code}",
        "reason": "NonZeroExitCode",
    }
    return {"metadata": {}, "status": "Failure", **why, "details": {"causes": [cause]}}


def _table(nodes: Sequence[str]) -> Tree:
    columns = [{"name": name, "type": "string"} for name in ("Name", "Status", "Roles", "Age")]
    kind = {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1"}
    rows = [
        {"cells": [node, "Ready", "<none>", "3d"], "object": {**kind, "metadata": {"name": node}}}
        for node in nodes
    ]
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "columnDefinitions": columns,
        "rows": rows,
    }


_VERBS = ["create", "get", "list"]
_RESOURCES = (
    ("nodes", "Node", False),
    ("pods", "Pod", True),
    ("pods/exec", "PodExecOptions", True),
)
_DISCOVERY: dict[str, Tree] = {
    "/version": {"major": "1", "minor": "32", "gitVersion": "v1.32.0"},
    "/api": {"kind": "APIVersions", "versions": ["v1"]},
    "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": []},
    "/api/v1": {
        "kind": "APIResourceList",
        "groupVersion": "v1",
        "resources": [
            {
                "name": name,
                "singularName": "",
                "namespaced": namespaced,
                "kind": kind,
                "verbs": _VERBS,
            }
            for name, kind, namespaced in _RESOURCES
        ],
    },
}
