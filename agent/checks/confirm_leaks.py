"""A leak is confirmed when two snapshots found the same file without an owner, by the rules of `confirm.py`. Pure."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Final

from agent.checks.addresses.leak_cause import LeakEvidence, first_observation
from agent.checks.confirm import ConfirmationState, clock_stepped
from agent.model.assessment import State
from agent.model.finding import LeakCause
from agent.model.leak import Leak, Leaks
from agent.model.snapshot import Reservation, Snapshot

_OWNED: Final = {State.IN_USE, State.NOT_READY, State.TEARDOWN_PENDING}


class LeakObserver:
    """Collects the reservations that one snapshot finds without an owner."""

    def __init__(self, before: ConfirmationState | None, snapshot: Snapshot, confirm_after: timedelta) -> None:
        self._snapshot, self._confirm_after = snapshot, confirm_after
        stepped = clock_stepped(before, snapshot.taken_at, snapshot.uptime)
        leaks = before.leaks if before else {}
        self._earlier = {one: leak for one, leak in leaks.items() if leak.confirmed or not stepped}
        reservations = before.reservations if before and not stepped else ()
        self._owned = {one.entry for one in reservations if one.state in _OWNED}
        self._owned_at = before.taken_at if before else None
        self.seen: dict[Reservation, Leak] = {}
        self.newly_confirmed: Counter[tuple[str, LeakCause]] = Counter()
        """By network and cause."""

    def observe(self, reservation: Reservation, evidence: LeakEvidence) -> bool:
        """Record a reservation without an owner; return whether it is a confirmed leak."""
        known = self._earlier.get(reservation)
        if known is None:
            owned_at = self._owned_at if reservation in self._owned else None
            now = first_observation(reservation, evidence, self._snapshot, owned_at)
        else:
            lasted = self._snapshot.uptime - known.first_uptime >= self._confirm_after
            now = replace(known, confirmed=known.confirmed or lasted)
            if now.confirmed and not known.confirmed:
                self.newly_confirmed[reservation.network, now.cause] += 1
        self.seen[reservation] = now
        return now.confirmed

    def remembered(self, undecided: Callable[[Reservation], bool]) -> Leaks:
        """Return what the next snapshot needs to know. `undecided`: tells which of the unseen may be leaks still."""
        confirmed = {one: leak for one, leak in self._earlier.items() if leak.confirmed and undecided(one)}
        return {**confirmed, **self.seen}
