"""How far the API server's clock is ahead of the node's, from the `Date` of its answers."""

from collections.abc import Callable
from datetime import datetime, timedelta
from email.utils import parsedate_to_datetime

_GRAIN = timedelta(seconds=1)
_SLOWEST = timedelta(seconds=4)
"""A slower answer is too imprecise. It may also mean that the node's clock was set meanwhile."""
_FARTHEST = timedelta(days=36525)
"""A node without a battery-backed clock boots in 1970; no skew is a century."""


class ServerClock:
    """Compares the two clocks at every answer. Connections of several threads may share one."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        """`now`: the node's wall clock."""
        self.now = now
        self._skew: timedelta | None = None

    @property
    def skew(self) -> timedelta | None:
        """The last known skew; its error is half a second and half the round trip, at most 2.5 s. None: not known."""
        return self._skew

    def record(self, date: str | None, sent: datetime, received: datetime) -> None:
        """Take an answer's `Date`, and the node's time when the request was sent and the answer received.

        The server truncates its time to the second, and wrote it between the two: their middle is the best estimate.
        """
        round_trip = received - sent
        if not timedelta(0) <= round_trip <= _SLOWEST or date is None:
            return
        try:
            skew = parsedate_to_datetime(date) + _GRAIN / 2 - (sent + round_trip / 2)
        except (ValueError, TypeError, OverflowError):
            # Not a date, or one without a zone, from an odd proxy: reading pods does not depend on it.
            return
        if abs(skew) <= _FARTHEST:
            self._skew = skew
