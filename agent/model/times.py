"""The modification time of a file as a datetime. Pure."""

from datetime import UTC, datetime, timedelta
from typing import Final

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def from_mtime(ns: int) -> datetime:
    """Return the time to the microsecond; raises OverflowError for a year that the calendar does not have."""
    return _EPOCH + timedelta(microseconds=ns // 1000)
