"""The errors of the API server, without the client library that meets them."""

import re
from datetime import datetime, timedelta
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Final

from agent.sources.source_error import SourceError

UNAUTHORIZED: Final = 401
FORBIDDEN: Final = 403
NOT_FOUND: Final = 404
LONGEST_RETRY_AFTER: Final = timedelta(minutes=2)
"""As long as data stay valid by default: no server should ask for more, and a proxy's mistake would
blind the agent."""
_SECONDS: Final = re.compile(r"[0-9]{1,9}")


class ApiError(SourceError):
    """The API server answered with an error."""

    def __init__(self, status: int, text: str, retry_after: timedelta = timedelta(0)) -> None:
        """`retry_after`: for how long the server wants no request."""
        super().__init__(f"API server: {text}")
        self.status = status
        self.retry_after = retry_after

    @property
    def keeps_connection(self) -> bool:
        """Whether another connection, or other credentials, would get the same answer.

        It would not after 401, and after an error of the server: behind a load balancer, another
        server may be well.
        """
        is_refusal = self.status < HTTPStatus.INTERNAL_SERVER_ERROR
        return is_refusal and self.status != UNAUTHORIZED


def parse_retry_after(retry_after: str | None, date: str | None, now: datetime | None) -> timedelta:
    """Return the time of a `Retry-After`, in seconds or until a date (RFC 9110): at most 2 minutes.

    `date`: the response's `Date`, because the server's clock may differ from `now`, the node's. If
    both are missing, a date says nothing.
    """
    text = (retry_after or "").strip()
    wait = timedelta(0)
    if _SECONDS.fullmatch(text):
        wait = timedelta(seconds=int(text))
    else:
        until = _http_date(text)
        since = _http_date(date or "") or now
        if until and since:
            wait = until - since

    return min(max(wait, timedelta(0)), LONGEST_RETRY_AFTER)


def _http_date(text: str) -> datetime | None:
    try:
        date = parsedate_to_datetime(text)
    except (ValueError, TypeError, OverflowError):
        return None
    return date if date.tzinfo is not None else None
