"""Everything the guards may know. Each fact is computed once and serves all requests of a sync. Pure."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from agent.checks import runtime as runtimes
from agent.checks.addresses.failing_plugin import Treadmill, treadmills
from agent.checks.addresses.leaked_reservation import host_ports
from agent.cleanup.runtime_history import RuntimeHistory
from agent.model.assessment import Assessment, ClassifiedReservation, State
from agent.model.index import mounted_by_sandbox, named_sandboxes
from agent.model.ranges import RangeSets, usable
from agent.model.release import Limits
from agent.model.report import Report
from agent.model.setting_values import AUTO
from agent.model.snapshot import Address, InsufficientData, Known, NotRequested, PortMapping, Reservation, Snapshot
from agent.sources.networks import cleanable

MIN_SUSPECTS: Final = 8
"""With fewer suspected sandboxes the share is not checked: half of a small range leaks quickly."""

MANY_SUSPECTS: Final = 32
NEARLY_ALL: Final = 0.9
"""Of the reservations. With so many suspects, and only the runtime to go by, the share is one of reservations."""


@dataclass(frozen=True, kw_only=True)
class GuardContext:
    report: Report
    runtime_history: RuntimeHistory
    limits: Limits
    halted: str = ""
    journal_trouble: str = ""
    """Why the journal cannot be written; empty if it can."""
    journal_room: int
    """For how many addresses the journal has room."""
    failures: Mapping[Reservation, int] = field(default_factory=dict)
    """How often the release of a leak failed. The next one of its address starts anew."""
    spent: Mapping[str, int] = field(default_factory=dict)
    """How much of each allowance earlier syncs used, by setting."""

    @property
    def assessment(self) -> Assessment:
        return self.report.assessment

    @property
    def snapshot(self) -> Snapshot:
        return self.report.assessment.snapshot

    @cached_property
    def classified(self) -> Mapping[Reservation, ClassifiedReservation]:
        return {one.entry: one for one in self.assessment.reservations if isinstance(one.entry, Reservation)}

    @cached_property
    def runtime(self) -> str:
        """What texts call the container runtime."""
        return runtimes.name_of(self.snapshot)

    @cached_property
    def allowed_networks(self) -> frozenset[str]:
        return allowed_networks(self.limits.networks, self.snapshot)

    # Those that follow raise InsufficientData if their source could not be read.

    @cached_property
    def listed(self) -> frozenset[str]:
        """The container IDs that a runtime lists."""
        return frozenset(container.id for container in self.snapshot.containers.known())

    @cached_property
    def checkpointed(self) -> frozenset[str]:
        """The container IDs that have a sandbox checkpoint."""
        if not runtimes.keeps_checkpoints(self.snapshot):
            return frozenset()
        return frozenset(checkpoint.container_id for checkpoint in self.snapshot.checkpoints.known())

    @cached_property
    def configured(self) -> Mapping[str, Address]:
        """The addresses configured in network namespaces."""
        return {address.ip: address for address in self.snapshot.addresses.known()}

    def mounted(self, container_id: str) -> str:
        """Return where the network namespace of a sandbox is mounted; empty if it is not, or if no record names it."""
        return self._mounted.get(container_id, "") if container_id in self._named else ""

    @cached_property
    def _named(self) -> frozenset[str]:
        return named_sandboxes(self.snapshot.cni_results.known())

    @cached_property
    def _mounted(self) -> Mapping[str, str]:
        return mounted_by_sandbox(self.snapshot.cni_results.known(), self.snapshot.mounted_namespaces.known())

    @cached_property
    def claimed(self) -> Mapping[str, str]:
        """The pods that have an address of their own according to the API server, by address."""
        pods = (pod for pod in self.snapshot.pods.known() if pod.live and not pod.host_network)
        return {ip: pod.name for pod in pods for ip in pod.ips}

    @cached_property
    def running(self) -> frozenset[str]:
        """The pods that run on this node according to the API server."""
        return frozenset(pod.name for pod in self.snapshot.pods.known() if pod.has_sandbox)

    @cached_property
    def unlisted(self) -> frozenset[str]:
        """The running pods of which no runtime lists a container."""
        return self.running.difference(container.pod for container in self.snapshot.containers.known())

    @cached_property
    def ranges(self) -> Mapping[str, RangeSets | InsufficientData]:
        """What each network allocates from, or why that is not known."""
        return {store.network: self._ranges(store.network) for store in self.snapshot.reservations}

    def _ranges(self, network: str) -> RangeSets | InsufficientData:
        try:
            return self.assessment.ranges(network)
        except InsufficientData as missing:
            return missing

    @cached_property
    def treadmills(self) -> Mapping[str, Treadmill]:
        """The networks in which each retry of a pod takes another address."""
        return treadmills(self.assessment)

    @cached_property
    def host_ports(self) -> Mapping[Reservation, tuple[PortMapping, ...] | None]:
        """The ports of the node that may still be forwarded to each leaked address; None: not known."""
        leaked = [one for one, classified in self.classified.items() if classified.state is State.LEAKED]
        return host_ports(self.snapshot, leaked)

    @cached_property
    def shares(self) -> Mapping[str, float]:
        """How much of each readable network looks leaked, from 0 to 1."""
        return {
            store.network: self._share(store.network)
            for store in self.snapshot.reservations
            if isinstance(store.reading, Known)
        }

    def _share(self, network: str) -> float:
        entries = self.assessment.of(network)
        leaked = _sandboxes(entries, {State.LEAKED, State.CANDIDATE})
        if leaked < MIN_SUSPECTS:
            return 0.0
        reserved = _sandboxes(entries, set(State) - {State.UNRECOGNIZED})
        only_runtime = isinstance(self.snapshot.pods, NotRequested)
        if only_runtime and leaked >= MANY_SUSPECTS and leaked >= reserved * NEARLY_ALL:
            # The range may be far larger than what was ever allocated from it.
            return leaked / reserved
        sets = self.ranges[network]
        size = len(entries) if isinstance(sets, InsufficientData) else usable(sets)
        return min(1.0, leaked / max(1, size))


def allowed_networks(names: frozenset[str], snapshot: Snapshot) -> frozenset[str]:
    """Return the networks that may be cleaned: those of the settings; for `auto`, what is certain to be the pods'."""
    return (names - {AUTO}) | cleanable(snapshot) if AUTO in names else names


def _sandboxes(entries: Iterable[ClassifiedReservation], states: Collection[State]) -> int:
    """Count the sandboxes with a reservation in one of these states. An empty file counts as one."""
    return len({one.container_id or one.name for one in entries if one.state in states})
