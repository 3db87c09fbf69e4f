"""A fake Kubernetes API server (1.20) on loopback: list and watch one node's pods and its Node object.

Plain HTTP without authentication. It serves `/version`, and `/api/v1/pods` and `/api/v1/nodes` with field selectors,
resource versions, bookmarks and long watches. `/fake/requests` returns the number of requests of each kind.
"""

import random
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import datetime
from http import HTTPStatus
from http.server import HTTPServer
from pathlib import Path
from threading import Event
from typing import Any
from urllib.parse import SplitResult, parse_qs

from tests.fakes.nodes import FakeNode, PodSandbox
from tests.fakes.serving import Handler, Threads, compact, filled, serving
from tests.wire import self_signed

_VERSION = 48_213_007  # The resource version of all objects
_BOOKMARK_EVERY = 10.0  # Seconds; the real one sends a bookmark about every minute
_LONGEST_WATCH = 1800.0
_EVICTED_BYTES = 12_000

Tree = dict[str, Any]


@contextmanager
def apiserver(
    node: FakeNode, pod_bytes: tuple[int, int] = (0, 0), account: Path | None = None
) -> Iterator[str]:
    """Serve a node's objects while the block runs, and give the server's URL.

    `pod_bytes`: minimum and maximum size of a pod's JSON; pods are padded, as injected environments do. `account`: a
    new directory for a service account, to whom the objects are served over TLS too.
    """
    chance = random.Random(len(node.running))  # noqa: S311 (reproducible sizes)
    pods = [pod_object(node, sandbox, chance.randint(*pod_bytes)) for sandbox in node.running]
    pods += [pending_pod(node, namespace, name) for namespace, name in node.pending]
    pods += _evicted_pods(node)
    server = _Server({"pods": pods, "nodes": [node_object(node)]})
    with ExitStack() as stack:
        stack.enter_context(serving(server))
        stack.callback(server.closing.set)
        if account:
            stack.enter_context(serving(_for_pods(server, account)))
        yield f"http://127.0.0.1:{server.server_address[1]}"


def _for_pods(server: "_Server", account: Path) -> "_Server":
    """Return a server of the same objects, which counts with the first one."""
    account.mkdir()
    context, certificate = self_signed(account)
    certificate.rename(account / "ca.crt")
    (account / "token").write_text("token")
    encrypted = _Server(server.objects)
    encrypted.requests = server.requests
    encrypted.closing = server.closing
    encrypted.socket = context.wrap_socket(encrypted.socket, server_side=True)
    (account / "port").write_text(str(encrypted.server_address[1]))
    return encrypted


class _Server(Threads, HTTPServer):
    request_queue_size = 64

    def __init__(self, objects: Mapping[str, list[Tree]]) -> None:
        self.objects = objects
        self.requests: Counter[str] = Counter()
        self.closing = Event()
        super().__init__(("127.0.0.1", 0), _ApiHandler)


class _ApiHandler(Handler):
    server: _Server
    disable_nagle_algorithm = True

    def answer(self, url: SplitResult) -> None:
        query = {name: values[-1] for name, values in parse_qs(url.query).items()}
        resource = url.path.removeprefix("/api/v1/")
        if url.path == "/fake/requests":
            self.send_tree(self.server.requests)
        elif url.path == "/version":
            self.server.requests["GET version"] += 1
            self.send_tree({"major": "1", "minor": "20", "gitVersion": "v1.20.2"})
        elif resource not in self.server.objects:
            self.send_tree(_not_found(url.path), HTTPStatus.NOT_FOUND)
        elif query.get("watch") in {"1", "true"}:
            self.server.requests[f"WATCH {resource}"] += 1
            self._watch(resource, query)
        else:
            self.server.requests[f"LIST {resource}"] += 1
            self._list(resource, query)

    def _list(self, resource: str, query: Mapping[str, str]) -> None:
        kind = "PodList" if resource == "pods" else "NodeList"
        # As the real one: the list's kind and version stand before the items, whose own kind is left out.
        items = [
            {name: value for name, value in item.items() if name not in {"kind", "apiVersion"}}
            for item in self._selected(resource, query)
        ]
        metadata = {"resourceVersion": str(_VERSION)}
        self.send_tree({"kind": kind, "apiVersion": "v1", "metadata": metadata, "items": items})

    def _watch(self, resource: str, query: Mapping[str, str]) -> None:
        """Stream events until the time is over: what is newer than the version asked for, then bookmarks."""
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.wfile.flush()
        if int(query.get("resourceVersion") or 0) < _VERSION:
            for item in self._selected(resource, query):
                self._event("ADDED", item)
        metadata = {"resourceVersion": str(_VERSION), "creationTimestamp": None}
        bookmark = {
            "kind": "Pod" if resource == "pods" else "Node",
            "apiVersion": "v1",
            "metadata": metadata,
        }
        left = min(float(query.get("timeoutSeconds") or _LONGEST_WATCH), _LONGEST_WATCH)
        while left > 0 and not self.server.closing.wait(min(left, _BOOKMARK_EVERY)):
            left -= _BOOKMARK_EVERY
            if query.get("allowWatchBookmarks") in {"1", "true"}:
                self._event("BOOKMARK", bookmark)
        self.wfile.write(b"0\r\n\r\n")

    def _event(self, kind: str, item: Tree) -> None:
        line = compact({"type": kind, "object": item})
        self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
        self.wfile.flush()

    def _selected(self, resource: str, query: Mapping[str, str]) -> list[Tree]:
        return [item for item in self.server.objects[resource] if matches(item, query)]


