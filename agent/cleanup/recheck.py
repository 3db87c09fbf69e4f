"""Live recheck of one sandbox right before its release. The order is part of the proof.

The runtime first, then the kubelet, then the kernel: a checkpoint protects an address during ADD,
and the kernel as soon as the address is configured (docs/proof.md). So each release reads the
namespaces itself.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
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


@dataclass(frozen=True, kw_only=True)
class Recheck:
    """Each method raises SourceError where there is no definite answer."""

    has_container: Callable[[str], bool]
    has_checkpoint: Callable[[str], bool | None]  # None: the kubelet of this node keeps none
    results: CniResults
    proc: Path
    processes: ProcessTable
    probe_addresses: Callable[[Sequence[Reservation], bool], Probed]
    """`probe.probe`; the flag is its `send`."""

    def find_owner(self, request: ReleaseRequest) -> Refusal | list[str]:
        """Return why the sandbox still has an owner, or the answers that it has none.

        The answers are for the journal. For an empty file, only the kernel is asked.
        """
        answers: list[str] = []
        if container_id := request.container_id:
            if self.has_container(container_id):
                why = "recheck: the container runtime has the container"
                return Refusal(Reason.CONTAINER_EXISTS, why)
            answers.append("the container runtime answered that there is no such container")
            checkpoint = self.has_checkpoint(container_id)
            if checkpoint:
                return Refusal(Reason.TEARDOWN_PENDING, "recheck: the sandbox has a checkpoint")
            if checkpoint is not None:
                answers.append("the kubelet has no checkpoint of the sandbox")

        if holder := self.holder_of(container_id, request.ips):
            return Refusal(Reason.ADDRESS_IN_USE, f"recheck: {holder}")
        answers.append("no process has the address configured")
        if container_id:
            answers.append("libcni's cache names no mounted network namespace of the sandbox")
        return answers

    def holder_of(self, container_id: str, ips: Sequence[str]) -> str | None:
        """Return which process has one of the addresses, or that the namespace is still mounted."""
        for address in addresses.read_addresses(self.proc):
            if address.ip in ips:
                return f"process {address.pid} ({address.command}) has the address configured"

        results = [
            result
            for result in self.results.read()
            if result.namespace and result.container_id == container_id
        ]
        mounted = mounted_by_sandbox(results, self.namespaces()) if results else {}
        if mounted:
            return f"its network namespace is still mounted: {mounted[container_id]}"
        return None

    def namespaces(self) -> tuple[str, ...]:
        """Return where network namespaces are mounted."""
        return mounted_namespaces.read_namespaces(self.proc, self.processes.runtime_processes())

    def probe(self, reservations: Sequence[Reservation], *, send: bool = True) -> Probed:
        """Probe all addresses at once, which takes seconds if it sends. See `probe.probe`.

        Where silence proves nothing about an address, any mounted namespace of unknown owner may
        have it.
        """
        probed = self.probe_addresses(reservations, send)
        if all(result.conclusive for result in probed.values()):
            return probed

        namespace = unattributed_namespace(
            self.results.read(),
            self.namespaces(),
            docker_runs=bool(self.processes.running([DOCKER])),
        )
        if not namespace:
            return probed

        doubt = f"and a network namespace is mounted whose sandbox is not known: {namespace}"
        refused = {
            key: replace(result, why=f"{result.why}, {doubt}", reason=Reason.PROBE_UNANSWERED)
            for key, result in probed.items()
            if not result.conclusive
        }
        return {**probed, **refused}
