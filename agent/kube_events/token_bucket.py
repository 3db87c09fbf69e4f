"""Limits how often something is done: so many times together, then once in each interval. Pure."""

from datetime import timedelta


class TokenBucket:
    """It is full at first. Times are of the boot clock, which is never set."""

    def __init__(self, size: int, interval: timedelta) -> None:
        """`interval`: until the bucket gets a token back."""
        self._size = float(size)
        self._interval = interval
        self._tokens = self._size
        self._filled_at = timedelta(0)

    def fill(self, now: timedelta) -> None:
        """Put back the tokens of the time since the last call."""
        self._tokens = min(self._size, self._tokens + (now - self._filled_at) / self._interval)
        self._filled_at = now

    def take(self, wanted: int = 1) -> int:
        """Take as many tokens as there are; return how many."""
        taken = min(wanted, int(self._tokens))
        self._tokens -= taken
        return taken
