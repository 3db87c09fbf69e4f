"""How often Events are sent: new ones at once, lasting ones every five minutes, and never many at a time. Pure."""

from collections.abc import Iterable
from datetime import timedelta
from typing import Final, TypeAlias

from agent.kube_events.messages import EventSpec
from agent.model.token_bucket import TokenBucket

REPEAT_AFTER: Final = timedelta(minutes=5)
BURST: Final = 25
"""As in client-go, but for the whole agent, not for each object: 200 rejected pods are 200 objects."""
TOKEN_INTERVAL: Final = timedelta(seconds=12)
"""Until the bucket gets one token back: five a minute for the whole agent."""
_FORGET_AFTER: Final = timedelta(hours=1)
"""When the server has expired the Event too."""

_Key: TypeAlias = tuple[str, bool]


def _key(one: EventSpec) -> _Key:
    return one.name, one.critical


class RateLimiter:
    """When each Event was sent, and one bucket of tokens. Times are of the boot clock, which is never set."""

    def __init__(self, repeat_after: timedelta = REPEAT_AFTER) -> None:
        self._repeat_after = repeat_after
        self._bucket = TokenBucket(BURST, TOKEN_INTERVAL)
        self._sent: dict[_Key, timedelta] = {}
        self._waiting: frozenset[_Key] = frozenset()

    def due(self, event_specs: Iterable[EventSpec], now: timedelta) -> tuple[list[EventSpec], int]:
        """Return what to send now, and how many others are over the limit.

        Those are counted once each, and are sent later if they are still true.
        """
        self._bucket.fill(now)
        self._sent = {key: at for key, at in self._sent.items() if now - at < _FORGET_AFTER}
        wanted = sorted((one for one in event_specs if self._is_due(one, now)), key=self._priority)
        tokens = self._bucket.take(len(wanted))
        due, rest = wanted[:tokens], wanted[tokens:]
        self._sent |= {_key(one): now for one in due}
        over_limit = sum(not one.lasting or _key(one) not in self._waiting for one in rest)
        self._waiting = frozenset(_key(one) for one in rest if one.lasting)
        return due, over_limit

    def _is_due(self, one: EventSpec, now: timedelta) -> bool:
        sent = self._sent.get(_key(one))
        return not one.lasting or sent is None or now - sent >= self._repeat_after

    def _priority(self, one: EventSpec) -> tuple[bool, timedelta]:
        # What does not last can be sent only now; then what was never sent, then what was sent longest ago.
        return one.lasting, self._sent.get(_key(one), timedelta.min)
