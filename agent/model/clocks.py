"""The clocks of a node: their present reading, and how far times by different clocks may differ.

A tolerance is an upper bound. A larger difference is not an inaccuracy: a clock was set, or the two
times are of different events.
"""

from datetime import datetime, timedelta
from typing import Final, NamedTuple

WHOLE_SECOND: Final = timedelta(seconds=1)
"""The kubelet, the API server and HTTP's `Date` cut times to whole seconds."""
PROCESS_START: Final = timedelta(seconds=2)
"""The start of a process. It is counted from the boot, which the kernel gives to the second."""
CONTAINER_START: Final = timedelta(seconds=2)
"""The start of a container as the time of its pod's admission: a whole second and a moment."""
CLOCK_STEP: Final = timedelta(seconds=5)
"""The wall clock's progress in comparison with the boot clock's. Slewing moves both alike."""
FILE_AHEAD: Final = timedelta(seconds=10)
"""A file's time ahead of its snapshot, whose time is taken before the first source is read."""

SLOWEST_ANSWER: Final = timedelta(seconds=4)
"""The round trip of an answer whose `Date` shows the API server's clock."""
SKEW_ERROR: Final = (SLOWEST_ANSWER + WHOLE_SECOND) / 2
"""The measured difference to the API server's clock, whose `Date` is from within a round trip."""
STATUS_DELAY: Final = timedelta(seconds=5)
"""From the kubelet's rejection of a pod to the API server's time of the pod's new status."""


class Moment(NamedTuple):
    """The present time by both clocks of the node."""

    wall: datetime
    uptime: timedelta  # by the boot clock, which nobody sets
