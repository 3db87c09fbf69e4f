"""What is known of the API server itself: its version, and how far its clock is ahead of the node's."""

import json
import re
from collections.abc import Callable
from datetime import datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Final

from agent.sources.collector import Moment

_VERSION: Final = re.compile(r"v[0-9]{1,4}\.[0-9]{1,4}\.[0-9]{1,6}(?:[-+.][A-Za-z0-9.+_-]{0,60})?")
"""`v1.20.2`, `v1.18.9-eks-d1db3c`, `v1.9.2+coreos.0`. It is printed to terminals, so nothing else is accepted."""
_DATE_RESOLUTION: Final = timedelta(seconds=1)
_SLOWEST: Final = timedelta(seconds=4)
"""A slower answer is too imprecise. It may also mean that the node's clock was set meanwhile."""
_LARGEST_SKEW: Final = timedelta(days=36525)
"""A node without a battery-backed clock boots in 1970; no skew is a century."""


class ServerInfo:
    """What the connections to one API server learn about it, in any thread."""

    def __init__(self, now: Callable[[], Moment]) -> None:
        """`now`: the clocks of the node."""
        self.now = now
        self.version = ""
        """Empty: not known."""
        self.skew: timedelta | None = None
        """Its error is half a second and half the round trip, at most 2.5 s. None: not known."""

    def record_date(self, date: str | None, sent: datetime, received: datetime) -> None:
        """Take an answer's `Date`, and the node's time when the request was sent and the answer received.

        The server truncates its time to the second, and wrote it between the two: their middle is the best estimate.
        """
        round_trip = received - sent
        if not timedelta(0) <= round_trip <= _SLOWEST or date is None:
            return
        try:
            skew = parsedate_to_datetime(date) + _DATE_RESOLUTION / 2 - (sent + round_trip / 2)
        except (ValueError, TypeError, OverflowError):
            # Not a date, or a date without a zone, from an odd proxy: reading pods does not depend on it.
            return
        if abs(skew) <= _LARGEST_SKEW:
            self.skew = skew


def parse_version(body: bytes) -> str:
    """Read an answer of `/version`; empty if it has no version."""
    try:
        version = json.loads(body)["gitVersion"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return ""
    return version if isinstance(version, str) and _VERSION.fullmatch(version) else ""
