"""Event types: what happens to sandboxes and their addresses.

Events are recorded one at a time, so their order is reliable: a call is recorded before it starts, a result after the
call returned. Times are seconds of the monotonic clock.
"""

from dataclasses import dataclass
from enum import StrEnum


class Action(StrEnum):
    """What a thread did, or is about to do, with a sandbox."""

    CREATED = "created"
    """docker knows the container: it may own an address from now on."""
    ADDED = "ADD returned"
    EXHAUSTED = "ADD found no address"
    KILLED = "ADD killed"
    """Recorded after reading the store: a file with this sandbox's id is its reservation."""
    DEL_CALLED = "DEL called"
    DELETED = "DEL returned"
    RM_CALLED = "rm called"
    REMOVED = "rm returned"


@dataclass(frozen=True, slots=True)
class ActionEvent:
    at: float
    action: Action
    sandbox: str
    ip: str = ""
    """For `ADDED` only."""


@dataclass(frozen=True, slots=True)
class FileRead:
    """The reservation file of one address, read between `since` and `at`."""

    at: float
    since: float
    ip: str
    found: str | None
    """The container id in it; empty for an empty file, None for no file."""


@dataclass(frozen=True, slots=True)
class Claim:
    """What a cleaner claims to have done, recorded after its run. Shown to people, not used as evidence."""

    at: float
    ip: str
    claim: str


Event = ActionEvent | FileRead | Claim


class ViolationKind(StrEnum):
    """The kinds of violation."""

    TAKEN = "taken from its holder"
    HELD_TWICE = "held twice"
    UNRECLAIMED = "leak never reclaimed"
    LEFT_OVER = "left over"


@dataclass(frozen=True, slots=True)
class Violation:
    at: float
    kind: ViolationKind
    ip: str
    sandbox: str
    detail: str
    trail: tuple[str, ...]
    """The last events of the address with their times."""

    def line(self, began: float) -> str:
        """Format it in one line. `began`: start of the run."""
        whose = self.sandbox[:12] or "no container"
        return f"{self.at - began:8.3f} s  {self.kind}: {self.ip} of {whose}: {self.detail} [{'; '.join(self.trail)}]"
