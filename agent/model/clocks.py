"""The clocks of a node: their present reading, and how far times by different clocks may differ."""

from datetime import datetime, timedelta
from typing import NamedTuple


class Moment(NamedTuple):
    """The present time by both clocks of the node."""

    wall: datetime
    uptime: timedelta  # by the boot clock, which nobody sets
