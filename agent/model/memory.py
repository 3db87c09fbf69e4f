"""What earlier snapshots showed of each reservation, and no file on the node says."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property

from agent.model.clocks import Moment
from agent.model.snapshot import PortMapping, Reservation


@dataclass(frozen=True, slots=True)
class ReservationMemory:
    """What earlier snapshots showed of one reservation."""

    pod: str = ""
    """`namespace/name`; empty: no snapshot showed it."""
    owned_at: datetime | None = None
    """When a snapshot last found an owner; None: none did."""
    pending_since: Moment | None = None
    """Since when the teardown of its sandbox is pending; None: it is not."""
    host_ports: tuple[PortMapping, ...] | None = None
    """Those in the spec of its pod; None: no snapshot showed the pod."""


@dataclass(frozen=True)
class Memory:
    """What one snapshot leaves to the next."""

    # No slots: `pods` is cached in `__dict__`.

    last_taken: Moment | None = None
    """When the last snapshot was taken; None: there was none."""
    reservations: Mapping[Reservation, ReservationMemory] = field(default_factory=dict)
    pods_of_other_process: Mapping[str, str] = field(default_factory=dict)
    """The pods that another process remembered, by container ID."""

    def get(self, reservation: Reservation) -> ReservationMemory:
        """Return what is remembered of a reservation; empty if no snapshot had it."""
        return self.reservations.get(reservation, ReservationMemory())

    @cached_property
    def pods(self) -> Mapping[str, str]:
        """The pod of each container ID."""
        pods = dict(self.pods_of_other_process)
        for reservation, memory in self.reservations.items():
            if reservation.container_id and memory.pod:
                pods[reservation.container_id] = memory.pod
        return pods


NO_MEMORY = Memory()
