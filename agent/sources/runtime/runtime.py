"""What every container runtime is asked, and how much of its answer is taken."""

from collections.abc import Collection, Iterable
from itertools import islice
from typing import Final, Protocol

from agent.model.runtime import ContainerRuntime
from agent.model.snapshot import Container
from agent.model.text import truncate
from agent.sources.host.cni_config import CniStatus
from agent.sources.source_error import SourceError

MOST_CONTAINERS: Final = 10_000
"""Containers of a node, those that have exited too: fifty times as many as a full node has. Each costs 1 KiB here."""
LONGEST_TEXT: Final = 512
"""Characters of an ID, of a state, and of a pod's namespace, name and uid, of which Kubernetes' longest is 253."""
_LATEST: Final = 10**11
"""Seconds since the epoch: the year 5138."""


def counted(runtime: object, listed: Iterable[Container]) -> tuple[Container, ...]:
    """Return the containers of a list; raises SourceError if there are too many."""
    containers = tuple(islice(listed, MOST_CONTAINERS + 1))
    if len(containers) > MOST_CONTAINERS:
        raise SourceError(f"{runtime}: it has more than {MOST_CONTAINERS:,} containers (remove those that have exited)")
    return containers


def checked_container(container: Container) -> Container:
    """Return the container; raises TypeError or ValueError if it cannot be kept."""
    for text in (container.id, container.state, container.pod, container.pod_uid):
        if not isinstance(text, str):
            raise TypeError(f"expected a string, found {text!r}")
        if len(text) > LONGEST_TEXT:
            raise ValueError(f"a text of {len(text):,} characters: {text[:20]}")
    if abs(container.created) > _LATEST:
        raise ValueError(f"created {truncate(container.created)} seconds after 1970")
    return container


class NoCri(SourceError):
    """Something listens at the endpoint and serves no CRI: the containerd that docker installs for itself."""


class Runtime(Protocol):
    """One runtime. Every method raises SourceError."""

    @property
    def expected(self) -> ContainerRuntime:
        """What it is before it is asked, as far as its socket tells."""
        ...

    def identify(self) -> ContainerRuntime: ...
    def containers(self, asked: Collection[str]) -> tuple[Container, ...]:
        """List every container in any state, and whatever else the runtime has of these IDs."""
        ...

    def has(self, container_id: str) -> bool:
        """Return whether this container or sandbox exists; False only where the runtime itself says so."""
        ...

    def networks(self) -> CniStatus:
        """Return what it says of the networks of its pods."""
        ...
