"""How far the API server's clock is ahead of the node's, from the `Date` of its answers."""

from collections.abc import Callable
from datetime import datetime, timedelta
from email.utils import parsedate_to_datetime

_GRAIN = timedelta(seconds=1)
_SLOWEST = timedelta(seconds=4)
"""An answer on its way for longer says too little. It also tells a node's clock that was set meanwhile."""


_FARTHEST = timedelta(days=36525)
"""A node without a clock of its own boots in 1970; nothing is a century off."""


class ServerClock:
    """Compares the two clocks at every answer. Connections of several threads may tell one of these."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        """`now`: the node's wall clock."""
        self.now = now
        self._skew: timedelta | None = None

    @property
    def skew(self) -> timedelta | None:
        """The last known skew, off by half a second and half the answer's way at most: 2.5 s. None: not known."""
        return self._skew

    def told(self, date: str | None, asked: datetime, heard: datetime) -> None:
        """Take an answer's `Date`, and the node's time before the question and after the answer's head.

        The server cuts its time to the second, and wrote it somewhere in between: the middle of both is the best guess.
        """
        way = heard - asked
        if not timedelta(0) <= way <= _SLOWEST or date is None:
            return
        try:
            skew = parsedate_to_datetime(date) + _GRAIN / 2 - (asked + way / 2)
        except (ValueError, TypeError, OverflowError):
            # No date, or one without its zone: an odd proxy's, and nothing that reading pods depends on.
            return
        if abs(skew) <= _FARTHEST:
            self._skew = skew
