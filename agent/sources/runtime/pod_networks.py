"""The networks that give pods their addresses, as the kubelet's runtime names them."""

from dataclasses import dataclass
from pathlib import Path

from agent.model.runtime import AUTO, RuntimeNetwork
from agent.model.snapshot import NotRequested, Snapshot
from agent.sources.deadline import Deadline
from agent.sources.host.cni_config import with_subnet
from agent.sources.runtime.node_runtimes import NodeRuntimes
from agent.sources.source import Source
from agent.sources.source_error import SourceError


@dataclass
class PodNetworks(Source):
    runtimes: NodeRuntimes
    in_time: Deadline
    run_dir: Path  # the node's /run
    settings: tuple[str, ...]
    """The values of --network: names, and `auto`."""
    last: tuple[RuntimeNetwork, ...] = ()
    """Those of the last reading, and those of later configuration files; empty: it failed."""
    name = "networks"

    def read(self, _: Snapshot) -> tuple[RuntimeNetwork, ...] | NotRequested:
        """Raises SourceError, unless settings name every network."""
        self.last = ()
        try:
            networks = with_subnet(self.in_time(self.runtimes.networks), self.run_dir)
        except SourceError as error:
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
