"""A stand-in for containerd 1.5 to 2.x and CRI-O, because no real runtime stays in the middle of creating a sandbox.

It answers what `Cri` asks, in the words of the real ones: containerd 1.6.20, 1.7.24, 2.1.9, CRI-O 1.28.11 and 1.35.6.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from tests.fakes.grpc_server import Answers, Call
from tests.fakes.nodes import EXITED_BYTES, FakeNode, PodSandbox
from tests.fakes.protobuf import messages

NOT_FOUND, UNIMPLEMENTED = 5, 12
RUNNING, EXITED = 1, 2
READY, NOT_READY = range(2)

_STATUS: Final = {
    "id": (1, "string"),
    "state": (3, "int32"),
    "created_at": (4, "int64"),
    "labels": (7, "map"),
}
PROTO: Final = messages(
    "cri",
    {
        "Version": {"version": (1, "string"), "name": (2, "string"), "runtime": (3, "string"), "api": (4, "string")},
        "Metadata": {"name": (1, "string"), "uid": (2, "string"), "namespace": (3, "string"), "attempt": (4, "int32")},
        "PodSandbox": {
            "id": (1, "string"), "metadata": (2, "Metadata"), "state": (3, "int32"), "created_at": (4, "int64"),
            "labels": (5, "map"), "annotations": (6, "map"), "handler": (7, "string"),
        },
        "Container": {
            "id": (1, "string"), "sandbox": (2, "string"), "metadata": (3, "Metadata"), "state": (6, "int32"),
            "created_at": (7, "int64"), "labels": (8, "map"), "annotations": (9, "map"),
        },
        "Sandboxes": {"items": (1, "*PodSandbox")},
        "Containers": {"containers": (1, "*Container")},
        "SandboxStatus": _STATUS,
        "PodSandboxStatus": {"status": (1, "SandboxStatus"), "info": (2, "map")},
        "ContainerStatus": {"status": (1, "Container")},
        "Condition": {
            "type": (1, "string"), "status": (2, "bool"), "reason": (3, "string"), "message": (4, "string"),
        },
        "Conditions": {"conditions": (1, "*Condition")},
        "Status": {"status": (1, "Conditions"), "info": (2, "map")},
        "Namespace": {"name": (1, "string"), "labels": (2, "map")},
        "Namespaces": {"namespaces": (1, "*Namespace")},
        "Timestamp": {"seconds": (1, "int64"), "nanos": (2, "int32")},
        "Any": {"type_url": (1, "string"), "value": (2, "bytes")},
        "Record": {"id": (1, "string"), "labels": (2, "map"), "spec": (5, "Any"), "created_at": (8, "Timestamp")},
        "Records": {"containers": (1, "*Record")},
        "Runtime": {"name": (1, "string")},
        "Sandbox": {
            "sandbox_id": (1, "string"), "runtime": (2, "Runtime"), "labels": (4, "map"),
            "created_at": (5, "Timestamp"),
        },
        "SandboxRecords": {"list": (1, "*Sandbox")},
        "GotSandbox": {"sandbox": (1, "Sandbox")},
        "Filters": {"filters": (1, "*string")},
        "Id": {"id": (1, "string"), "verbose": (2, "bool")},
        "Verbose": {"verbose": (1, "bool")},
    },
)  # fmt: skip


@dataclass
class FakeRuntime:
    """What a runtime has, and how it is built."""

    name: str = "containerd"
    version: str = "1.7.24"
    apis: tuple[str, ...] = ("v1",)
    sandboxes: list[Any] = field(default_factory=list)
    containers: list[Any] = field(default_factory=list)
    records: dict[str, list[Any]] = field(default_factory=lambda: {"k8s.io": []})
    """containerd's containers, by namespace."""
    stored: list[Any] = field(default_factory=list)  # containerd's sandboxes
    has_store: bool = True
    unborn: set[str] = field(default_factory=set)  # CRI-O's sandboxes that are being created
    info: dict[str, str] = field(default_factory=dict)
    network_not_ready: str = ""  # why; empty: it is
    instead: dict[str, Answers] = field(default_factory=dict)
    """Other answers, by the method's name with or without its service."""

    def answer(self, call: Call) -> None:
        service, _, method = call.method.lstrip("/").rpartition("/")
        if other := self.instead.get(call.method) or self.instead.get(method):
            other(call)
        elif matched := re.fullmatch(r"runtime\.(v1|v1alpha2)\.RuntimeService", service):
            self._cri(call, method) if matched[1] in self.apis else _unknown(call, service)
        elif self.name != "containerd":
            _unknown(call, service)
        elif service == "containerd.services.namespaces.v1.Namespaces":
            _send(
                call,
                "Namespaces",
                namespaces=[PROTO["Namespace"](name=name) for name in self.records],
            )
        elif service == "containerd.services.containers.v1.Containers":
            records = self.records.get(call.headers["containerd-namespace"], [])
            _send(call, "Records", containers=_matching(call, records, "id"))
        elif service == "containerd.services.sandbox.v1.Store" and self.has_store:
            assert call.headers["containerd-namespace"] == "k8s.io"
            _send(call, "SandboxRecords", list=_matching(call, self.stored, "sandbox_id"))
        else:
            _unknown(call, service)

    def _cri(self, call: Call, method: str) -> None:
        asked = (
            PROTO["Id"].FromString(call.request).id
            if method.endswith(("SandboxStatus", "ContainerStatus"))
            else ""
        )
        match method:
            case "Version":
                _send(
                    call, "Version", version="0.1.0", name=self.name, runtime=self.version, api="v1"
                )
            case "ListPodSandbox":
                _send(call, "Sandboxes", items=self.sandboxes)
            case "ListContainers":
                _send(call, "Containers", containers=self.containers)
            case "PodSandboxStatus":
                self._sandbox_status(call, asked)
            case "ContainerStatus":
                self._container_status(call, asked)
            case "Status":
                assert PROTO["Verbose"].FromString(call.request).verbose
                conditions = PROTO["Conditions"](conditions=_conditions(self.network_not_ready))
                _send(call, "Status", status=conditions, info=self.info)
            case _:
                call.fail(
                    UNIMPLEMENTED, f"unknown method {method} for service runtime.v1.RuntimeService"
                )

    def _sandbox_status(self, call: Call, asked: str) -> None:
        if found := _named(self.sandboxes, asked):
            _send(call, "PodSandboxStatus", status=_status(found))
        elif self.name == "containerd":
            call.fail(NOT_FOUND, "an error occurred when try to find sandbox: not found")
        elif asked in self.unborn:
            call.fail(NOT_FOUND, f'could not find pod "{asked}": sandbox not created')
        else:
            missing = f"PodSandbox with ID starting with {asked} not found: ID does not exist"
            call.fail(NOT_FOUND, f'could not find pod "{asked}": {missing}')

    def _container_status(self, call: Call, asked: str) -> None:
        if found := _named(self.containers, asked):
            _send(call, "ContainerStatus", status=found)
        elif self.name == "containerd":
            call.fail(
                NOT_FOUND, f'an error occurred when try to find container "{asked}": not found'
            )
        else:
            missing = f"container with ID starting with {asked} not found: ID does not exist"
            call.fail(NOT_FOUND, f'could not find container "{asked}": {missing}')


