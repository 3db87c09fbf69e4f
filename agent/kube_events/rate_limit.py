"""How often Events are sent: new ones at once, lasting ones every five minutes, and never many at a time. Pure."""

from collections.abc import Iterable
from datetime import timedelta
from typing import Final

from agent.kube_events.messages import EventSpec
from agent.model.token_bucket import TokenBucket

REPEAT_AFTER: Final = timedelta(minutes=5)
BURST: Final = 25
"""As in client-go, but for the whole agent, not for each object: 200 rejected pods are 200 objects."""
TOKEN_INTERVAL: Final = timedelta(seconds=12)
"""Until the bucket gets one token back: five a minute for the whole agent."""
_FORGET_AFTER: Final = timedelta(hours=1)
"""When the server has expired the Event too."""


class RateLimiter:
    """When each Event was sent, and one bucket of tokens. Times are of the boot clock, which is never set."""

    def __init__(self, repeat_after: timedelta = REPEAT_AFTER) -> None:
        self._repeat_after = repeat_after
        self._bucket = TokenBucket(BURST, TOKEN_INTERVAL)
        self._sent: dict[str, tuple[timedelta, bool]] = {}
        """When, and whether as critical."""
        self._waiting: frozenset[str] = frozenset()

    def due(self, event_specs: Iterable[EventSpec], now: timedelta) -> tuple[list[EventSpec], int]:
        """Return what to send now, and how many others are over the limit.

        Those are counted once each, and are sent later if they are still true.
        """
        self._bucket.fill(now)
        self._sent = {name: sent for name, sent in self._sent.items() if now - sent[0] < _FORGET_AFTER}
        wanted = sorted((one for one in event_specs if self._is_due(one, now)), key=self._priority)
        tokens = self._bucket.take(len(wanted))
        due, rest = wanted[:tokens], wanted[tokens:]
        self._sent |= {one.name: (now, one.critical) for one in due}
        over_limit = sum(not one.lasting or one.name not in self._waiting for one in rest)
        self._waiting = frozenset(one.name for one in rest if one.lasting)
        return due, over_limit

    def _is_due(self, one: EventSpec, now: timedelta) -> bool:
        sent = self._last_sent(one)
        return not one.lasting or sent is None or now - sent >= self._repeat_after

    def _priority(self, one: EventSpec) -> tuple[bool, timedelta]:
        # What does not last can be sent only now; then what was never sent, then what was sent longest ago.
        return one.lasting, self._last_sent(one) or timedelta.min

    def _last_sent(self, one: EventSpec) -> timedelta | None:
        """Return when it was sent; None if never, or not yet as critical."""
        at, as_critical = self._sent.get(one.name, (None, True))
        return at if as_critical or not one.critical else None
