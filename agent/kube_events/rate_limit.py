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

    def __init__(self) -> None:
        self._bucket = TokenBucket(BURST, TOKEN_INTERVAL)
        self._sent: dict[str, tuple[timedelta, tuple[bool, str]]] = {}
        """When, and how severe: whether critical, and the type (`Normal` sorts before `Warning`)."""
        self._waiting: frozenset[str] = frozenset()

    def due(self, specs: Iterable[EventSpec], now: timedelta) -> tuple[list[EventSpec], int]:
        """Return what to send now, and how many others are over the limit.

        Those are counted once each, and are sent later if they are still true.
        """
        self._bucket.fill(now)
        self._sent = {name: sent for name, sent in self._sent.items() if now - sent[0] < _FORGET_AFTER}
        wanted = sorted((spec for spec in specs if self._is_due(spec, now)), key=self._priority)
        tokens = self._bucket.take(len(wanted))
        due, rest = wanted[:tokens], wanted[tokens:]
        self._sent |= {spec.name: (now, (spec.critical, spec.type)) for spec in due}
        over_limit = sum(not spec.lasting or spec.name not in self._waiting for spec in rest)
        self._waiting = frozenset(spec.name for spec in rest if spec.lasting)
        return due, over_limit

    def _is_due(self, spec: EventSpec, now: timedelta) -> bool:
        sent = self._last_sent(spec)
        return not spec.lasting or sent is None or now - sent >= REPEAT_AFTER

    def _priority(self, spec: EventSpec) -> tuple[bool, timedelta]:
        # What is critical, and what can be sent only now; of each, what was never sent, then what was sent longest ago.
        return spec.lasting and not spec.critical, self._last_sent(spec) or timedelta.min

    def _last_sent(self, spec: EventSpec) -> timedelta | None:
        """Return when it was sent; None if never, or if it is more severe now."""
        at, severity = self._sent.get(spec.name, (None, (False, "")))
        return at if severity >= (spec.critical, spec.type) else None
