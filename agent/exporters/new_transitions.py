"""Which device transitions are new since the last sync, and since the daemon's first snapshot."""

from collections import Counter
from collections.abc import Iterable
from datetime import datetime
from typing import TypeAlias

from agent.model.devices import DeviceTransition

_Key: TypeAlias = tuple[str | datetime | int, ...]


class NewTransitions:
    def __init__(self, started: datetime) -> None:
        """`started`: when the first snapshot was taken; earlier transitions are not new."""
        self._started = started
        self._known: frozenset[_Key] | None = None

    def of(self, transitions: Iterable[DeviceTransition]) -> list[DeviceTransition]:
        now = _by_key(transitions)
        if self._known is None:
            new = [one for one in now.values() if one.at > self._started]
        else:
            # Not by time: a transition is new also after the clock was set back.
            new = [one for key, one in now.items() if key not in self._known]
        self._known = frozenset(now)
        return new


def _by_key(transitions: Iterable[DeviceTransition]) -> dict[_Key, DeviceTransition]:
    """Give each transition a key that is the same in every snapshot.

    One without an exact time is the n-th of its kind since the last that has one: where no history can be stored,
    every snapshot gives it another time.
    """
    by_key: dict[_Key, DeviceTransition] = {}
    since: tuple[datetime, ...] = ()
    counts: Counter[_Key] = Counter()
    for one in transitions:
        kind = one.what, one.resource, one.socket
        if one.exact:
            since, counts = (one.at,), Counter()
            by_key[*kind, one.at] = one
        else:
            counts[kind] += 1
            by_key[*kind, *since, counts[kind]] = one
    return by_key
