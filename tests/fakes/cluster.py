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
_LEAST = 0.2
"""Seconds. kubectl 1.30 to 1.33 lose what arrives before they are ready for it."""


@dataclass(frozen=True)
class Ran:
    """What a command in a pod did."""

    output: str = ""
    error: str = ""
    code: int = 0
    seconds: float = 0.0
    broken: bool = False
    """Whether the connection ends before the command does."""


@dataclass
class FakeCluster:
    """`run`: what a command prints in the agent's pod of a node."""

    nodes: Sequence[str]
    run: Callable[[str, Sequence[str]], Ran]
    daemon_sets: Sequence[Tree] = ()
    proxied: Callable[[str], Tree] = lambda _: {}
    """What every service answers to a path and its query."""
    url: str = ""
    requests: "Counter[str]" = field(default_factory=Counter)
    lock: Lock = field(default_factory=Lock)
    most: int = 0
    """The greatest number of commands at the same time."""
    running: int = 0

    def pod(self, node: str) -> Tree:
        created = "2026-03-26T19:00:00Z"
        metadata = {"name": f"nodeleak-{node}", "namespace": "kube-system", "labels": LABELS}
        return {
            "kind": "Pod",
            "apiVersion": "v1",
            "metadata": metadata | {"creationTimestamp": created},
            "spec": {
                "nodeName": node,
                "containers": [{"name": "nodeleak", "image": "registry.invalid/nodeleak:0.1.0"}],
            },
            "status": {
                "phase": "Running",
                "conditions": [{"type": "Ready", "status": "True"}],
                "containerStatuses": [{"name": "nodeleak", "state": {"running": {"startedAt": created}}}],
            },
        }

    @contextmanager
    def serve(self, tls: ssl.SSLContext | None = None) -> Iterator["FakeCluster"]:
        server = _Server(self)
        if tls:
            server.socket = tls.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        with serving(server):
            self.url = f"{'https' if tls else 'http'}://127.0.0.1:{server.server_address[1]}"
            yield self

    @contextmanager
    def command(self) -> Iterator[None]:
        with self.lock:
            self.running += 1
            self.most = max(self.most, self.running)
        try:
            yield
        finally:
            with self.lock:
                self.running -= 1


class _Server(Threads, HTTPServer):
    request_queue_size = 128

    def __init__(self, cluster: FakeCluster) -> None:
        self.cluster = cluster
        super().__init__(("127.0.0.1", 0), _ClusterHandler)


