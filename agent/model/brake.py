"""The brake: an object of the API server that stops every release while it exists."""

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from agent.model.text import format_time, truncate

MAX_AGE_SECONDS: Final = 3.0
"""How old a reading of the brake may be when a release begins."""
NAME: Final = "nodeleak-brake"
"""What deploy/ calls the ConfigMap."""


@dataclass(frozen=True, slots=True)
class Brake:
    """What the API server said about the object. It exists while the brake is on."""

    name: str  # `namespace/name`
    on: bool
    reason: str = ""  # of whoever set it; empty: none was given
    since: datetime | None = None  # by the API server's clock; None: it is off, or not known

    @property
    def description(self) -> str:
        """Which brake is on, since when and why, in one line."""
        state = f"has been on since {format_time(self.since)}" if self.since else "is on"
        reason = f": {truncate(self.reason)}" if self.reason else ""
        return f"the brake {self.name} {state}{reason}"
