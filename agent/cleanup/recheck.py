"""The last questions before a release: about one sandbox and its addresses, live. The order is part of the proof.

The runtime first, then the kubelet, then the kernel: a checkpoint protects an address during ADD, and the kernel as
soon as the address is configured (docs/proof.md). So each release reads the namespaces itself.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from agent.model.index import mounted_by_sandbox, unattributed_namespace
from agent.model.release import ProbeResult, Reason, Refusal, ReleaseRequest
from agent.model.runtime import DOCKER
from agent.model.snapshot import Reservation, ReservationKey
from agent.sources.host import addresses, mounted_namespaces
from agent.sources.host.cni_cache import CniResults
from agent.sources.host.processes import ProcessTable

Probed: TypeAlias = Mapping[ReservationKey, ProbeResult]


@dataclass(frozen=True)
class Recheck:
    """Each question raises SourceError where there is no definite answer."""

    has_container: Callable[[str], bool]
    has_checkpoint: Callable[[str], bool | None]  # None: the kubelet of this node keeps none
    results: CniResults
    proc: Path
    processes: ProcessTable
    send: Callable[[Sequence[Reservation], bool], Probed]
    """Probes addresses; False: without sending anything, and leaving out those that can be asked."""

    def ask(self, request: ReleaseRequest) -> Refusal | list[str]:
        """Ask for owners of the sandbox; of an empty file, only the kernel. Return the answers, for the journal."""
        answers: list[str] = []
        if container_id := request.container_id:
            if self.has_container(container_id):
                return Refusal(
                    Reason.CONTAINER_EXISTS, "recheck: the container runtime has the container"
                )
            answers.append("the container runtime answered that there is no such container")
            if checkpoint := self.has_checkpoint(container_id):
                return Refusal(Reason.TEARDOWN_PENDING, "recheck: the sandbox has a checkpoint")
            if checkpoint is not None:
                answers.append("the kubelet has no checkpoint of the sandbox")
        if holder := self.holder_of(container_id, request.ips):
            return Refusal(Reason.ADDRESS_IN_USE, f"recheck: {holder}")
        answers.append("no process has the address configured")
        if container_id:
            answers.append("libcni's cache names no mounted network namespace of the sandbox")
        return answers

    def holder_of(self, container_id: str, ips: Sequence[str]) -> str:
        """Say which process has one of the addresses, or that the sandbox's network namespace is still mounted."""
        for address in addresses.read_addresses(self.proc):
            if address.ip in ips:
                return f"process {address.pid} ({address.command}) has the address configured"
        named = [
            found
            for found in self.results.read()
            if found.namespace and found.container_id == container_id
        ]
        mounted = mounted_by_sandbox(named, self.namespaces()) if named else {}
        return f"its network namespace is still mounted: {mounted[container_id]}" if mounted else ""

    def namespaces(self) -> tuple[str, ...]:
        """Return where network namespaces are mounted."""
        return mounted_namespaces.read_namespaces(self.proc, self.processes.runtime_processes())

    def probe(self, reservations: Sequence[Reservation], *, send: bool = True) -> Probed:
        """Look for whoever has an address without a process. Of all addresses at once: it may take some seconds.

        Where an address cannot be asked, a namespace of which nobody knows the sandbox may have it.
        """
        found = self.send(reservations, send)
        if all(result.conclusive for result in found.values()):
            return found
        namespace = unattributed_namespace(
            self.results.read(),
            self.namespaces(),
            docker_runs=bool(self.processes.running([DOCKER])),
        )
        if not namespace:
            return found
        why = f"and a network namespace is mounted whose sandbox is not known: {namespace}"
        unasked = {
            key: f"{result.why}, {why}" for key, result in found.items() if not result.conclusive
        }
        doubts = {
            key: ProbeResult(why, Reason.PROBE_UNANSWERED, conclusive=False)
            for key, why in unasked.items()
        }
        return {**found, **doubts}
