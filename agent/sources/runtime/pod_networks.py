"""The networks that give pods their addresses, and what the kubelet's runtime says of its own."""

from dataclasses import dataclass
from pathlib import Path

from agent.model.node_network import RuntimeStatus
from agent.model.runtime import RuntimeNetwork
from agent.model.settings import AUTO
from agent.model.snapshot import NotRequested, Snapshot
from agent.sources.deadline import Deadline
from agent.sources.host.cni_config import with_flannel_ranges
from agent.sources.runtime.node_runtimes import NodeRuntimes
from agent.sources.source import Source
from agent.sources.source_error import SourceError


@dataclass
class PodNetworks(Source):
    runtimes: NodeRuntimes
    in_time: Deadline
    run_dir: Path
    """Where the node's /run is for this process."""
    settings: tuple[str, ...]
    """The values of --network: names, and `auto`."""
    last: tuple[RuntimeNetwork, ...] = ()
    """Those of the last reading, and those of later configuration files; empty: it failed."""
    failure: SourceError | None = None
    """Why the last reading failed; None: it did not."""
    name = "networks"

    def read(self, _: Snapshot) -> tuple[RuntimeNetwork, ...] | NotRequested:
        """Return the networks; raises SourceError, unless settings name every network."""
        self.last = ()
        self.failure = None
        try:
            networks = with_flannel_ranges(self.in_time(self.runtimes.networks), self.run_dir)
        except SourceError as error:
            self.failure = error
            if AUTO in self.settings:
                raise
            reason = f"--network names them, and the configuration does not: {error}"
            return NotRequested(self.name, reason)

        later = networks[0].later if networks else ()
        self.last = (*networks, *later)
        return networks

    def plugins(self) -> set[str]:
        """Return the types of all plugins of the last reading, those of `ipam` too."""
        types: set[str] = set()
        for network in self.last:
            types.update(network.plugins, filter(None, [network.ipam]))
        return types


@dataclass(frozen=True)
class RuntimeStatusSource(Source):
    """Costs no call of its own, unless docker is the runtime: `networks` has the answer."""

    networks: PodNetworks
    name = "runtime_status"

    def read(self, _: Snapshot) -> RuntimeStatus | NotRequested:
        runtimes = self.networks.runtimes
        if status := runtimes.cni.status or self.networks.in_time(runtimes.runtime_status):
            return status
        if self.networks.failure:
            raise self.networks.failure
        return NotRequested(self.name, "it is unknown which runtime the kubelet uses")
