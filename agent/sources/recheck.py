"""Asks about one sandbox again, live, right before its addresses are released: the same places as a snapshot."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from agent.model.index import mounted_by_sandbox, of_nobody
from agent.model.release import ProbeResult, Reason
from agent.sources.host import addresses, mount_table
from agent.sources.host.cni_cache import CniResults


@dataclass(frozen=True, slots=True)
class NodeRecheck:
    """Each method raises SourceError where there is no definite answer."""

    has_container: Callable[[str], bool]
    has_checkpoint: Callable[[str], bool | None]
    """None: the kubelet of this node keeps none."""
    results: CniResults
    proc: Path
    ask: Callable[[Sequence[str], bool], Mapping[str, ProbeResult]]
    """Probes addresses; False: without sending anything, and leaving out those that can be asked."""

    def probe(self, ips: Sequence[str], *, send: bool = True) -> Mapping[str, ProbeResult]:
        """Where an address cannot be asked, a namespace of which nobody knows the sandbox may have it."""
        found = self.ask(ips, send)
        if all(result.asked for result in found.values()):
            return found
        mounted = of_nobody(self.results.read(), mount_table.read_namespaces(self.proc))
        if not mounted:
            return found
        return {ip: result if result.asked else _doubtful(result, mounted) for ip, result in found.items()}

    def holder_of(self, container_id: str, ips: Sequence[str]) -> str:
        """Say which process has one of the addresses, or that the sandbox's network namespace is still mounted.

        Each release reads the namespaces itself, after it asked for a checkpoint (docs/proof.md).
        """
        for address in addresses.read_addresses(self.proc):
            if address.ip in ips:
                return f"process {address.pid} ({address.command}) has the address configured"
        return self._mounted(container_id)

    def _mounted(self, container_id: str) -> str:
        results = self.results.read()
        named = [result for result in results if result.namespace and result.container_id == container_id]
        mounted = mounted_by_sandbox(named, mount_table.read_namespaces(self.proc)) if named else {}
        return f"its network namespace is still mounted: {mounted[container_id]}" if mounted else ""


def _doubtful(result: ProbeResult, mounted: str) -> ProbeResult:
    why = f"{result.why}, and a network namespace is mounted whose sandbox is not known: {mounted}"
    return ProbeResult(why, Reason.PROBE_UNANSWERED, asked=False)
