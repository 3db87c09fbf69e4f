"""What the API server's lists and watches show of the versions that it hands out. Facts, no verdict."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

LASTS: Final = timedelta(hours=1)
"""For how long something once shown is still true of the server, by the boot clock; watches end within minutes."""


class Evidence(StrEnum):
    DELETED_BELOW = "deleted_below"
    """A DELETED event with a version lower than one that the same uninterrupted watch began with or had shown."""
    REPLAYED = "replayed"
    """An ADDED or MODIFIED event no newer than what its watch began with, or of an object that was deleted."""
    OLDER_LIST = "older_list"
    """A list out of a cache was older than what had been heard: one of several servers lags behind."""
    RV_RESET = "rv_reset"
    """A list read through to etcd was older: etcd was restored from a backup, and it is true."""


@dataclass(frozen=True, slots=True)
class Watch:
    """What was seen of one kind on one watched resource, again and again with less than `LASTS` in between."""

    resource: str
    evidence: Evidence
    before: int
    """The version heard before; this and the next are of the last time."""
    version: int
    """The older one that was handed out after it."""
    count: int
    first: datetime
    last: datetime
    last_uptime: timedelta
    """The boot clock at `last`."""
    server_version: str = ""
    """What the server called its version then; empty: not known."""
