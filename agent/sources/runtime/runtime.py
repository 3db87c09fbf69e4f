"""What the container runtimes have in common."""

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, TypeAlias

from agent.model.runtime import CONTAINERD, CRI_O, DOCKER
from agent.model.snapshot import Container
from agent.sources.source_error import SourceError

if TYPE_CHECKING:  # each is imported only on a node that has it
    from agent.sources.runtime.cri import Cri
    from agent.sources.runtime.docker import Docker

Runtime: TypeAlias = "Cri | Docker"

RUNTIME_OF_SOCKET: Final = {
    "containerd.sock": CONTAINERD,
    "crio.sock": CRI_O,
    "docker.sock": DOCKER,
}
"""The runtime that listens at a socket of this name."""
_LATEST: Final = 10**11  # seconds since the epoch: the year 5138


class NoCri(SourceError):
    """Something listens at the endpoint and serves no CRI: the containerd that docker installs for itself."""


def labeled_container(
    container_id: str, state: str, created: int, labels: Mapping[str, str], *, sandbox: bool
) -> Container:
    """Make a container of the kubelet's labels, which are the same in all runtimes; raises ValueError."""
    name, namespace = (
        labels.get("io.kubernetes.pod.name", ""),
        labels.get("io.kubernetes.pod.namespace", ""),
    )
    pod, uid = f"{namespace}/{name}" if name else "", labels.get("io.kubernetes.pod.uid", "")
    if not container_id or not all(isinstance(text, str) for text in (container_id, uid)):
        raise ValueError("a container without an id")
    if abs(created) > _LATEST:
        raise ValueError(f"created {created} seconds after 1970")
    return Container(container_id, sys.intern(state), created, pod, uid, sandbox=sandbox)
