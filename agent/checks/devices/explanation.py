"""What an explanation of a rejection is made of."""

from datetime import datetime
from typing import NamedTuple

from agent.model.rejections import RejectionCause


class Explanation(NamedTuple):
    cause: RejectionCause
    evidence: str  # in words


class Window(NamedTuple):
    earliest: datetime  # it happened then or later
    latest: datetime  # and before that


def unverified(reason: str) -> Explanation:
    return Explanation(RejectionCause.UNVERIFIED, reason)
