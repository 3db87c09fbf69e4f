"""The containers of every runtime of this node, and which runtimes were asked for them."""

from dataclasses import dataclass

from agent.model.runtime import DOCKER, ContainerRuntime
from agent.model.snapshot import Container, NotRequested, Snapshot
from agent.sources.deadline import Deadline
from agent.sources.runtime.node_runtimes import NodeRuntimes
from agent.sources.source import Source


@dataclass(frozen=True)
class ContainersSource(Source):
    runtimes: NodeRuntimes
    in_time: Deadline
    name = "containers"

    def read(self, snapshot: Snapshot) -> tuple[Container, ...]:
        return self.in_time(lambda: self.runtimes.containers(snapshot))


@dataclass(frozen=True)
class RuntimesSource(Source):
    """What was asked for the last list of containers, whether it answered or not."""

    runtimes: NodeRuntimes
    name = "runtimes"

    def read(self, _: Snapshot) -> tuple[ContainerRuntime, ...] | NotRequested:
        if self.runtimes.choice == DOCKER:
            return NotRequested(self.name, "--runtime=docker")
        return self.runtimes.asked
