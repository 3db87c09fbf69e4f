"""What every container runtime is asked."""

import sys
from collections.abc import Collection, Mapping
from typing import Final, Protocol

from agent.model.runtime import CONTAINERD, CRI_O, DOCKER, ContainerRuntime
from agent.model.snapshot import Container
from agent.sources.host.cni_config import CniStatus
from agent.sources.source_error import SourceError

RUNTIME_OF_SOCKET: Final = {"containerd.sock": CONTAINERD, "crio.sock": CRI_O, "docker.sock": DOCKER}
"""The runtime that listens at a socket of this name."""
_LATEST: Final = 10**11  # seconds since the epoch: the year 5138


class NoCri(SourceError):
    """Something listens at the endpoint and serves no CRI: the containerd that docker installs for itself."""


class Runtime(Protocol):
    """One runtime. Every method raises SourceError."""

    @property
    def expected(self) -> ContainerRuntime:
        """What it is before it is asked, as far as its socket tells."""

    def identify(self) -> ContainerRuntime: ...
    def containers(self, asked: Collection[str]) -> tuple[Container, ...]:
        """List every container in any state, and whatever else the runtime has of these IDs."""

    def has(self, container_id: str) -> bool:
        """Return whether this container or sandbox exists; False only where the runtime itself says so."""

    def networks(self) -> CniStatus:
        """Return what it says of the networks of its pods."""


def labeled_container(
    container_id: str, state: str, created: int, labels: Mapping[str, str], *, sandbox: bool
) -> Container:
    """Make a container of the kubelet's labels, which are the same in all runtimes; raises ValueError."""
    name, namespace = labels.get("io.kubernetes.pod.name", ""), labels.get("io.kubernetes.pod.namespace", "")
    pod, uid = f"{namespace}/{name}" if name else "", labels.get("io.kubernetes.pod.uid", "")
    if not container_id or not all(isinstance(text, str) for text in (container_id, uid)):
        raise ValueError("a container without an id")
    if abs(created) > _LATEST:
        raise ValueError(f"created {created} seconds after 1970")
    return Container(container_id, sys.intern(state), created, pod, uid, sandbox=sandbox)
