"""How often is told: what is new at once, what lasts every five minutes, and never many at a time. Pure."""

from collections.abc import Iterable
from datetime import timedelta
from typing import Final

from agent.kube_events.messages import EventSpec

AGAIN: Final = timedelta(minutes=5)
BURST: Final = 25
"""As client-go has it; it counts for each object apart, and 200 refused pods are as many objects."""
ONE_IN: Final = timedelta(seconds=12)
"""What is given back to the bucket: five a minute, for all that one agent says."""
_FORGOTTEN: Final = timedelta(hours=1)
"""When the server has forgotten too."""


class RateLimiter:
    """What was told when, and one bucket of tokens for the whole agent. Spans are of the boot clock, never set."""

    def __init__(self, again: timedelta = AGAIN) -> None:
        self._again = again
        self._tokens, self._filled_at = float(BURST), timedelta(0)
        self._told: dict[str, timedelta] = {}
        self._waiting: frozenset[str] = frozenset()

    def due(self, event_specs: Iterable[EventSpec], now: timedelta) -> tuple[list[EventSpec], int]:
        """Return what is to be told now, and how many more are due for which there is no token.

        Those are counted once each, and have their turn later, unless they will not be true any more.
        """
        self._fill(now)
        self._told = {name: at for name, at in self._told.items() if now - at < _FORGOTTEN}
        wanted = sorted((one for one in event_specs if self._is_due(one, now)), key=self._turn)
        told, left = wanted[: int(self._tokens)], wanted[int(self._tokens) :]
        self._tokens -= len(told)
        self._told |= {one.name: now for one in told}
        missed = sum(not one.lasting or one.name not in self._waiting for one in left)
        self._waiting = frozenset(one.name for one in left if one.lasting)
        return told, missed

    def _fill(self, now: timedelta) -> None:
        self._tokens = min(float(BURST), self._tokens + (now - self._filled_at) / ONE_IN)
        self._filled_at = now

    def _is_due(self, one: EventSpec, now: timedelta) -> bool:
        return not one.lasting or one.name not in self._told or now - self._told[one.name] >= self._again

    def _turn(self, one: EventSpec) -> tuple[bool, timedelta]:
        # What happened can be told only now; then what was never told, then what was told longest ago.
        return one.lasting, self._told.get(one.name, timedelta.min)
