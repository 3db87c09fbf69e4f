"""The parsers of what the API server answers."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from agent.model.registration import UNINITIALIZED, Taint
from agent.model.snapshot import Known
from agent.sources.kube.attachments import AttachmentsSource
from agent.sources.kube.autoscaler import AutoscalerClient, status
from agent.sources.kube.client import Api, Query, parse_list
from agent.sources.kube.node import parse_node
from agent.sources.kube.pods import parse_pod
from agent.sources.kube.replica import Replica
from agent.sources.kube.server_clock import ServerClock
from agent.sources.kube.server_version import parse_version
from tests.builders import CLOUD_DISK, DISK, NOW, registration, waiting_pod, worker
from tests.fakes import apiserver, nodes
from tests.fuzz.fuzzer import Fuzzer, Parse, pure
from tests.fuzz.wire_server import Replies
from tests.sources.kube.test_attachments import OBJECTS
from tests.sources.kube.test_autoscaler import LINES, TIME_FIRST, YAML
from tests.wire import http, kubeconfig

_NODE: Final = nodes.the_incident(NOW)
_POD: Final = apiserver.pod_object(_NODE, _NODE.running[0], 3000)
_REJECTED: Final = {
    "metadata": {
        "name": "vm-1",
        "namespace": "shop",
        "uid": "u-2",
        "resourceVersion": "9",
        "creationTimestamp": "2026-03-26T19:00:00Z",
        "deletionTimestamp": "2026-03-26T19:30:00Z",
        "finalizers": ["kubevirt.io/x"],
        "ownerReferences": [{"kind": "ReplicaSet", "name": "vm", "controller": True}],
        "annotations": {"kubernetes.io/config.mirror": "x", "kubernetes.io/config.hash": "y"},
        "managedFields": [{"manager": "kubelet", "subresource": "status", "time": "2026-03-26T19:00:05Z"}],
    },
    "spec": {
        "containers": [{"name": "c", "resources": {"limits": {"devices.kubevirt.io/kvm": "1"}}}],
        "initContainers": [{"name": "i", "resources": {"requests": {"nvidia.com/gpu": "2"}}}],
        "volumes": [
            {"name": "a", "persistentVolumeClaim": {"claimName": "data-0"}},
            {"name": "b", "ephemeral": {}},
            {"name": "d", "awsElasticBlockStore": {"volumeID": "vol-8"}},
            {"name": "e", "iscsi": {"targetPortal": "t", "iqn": "i", "lun": 0}},
        ],
    },
    "status": {
        "phase": "Failed",
        "reason": "UnexpectedAdmissionError",
        "message": "Pod Allocate failed due to requested number of devices unavailable for devices.kubevirt.io/kvm. "
        "Requested: 1, Available: 0, which is unexpected",
        "startTime": "2026-03-26T19:00:05Z",
        "podIPs": [{"ip": "10.0.0.9"}, {"ip": "fd00::9"}],
        "conditions": [{"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-03-26T19:00:00Z"}],
    },
}
_PENDING: Final = apiserver.pending_pod(_NODE, "shop", "web-1-abcde")
_THE_NODE: Final = apiserver.node_object(_NODE)
_WORKER: Final = {
    "metadata": {
        "name": "worker-1",
        "uid": "u",
        "resourceVersion": "7",
        "annotations": {"volumes.kubernetes.io/controller-managed-attach-detach": "true"},
    },
    "spec": {
        "podCIDR": "10.0.0.0/24",
        "taints": [{"key": "ToBeDeletedByClusterAutoscaler", "value": "1774526400", "effect": "NoSchedule"}],
    },
    "status": {
        "capacity": {"pods": "110", "nvidia.com/gpu": "1k"},
        "allocatable": {"pods": "110", "nvidia.com/gpu": "8"},
        "volumesInUse": [DISK],
        "volumesAttached": [{"name": DISK, "devicePath": ""}],
        "conditions": [{"type": "Ready", "status": "True"}, {"type": "CNIAddressPressure", "status": "False"}],
    },
}


def _dumped(*trees: Any) -> tuple[bytes, ...]:
    return tuple(json.dumps(tree, separators=(",", ":")).encode() for tree in trees)


def _events(*objects: Any) -> tuple[bytes, ...]:
    error = {"type": "ERROR", "object": {"kind": "Status", "code": 410, "message": "too old resource version: 1 (9)"}}
    bookmark = {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "12"}}}
    kinds = ("ADDED", "MODIFIED", "DELETED")
    changes = [{"type": kind, "object": one} for one, kind in zip(objects, kinds, strict=False)]
    return _dumped(*changes, error, bookmark)


def _lists(*items: Any) -> tuple[bytes, ...]:
    metadata = {"resourceVersion": "40", "continue": ""}
    first = {"kind": "PodList", "apiVersion": "v1", "metadata": metadata, "items": list(items)}
    return _dumped(first, {"items": list(items), "metadata": metadata}, {"metadata": metadata, "items": None})


def _applied(parse: Any) -> Parse:
    def apply(content: bytes) -> Any:
        replica = Replica(parse)
        replica.apply(content)
        return replica.items()

    return apply


def _replaced(parse: Any) -> Parse:
    def replace(content: bytes) -> Any:
        replica = Replica(parse)
        version, _, items = parse_list([content])
        replica.replace(version, items, consistent=False)
        return replica.items()

    return replace


class _Objects:
    """An API server that answers from one document: its objects by their paths."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        try:
            self._objects = json.loads(content)
        except (ValueError, RecursionError):
            self._objects = None

    def get(self, path: str, _query: Query = ()) -> bytes:
        if not isinstance(self._objects, dict):
            return self._content
        try:
            return json.dumps(self._objects.get(path)).encode()
        except (ValueError, RecursionError):
            return self._content

    def close(self) -> None:
        """Nothing is open."""


