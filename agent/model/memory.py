"""What earlier snapshots showed of each reservation, and no file on the node says."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property

from agent.model.clocks import Moment
from agent.model.snapshot import PortMapping, Reservation


@dataclass(frozen=True, slots=True)
class ReservationMemory:
    """What is known of one reservation. Fields are None if no snapshot showed it."""

    pod: str = ""
    owned_at: datetime | None = None
    """When a snapshot last found an owner."""
    pending_since: Moment | None = None
    """Since when the teardown of its sandbox is pending; None: it is not."""
    host_ports: tuple[PortMapping, ...] | None = None
    """Those in the spec of its pod."""


@dataclass(frozen=True)
class Memory:
    """Lookups are computed on first use and cached (hence no `__slots__`)."""

    last: Moment | None = None
    """When the last snapshot was taken; None: there was none."""
    reservations: Mapping[Reservation, ReservationMemory] = field(default_factory=dict)
    clock_stepped: bool = False
    """The wall clock was set between the last two snapshots."""
    names: Mapping[str, str] = field(default_factory=dict)
    """The pods of container IDs that another process remembered."""

    def get(self, reservation: Reservation) -> ReservationMemory:
        return self.reservations.get(reservation, _NOTHING)

    @cached_property
    def pods(self) -> Mapping[str, str]:
        """The pod of each container ID."""
        pods = dict(self.names)
        for reservation, memory in self.reservations.items():
            if reservation.container_id and memory.pod:
                pods[reservation.container_id] = memory.pod
        return pods


_NOTHING = ReservationMemory()
NO_MEMORY = Memory()