def matches(item: Tree, query: Mapping[str, str]) -> bool:
    """Whether an object is one of those that the query selects."""
    wanted = [term.split("=", 1) for term in query.get("fieldSelector", "").split(",") if term]
    return all(_field(item, path) == value for path, value in wanted)


def _field(item: Tree, path: str) -> Any:
    value: Any = item
    for name in path.split("."):
        value = value.get(name, {})
    return value


def _not_found(path: str) -> Tree:
    message = f"the fake API server has no {path}"
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "message": message,
        "code": 404,
    }


def node_object(node: FakeNode) -> Tree:
    found = filled(
        "node", node=node.name, node_ip=node.ip, cidr=node.cidr, created=_moment(node.booted), runtime=node.runtime,
        max_pods=node.max_pods, version=_VERSION,
    )  # fmt: skip
    if node.unschedulable:
        found["spec"]["unschedulable"] = True
    return found


def pod_object(node: FakeNode, sandbox: PodSandbox, least_bytes: int) -> Tree:
    pod = _pod(node, sandbox)
    if not sandbox.ip:
        pod["spec"]["hostNetwork"] = True
    _fill(pod, least_bytes)
    return pod


def pending_pod(node: FakeNode, namespace: str, name: str) -> Tree:
    waiting = PodSandbox("", namespace, name, "", node.kubelet_started)
    return _pod(node, waiting) | {
        "status": {"phase": "Pending", "hostIP": node.ip, "qosClass": "BestEffort"}
    }


def _evicted_pods(node: FakeNode) -> Iterator[Tree]:
    """Make pods of `_EVICTED_BYTES` each, which share all but their names."""
    model = pod_object(
        node,
        PodSandbox("", "batch", "nightly-report-7c76c6984d-00000", "", node.kubelet_started),
        _EVICTED_BYTES,
    )
    del model["spec"]["hostNetwork"]
    model["status"] = {
        "phase": "Failed",
        "reason": "Evicted",
        "message": "The node was low on resource: ephemeral-storage. Container app was using 7Gi, its request is 0.",
        "startTime": _moment(node.kubelet_started),
    }
    for number in range(node.evicted):
        names = {
            "name": f"nightly-report-7c76c6984d-{number:05}",
            "uid": f"e71c7ed0-0000-4000-8000-{number:012}",
        }
        yield {**model, "metadata": model["metadata"] | names}


def _pod(node: FakeNode, sandbox: PodSandbox) -> Tree:
    """Return a pod that runs."""
    name = sandbox.pod
    pod = filled(
        "pod",
        app=name.rsplit("-", 2)[0],
        container=sandbox.container_id,
        created=_moment(sandbox.made),
        hash=name.split("-")[-2],
        image=sandbox.container_id[::-1],
        ip=sandbox.ip or node.ip,
        namespace=sandbox.namespace,
        node=node.name,
        node_ip=node.ip,
        pod=name,
        prefix=name[:-5],
        uid=sandbox.uid,
        version=_VERSION - 1,
    )
    pod["status"]["containerStatuses"][0]["restartCount"] = sandbox.restarts
    return pod


def _fill(pod: Tree, least_bytes: int) -> None:
    """Grow a pod as real ones grow: an environment variable, and the field manager's note of it."""
    environment: list[Tree] = pod["spec"]["containers"][0]["env"]
    noted: Tree = {}
    pod["metadata"]["managedFields"] = [
        {
            "manager": "kube-controller-manager",
            "operation": "Update",
            "fieldsV1": {"f:spec": {"f:env": noted}},
        }
    ]
    size = len(compact(pod))
    while size < least_bytes:
        name = f"SPRING_DATASOURCE_POOL_SETTING_{len(environment):03}"
        environment.append(
            {"name": name, "value": f"jdbc:mysql://db-{len(environment):03}.example:3306/orders"}
        )
        noted[f'k:{{"name":"{name}"}}'] = {".": {}, "f:name": {}, "f:value": {}}
        size += len(compact(environment[-1])) + len(name) + 58


def _moment(when: datetime) -> str:
    return when.strftime("%Y-%m-%dT%H:%M:%SZ")
