"""Asks about one sandbox again, live, right before its addresses are released: the same places as a snapshot."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from agent.sources.host import addresses
from agent.sources.host.checkpoints import CheckpointDirectories


@dataclass(frozen=True, slots=True)
class NodeRecheck:
    """Each method raises SourceError where there is no definite answer."""

    container_exists: Callable[[str], bool]
    checkpoints: CheckpointDirectories
    proc: Path

    def has_container(self, container_id: str) -> bool:
        return self.container_exists(container_id)

    def has_checkpoint(self, container_id: str) -> bool:
        return self.checkpoints.has(container_id)

    def holder_of(self, ips: Sequence[str]) -> str:
        """Return the process that has one of the addresses configured; empty where none has."""
        held = (address for address in addresses.read_addresses(self.proc) if address.ip in ips)
        return next((f"process {address.pid} ({address.command})" for address in held), "")
