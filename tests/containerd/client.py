"""What a kubelet asks of a runtime by CRI: the agent's own gRPC client, and messages of protobuf's own library."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from agent.sources.runtime.grpc import NOT_FOUND, UNIMPLEMENTED, GrpcConnection, GrpcError
from tests.fakes.protobuf import messages

NAMESPACE: Final = "k8s.io"
_CONTAINERS: Final = "/containerd.services.containers.v1.Containers"
_SANDBOXES: Final = "/containerd.services.sandbox.v1.Store"  # Since 1.7
_POD: Final = "io.kubernetes.pod."
_OF_SANDBOXES: Final = {
    "kubernetes.io/config.seen": "2026-11-22T08:00:00.000000000Z",
    "kubernetes.io/config.source": "api",
}
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
        "Id": {"id": (1, "string")},
        "PodSandbox": {"id": (1, "string"), "metadata": (2, "Metadata")},
        "Sandboxes": {"items": (1, "*PodSandbox")},
        "Network": {"ip": (1, "string")},
        "Status": {"network": (5, "Network")},
        "StatusResponse": {"status": (1, "Status")},
    },
)  # fmt: skip
_OWN: Final = 1  # The PID namespace of a container of its own: pause need not be the first process of the sandbox


@dataclass(frozen=True, slots=True)
class Kubelet:
    """The calls of a kubelet. Each has a connection of its own, so every thread may use it. All raise SourceError."""

    socket: Path
    cgroup: str
    logs: str  # Directories of the sandboxes' cgroups and logs

    def run(self, name: str, timeout: float = 60.0) -> str:
        """Make the sandbox of a new pod and return its id."""
        uid = f"uid-{name}"
        linux = {
            "cgroup_parent": self.cgroup,
            "security_context": {"namespace_options": {"pid": _OWN}},
        }
        config = _PROTO["Config"](
            metadata={"name": name, "uid": uid, "namespace": "default"},
            hostname=name[:_LONGEST_HOSTNAME],
            log_directory=self.logs,
            labels={f"{_POD}name": name, f"{_POD}namespace": "default", f"{_POD}uid": uid},
            annotations=_OF_SANDBOXES,
            linux=linux,
        )
        answer = self._cri("RunPodSandbox", _PROTO["RunRequest"](config=config), timeout)
        return str(_PROTO["RunResponse"].FromString(answer).id)

    def stop(self, sandbox: str, timeout: float = 60.0) -> None:
        """Stop it, or learn that it is gone: removed before containerd was killed, and its answer was lost."""
        try:
            self._cri("StopPodSandbox", _PROTO["Id"](id=sandbox), timeout)
        except GrpcError as error:
            if error.code != NOT_FOUND:
                raise

    def remove(self, sandbox: str, timeout: float = 60.0) -> None:
        self._cri("RemovePodSandbox", _PROTO["Id"](id=sandbox), timeout)

    def sandboxes(self, namespace: str = "") -> dict[str, str]:
        """Return the pod of each sandbox that CRI lists, by id. `namespace`: of the pods; default: all of them."""
        listed = _PROTO["Sandboxes"].FromString(self._cri("ListPodSandbox")).items
        return {
            one.id: one.metadata.name for one in listed if namespace in ("", one.metadata.namespace)
        }

    def address(self, sandbox: str) -> str:
        answer = self._cri("PodSandboxStatus", _PROTO["Id"](id=sandbox))
        return str(_PROTO["StatusResponse"].FromString(answer).status.network.ip)

    def forget(self, sandbox: str) -> None:
        """Delete the records of a sandbox, as people do with `ctr containers rm`."""
        request = _PROTO["Id"](id=sandbox).SerializeToString()
        for service in (_CONTAINERS, _SANDBOXES):
            try:
                with self._connected(10.0) as connection:
                    connection.call(
                        f"{service}/Delete", request, {"containerd-namespace": NAMESPACE}
                    )
            except GrpcError as error:
                if error.code not in {NOT_FOUND, UNIMPLEMENTED}:
                    raise

    def _cri(self, method: str, request: Any = None, timeout: float = 10.0) -> bytes:
        encoded = request.SerializeToString() if request else b""
        with self._connected(timeout) as connection:
            return bytes(connection.call(f"/runtime.v1.RuntimeService/{method}", encoded))

    def _connected(self, timeout: float) -> GrpcConnection:
        return GrpcConnection(self.socket, timeout, time.perf_counter)