def _conditions(network_not_ready: str) -> list[Any]:
    """Return the conditions of a runtime whose network may not be ready."""
    network: dict[str, Any] = {"status": True}
    if network_not_ready:
        message = f"Network plugin returns error: {network_not_ready}"
        network = {"reason": "NetworkPluginNotReady", "message": message}
    return [
        PROTO["Condition"](type="RuntimeReady", status=True),
        PROTO["Condition"](type="NetworkReady", **network),
    ]


def _named(listed: list[Any], container_id: str) -> Any:
    return next((one for one in listed if one.id == container_id), None)


def _send(call: Call, kind: str, /, **fields: Any) -> None:
    call.answer(PROTO[kind](**fields).SerializeToString())


def _unknown(call: Call, service: str) -> None:
    call.fail(UNIMPLEMENTED, f"unknown service {service}")


def _status(one: Any) -> Any:
    labels = dict(one.labels)
    return PROTO["SandboxStatus"](
        id=one.id, state=one.state, created_at=one.created_at, labels=labels
    )


def _matching(call: Call, records: list[Any], key: str) -> list[Any]:
    """Apply filters as containerd does: one of them must match, and without any all do."""
    wanted = [
        text.removeprefix("id==") for text in PROTO["Filters"].FromString(call.request).filters
    ]
    assert all(re.fullmatch("[0-9a-f]{64}", text) for text in wanted), (
        "a filter of anything else may match anything"
    )
    return [record for record in records if not wanted or getattr(record, key) in wanted]


