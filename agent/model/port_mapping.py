"""Ports of the node that a CNI plugin forwards to a pod."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PortMapping:
    """A `hostPort` of a pod."""

    host_port: int
    protocol: str
    """In lower case."""

    def __str__(self) -> str:
        return f"{self.host_port}/{self.protocol}"