class _ClusterHandler(Handler):
    server: _Server

    def answer(self, url: SplitResult) -> None:
        cluster = self.server.cluster
        match url.path.strip("/").split("/"):
            case ["api", "v1", "namespaces", "kube-system", "pods", pod, "exec"]:
                self._count("exec pods")
                self._execute(pod.removeprefix("nodeleak-"), parse_qs(url.query)["command"])
            case ["api", "v1", "namespaces", "kube-system", "pods", pod]:
                self._object("pods", [one for one in map(cluster.pod, cluster.nodes) if one["metadata"]["name"] == pod])
            case ["api", "v1", "pods"] | ["api", "v1", "namespaces", "kube-system", "pods"]:
                self._list("pods", "PodList", self._pods(parse_qs(url.query)))
            case ["api", "v1", "nodes"]:
                self._count("list nodes")
                self.send_tree(_table(cluster.nodes))
            case ["api", "v1", "nodes", node]:
                self._count("get nodes")
                found = [one for one in cluster.nodes if one == node]
                self.send_tree(_table(found) if found else _not_found(node), _status(found))
            case ["apis", "apps", "v1", _] | ["apis", "apps", "v1", "namespaces", _, _]:
                self._list("daemonsets", "DaemonSetList", cluster.daemon_sets)
            case ["api", "v1", "namespaces", namespace, "services", service, "proxy", *path]:
                self._count(f"proxy {namespace}/{service}")
                self.send_tree(cluster.proxied(f"/{'/'.join(path)}?{url.query}"))
            case _:
                self._discover(url.path)

    def _pods(self, query: dict[str, list[str]]) -> list[Tree]:
        (selector,) = query.get("fieldSelector", [""])
        name = selector.removeprefix("spec.nodeName=")
        return [self.server.cluster.pod(node) for node in self.server.cluster.nodes if name in {"", node}]

    def _count(self, what: str) -> None:
        with self.server.cluster.lock:
            self.server.cluster.requests[what] += 1

    def _list(self, what: str, kind: str, items: Sequence[Tree]) -> None:
        self._count(f"list {what}")
        version = "apps/v1" if what == "daemonsets" else "v1"
        self.send_tree({"kind": kind, "apiVersion": version, "metadata": {"resourceVersion": "7"}, "items": items})

    def _object(self, what: str, found: Sequence[Tree]) -> None:
        self._count(f"get {what}")
        self.send_tree(found[0] if found else _not_found(what), _status(found))

    def _discover(self, path: str) -> None:
        self._count("discovery")
        if path not in _DISCOVERY:
            self.send_tree(_not_found(path), HTTPStatus.NOT_FOUND)
            return
        self.send_tree(_DISCOVERY[path])

    def _execute(self, node: str, command: Sequence[str]) -> None:
        key = self.headers["Sec-WebSocket-Key"].encode() + _MAGIC.encode()
        self.send_response(HTTPStatus.SWITCHING_PROTOCOLS)
        self.send_header("Upgrade", "websocket")
        self.send_header("Connection", "Upgrade")
        self.send_header("Sec-WebSocket-Accept", base64.b64encode(hashlib.sha1(key).digest()).decode())  # noqa: S324
        self.send_header("Sec-WebSocket-Protocol", "v5.channel.k8s.io")
        self.end_headers()
        self.wfile.flush()
        with self.server.cluster.command():
            done = self.server.cluster.run(node, command)
            time.sleep(max(done.seconds, _LEAST))
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
    return {
        "metadata": {},
        "status": "Failure",
        "message": f"command terminated with non-zero exit code: {code}",
        "reason": "NonZeroExitCode",
        "details": {"causes": [{"reason": "ExitCode", "message": str(code)}]},
    }


def _status(found: Sequence[object]) -> HTTPStatus:
    return HTTPStatus.OK if found else HTTPStatus.NOT_FOUND


def _not_found(name: str) -> Tree:
    text = f'"{name}" not found'
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "message": text,
        "reason": "NotFound",
        "code": 404,
    }


def _table(nodes: Sequence[str]) -> Tree:
    columns = [
        {"name": name, "type": "string", "format": "", "priority": 0} for name in ("Name", "Status", "Roles", "Age")
    ]
    rows = [
        {
            "cells": [node, "Ready", "<none>", "3d"],
            "object": {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": {"name": node}},
        }
        for node in nodes
    ]
    head = {"kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": {"resourceVersion": "7"}}
    return head | {"columnDefinitions": columns, "rows": rows}


def _resource(name: str, kind: str, *, namespaced: bool) -> Tree:
    verbs = ["create", "get", "list"]
    return {"name": name, "singularName": "", "namespaced": namespaced, "kind": kind, "verbs": verbs}


_APPS = {"groupVersion": "apps/v1", "version": "v1"}
_DISCOVERY: dict[str, Tree] = {
    "/version": {"major": "1", "minor": "32", "gitVersion": "v1.32.0"},
    "/api": {"kind": "APIVersions", "versions": ["v1"]},
    "/apis": {
        "kind": "APIGroupList",
        "apiVersion": "v1",
        "groups": [{"name": "apps", "versions": [_APPS], "preferredVersion": _APPS}],
    },
    "/api/v1": {
        "kind": "APIResourceList",
        "groupVersion": "v1",
        "resources": [
            _resource("nodes", "Node", namespaced=False),
            _resource("pods", "Pod", namespaced=True),
            _resource("pods/exec", "PodExecOptions", namespaced=True),
        ],
    },
    "/apis/apps/v1": {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": "apps/v1",
        "resources": [_resource("daemonsets", "DaemonSet", namespaced=True)],
    },
}
