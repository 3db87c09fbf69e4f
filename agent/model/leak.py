"""What is known of leaked reservations from snapshot to snapshot."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypeAlias

from agent.model.finding import LeakCause
from agent.model.snapshot import Reservation, ReservationKey


@dataclass(frozen=True, slots=True)
class Leak:
    """When a reservation was first found without an owner, and why it is."""

    first_seen: datetime
    first_uptime: timedelta
    cause: LeakCause
    """As the first observation found it: a later restart did not cause an earlier leak."""
    since: datetime | None
    """The start that the cause names: it leaked then or earlier; None: the time is that of its file."""
    runtime: str
    """What texts called the container runtime then."""
    confirmed: bool = False


Leaks: TypeAlias = Mapping[Reservation, Leak]


def known_causes(leaks: Leaks) -> dict[ReservationKey, LeakCause]:
    """Return the likely cause of each leak, where the node has evidence of one."""
    return {one.key: leak.cause for one, leak in leaks.items() if leak.cause is not LeakCause.UNKNOWN}