LABELS: Final = {
    "io.kubernetes.pod.name": "web-0",
    "io.kubernetes.pod.namespace": "shop",
    "io.kubernetes.pod.uid": "u-1",
    "app": "web",
}
AT: Final = 1_700_000_000


def sandbox(container_id: str, state: int = READY, labels: dict[str, str] | None = None) -> Any:
    named = PROTO["Metadata"](name="web-0", uid="u-1", namespace="shop")
    labels = LABELS if labels is None else labels
    return PROTO["PodSandbox"](
        id=container_id,
        metadata=named,
        state=state,
        created_at=AT * 10**9 + 5,
        labels=labels,
        annotations={"a": "b"},
    )


def container(container_id: str, state: int = RUNNING, labels: dict[str, str] | None = None) -> Any:
    labels = LABELS if labels is None else labels
    return PROTO["Container"](
        id=container_id,
        sandbox="f" * 64,
        state=state,
        created_at=AT * 10**9 + 5,
        labels=labels,
        annotations={"a": "b"},
    )


def record(container_id: str, labels: dict[str, str] | None = None) -> Any:
    """Make a container of containerd's own store."""
    spec = PROTO["Any"](
        type_url="types.containerd.io/opencontainers/runtime-spec/1/Spec", value=b"{}" * 2000
    )
    stamp = PROTO["Timestamp"](seconds=AT, nanos=5)
    return PROTO["Record"](
        id=container_id, labels=LABELS if labels is None else labels, spec=spec, created_at=stamp
    )


def stored(container_id: str) -> Any:
    """Make a sandbox of containerd's own store, whose only label is a name."""
    return PROTO["Sandbox"](
        sandbox_id=container_id,
        runtime=PROTO["Runtime"](name="io.containerd.runc.v2"),
        labels={"name": "web-0_shop_u-1_0"},
        created_at=PROTO["Timestamp"](seconds=AT),
    )


def of_node(node: FakeNode, info: Mapping[str, str] | None = None) -> FakeRuntime:
    """Return the runtime of a fake node. `info`: of its status."""

    def labels(one: PodSandbox) -> dict[str, str]:
        named = {"name": one.pod, "namespace": one.namespace, "uid": one.uid}
        return {f"io.kubernetes.pod.{key}": value for key, value in named.items()}

    name, _, version = node.runtime.partition("://")
    listed = [sandbox(one.id, labels=labels(one)) for one in node.running]
    for one in node.exited_sandboxes:
        listed.append(sandbox(one.id, NOT_READY, labels=labels(one)))
        listed[-1].annotations["example.com/injected"] = "x" * EXITED_BYTES
    within = [
        container(one.container_id, labels=labels(one)) for one in node.running if not one.starting
    ]
    return FakeRuntime(name, version, sandboxes=listed, containers=within, info=dict(info or {}))


def cniconfig(*plugins: dict[str, Any], name: str = "cbr0", inlined: int | None = None) -> str:
    """Write the networks as containerd does: its own loopback, and one.

    `inlined`: how many of the plugins its file has; None: all of them.
    """

    def network(name: str, *plugins: dict[str, Any]) -> dict[str, Any]:
        source = {"cniVersion": "1.0.0", "name": name, "plugins": plugins[:inlined]}
        sources = [
            {"Network": {"type": one.get("type"), "ipam": {}, "dns": {}}, "Source": json.dumps(one)}
            for one in plugins
        ]
        return {
            "Config": {
                "Name": name,
                "CNIVersion": "1.0.0",
                "Plugins": sources,
                "Source": json.dumps(source),
            },
            "IFName": "eth0",
        }

    networks = [network("cni-loopback", {"type": "loopback"}), network(name, *plugins)]
    return json.dumps(
        {"PluginDirs": ["/opt/cni/bin"], "PluginConfDir": "/etc/cni/net.d", "Networks": networks}
    )
