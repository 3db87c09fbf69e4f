"""All that the guards may know, each question answered once for all candidates of a round. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from agent.checks.addresses import leaked_reservation
from agent.cleanup.runtime_history import RuntimeHistory
from agent.model.assessment import Assessment, ClassifiedReservation, State
from agent.model.ranges import RangeSets, usable
from agent.model.release import Limits
from agent.model.report import Report
from agent.model.snapshot import Address, InsufficientData, Known, NotRequested, Reservation, Snapshot

FEWEST: Final = 8
"""A share of less than this many sandboxes is no share: a small range is half leaked soon."""


MANY: Final = 32
NEARLY_ALL: Final = 0.9
"""Of the reservations. Where so many sandboxes, and nearly all, look leaked by docker alone, this is what counts."""


@dataclass(frozen=True, kw_only=True)
class GuardContext:
    """All that the guards may know."""

    report: Report
    runtime_history: RuntimeHistory
    limits: Limits
    halted: str = ""
    journal_trouble: str = ""
    """Why nothing can be written down; empty where it can."""
    failures: Mapping[str, int] = field(default_factory=dict)
    """How often the release of an address failed, by `network/ip`."""
    spent: Mapping[str, int] = field(default_factory=dict)
    """How much of an allowance earlier rounds took, by the setting that says it."""

    @property
    def assessment(self) -> Assessment:
        return self.report.assessment

    @property
    def snapshot(self) -> Snapshot:
        return self.report.assessment.snapshot

    @cached_property
    def states(self) -> Mapping[Reservation, ClassifiedReservation]:
        return {one.entry: one for one in self.assessment.classified_reservations if isinstance(one.entry, Reservation)}

    @cached_property
    def confirmed(self) -> frozenset[str]:
        """The leaks that two looks found the same, as `network/ip`."""
        return frozenset(
            judged.finding.subject
            for judged in self.report.findings
            if judged.confirmed and judged.finding.detector == leaked_reservation.NAME
        )

    @cached_property
    def listed(self) -> frozenset[str]:
        """The ids that docker lists; blind where it was not read."""
        return frozenset(container.id for container in self.snapshot.containers.known())

    @cached_property
    def checkpointed(self) -> frozenset[str]:
        """The ids that the kubelet still has a checkpoint of; blind where they were not read."""
        return frozenset(checkpoint.container_id for checkpoint in self.snapshot.checkpoints.known())

    @cached_property
    def configured(self) -> Mapping[str, Address]:
        """The addresses that processes have configured; blind where namespaces were not looked into."""
        return {address.ip: address for address in self.snapshot.addresses.known()}

    @cached_property
    def claimed(self) -> Mapping[str, str]:
        """The pods that have an address of their own by the API server's word, by address; blind without its word."""
        pods = (pod for pod in self.snapshot.pods.known() if pod.live and not pod.host_network)
        return {ip: pod.name for pod in pods for ip in pod.ips}

    @cached_property
    def running(self) -> frozenset[str]:
        """The pods that run here by the API server's word; blind without it."""
        return frozenset(
            pod.name for pod in self.snapshot.pods.known() if pod.phase == "Running" and not pod.deleting
        )  # fmt: skip

    @cached_property
    def unlisted(self) -> frozenset[str]:
        """Those of them that docker lists nothing of."""
        return self.running.difference(container.pod for container in self.snapshot.containers.known())

    @cached_property
    def ranges(self) -> Mapping[str, RangeSets | InsufficientData]:
        """What each network gives out, or why that is not known."""
        return {store.network: self._ranges(store.network) for store in self.snapshot.reservations}

    def _ranges(self, network: str) -> RangeSets | InsufficientData:
        try:
            return self.assessment.ranges(network)
        except InsufficientData as blind:
            return blind

    @cached_property
    def shares(self) -> Mapping[str, float]:
        """How much of each network that was read looks leaked, from 0 to 1."""
        return {
            store.network: self._share(store.network)
            for store in self.snapshot.reservations
            if isinstance(store.reading, Known)
        }

    def _share(self, network: str) -> float:
        classified_reservations = self.assessment.of(network)
        suspects = (one for one in classified_reservations if one.state in {State.LEAKED, State.CANDIDATE})
        leaked = {one.container_id or one.name for one in suspects}
        if len(leaked) < FEWEST:
            return 0.0
        reserved = {
            one.container_id or one.name for one in classified_reservations if one.state is not State.UNRECOGNIZED
        }
        nobody_vouches = isinstance(self.snapshot.pods, NotRequested)
        if nobody_vouches and len(leaked) >= MANY and len(leaked) >= len(reserved) * NEARLY_ALL:
            # A range may be far larger than what was ever given out of it, and docker's list is all there is.
            return len(leaked) / len(reserved)
        sets = self.ranges[network]
        size = len(classified_reservations) if isinstance(sets, InsufficientData) else usable(sets)
        return min(1.0, len(leaked) / max(1, size))
