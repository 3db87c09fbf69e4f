"""What a kubelet asks of a runtime by CRI: the agent's own gRPC client, and messages of protobuf's own library."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from agent.sources.runtime.grpc_unary import Code, GrpcConnection, GrpcError
from tests.containerd import image
from tests.fakes.protobuf import messages

READY: Final = "ready"
NOT_READY: Final = "not ready"
NAMESPACE: Final = "k8s.io"
_CONTAINERS: Final = "/containerd.services.containers.v1.Containers"
_SANDBOXES: Final = "/containerd.services.sandbox.v1.Store"
"""Since 1.7."""
_POD: Final = "io.kubernetes.pod."
_OF_SANDBOXES: Final = {
    "kubernetes.io/config.seen": "2026-11-22T08:00:00.000000000Z",
    "kubernetes.io/config.source": "api",
}
_OF_CONTAINERS: Final = {
    "io.kubernetes.container.hash": "7a1f3c5e",
    "io.kubernetes.container.restartCount": "0",
    "io.kubernetes.container.terminationMessagePath": "/dev/termination-log",
    "io.kubernetes.container.terminationMessagePolicy": "File",
    "io.kubernetes.pod.terminationGracePeriod": "30",
}
"""The annotations of a kubelet."""
_LONGEST_HOSTNAME: Final = 63

_PROTO: Final = messages(
    "kubelet",
    {
        "Metadata": {"name": (1, "string"), "uid": (2, "string"), "namespace": (3, "string"), "attempt": (4, "int32")},
        "NamespaceOption": {"network": (1, "int32"), "pid": (2, "int32"), "ipc": (3, "int32")},
        "Security": {"namespace_options": (1, "NamespaceOption")},
        "Linux": {"cgroup_parent": (1, "string"), "security_context": (2, "Security")},
        "Config": {
            "metadata": (1, "Metadata"), "hostname": (2, "string"), "log_directory": (3, "string"),
            "labels": (6, "map"), "annotations": (7, "map"), "linux": (8, "Linux"),
        },
        "RunRequest": {"config": (1, "Config")},
        "RunResponse": {"id": (1, "string")},
        "Image": {"image": (1, "string")},
        "ContainerSecurity": {"namespace_options": (3, "NamespaceOption")},
        "ContainerLinux": {"security_context": (2, "ContainerSecurity")},
        "ContainerConfig": {
            "metadata": (1, "Metadata"), "image": (2, "Image"), "labels": (9, "map"), "annotations": (10, "map"),
            "linux": (15, "ContainerLinux"),
        },
        "CreateRequest": {"sandbox": (1, "string"), "config": (2, "ContainerConfig"), "sandbox_config": (3, "Config")},
        "Id": {"id": (1, "string")},
        "PodSandbox": {"id": (1, "string"), "metadata": (2, "Metadata"), "state": (3, "int32")},
        "Sandboxes": {"items": (1, "*PodSandbox")},
        "Network": {"ip": (1, "string")},
        "Status": {"id": (1, "string"), "state": (3, "int32"), "network": (5, "Network")},
        "StatusResponse": {"status": (1, "Status")},
        "Record": {"id": (1, "string")},
        "Records": {"records": (1, "*Record")},
    },
)  # fmt: skip
_NAMESPACES: Final = _PROTO["NamespaceOption"](pid=1)
"""The PID namespace of a container of its own: pause need not be the first process of the sandbox."""


@dataclass(frozen=True, slots=True)
class Pod:
    name: str
    namespace: str
    uid: str
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def own_labels(self) -> dict[str, str]:
        """Return the labels by which a kubelet finds what it made of the pod."""
        return {f"{_POD}name": self.name, f"{_POD}namespace": self.namespace, f"{_POD}uid": self.uid}


@dataclass(frozen=True, slots=True)
class Kubelet:
    """The calls of a kubelet. Each has a connection of its own, so every thread may use it. All raise SourceError."""

    socket: Path
    cgroup: str
    logs: str
    """Directories of the sandboxes' cgroups and logs."""

    def run(self, name: str, timeout: float = 60.0) -> str:
        """Make the sandbox of a new pod and return its id."""
        return self.run_sandbox(Pod(name, "default", f"uid-{name}"), timeout)

    def run_sandbox(self, pod: Pod, timeout: float = 60.0) -> str:
        """Make a sandbox and return its id."""
        answer = self._cri("RunPodSandbox", _PROTO["RunRequest"](config=self._config(pod)), timeout)
        return str(_PROTO["RunResponse"].FromString(answer).id)

    def run_container(self, pod: Pod, sandbox: str) -> None:
        """Start a container in a sandbox, with the image of the sandbox."""
        config = _PROTO["ContainerConfig"](
            metadata=_PROTO["Metadata"](name="app"),
            image=_PROTO["Image"](image=image.NAME),
            labels={"io.kubernetes.container.name": "app", **pod.own_labels},
            annotations=_OF_CONTAINERS,
            linux=_PROTO["ContainerLinux"](security_context=_PROTO["ContainerSecurity"](namespace_options=_NAMESPACES)),
        )
        request = _PROTO["CreateRequest"](sandbox=sandbox, config=config, sandbox_config=self._config(pod))
        created = _PROTO["RunResponse"].FromString(self._cri("CreateContainer", request, 60.0))
        self._cri("StartContainer", _PROTO["Id"](id=created.id), 60.0)

    def _config(self, pod: Pod) -> Any:
        return _PROTO["Config"](
            metadata=_PROTO["Metadata"](name=pod.name, uid=pod.uid, namespace=pod.namespace),
            hostname=pod.name[:_LONGEST_HOSTNAME],
            log_directory=self.logs,
            labels={**pod.labels, **pod.own_labels},
            annotations=_OF_SANDBOXES,
            linux=_PROTO["Linux"](
                cgroup_parent=self.cgroup, security_context=_PROTO["Security"](namespace_options=_NAMESPACES)
            ),
        )

    def stop(self, sandbox: str, timeout: float = 60.0) -> None:
        """Stop it, or learn that it is gone: removed before containerd was killed, and its answer was lost."""
        try:
            self._cri("StopPodSandbox", _PROTO["Id"](id=sandbox), timeout)
        except GrpcError as error:
            if error.code != Code.NOT_FOUND:
                raise

    def remove(self, sandbox: str, timeout: float = 60.0) -> None:
        self._cri("RemovePodSandbox", _PROTO["Id"](id=sandbox), timeout)

    def sandboxes(self, namespace: str = "") -> dict[str, str]:
        """Return the state of each sandbox that CRI lists, by id. `namespace`: of the pods; default: all of them."""
        listed = _PROTO["Sandboxes"].FromString(self._cri("ListPodSandbox"))
        return {
            one.id: NOT_READY if one.state else READY
            for one in listed.items
            if namespace in ("", one.metadata.namespace)
        }

    def address(self, sandbox: str) -> str:
        answer = self._cri("PodSandboxStatus", _PROTO["Id"](id=sandbox))
        return str(_PROTO["StatusResponse"].FromString(answer).status.network.ip)

    def records(self) -> set[str]:
        """Return every id that containerd has a record of: containers, and sandboxes since 1.7."""
        found = self._records(f"{_CONTAINERS}/List")
        try:
            return found | self._records(f"{_SANDBOXES}/List")
        except GrpcError as error:
            if error.code != Code.UNIMPLEMENTED:
                raise
            return found

    def forget(self, sandbox: str) -> None:
        """Delete the records of a sandbox, as people do with `ctr containers rm`."""
        request = _PROTO["Id"](id=sandbox)
        for service in (_CONTAINERS, _SANDBOXES):
            try:
                self._containerd(f"{service}/Delete", request)
            except GrpcError as error:
                if error.code not in {Code.NOT_FOUND, Code.UNIMPLEMENTED}:
                    raise

    def _records(self, method: str) -> set[str]:
        return {one.id for one in _PROTO["Records"].FromString(self._containerd(method)).records}

    def _cri(self, method: str, request: Any = None, timeout: float = 10.0) -> bytes:
        encoded = request.SerializeToString() if request else b""
        with self._connected(timeout) as connection:
            return connection.call(f"/runtime.v1.RuntimeService/{method}", encoded)

    def _containerd(self, method: str, request: Any = None) -> bytes:
        encoded = request.SerializeToString() if request else b""
        with self._connected(10.0) as connection:
            return connection.call(method, encoded, {"containerd-namespace": NAMESPACE})

    @contextmanager
    def _connected(self, timeout: float) -> Iterator[GrpcConnection]:
        with GrpcConnection(self.socket, timeout, time.perf_counter) as connection:
            yield connection
