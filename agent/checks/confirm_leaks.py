"""A leak is confirmed when two snapshots found the same file without an owner. Pure.

The rules are those of `confirm.py`. They are applied to groups of reservations, because a node may have 65,000 leaks:
those that one snapshot found first are confirmed together.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import TypeAlias

from agent.checks.addresses.leak_cause import LeakEvidence, first_observation
from agent.checks.confirm import ConfirmationState, clock_stepped
from agent.model.finding import LeakCause
from agent.model.leak import Leak, Leaks
from agent.model.snapshot import Reservation, Snapshot

_Step: TypeAlias = tuple[Leak, Leak]
"""What was known of a group, and what it becomes if it is seen again."""


class LeakObserver:
    """Collects the reservations that one snapshot finds without an owner."""

    def __init__(self, before: ConfirmationState | None, snapshot: Snapshot, confirm_after: timedelta) -> None:
        self._snapshot, self._confirm_after = snapshot, confirm_after
        self._stepped = clock_stepped(before, snapshot.taken_at, snapshot.uptime)
        self._earlier = {one: step for step, group in self._steps(before) for one in group}
        self._seen: dict[Leak, list[Reservation]] = {}
        self.newly_confirmed: Counter[tuple[str, LeakCause]] = Counter()
        """By network and cause."""

    def _steps(self, before: ConfirmationState | None) -> Iterator[tuple[_Step, Sequence[Reservation]]]:
        for leak, group in before.leaks.items() if before else ():
            lasted = self._snapshot.uptime - leak.first_uptime >= self._confirm_after
            if leak.confirmed:
                yield (leak, leak), group
            elif not self._stepped:
                yield (leak, replace(leak, confirmed=lasted)), group

    def observe(self, reservation: Reservation, evidence: LeakEvidence) -> bool:
        """Record a reservation without an owner; return whether it is a confirmed leak."""
        known, now = self._earlier.get(reservation) or (None, None)
        if known is None or now is None:
            now = first_observation(reservation, evidence, self._snapshot)
        elif now.confirmed and not known.confirmed:
            self.newly_confirmed[reservation.network, now.cause] += 1
        self._seen.setdefault(now, []).append(reservation)
        return now.confirmed

    def confirmed(self) -> Leaks:
        return {leak: group for leak, group in self._seen.items() if leak.confirmed}

    def remembered(self, undecided: Callable[[Reservation], bool] | None) -> Leaks:
        """Return what the next snapshot needs to know. `undecided`: which may be leaks still; None: there is no gap."""
        return self._seen if undecided is None else self._with_unseen(undecided)

    def _with_unseen(self, undecided: Callable[[Reservation], bool]) -> Leaks:
        """Add the leaks that were confirmed before, and may be leaks still."""
        seen = {one for group in self._seen.values() for one in group}
        remembered = {leak: list(group) for leak, group in self._seen.items()}
        for one, (known, _) in self._earlier.items():
            if known.confirmed and one not in seen and undecided(one):
                remembered.setdefault(known, []).append(one)
        return remembered