def _attachments(content: bytes) -> Any:
    source = AttachmentsSource(lambda: _Objects(content), "worker-1", lambda ask: ask(), lambda: 0.0)
    found = source.read([DISK, CLOUD_DISK], [waiting_pod()])
    return found.value if isinstance(found, Known) else None


def _autoscaler(content: bytes) -> Any:
    client = AutoscalerClient("worker-1", lambda _path, _query: content, lambda: 0.0)
    node = worker(Taint(UNINITIALIZED))
    found = client.read(Known(node), Known(registration()))
    client = AutoscalerClient("worker-1", lambda _path, _query: content, lambda: 0.0)
    return found, client.read(Known(worker()), Known(registration()))


def _status(content: bytes) -> Any:
    found = status(content.decode(errors="replace"))
    assert all(one is None or 0 <= one < 10**9 for one in (found.unregistered, found.long_unregistered))


def _date(content: bytes) -> Any:
    clock = ServerClock(lambda: NOW)
    clock.record(content.decode("latin-1"), NOW, NOW + timedelta(seconds=1))
    assert clock.skew is None or isinstance(clock.skew, timedelta)


@contextmanager
def _api(directory: Path) -> Iterator[tuple[Api, Replies]]:
    with Replies(None, {}, waits=True).serving() as replies:
        path = kubeconfig(directory / "config", f"http://127.0.0.1:{replies.port}")
        api = Api(path, 5.0, ServerClock(lambda: NOW))
        try:
            yield api, replies
        finally:
            api.close()


@contextmanager
def _get(directory: Path) -> Iterator[Parse]:
    with _api(directory) as (api, replies):

        def parse(content: bytes) -> Any:
            replies.content = content
            return api.get("/version")

        yield parse


@contextmanager
def _watch(directory: Path) -> Iterator[Parse]:
    with _api(directory) as (api, replies):

        def parse(content: bytes) -> Any:
            replies.content = content
            return list(api.stream("/api/v1/pods", (), 5.0))

        yield parse


_STREAM: Final = (
    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n"
    + b"\n".join(_events(_POD))
    + b"\n"
)
_REFUSED: Final = http(json.dumps({"message": "pods is forbidden"}), "403 Forbidden")
_DATED: Final = http(b"{}").replace(b"\r\n\r\n", b"\r\nDate: Thu, 26 Mar 2026 20:00:00 GMT\r\n\r\n", 1)

FUZZERS: Final = (
    Fuzzer("pod-list", _lists(_POD, _REJECTED), pure(_replaced(parse_pod))),
    Fuzzer("pod-event", _events(_POD, _REJECTED, _PENDING), pure(_applied(parse_pod))),
    Fuzzer("node-list", _lists(_THE_NODE, _WORKER), pure(_replaced(parse_node))),
    Fuzzer("node-event", _events(_THE_NODE, _WORKER), pure(_applied(parse_node))),
    Fuzzer("volumes", _dumped(OBJECTS), pure(_attachments)),
    Fuzzer("autoscaler", _lists(_THE_NODE, _WORKER) + _dumped({"data": {"status": YAML}}), pure(_autoscaler)),
    Fuzzer("autoscaler-status", (LINES.encode(), YAML.encode(), TIME_FIRST.encode()), pure(_status), as_json=False),
    Fuzzer("server-version", _dumped({"gitVersion": "v1.20.2", "major": "1"}), pure(parse_version)),
    Fuzzer("server-date", (b"Thu, 26 Mar 2026 20:00:00 GMT", b"26 Mar 26 20:00 +0100"), pure(_date), as_json=False),
    Fuzzer("api-answer", (_DATED, _REFUSED), _get, as_json=False),
    Fuzzer("api-watch", (_STREAM,), _watch, as_json=False),
)
