"""What is known of leaked reservations from snapshot to snapshot."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypeAlias

from agent.model.finding import LeakCause
from agent.model.snapshot import Reservation, ReservationKey


@dataclass(frozen=True, slots=True)
class Leak:
    """What reservations have in common that one snapshot first found without an owner, for one cause.

    It is the same object for all of them: there may be 65,000.
    """

    first_seen: datetime
    first_uptime: timedelta
    cause: LeakCause
    """As the first observation found it: a later restart did not cause an earlier leak."""
    since: datetime | None
    """The earliest time at which they can have leaked; None: when the file of each was made."""
    runtime: str
    """What texts called the container runtime then."""
    confirmed: bool = False


Leaks: TypeAlias = Mapping[Leak, Sequence[Reservation]]


def known_causes(leaks: Leaks) -> dict[ReservationKey, LeakCause]:
    """Return the likely cause of each leak, where the node has evidence of one."""
    known = {leak: group for leak, group in leaks.items() if leak.cause is not LeakCause.UNKNOWN}
    return {one.key: leak.cause for leak, group in known.items() for one in group}
