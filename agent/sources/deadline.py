"""A time limit for a source, whose errors are those of sources."""

from agent import deadline
from agent.sources.source_error import SourceError


class Late(SourceError):
    """No response in time, or an earlier call still runs."""


class Deadline(deadline.Deadline):
    """Raises Late, SourceError if no thread can be started, and what the call raises."""

    late = Late
    failed = SourceError
