"""What the container runtimes have in common, and the contract that each of them fulfils."""

import sys
from collections.abc import Collection, Mapping
from typing import Final, Protocol

from agent.model.runtime import CONTAINERD, CRI_O, DOCKER, ContainerRuntime
from agent.model.snapshot import Container
from agent.sources.host.cni_config import CniStatus
from agent.sources.source_error import SourceError

RUNTIME_OF_SOCKET: Final = {
    "containerd.sock": CONTAINERD,
    "crio.sock": CRI_O,
    "docker.sock": DOCKER,
}
"""The runtime that listens at a socket of this name."""
_LATEST_CREATED: Final = 10**11  # seconds since the epoch: the year 5138


class NoCri(SourceError):
    """Something listens at the endpoint, but serves no CRI: docker's own containerd."""


class Runtime(Protocol):
    """One container runtime. Nothing is cached: each call asks it, and raises SourceError.

    A runtime that cannot answer raises; it never returns less than it has.
    """

    @property
    def expected(self) -> ContainerRuntime:
        """What it is before it is asked, by its settings or by the name of its socket."""

    def identify(self) -> ContainerRuntime:
        """Return its name and version; raises NoCri if nothing serves CRI at its socket."""

    def containers(self, unlisted: Collection[str]) -> tuple[Container, ...]:
        """Return every sandbox and container in any state.

        `unlisted`: IDs to look for in the runtime's own records too, because a sandbox is recorded
        before it is listed.
        """

    def has(self, container_id: str) -> bool:
        """Return whether a sandbox or container exists; False only if the runtime denies it."""

    def networks(self) -> CniStatus:
        """Return what it says about the networks that it attaches pods to."""


def labeled_container(
    container_id: str, state: str, created: int, labels: Mapping[str, str], *, sandbox: bool
) -> Container:
    """Return a container with the pod that the kubelet's labels name; raises ValueError.

    The labels are the same in all runtimes. `created`: seconds since the epoch.
    """
    name = labels.get("io.kubernetes.pod.name", "")
    namespace = labels.get("io.kubernetes.pod.namespace", "")
    uid = labels.get("io.kubernetes.pod.uid", "")
    if not container_id or not all(isinstance(text, str) for text in (container_id, uid)):
        raise ValueError("a container without an id")
    if abs(created) > _LATEST_CREATED:
        raise ValueError(f"created {created} seconds after 1970")
    return Container(
        id=container_id,
        state=sys.intern(state),
        created=created,
        pod=f"{namespace}/{name}" if name else "",
        pod_uid=uid,
        sandbox=sandbox,
    )
