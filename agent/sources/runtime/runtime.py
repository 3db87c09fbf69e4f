"""What every container runtime is asked."""

from collections.abc import Collection
from typing import Protocol

from agent.model.runtime import ContainerRuntime, RuntimeNetwork
from agent.model.snapshot import Container
from agent.sources.source_error import SourceError


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

    def networks(self) -> tuple[RuntimeNetwork, ...] | None:
        """Return the networks of its pods; None: it does not name them."""
        ...

    def abort(self) -> None:
        """End the answer that another thread waits for, if it may be waited for without end."""
