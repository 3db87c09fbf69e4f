"""Evidence, in the API server's lists and watches, that it sends old versions."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

EVIDENCE_LASTS: Final = timedelta(hours=1)
"""How long evidence stays valid, by the boot clock; watches end within minutes."""


class Evidence(StrEnum):
    DELETED_BELOW = "deleted_below"
    """A DELETED event was older than what its watch had received, or was started from."""
    REPLAYED = "replayed"
    """An ADDED or MODIFIED event was no newer than its watch, or of a deleted object."""
    OLDER_LIST = "older_list"
    """A list from a cache was older than what had been received: some server lags."""
    RV_RESET = "rv_reset"  # a list read through to etcd was older: etcd was restored from a backup


@dataclass(frozen=True, slots=True)
class Watch:
    """Evidence of a kind on a watched resource. It was repeated within `EVIDENCE_LASTS` each time."""

    resource: str
    evidence: Evidence
    before: int  # the version received before; this and the next version are of the last occurrence
    version: int  # the older version received after it
    count: int
    first: datetime
    last: datetime
    last_uptime: timedelta  # the boot clock at `last`
    server_version: str = ""  # the server's version then; empty: not known
